"""Convolutions of any rank, stride, dilation, grouping, and transposed ones, as linear maps (III-B)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from frpt.rules.linear import case_of
from frpt.rules.registry import Call, Site, reverses
from frpt.solvers.base import Prepared, Solution
from frpt.solvers.dense import Dense
from frpt.solvers.krylov import CGLS

aten = torch.ops.aten


@dataclass(frozen=True)
class Geometry:
    """Everything of a convolution but its weight. One entry per spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def apply(self, weight: Tensor, x: Tensor) -> Tensor:
        """The convolution without bias. x: (s, c, *space)."""
        out: Tensor = aten.convolution.default(
            x, weight, None, self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups
        )
        return out

    def adjoint(self, weight: Tensor, space: tuple[int, ...], y: Tensor) -> Tensor:
        """Its transpose, to inputs of size ``space``: (c, h, w)."""
        x = y.new_empty(len(y), *space)
        back: Tensor = aten.convolution_backward.default(
            y, x, weight, None, self.stride, self.padding, self.dilation, self.transposed, self.output_padding,
            self.groups, [True, False, False],
        )[0]  # fmt: skip
        return back

    def pointwise(self, weight: Tensor) -> bool:
        """A 1×1 convolution is a linear layer at every position."""
        return (
            all(k == 1 for k in weight.shape[2:])
            and set(self.stride) == {1}
            and set(self.padding) == {0}
            and not self.transposed
            and self.groups == 1
        )


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
    if isinstance(padding, str):
        extents = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        padding = [e // 2 for e in extents] if padding == "same" else [0] * rank
    transposed = bool(args.get("transposed", "conv_transpose" in call.op._schema.name))
    return Geometry(
        axes(args.get("stride"), 1),
        axes(padding, 0),
        dilation,
        transposed,
        axes(args.get("output_padding"), 0),
        int(args.get("groups", 1)),
    )


def _regular(call: Call) -> bool:
    """A batched input, and padding that is the same on both sides."""
    if call.active.dim() != call.args["weight"].dim():
        return False
    if call.args.get("padding") != "same":
        return True
    dilation = geometry(call).dilation
    return all(d * (k - 1) % 2 == 0 for d, k in zip(dilation, call.args["weight"].shape[2:], strict=True))


def _case(call: Call) -> str:
    outputs = call.forward(call.active)
    return case_of(math.prod(map(int, outputs.shape[1:])), math.prod(map(int, call.active.shape[1:])))


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
    when=_regular,
    case=_case,
)
def conv(site: Site, target: Tensor) -> Solution:
    """y = K * a + b, linear in a:  a = â + A⁺(t − Φ(â)).

    1×1 kernels solve a channel system per position; small maps by an explicit matrix, factorised once; large ones
    matrix-free. a: (b, c, *space).
    """
    weight, shape = site.args["weight"], geometry(site)
    residual = target - site.output
    if shape.pointwise(weight):
        matrix = weight.flatten(1)
        prepared = site.prepared("dense", matrix, Dense)
        return site.linear(prepared, _pixels(residual), _pixels, partial(_from_pixels, site.anchor))
    space = tuple(site.anchor.shape[1:])
    outputs = math.prod(residual.shape[1:])
    if outputs * math.prod(space) <= site.preset.solver.dense_entries:
        prepared = site.prepared(f"dense{space}", weight, partial(_matrix, shape, space))
        return site.linear(
            prepared, residual.flatten(1), lambda a: a.flatten(1), lambda rows: rows.reshape(site.anchor.shape)
        )
    krylov = site.prepared(f"cgls{space}", weight, partial(_matrix_free, shape, space, site.preset.solver))
    return site.linear(krylov, residual, _same, _same)


def _matrix(shape: Geometry, space: tuple[int, ...], weight: Tensor) -> Prepared:
    """A: (outputs, inputs), from the responses to unit inputs."""
    units = torch.eye(math.prod(space), dtype=weight.dtype, device=weight.device)
    return Dense(shape.apply(weight, units.reshape(-1, *space)).flatten(1).mT.contiguous())


def _matrix_free(shape: Geometry, space: tuple[int, ...], options: Any, weight: Tensor) -> Prepared:
    apply: Callable[[Tensor], Tensor] = partial(shape.apply, weight)
    adjoint: Callable[[Tensor], Tensor] = partial(shape.adjoint, weight, space)
    example = weight.new_zeros(1, *space)
    return CGLS(apply, adjoint, example, options.linear_iterations, options.linear_tolerance)


def _same(a: Tensor) -> Tensor:
    return a


def _pixels(a: Tensor) -> Tensor:
    """(b, c, *space) -> (b·space, c)."""
    return a.movedim(1, -1).reshape(-1, a.shape[1])


def _from_pixels(like: Tensor, rows: Tensor) -> Tensor:
    return rows.reshape(like.shape[0], *like.shape[2:], like.shape[1]).movedim(-1, 1)
