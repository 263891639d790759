"""Every kind of convolution, as torch.nn.functional computes it and as frpt is asked for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

import frpt
from frpt.errors import BudgetError
from frpt.options import Convolutions, Gate, Preset
from frpt.rules.registry import Call, plain_site, rule_for
from frpt.solvers.base import Solution
from frpt.solvers.conv.operator import Convolution, Geometry, Padding

OPEN = Gate(enabled=False)
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
OPS = {n: getattr(torch.ops.aten, f"conv{n}d").default for n in (1, 2, 3)}
Axes = int | tuple[int, ...]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@dataclass(frozen=True)
class Kind:
    """x: (b, c, *space), w: the weight's shape as nn.Conv or nn.ConvTranspose has it; pads: (before, after) each."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: Axes = 1
    pads: int | tuple[tuple[int, int], ...] = 0
    dilation: Axes = 1
    groups: int = 1
    mode: Padding = "zeros"
    transposed: bool = False
    extra: Axes = 0

    def __str__(self) -> str:
        return self.name

    @property
    def rank(self) -> int:
        return len(self.w) - 2

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        return ((self.pads, self.pads),) * self.rank if isinstance(self.pads, int) else self.pads

    def axes(self, value: Axes) -> tuple[int, ...]:
        return (value,) * self.rank if isinstance(value, int) else value

    def weight(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        return normal(*self.w, seed=seed, dtype=dtype)

    def anchor(self, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
        return normal(*self.x, seed=seed, dtype=dtype)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """What torch makes of it."""
        g, s, d = self.groups, self.axes(self.stride), self.axes(self.dilation)
        if self.transposed:
            p = [before for before, _ in self.padding]
            return TRANSPOSED[self.rank](x, weight, bias, s, p, self.axes(self.extra), g, d)
        if self.mode == "zeros" and all(p == q for p, q in self.padding):
            return CONVOLVE[self.rank](x, weight, bias, s, [p for p, _ in self.padding], d, g)
        widths = [n for pair in reversed(self.padding) for n in pair]
        x = F.pad(x, widths, "constant" if self.mode == "zeros" else self.mode)
        return CONVOLVE[self.rank](x, weight, bias, s, 0, d, g)

    def map(self, weight: Tensor | None = None) -> Convolution:
        """The linear map of one sample."""
        weight = self.weight() if weight is None else weight
        shape = Geometry(
            self.axes(self.stride), self.padding, self.axes(self.dilation), self.groups, self.mode, self.transposed
        )
        inputs = self.x[1:]
        outputs = tuple(self.forward(self.anchor().to(weight), weight).shape[1:])
        return Convolution(weight, shape, *((outputs, inputs) if self.transposed else (inputs, outputs)))

    def solve(self, anchor: Tensor, target: Tensor, weight: Tensor, **keywords: Any) -> Solution:
        """frpt.ops.conv with this kind's arguments."""
        padding: Any = tuple(before for before, _ in self.padding)
        extents = [d * (k - 1) for d, k in zip(self.axes(self.dilation), self.w[2:], strict=True)]
        if any(p != q for p, q in self.padding):
            if self.padding != tuple((e // 2, e - e // 2) for e in extents):
                return self._solve_padded(anchor, target, weight, **keywords)
            padding = "same"
        return frpt.ops.conv(
            anchor,
            target,
            weight,
            stride=self.axes(self.stride),
            padding=padding,
            dilation=self.axes(self.dilation),
            groups=self.groups,
            padding_mode=self.mode,
            transposed=self.transposed,
            output_padding=self.axes(self.extra),
            **keywords,
        )

    def _solve_padded(
        self, anchor: Tensor, target: Tensor, weight: Tensor, preset: Preset, solver: str = "auto", gate: Gate = Gate()
    ) -> Solution:
        """Padding that only an op of its own can do: the rule as a network with such a pad gets it."""
        s, d, none = list(self.axes(self.stride)), list(self.axes(self.dilation)), [0] * self.rank
        args = {"input": anchor, "weight": weight, "bias": None, "stride": s, "padding": none, "dilation": d}
        widths = [n for pair in reversed(self.padding) for n in pair]
        padded = (widths, "constant" if self.mode == "zeros" else self.mode)
        call = Call(OPS[self.rank], {**args, "groups": self.groups}, "input", where="kind", padded=padded)
        options = replace(preset.conv, method=solver)  # type: ignore[arg-type]
        at = plain_site(call, replace(preset, conv=options, gate=gate))
        rule = rule_for(at)
        assert rule is not None
        solution = rule.solve(at, target.to(at.anchor))
        return replace(solution, value=solution.value.to(anchor))


KINDS = [
    Kind("1d", (2, 3, 9), (2, 3, 3), 2, 1),
    Kind("1d-II", (2, 2, 9), (5, 2, 3), 1, 1),
    Kind("1d-uneven", (2, 3, 6), (2, 3, 4), 1, ((1, 2),)),
    Kind("2d", (2, 4, 6, 5), (3, 4, 3, 3), 1, 1),
    Kind("2d-valid", (2, 3, 6, 6), (2, 3, 3, 2)),
    Kind("2d-II", (2, 2, 6, 6), (5, 2, 3, 3), 1, 1),
    Kind("2d-wide-padding", (2, 4, 5, 5), (2, 4, 3, 3), 1, 2),
    Kind("2d-stride", (2, 2, 7, 6), (5, 2, 3, 3), 2, 1),
    Kind("2d-stride-uneven", (2, 3, 8, 7), (4, 3, 3, 2), (2, 3), ((1, 1), (0, 0))),
    Kind("2d-dilation", (2, 4, 7, 6), (3, 4, 3, 2), 1, ((2, 2), (0, 0)), (2, 1)),
    Kind("2d-same-even", (2, 4, 5, 6), (2, 4, 4, 2), 1, ((1, 2), (0, 1))),
    Kind("2d-groups", (2, 4, 7, 6), (6, 2, 3, 2), (2, 1), ((1, 1), (0, 0)), 1, 2),
    Kind("2d-depthwise", (2, 3, 6, 6), (6, 1, 3, 3), 1, 1, 1, 3),
    Kind("2d-reflect", (2, 4, 6, 5), (3, 4, 3, 3), 1, 1, mode="reflect"),
    Kind("2d-reflect-wide", (2, 4, 5, 5), (2, 4, 5, 5), 1, 2, mode="reflect"),
    Kind("2d-replicate", (2, 4, 6, 5), (2, 4, 3, 3), 1, 1, mode="replicate"),
    Kind("2d-replicate-stride", (2, 2, 6, 6), (5, 2, 3, 3), 2, 1, mode="replicate"),
    Kind("2d-circular", (2, 4, 6, 5), (3, 4, 3, 3), 1, 1, mode="circular"),
    Kind("2d-circular-stride", (2, 2, 6, 8), (5, 2, 3, 3), 2, 1, mode="circular"),
    Kind("2d-circular-odd", (2, 2, 5, 7), (5, 2, 3, 3), 2, 1, mode="circular"),
    Kind("2d-circular-groups", (2, 4, 6, 5), (2, 2, 3, 3), 1, 1, 1, 2, "circular"),
    Kind("3d", (2, 3, 4, 3, 4), (2, 3, 2, 3, 3), (1, 1, 2), ((0, 0), (1, 1), (1, 1))),
    Kind("3d-circular", (2, 2, 4, 3, 4), (1, 2, 3, 3, 3), 1, 1, mode="circular"),
    Kind("1d-transposed", (2, 4, 5), (4, 3, 3), 2, 1, transposed=True, extra=1),
    Kind("2d-transposed", (2, 4, 3, 4), (4, 2, 3, 3), 2, 1, 1, 2, transposed=True, extra=1),
    Kind("2d-transposed-dilation", (2, 2, 4, 4), (2, 3, 2, 2), 1, 0, 2, transposed=True),
    Kind("3d-transposed", (2, 3, 2, 3, 2), (3, 2, 2, 2, 2), transposed=True),
]

BLOCK_DIAGONAL = [
    Kind("patches", (2, 3, 8, 8), (5, 3, 4, 4), 4),
    Kind("patches-cut", (2, 3, 9, 7), (4, 3, 3, 2), (3, 2)),
    Kind("patches-II", (2, 1, 6, 6), (6, 1, 2, 2), 2),
    Kind("patches-dilated", (2, 2, 9), (3, 2, 2), 3, 0, 2),
    Kind("patches-1d", (2, 3, 8), (2, 3, 2), 2),
    Kind("patches-3d", (2, 2, 4, 4, 4), (5, 2, 2, 2, 2), 2),
    Kind("pointwise", (2, 4, 5, 4), (3, 4, 1, 1)),
    Kind("pointwise-II", (2, 3, 5, 4), (6, 3, 1, 1)),
    Kind("pointwise-stride", (2, 4, 5, 6), (3, 4, 1, 1), 2),
    Kind("patches-groups", (2, 4, 6, 6), (6, 2, 2, 2), 2, 0, 1, 2),
    Kind("pointwise-groups", (2, 4, 3, 3), (6, 2, 1, 1), 2, 0, 1, 2),
    Kind("transposed-patches", (2, 5, 3, 4), (5, 2, 2, 2), 2, transposed=True),
    Kind("transposed-patches-I", (2, 9, 3), (9, 3, 2), 2, transposed=True),
    Kind("transposed-groups", (2, 4, 3, 2), (4, 3, 2, 2), 2, 0, 1, 2, transposed=True),
    Kind("transposed-apart", (2, 4, 3), (4, 2, 2), 3, transposed=True, extra=1),
]


@st.composite
def plain(draw: st.DrawFn) -> Kind:
    """Any plain convolution with a small map; reflected padding is narrower than the map, as torch wants it."""
    rank = draw(st.integers(1, 3))
    mode: Padding = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups, mine, out = draw(st.sampled_from([(1, 2, 3), (1, 3, 1), (2, 1, 2), (3, 1, 1), (2, 2, 1)]))
    space, kernel, stride, dilation = axes(3, 5 if rank < 3 else 4), axes(1, 3), axes(1, 3), axes(1, 2)
    pads = tuple(zip(axes(0, 2), axes(0, 2), strict=True))
    sizes = zip(space, pads, kernel, dilation, strict=True)
    assume(all(h + sum(p) > d * (k - 1) for h, p, k, d in sizes))
    x, w = (2, groups * mine, *space), (groups * out, mine, *kernel)
    return Kind("drawn", x, w, stride, pads, dilation, groups, mode)


@st.composite
def transposed(draw: st.DrawFn) -> Kind:
    rank = draw(st.integers(1, 3))

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups, kernel, stride, dilation = draw(st.integers(1, 2)), axes(1, 3), axes(1, 3), axes(1, 2)
    extra = tuple(draw(st.integers(0, s - 1)) for s in stride)
    space, pads = axes(2, 4), tuple((p, p) for p in axes(0, 2))
    sizes = zip(space, stride, pads, dilation, kernel, extra, strict=True)
    assume(all((m - 1) * s - sum(p) + d * (k - 1) + o >= 0 for m, s, p, d, k, o in sizes))
    x, w = (2, 2 * groups, *space), (2 * groups, 3, *kernel)
    return Kind("drawn", x, w, stride, pads, dilation, groups, transposed=True, extra=extra)


def preset(dtype: torch.dtype = torch.float64, **options: Any) -> Preset:
    """The default preset with other options for convolutions."""
    return replace(frpt.options.PRESETS["default"], dtype=dtype, conv=Convolutions(**options))


def nudged(output: Tensor, size: float = 0.3, seed: int = 3) -> Tensor:
    """A target near an output, attainable or not."""
    return output + size * normal(*output.shape, seed=seed, dtype=output.dtype)


def least_change(conv: Convolution, residual: Tensor) -> Tensor:
    """A⁺ r by the pseudo-inverse of the whole matrix. residual: (s, *outputs)."""
    found: Tensor = residual.flatten(1) @ torch.linalg.pinv(conv.matrix()).mT
    return found.reshape(-1, *conv.inputs)


def off(actual: Tensor, expected: Tensor) -> float:
    """The largest relative error over the samples."""
    error = (actual - expected).flatten(1).norm(dim=1)
    return float((error / expected.flatten(1).norm(dim=1).clamp_min(1e-30)).max())


def positions(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Every position of a grid."""
    return list(itertools.product(*(range(n) for n in sizes)))


def least_budget(conv: Convolution, options: Convolutions) -> int:
    """The smallest memory budget under which the convolution is still solved in the same way."""
    way, low, high = options.choose(conv).way, 1, int(options.budget)
    while low < high:
        middle = (low + high) // 2
        try:
            same = replace(options, budget=middle).choose(conv).way == way
        except BudgetError:
            same = False
        low, high = (low, middle) if same else (middle + 1, high)
    return low
