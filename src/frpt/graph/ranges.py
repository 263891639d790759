"""The interval of values each op can produce (a ReLU none below zero): a target outside it cannot be attained.

Called by ``frpt.reverse.network``, once for each captured graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

aten = torch.ops.aten
Interval = tuple[float, float]
INF = math.inf
ALL: Interval = (-INF, INF)

_CONSTANT: dict[Any, Interval] = {
    aten.relu.default: (0.0, INF),
    aten.relu6.default: (0.0, 6.0),
    aten.sigmoid.default: (0.0, 1.0),
    aten.hardsigmoid.default: (0.0, 1.0),
    aten.tanh.default: (-1.0, 1.0),
    aten.softmax.int: (0.0, 1.0),
    aten._softmax.default: (0.0, 1.0),
    aten.log_softmax.int: (-INF, 0.0),
    aten._log_softmax.default: (-INF, 0.0),
    aten.log_sigmoid.default: (-INF, 0.0),
    aten.softplus.default: (0.0, INF),
    aten.exp.default: (0.0, INF),
    aten.sqrt.default: (0.0, INF),
    aten.abs.default: (0.0, INF),
    aten.square.default: (0.0, INF),
    aten.silu.default: (-0.27846454276107374, INF),
    aten.mish.default: (-0.30884341303725034, INF),
    aten.hardswish.default: (-0.375, INF),
    aten.selu.default: (-1.7580993408473766, INF),
}

_KEEPS = {
    getattr(aten, name)
    for name in [
        "view",
        "reshape",
        "flatten",
        "unflatten",
        "permute",
        "transpose",
        "t",
        "clone",
        "contiguous",
        "alias",
        "detach",
        "dropout",
        "squeeze",
        "unsqueeze",
        "select",
        "slice",
        "index",
        "index_select",
        "expand",
        "repeat",
        "roll",
        "flip",
        "pixel_shuffle",
        "pixel_unshuffle",
        "narrow",
        "unbind",
        "split",
        "split_with_sizes",
        "chunk",
        "mean",
        "amax",
        "cat",
        "stack",
        "maximum",
        "minimum",
        "channel_shuffle",
        "native_channel_shuffle",
        "_to_copy",
        "to",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
        "_adaptive_avg_pool2d",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_trilinear3d",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad1d",
        "replication_pad2d",
        "_unsafe_view",
        "native_dropout",
    ]
}
"""Averages, selections and rearrangements: the result lies in the hull of what goes in."""


def ranges(nodes: list[Node]) -> dict[Node, Interval]:
    """The interval of every tensor-valued node, in execution order."""
    intervals: dict[Node, Interval] = {}
    for node in nodes:
        intervals[node] = _interval(node, lambda n: intervals.get(n, ALL))
    return intervals


def _interval(node: Node, of: Callable[[Node], Interval]) -> Interval:
    op = node.target
    if op in _CONSTANT:
        return _CONSTANT[op]
    name = op_overload_packet(op)
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor | list | tuple)]
    if name in _KEEPS or getattr(op, "__name__", "") == "getitem":
        parts = [of(n) for n in tensors]
        return (min(p[0] for p in parts), max(p[1] for p in parts)) if parts else ALL
    if op is aten.gelu.default:
        return (-0.1700407505712541 if node.kwargs.get("approximate") == "tanh" else -0.16997120747990369, INF)
    if name in (aten.hardtanh, aten.clamp, aten.clamp_min, aten.clamp_max):
        return _clamp(node, of)
    if name in (aten.elu, aten.celu):
        alpha = node.args[1] if len(node.args) > 1 else node.kwargs.get("alpha", 1.0)
        return (-float(alpha), INF) if isinstance(alpha, int | float) and alpha > 0 else ALL
    if name is aten.constant_pad_nd:
        fill = float(node.args[2]) if len(node.args) > 2 else 0.0  # type: ignore[arg-type]
        low, high = of(tensors[0])
        return (min(low, fill), max(high, fill))
    if name is aten.mul and len(tensors) == 2:  # a gate in [0, ∞) times a feature in [0, ∞)
        return (0.0, INF) if all(of(n)[0] >= 0 for n in tensors) else ALL
    if name is aten.add and len(tensors) == 2 and not node.kwargs:
        (a, b), (c, d) = of(tensors[0]), of(tensors[1])
        return (a + c, b + d)
    if name is aten.pow and isinstance(node.args[1], int) and node.args[1] % 2 == 0:
        return (0.0, INF)
    return ALL


def _clamp(node: Node, of: Callable[[Node], Interval]) -> Interval:
    names = ("min", "max")
    if op_overload_packet(node.target) is aten.clamp_max:
        names = ("max", "min")
    given: dict[str, Any] = dict(zip(names, node.args[1:], strict=False)) | {
        k.removesuffix("_val"): v for k, v in node.kwargs.items()
    }
    if op_overload_packet(node.target) is aten.hardtanh:
        given = {"min": -1.0, "max": 1.0} | given
    low, high = given.get("min"), given.get("max")
    if isinstance(low, Node) or isinstance(high, Node):
        return ALL
    below, above = of(node.all_input_nodes[0])
    return (
        max(below, -INF if low is None else float(low)),
        min(above, INF if high is None else float(high)),
    )


def op_overload_packet(op: Any) -> Any:
    return getattr(op, "overloadpacket", op)
