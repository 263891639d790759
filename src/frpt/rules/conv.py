"""Convolutions of any rank, stride, dilation, grouping and padding, and transposed ones: linear maps (III-B).

    a = â + A⁺(t − Φ(â))

How A⁺ is applied is chosen once, when the unit is planned (``solvers.conv.choose``), and prepared once per weight.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from frpt.errors import BudgetError
from frpt.options import Preset
from frpt.rules.registry import Call, Site, reverses
from frpt.solvers.base import Solution
from frpt.solvers.conv.choose import Convolutions, ConvPlan
from frpt.solvers.conv.operator import MODES, Convolution, Geometry, Padding
from frpt.solvers.conv.per_frequency import Spectral
from frpt.solvers.conv.torus import Torus
from frpt.solvers.conv.woodbury import Exact, conjugate_gradients
from frpt.solvers.linear.cgls import CGLS
from frpt.solvers.linear.dense import Dense
from frpt.solvers.linear.structured import Blocks

aten = torch.ops.aten

_RANK = {aten.conv1d.default: 1, aten.conv2d.default: 2, aten.conv3d.default: 3}


PADDING = aten.pad.default
"""The op that a model lays padding with where the convolution after it does not do so itself."""


def absorbs(op: OpOverload, args: dict[str, Any], pad: dict[str, Any]) -> bool:
    """Whether a convolution can take the ``aten.pad`` before it into its own padding: the two are one linear map."""
    rank, widths = _RANK.get(op), pad["pad"]
    if rank is None or len(widths) > 2 * rank or not all(isinstance(w, int) and w >= 0 for w in widths):
        return False
    if pad["mode"] == "constant":
        return not pad["value"]
    return pad["mode"] in MODES and not any(args["padding"] if isinstance(args["padding"], list) else [args["padding"]])


def geometry(call: Call) -> Geometry:
    """Read the arguments of any of the convolution ops."""
    args, weight = call.args, call.args["weight"]
    rank = int(weight.dim()) - 2

    def axes(value: Any, default: int) -> tuple[int, ...]:
        if value is None or isinstance(value, int):
            return (default if value is None else int(value),) * rank
        values = tuple(int(v) for v in value)
        return values * rank if len(values) == 1 else values

    dilation = axes(args.get("dilation"), 1)
    padding = args.get("padding")
    if padding == "same":
        extents = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = tuple((e // 2, e - e // 2) for e in extents)
    else:
        pads = tuple((p, p) for p in axes(None if padding == "valid" else padding, 0))
    mode: Padding = "zeros"
    if call.padded is not None:
        widths, name = call.padded  # last axis first
        mode = next((m for m in MODES if m == name), "zeros")
        around = list(zip(widths[-2::-2], widths[::-2], strict=True))
        around = [(0, 0)] * (rank - len(around)) + around
        pads = tuple((p + a, q + b) for (p, q), (a, b) in zip(pads, around, strict=True))
    transposed = bool(args.get("transposed", "conv_transpose" in call.op._schema.name))
    return Geometry(axes(args.get("stride"), 1), pads, dilation, int(args.get("groups", 1)), mode, transposed)


def convolution(call: Call, weight: Tensor) -> Convolution:
    """The call as a linear map of one sample."""
    shape, space = geometry(call), [int(n) for n in call.active.shape[1:]]
    kernel = [int(k) for k in weight.shape[2:]]
    extents = shape.extent(kernel)
    if shape.transposed:
        extra = call.args.get("output_padding") or [0]
        extra = list(extra) * len(kernel) if len(extra) == 1 else list(extra)
        fine = [
            (m - 1) * s - sum(p) + e + int(o)
            for m, s, p, e, o in zip(space[1:], shape.stride, shape.padding, extents, extra, strict=True)
        ]
        return Convolution(weight, shape, (int(weight.shape[1]) * shape.groups, *fine), space)
    coarse = [
        (h + sum(p) - e) // s + 1
        for h, s, p, e in zip(space[1:], shape.stride, shape.padding, extents, strict=True)
    ]  # fmt: skip
    return Convolution(weight, shape, space, (int(weight.shape[0]), *coarse))


def _batched(call: Call) -> bool:
    return bool(call.active.dim() == call.args["weight"].dim())


def _case(call: Call) -> str:
    return "I" if convolution(call, call.args["weight"]).reduces else "II"


def _choose(call: Call, preset: Preset) -> ConvPlan:
    """The way this convolution will be solved, in the precision it will be solved in."""
    return _chosen(call.where, convolution(call, call.args["weight"].to(preset.dtype)), preset.conv)


def _chosen(where: str, conv: Convolution, options: Convolutions) -> ConvPlan:
    try:
        return options.choose(conv)
    except BudgetError as error:
        raise BudgetError(f"{where}: {error}") from None


@reverses(
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.conv1d.padding,
    aten.conv2d.padding,
    aten.conv3d.padding,
    aten.convolution.default,
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
    slots=("input",),
    when=_batched,
    case=_case,
    choose=_choose,
    fixed_point=False,  # the paper's zero-filled form has none; residual forms keep it by themselves
)
def conv(site: Site, target: Tensor) -> Solution:
    """y = K * a + b, linear in a:  a = â + A⁺(t − Φ(â)). a: (b, c, *space)."""
    prepared = site.prepared(f"conv{tuple(site.anchor.shape[1:])}", site.args["weight"], partial(_prepare, site))
    solution: Solution = prepared.solve(site, target - site.output)
    return solution


def _prepare(site: Site, weight: Tensor) -> _Whole | _Windows | _Frequencies:
    conv, options = convolution(site, weight), site.preset.conv
    plan: ConvPlan = site.chosen or _chosen(site.where, conv, options)
    if plan.way == "blocks":
        return _Windows(conv, plan)
    if plan.way in ("fft_padded", "fft_boundary"):
        return _Frequencies(conv, plan, options)
    return _Whole(conv, plan, options)


class _Whole:
    """The whole map is one system per sample."""

    def __init__(self, conv: Convolution, plan: ConvPlan, options: Convolutions) -> None:
        self.plan = plan
        self.flat = plan.way == "matrix"
        self.A: Dense | Exact | CGLS
        if self.flat:
            self.A = Dense(conv.matrix())
        elif plan.way == "cg":
            self.A = conjugate_gradients(conv, options.cg)
        else:
            self.A = options.exact.prepare(conv, Torus(conv, plan.size), seam=plan.way == "seam")

    def solve(self, site: Site, residual: Tensor) -> Solution:
        at_once = self.plan.at_once
        if not self.flat:
            return site.linear(self.A, residual, _same, _same, at_once)
        return site.linear(
            self.A, residual.flatten(1), lambda a: a.flatten(1), lambda x: x.reshape(site.anchor.shape), at_once
        )


class _Windows:
    """Windows that do not overlap are systems of their own, all with the same matrix (one per group)."""

    def __init__(self, conv: Convolution, plan: ConvPlan) -> None:
        self.conv, self.plan = conv, plan
        groups = conv.geometry.groups
        matrices = conv.weight.reshape(groups, conv.coarse[0] // groups, -1)  # (g, coarse, fine)
        matrices = matrices.mT if conv.geometry.transposed else matrices
        self.A: Blocks | Dense = Blocks(matrices) if groups > 1 else Dense(matrices[0].contiguous())

    def solve(self, site: Site, residual: Tensor) -> Solution:
        transposed = self.conv.geometry.transposed
        split, cut = (self._coarse, self._fine) if transposed else (self._fine, self._coarse)
        join = self._from_coarse if transposed else self._from_fine
        at_once = self.plan.at_once * int(torch.Size(self.conv.coarse[1:]).numel())
        solution = site.linear(self.A, cut(residual), split, join, at_once)
        if transposed:
            return solution
        reached = join(torch.ones_like(split(site.anchor[:1]))) > 0  # inputs between windows keep their anchor
        return replace(solution, value=torch.where(reached, solution.value, site.anchor))

    def _systems(self, rows: Tensor) -> Tensor:
        """(s, *m, c, ...) -> (s·m, g, c/g·...), one group as (s·m, c·...)."""
        groups = self.conv.geometry.groups
        rows = rows.flatten(0, self.conv.rank).flatten(1)
        return rows if groups == 1 else rows.unflatten(1, (groups, -1))

    def _fine(self, x: Tensor) -> Tensor:
        return self._systems(self.conv.windows(x).movedim(1, 1 + self.conv.rank))

    def _coarse(self, y: Tensor) -> Tensor:
        return self._systems(y.movedim(1, -1))

    def _from_coarse(self, rows: Tensor) -> Tensor:
        channels, *space = self.conv.coarse
        return rows.reshape(-1, *space, channels).movedim(-1, 1)

    def _from_fine(self, rows: Tensor) -> Tensor:
        rows = rows.reshape(-1, *self.conv.coarse[1:], self.conv.fine[0], *self.conv.kernel)
        x = rows.new_zeros(len(rows), *self.conv.fine)
        self.conv.windows(x).copy_(rows.movedim(1 + self.conv.rank, 1))
        return x


class _Frequencies:
    """One system per frequency, on a torus that is not quite the map."""

    def __init__(self, conv: Convolution, plan: ConvPlan, options: Convolutions) -> None:
        self.plan = plan
        # with padding, FFT-Boundary's correction frozen at the anchor leaves the residual form
        frozen = plan.way == "fft_boundary" and any(p != (0, 0) for p in conv.geometry.padding)
        zero_filled = options.fill == "zeros" and not frozen
        self.spectral = Spectral(Torus(conv, plan.size), int(options.budget), zero_filled)

    def solve(self, site: Site, residual: Tensor) -> Solution:
        at_once = self.plan.at_once
        parts = zip(site.anchor.split(at_once), residual.split(at_once), strict=True)
        joined = Solution.joined([self.spectral.solve(a, r, site.gate) for a, r in parts])
        return site.per_sample(replace(joined, value=site.within.clamp(joined.value, site.anchor)), _same)


def _same(a: Tensor) -> Tensor:
    return a
