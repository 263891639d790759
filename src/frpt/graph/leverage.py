"""Layers from which the output cannot be moved: a branch whose last batch norm is zero, or whose layer scale is tiny.

The label wins from no feature of such a layer, and a solver would say so only after many steps. Found by running the
graph again from a feature that is as far from the recorded one as that is long: v = â + ‖â‖ u, u random with ‖u‖ = 1,
and back, v = â − ‖â‖ u. Called by ``frpt.reverse.network`` when a plan is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from frpt.graph.capture import Captured, is_shape, where
from frpt.graph.inputs import Inputs

LEAST = 1e-4
"""Change of the output, relative to its norm, under which it counts as not moved.

A target lies within ten norms of its anchor (``NearestWinning.farthest``), so that about a thousandth of the output is
all that could be had. Layers that matter move it by 0.01 or more; ConvNeXt's branches with a layer scale of 1e-6 by
1e-6, and a branch behind a batch norm of zeros by nothing (tests/test_leverage.py).
"""


def unmoved(captured: Captured, at: Node, inputs: Inputs) -> str:
    """In a sentence, that the output does not follow this layer and where its changes are lost; "" if it does."""
    end = captured.activation()[1]  # saturated probabilities follow nothing
    active, batch = captured.downstream({at}), inputs.batch
    if at is end or end not in active:
        return ""
    plain: dict[Node, Any] = captured.given(inputs)
    changed: tuple[dict[Node, Any], ...] = ({}, {})
    lost: Node | None = None
    follows: dict[Node, bool] = {}
    for node in captured.nodes:
        if node not in plain:
            plain[node] = captured.evaluate(node, plain.__getitem__, batch)
        if node is at:
            for env, sign in zip(changed, (1, -1), strict=True):
                env[node] = _moved(captured, node, plain[node], sign)
            follows[node] = True
        elif node in active and not is_shape(node):
            for env in changed:
                env[node] = captured.evaluate(node, lambda n, env=env: env[n] if n in env else plain[n], batch)  # type: ignore[misc]
            follows[node] = any(_differs(plain[node], env[node]) for env in changed)
            if not follows[node] and any(follows.get(i, False) for i in node.all_input_nodes):
                lost = node
        if node is end:
            break
    if follows[end] or lost is None:
        return ""
    size = max(_relative(plain[end], env[end]) for env in changed)
    much = "not at all" if size == 0 else f"by {size:.0e} of its norm"
    return (
        f"the output hardly follows this layer: a change as large as its feature moves it {much}. What it does is lost "
        f"at {where(lost)}; choose a layer after it, or one that it does not pass"
    )


def _moved(captured: Captured, node: Node, value: Tensor, sign: int) -> Tensor:
    """A feature as far from this one as it is long, the same direction for every sample."""
    samples = captured.batch_axis(node)
    if samples is None:
        return value
    rows = samples.rows(value)
    way = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0)).to(rows)
    way = way / torch.linalg.vector_norm(way.float()).clamp_min(1e-30).to(way)
    length = torch.linalg.vector_norm(rows.float(), dim=1, keepdim=True).to(rows)
    length = torch.where(length > 0, length, rows.shape[1] ** 0.5)
    return samples.back((rows + sign * length * way).reshape(samples.front(value).shape))


def _differs(plain: Any, changed: Any) -> bool:
    """Whether a value has moved by more than ``LEAST``; of several results at once, whether any has."""
    if not isinstance(plain, Tensor):
        return any(_differs(a, b) for a, b in zip(plain, changed, strict=True)) if isinstance(plain, tuple) else True
    if not plain.is_floating_point():
        return not torch.equal(plain, changed)
    return not _relative(plain, changed) < LEAST  # NaN: nothing can be said


def _relative(plain: Tensor, changed: Tensor) -> float:
    """‖changed − plain‖/‖plain‖ over all samples."""
    apart = float(torch.linalg.vector_norm(changed.double() - plain.double()))
    return apart / max(float(torch.linalg.vector_norm(plain.double())), 1e-300) if apart > 0 else 0.0
