"""The weights of a captured network as matrices, and what each sample says of them.

For a linear map or a convolution  z_p = W k_p + b  (p: positions, tokens, uses of a shared weight) the gradient of any
function f of one sample's output is  Σ_p g_p k_pᵀ  with g_p = ∂f/∂z_p. The inputs k and the slopes g of one forward and
one backward pass give it for every sample at once; the bias is a last column of W, with an input of 1.
Called by ``frpt.repairs.memory`` and ``frpt.repairs.nearest_weights``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from frpt.errors import OptionError
from frpt.graph.capture import Captured, module_path
from frpt.graph.inputs import Inputs
from frpt.rules.registry import bind

aten = torch.ops.aten

_CONVOLUTIONS = {
    aten.conv1d.default: 1, aten.conv2d.default: 2, aten.conv3d.default: 3,
    aten.conv1d.padding: 1, aten.conv2d.padding: 2, aten.conv3d.padding: 3,
}  # fmt: skip


@dataclass(frozen=True)
class Windows:
    """The geometry of a convolution: which patches of its input it multiplies."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    def patches(self, x: Tensor) -> Tensor:
        """(b, groups, positions, channels of a group · kernel). x: (b, channels, *space)."""
        x = F.pad(x, [width for pair in reversed(self.padding) for width in pair])
        rank = len(self.kernel)
        for axis, (size, step, gap) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            x = x.unfold(2 + axis, gap * (size - 1) + 1, step)[..., ::gap]
        x = x.unflatten(1, (self.groups, -1)).movedim(2, 2 + rank)  # (b, groups, *out, channels, *kernel)
        return x.flatten(2, 1 + rank).flatten(3)


@dataclass(frozen=True, eq=False)
class Use:
    """One op that multiplies by a weight. windows: of a convolution; None: a linear map on the last axis."""

    node: Node
    source: Node
    windows: Windows | None


@dataclass(frozen=True, eq=False)
class WeightMap:
    """A weight with its bias, and every op that uses them.

    name, bias: in the model. groups, outputs, inputs: of the matrix it is, one for each group; the bias counts as an
    input.
    """

    name: str
    bias: str | None
    weight_node: Node
    bias_node: Node | None
    groups: int
    outputs: int
    inputs: int
    uses: tuple[Use, ...]

    @property
    def nodes(self) -> list[Node]:
        return [node for node in (self.weight_node, self.bias_node) if node is not None]

    def matrix(self, values: Mapping[Node, Tensor]) -> Tensor:
        """(groups, outputs, inputs): the weight, and the bias as its last column."""
        rows = values[self.weight_node].reshape(self.groups, self.outputs, -1)
        if self.bias_node is None:
            return rows
        return torch.cat([rows, values[self.bias_node].reshape(self.groups, self.outputs, 1)], -1)

    def parameters(self, matrix: Tensor, like: Mapping[Node, Tensor]) -> dict[Node, Tensor]:
        """The inverse of ``matrix``: weight and bias with the shapes and types of ``like``."""
        columns = [matrix] if self.bias_node is None else [matrix[..., :-1], matrix[..., -1]]
        return {n: part.reshape(like[n].shape).to(like[n].dtype) for n, part in zip(self.nodes, columns, strict=True)}

    def rows(self, captured: Captured, use: Use, x: Tensor) -> Tensor:
        """k: (b, groups, positions, inputs) of an op's input."""
        axis = captured.batch_axis(use.source)
        assert axis is not None
        x = axis.front(x)
        k = x.reshape(len(x), 1, -1, x.shape[-1]) if use.windows is None else use.windows.patches(x)
        return k if self.bias_node is None else F.pad(k, (0, 1), value=1.0)

    def slopes(self, captured: Captured, use: Use, g: Tensor) -> Tensor:
        """g: (b, groups, positions, outputs) of the gradient by an op's output."""
        axis = captured.batch_axis(use.node)
        assert axis is not None
        g = axis.front(g)
        if use.windows is None:
            return g.reshape(len(g), 1, -1, g.shape[-1])
        by_group: Tensor = g.flatten(2).unflatten(1, (self.groups, -1))
        return by_group.mT


def weight_maps(captured: Captured) -> tuple[list[WeightMap], list[str]]:
    """(the weights of linear maps and convolutions, the names of all other parameters: these are held).

    Of a weight that modules share, the bias is a part of it if they share that, too; else their biases are held.
    """
    uses: dict[int, list[tuple[Node, Node | None, Use]]] = {}
    for node in captured.nodes:
        if (use := _use(captured, node)) is not None:
            uses.setdefault(id(captured.held(use[0])), []).append(use)
    maps = [_weight_map(captured, several) for several in uses.values()]
    moved = {id(captured.held(node)) for m in maps for node in m.nodes}
    return maps, [name for name, p in captured.model.named_parameters() if id(p) not in moved]


def check_any(captured: Captured, maps: Sequence[WeightMap]) -> None:
    """Refuse a network without a weight that can be moved; those that it computes from others are named."""
    if maps:
        return
    error = "this network has no linear map and no convolution whose weights a repair could move"
    nodes = [n for n in captured.nodes if n in captured.from_input and _multiplies(n)]
    if computed := list(dict.fromkeys(filter(None, map(module_path, nodes)))):
        more = " and more" if len(computed) > 4 else ""
        error += (
            f": those of {', '.join(map(repr, computed[:4]))}{more} are computed whenever the network runs, as "
            "weight_norm, spectral_norm and other parametrizations do. Make them weights first, in a model loaded for "
            "this: torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')"
        )
    raise OptionError(error)


def chosen(maps: Sequence[WeightMap], modules: Sequence[str] | None) -> list[WeightMap]:
    """Those inside some modules, by their names; all of them by default."""
    if modules is None:
        return list(maps)
    inside = {name: [m for m in maps if m.name == name or m.name.startswith(f"{name}.")] for name in modules}
    picked = [m for m in maps if any(m in found for found in inside.values())]
    missing = [name for name, found in inside.items() if not found]
    if missing or not picked:
        known = ", ".join(m.name.removesuffix(".weight") for m in maps)
        raise OptionError(f"modules: no weight that can be moved is in {missing or list(modules)}; there are {known}")
    return picked


def _multiplies(node: Node) -> bool:
    return node.target is aten.linear.default or node.target in _CONVOLUTIONS


def _use(captured: Captured, node: Node) -> tuple[Node, Node | None, Use] | None:
    """(weight, bias, the use) of an op that multiplies by a parameter; None for others."""
    if node not in captured.from_input or not isinstance(node.target, OpOverload) or not _multiplies(node):
        return None
    linear = node.target is aten.linear.default
    args = bind(node.target, node.args, dict(node.kwargs))
    source, weight, bias = args["input"], args["weight"], args.get("bias")
    if weight not in captured.weights or (bias is not None and bias not in captured.weights):
        return None
    if captured.batch_axis(source) is None or captured.batch_axis(node) is None:
        return None
    if linear:
        return weight, bias, Use(node, source, None)
    if len(source.meta["val"].shape) != _CONVOLUTIONS[node.target] + 2:
        return None
    return weight, bias, Use(node, source, _windows(args, tuple(captured.held(weight).shape[2:])))


def _weight_map(captured: Captured, uses: Sequence[tuple[Node, Node | None, Use]]) -> WeightMap:
    weight, bias, first = uses[0]
    if len({None if b is None else id(captured.held(b)) for _, b, _ in uses}) > 1:
        bias = None
    value = captured.held(weight)
    groups = 1 if first.windows is None else first.windows.groups
    names = {id(p): name for name, p in captured.model.named_parameters()}  # of several the first

    def name(node: Node) -> str:
        return names.get(id(captured.held(node)), captured.weights[node])

    return WeightMap(
        name(weight), None if bias is None else name(bias), weight, bias, groups, len(value) // groups,
        value[0].numel() + (bias is not None), tuple(use for _, _, use in uses),
    )  # fmt: skip


def _windows(args: Mapping[str, Any], kernel: tuple[int, ...]) -> Windows:
    def axes(value: Any) -> tuple[int, ...]:
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        return tuple(int(v) for v in (values * len(kernel) if len(values) == 1 else values))

    dilation, padding = axes(args["dilation"]), args["padding"]
    if padding == "same":
        extents = [gap * (size - 1) for gap, size in zip(dilation, kernel, strict=True)]
        pads = tuple((e // 2, e - e // 2) for e in extents)
    else:
        pads = tuple((p, p) for p in axes(0 if padding == "valid" else padding))
    return Windows(kernel, axes(args["stride"]), pads, dilation, int(args["groups"]))


def working(t: Tensor) -> Tensor:
    """In at least single precision."""
    return t.float() if t.dtype.itemsize < 4 else t


class Pass:
    """One forward pass with some weights, differentiable by the output of every op that uses one of them."""

    def __init__(
        self,
        captured: Captured,
        maps: Sequence[WeightMap],
        inputs: Inputs,
        weights: Mapping[Node, Tensor] | None = None,
    ) -> None:
        self.captured, self.maps = captured, maps
        uses = {use.node: use for m in maps for use in m.uses}
        ends = captured.last_uses(captured.nodes)
        values = captured.given(inputs) | dict(weights or {})
        self.inputs: dict[Node, Tensor] = {}
        self._probes: dict[Node, Tensor] = {}
        with torch.enable_grad():
            for node in captured.nodes:
                if node not in values:
                    values[node] = captured.evaluate(node, values.__getitem__, inputs.batch)
                if node in uses:
                    self.inputs[node] = values[uses[node].source].detach()
                    self._probes[node] = torch.zeros_like(values[node], requires_grad=True)
                    values[node] = values[node] + self._probes[node]
                for dead in ends.get(node, ()):
                    if dead is not captured.output:
                        values.pop(dead, None)
        self.output: Tensor = values[captured.output]

    def gradients(self, total: Tensor, retain: bool = False) -> Part:
        """By the output of every op. total: a sum over samples of a function of each one's output."""
        grads = torch.autograd.grad(total, list(self._probes.values()), allow_unused=True, retain_graph=retain)
        slopes = {
            node: torch.zeros_like(probe) if g is None else g
            for (node, probe), g in zip(self._probes.items(), grads, strict=True)
        }
        return Part(self.inputs, slopes)


@dataclass(frozen=True)
class Part:
    """Inputs and slopes of every op that uses a weight, for some samples."""

    inputs: dict[Node, Tensor]
    slopes: dict[Node, Tensor]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for held in (self.inputs, self.slopes) for t in held.values())


@dataclass(frozen=True)
class Again:
    """Parts that are made anew whenever they are gone through."""

    make: Callable[[], Iterator[Part]]

    def __iter__(self) -> Iterator[Part]:
        return self.make()


@dataclass(frozen=True)
class Gradients:
    """Per-sample gradients of some weights, as inputs and slopes. parts: of some samples each, in order."""

    captured: Captured
    parts: Iterable[Part]

    def pairs(self, m: WeightMap) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """For each part, (k, g) of every use of a weight."""
        for part in self.parts:
            yield [
                (
                    working(m.rows(self.captured, use, part.inputs[use.node])),
                    working(m.slopes(self.captured, use, part.slopes[use.node])),
                )
                for use in m.uses
            ]

    def along(self, m: WeightMap, change: Tensor) -> Tensor:
        """⟨∂f_n/∂W, change⟩ of every sample, in double: (samples,). change: (groups, outputs, inputs)."""
        rows = [
            sum(((k @ change.mT) * g).flatten(1).sum(1, dtype=torch.float64) for k, g in pairs)
            for pairs in self.pairs(m)
        ]
        return torch.cat(rows)  # type: ignore[arg-type]

    def weighted_sum(self, m: WeightMap, weights: Tensor) -> Tensor:
        """Σ_n weight_n ∂f_n/∂W: (groups, outputs, inputs). weights: (samples,)."""
        total, start = None, 0
        for pairs in self.pairs(m):
            for k, g in pairs:
                c = weights[start : start + len(k)].to(g)[:, None, None, None]
                part = torch.einsum("bgpo,bgpi->goi", g * c, k)
                total = part if total is None else total + part
            start += len(pairs[0][0])
        assert total is not None
        return total
