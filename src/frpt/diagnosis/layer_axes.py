"""Where a layer's channels and positions are: decided from the ops around it, else from shapes.

The nearest op before the layer, then after it, that has an opinion (a convolution: channels first; a linear map:
channels last) decides, and views and permutes on the way are followed. Called by ``examination.py`` for the sums per
channel and position, and by ``responses.py`` for the maps.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Node

from frpt.common.batch_axis import BatchAxis
from frpt.diagnosis.findings import Kind
from frpt.errors import OptionError
from frpt.graph.capture import Captured, is_float, op_name
from frpt.reverser import Reverser

FIRST, LAST = "channels_first", "channels_last"
_FIRST = re.compile(r"(slow_)?conv|(cudnn_)?batch_norm|group_norm|instance_norm|\w*pool\dd|upsample|pixel_(un)?shuffle")
_LAST = re.compile(
    r"(linear|layer_norm|rms_norm|embedding|addmm|mm|bmm|matmul|lstm|gru|scaled_dot_product\w*attention\w*)$"
)
_CONV = re.compile(r"(slow_)?conv")
_VIEWS = {"view", "unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"}
_REDUCES = {"select", "mean", "sum", "amax", "amin", "var", "std", "logsumexp"}
_EXTRA = 9  # tokens that may stand in front of the patches: a class token and up to 8 registers (DINOv2 has 4)
_FAR = (
    64  # ops to follow at most in search of one that says where channels are; keeps the search short in deep networks
)


@dataclass(frozen=True)
class LayerAxes:
    """One sample of a layer's value. shape: of it, as ``Reverser.sample_shape`` has it.

    channel: its channel axis, -1 for a lone number. positions: its position axes, in order.
    grid: sizes of the map the positions lie on: (h, w), (l,) or (d, h, w); () for a vector. Tokens lie on (h, w), or on
    (1, t) where there is no image behind them. extra: class and register tokens in front of those on the grid.
    """

    kind: Kind
    shape: tuple[int, ...]
    channel: int
    positions: tuple[int, ...]
    grid: tuple[int, ...]
    extra: int = 0

    @property
    def channels(self) -> int:
        """How many there are."""
        return math.prod(self.shape) if self.kind == "vector" else self.shape[self.channel]

    @property
    def sites(self) -> tuple[int, ...]:
        """Sizes of the positions, class and register tokens among them: those of ``split`` but the first two."""
        if self.kind == "vector":
            return (0,)
        return self.grid if self.kind == "map" else (math.prod(self.shape[i] for i in self.positions),)

    def split(self, front: Tensor) -> Tensor:
        """(b, *shape), as ``rev.batch_axis(at).front`` has it, as (b, c, p…); a vector (b, c), tokens (b, c, t).

        Position axes stay as they are but for tokens, which lie on one axis (class and register tokens first).
        """
        b = front.shape[0]
        if self.kind == "vector":
            return front.reshape(b, self.channels)
        moved = front.movedim(self.channel + 1, 1)
        if self.kind == "tokens":
            return moved.reshape(b, self.channels, -1)
        return moved.reshape(b, self.channels, *self.grid)

    def on_grid(self, front: Tensor) -> Tensor:
        """(b, *shape) as (b, c, *grid): tokens as the map they come from, without class and register tokens."""
        split = self.split(front)
        if self.kind != "tokens":
            return split
        return split[..., self.extra :].reshape(*split.shape[:2], *self.grid)

    def off_grid(self, front: Tensor) -> Tensor:
        """The class and register tokens: (b, c, extra)."""
        split = self.split(front)
        return split[..., : self.extra] if self.kind == "tokens" else split.new_empty(*split.shape[:2], 0)


def axes(rev: Reverser, layer: str, layouts: Mapping[str, str] | None = None) -> LayerAxes:
    """The axes of a layer. layouts: "channels_first" or "channels_last" for layers where the graph misleads."""
    captured, node = rev.node(layer)
    shape, samples = rev.sample_shape(layer), rev.batch_axis(layer)
    folds = () if samples == BatchAxis() else (samples.dim, samples.dim + 1)
    channel = _chosen(layer, shape, layouts)
    if channel is None:
        channel = _inside(_channel(captured, node), samples)
    if channel is None:
        channel = 0 if len(shape) - len(folds) >= 3 and not folds else len(shape) - 1
    positions = tuple(i for i, n in enumerate(shape) if i != channel and not (i in folds and n == 1))
    sizes = tuple(shape[i] for i in positions)
    if math.prod(sizes) == 1:
        return LayerAxes("vector", shape, channel, (), ())
    if samples.outer * samples.inner == 1 and (len(positions) > 1 or channel < positions[0]):
        return LayerAxes("map", shape, channel, positions, sizes)
    if len(positions) > 1:  # windows of tokens: no map in reading order
        return LayerAxes("tokens", shape, channel, positions, (1, math.prod(sizes)))
    grid, extra = _grid(captured, node, sizes[0])
    return LayerAxes("tokens", shape, channel, positions, grid, extra)


def _chosen(layer: str, shape: tuple[int, ...], layouts: Mapping[str, str] | None) -> int | None:
    """The channel axis the user says."""
    layout = (layouts or {}).get(layer)
    if layout not in (None, FIRST, LAST):
        raise OptionError(f"the layout of {layer!r} must be {FIRST!r} or {LAST!r}, got {layout!r}")
    return None if layout is None else 0 if layout == FIRST else len(shape) - 1


def _inside(axis: int | None, samples: BatchAxis) -> int | None:
    """An axis of the value as an axis of one sample."""
    if axis is None or axis == samples.dim:
        return None
    if samples == BatchAxis():
        return axis - 1
    return axis if axis < samples.dim else axis + 1


def _channel(captured: Captured, node: Node) -> int | None:
    """The channel axis of a node's value, from the nearest op before or after that has an opinion."""
    before = _before(captured, node, _FAR)
    return before if before is not None else _after(captured, node, _FAR)


def _before(captured: Captured, node: Node, far: int) -> int | None:
    op = node.args[0] if node.target is operator.getitem else node
    if not isinstance(op, Node) or far == 0:
        return None
    if (opinion := _opinion(op, _rank(node))) is not None:
        return opinion
    for source in op.all_input_nodes:
        if source in captured.from_input and is_float(source):
            axis = _before(captured, source, far - 1)
            if axis is not None and (kept := _carried(op, source, node)[axis]) is not None:
                return kept
    return None


def _after(captured: Captured, node: Node, far: int) -> int | None:
    for user in node.users if far else ():
        if user not in captured.order:
            continue
        if user.args and user.args[0] is node and (opinion := _opinion(user, _rank(node))) is not None:
            return opinion
        results = [u for u in user.users if u.target is operator.getitem] or [user]
        for result in results:
            if is_float(result) and (axis := _after(captured, result, far - 1)) is not None:
                carried = _carried(user, node, result)
                if axis in carried:
                    return carried.index(axis)
    return None


def _opinion(op: Node, rank: int) -> int | None:
    """The channel axis of an op's input and output, where its kind tells."""
    name = op_name(op)
    if _FIRST.match(name):
        return 1 if rank > 1 else None
    if not _LAST.match(name) or (name == "layer_norm" and len(op.args[1]) > 1):  # type: ignore[arg-type]
        return None
    return rank - 1


def _carried(op: Node, source: Node, result: Node) -> list[int | None]:
    """For every axis of ``source`` the axis of ``result`` it becomes; None where it is merged, split or gone."""
    name, before, after = op_name(op), _sizes(source), _sizes(result)
    rank = len(before)
    kept: list[int | None] = list(range(rank))
    if name == "permute":
        dims = [int(d) % rank for d in op.args[1]]  # type: ignore[union-attr, arg-type]
        return [dims.index(i) for i in range(rank)]
    if name in ("transpose", "t"):
        i, j = (int(d) % rank for d in (op.args[1:3] if name == "transpose" else (0, 1)))  # type: ignore[arg-type]
        kept[i], kept[j] = j, i
        return kept
    if name in _VIEWS:
        return [_viewed(before, after, i) for i in range(rank)]
    if name in _REDUCES and len(after) < rank:
        gone = op.args[1] if len(op.args) > 1 else []
        lost = {int(d) % rank for d in (gone if isinstance(gone, list | tuple) else [gone])}  # type: ignore[arg-type]
        return [None if i in lost else i - sum(d < i for d in lost) for i in range(rank)]
    return kept if len(after) == rank else [None] * rank


def _viewed(before: list[Any], after: list[Any], axis: int) -> int | None:
    """Where an axis is after a view: in place if nothing before it changed, or counted from the end."""
    if before[: axis + 1] == after[: axis + 1]:
        return axis
    tail = len(before) - axis
    return len(after) - tail if before[axis:] == after[-tail:] else None


def _sizes(node: Node) -> list[Any]:
    """Sizes that compare without evaluating symbols."""
    return [s if isinstance(s, int) else str(s.node.expr) for s in node.meta["val"].shape]


def _rank(node: Node) -> int:
    return node.meta["val"].dim() if isinstance(node.meta.get("val"), Tensor) else 0


def _grid(captured: Captured, node: Node, tokens: int) -> tuple[tuple[int, int], int]:
    """The (h, w) that tokens come from, and how many more stand in front: by the patch embedding, else the image."""
    behind = sorted(captured.behind(node), key=captured.order.__getitem__, reverse=True)
    for conv in behind:
        sizes = _sizes(conv) if _CONV.match(op_name(conv)) and _rank(conv) == 4 else []
        if sizes and conv in captured.from_input and 0 <= tokens - sizes[2] * sizes[3] <= _EXTRA:
            return (sizes[2], sizes[3]), tokens - sizes[2] * sizes[3]
    images = [n for n in behind if n in captured.inputs and is_float(n) and _rank(n) == 4]
    for image in images:
        _, a, b, c = _sizes(image)
        height, width = (a, b) if c in (1, 3, 4) and a not in (1, 3, 4) else (b, c)
        for extra in range(min(_EXTRA, tokens - 1) + 1):
            h = math.isqrt((tokens - extra) * height // width)
            w = (tokens - extra) // max(h, 1)
            square = h * width == w * height  # patches are
            if h and w and h * w == tokens - extra and square and height % h == 0 == width % w:
                return (h, w), extra
    return (1, tokens), 0
