"""A table of cases: for every registered (preset, op) how to call it, which argument is reversed, which laws hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from frpt.common.batch_axis import BatchAxis
from frpt.options import PRESETS, Convolutions, Gate, Preset
from frpt.rules import RULES, Call, Rule, Site
from frpt.rules.registry import bind
from frpt.solvers.base import UNBOUNDED, Range, UnitAxes

aten = torch.ops.aten


@dataclass(frozen=True)
class Draw:
    """Seeded random arguments in one dtype."""

    dtype: torch.dtype
    generator: torch.Generator

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)).to(self.dtype)

    def positive(self, *shape: int, low: float = 0.5, high: float = 2.0) -> Tensor:
        draw = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return (low + (high - low) * draw).to(self.dtype)

    def image(self, *shape: int) -> Tensor:
        """All entries different, well apart: maxima are unambiguous after a small perturbation."""
        count = torch.Size(shape).numel()
        order = torch.randperm(count, generator=self.generator).to(torch.float64)
        return (0.25 * (order - count / 2)).reshape(shape).to(self.dtype)


Arguments = Callable[[Draw], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """One call. build: positional arguments. ccp, mdp: why the case does not claim that law (None: it does)."""

    op: OpOverload
    build: Arguments
    note: str = ""
    keywords: tuple[tuple[str, Any], ...] = ()
    slot: str = "self"
    item: int | None = None
    pick: int | None = None
    preset: str = "default"
    output: BatchAxis = BatchAxis()
    nudge: float = 0.1
    """Size of the perturbation that makes an attainable target."""
    slack: float = 1.0
    """Factor on the tolerances: conditioning of the op at this case."""
    ccp: str | None = None
    mdp: str | None = None
    bfloat16: str | None = None
    """Why the case is not run in bfloat16."""
    scalar: bool = False
    """The op's output has no batch axis: the rule's function is asked directly."""

    def __str__(self) -> str:
        name = str(self.op).removeprefix("aten.")
        return "-".join(filter(None, [self.preset if self.preset != "default" else "", name, self.note]))

    @property
    def rule(self) -> Rule:
        return RULES[self.preset][self.op]

    def args(self, dtype: torch.dtype, seed: int = 0) -> dict[str, Any]:
        draw = Draw(dtype, torch.Generator().manual_seed(seed))
        return bind(self.op, self.build(draw), dict(self.keywords))

    def preset_with(self, solver: torch.dtype = torch.float64, **options: Any) -> Preset:
        chosen = PRESETS[self.preset]
        return replace(chosen, dtype=solver, conv=replace(chosen.conv, **options))

    def site(self, dtype: torch.dtype, preset: Preset | None = None, within: Range = UNBOUNDED, seed: int = 0) -> Site:
        """The call with its recorded values."""
        return site_of(self.call(dtype, seed), preset or self.preset_with(), within, self.output)

    def call(self, dtype: torch.dtype, seed: int = 0) -> Call:
        return Call(self.op, self.args(dtype, seed), self.slot, self.item, self.pick, str(self))


def site_of(
    call: Call, preset: Preset = PRESETS["default"], within: Range = UNBOUNDED, output: BatchAxis | None = None
) -> Site:
    """A site around any call: the op is run to record its output."""
    solver = preset.dtype
    anchor = call.active.to(solver)
    recorded = call.forward(call.active).to(solver)
    axes = UnitAxes(BatchAxis(), output or BatchAxis())
    call = replace(call, where=call.where or str(call.op))
    return Site.of(call, anchor, recorded, preset, axes, within)


def site(
    op: OpOverload,
    *args: Any,
    slot: str = "self",
    item: int | None = None,
    pick: int | None = None,
    precision: torch.dtype = torch.float64,
    conv: Convolutions | None = None,
    gate: Gate | None = None,
    within: Range = UNBOUNDED,
    **keywords: Any,
) -> Site:
    """A site of the default preset from the op's own arguments."""
    preset = replace(PRESETS["default"], dtype=precision, conv=conv or Convolutions(), gate=gate or Gate())
    return site_of(Call(op, bind(op, args, keywords), slot, item, pick), preset, within)


def unary(op: OpOverload, *extra: Any, **fields: Any) -> Case:
    return Case(op, lambda d: (d.normal(3, 8, scale=2.0), *extra), **fields)


def on(op: OpOverload, shape: tuple[int, ...], *extra: Any, **fields: Any) -> Case:
    """An op on one normal tensor."""
    return Case(op, lambda d: (d.normal(*shape), *extra), **fields)


def _norm_args(shape: tuple[int, ...]) -> Arguments:
    channels = shape[1]
    return lambda d: (
        d.normal(*shape), d.positive(channels), d.normal(channels), d.normal(channels), d.positive(channels)
    )  # fmt: skip


ACTIVATIONS = [
    unary(aten.relu.default),
    unary(aten.relu6.default),
    unary(aten.hardtanh.default, -0.5, 1.5),
    unary(aten.clamp.default, -0.5, 0.7),
    unary(aten.clamp.default, None, 0.7, note="above"),
    unary(aten.clamp_min.default, -0.3),
    unary(aten.clamp_max.default, 0.3),
    unary(aten.hardsigmoid.default),
    unary(aten.leaky_relu.default, 0.2),
    unary(aten.leaky_relu.default, 0.0, note="slope0"),
    Case(aten.prelu.default, lambda d: (d.normal(3, 8, scale=2.0), d.positive(1)), "one"),
    Case(aten.prelu.default, lambda d: (d.normal(3, 4, 5, scale=2.0), d.positive(4)), "channels"),
    Case(aten.prelu.default, lambda d: (d.normal(3, 4, scale=2.0), d.normal(4)), "any sign"),
    unary(aten.tanh.default, slack=50),
    unary(aten.sigmoid.default, slack=50),
    unary(aten.log_sigmoid.default, slack=50),
    unary(aten.softplus.default, 2.0, 5.0, slack=50),
    unary(aten.elu.default, 0.8, 1.2, 0.9, slack=50),
    unary(aten.celu.default, 1.5, slack=50),
    unary(aten.selu.default, slack=50),
    unary(aten.hardswish.default, slack=20),
    unary(aten.gelu.default, slack=20),
    unary(aten.gelu.default, note="tanh", keywords=(("approximate", "tanh"),), slack=20),
    unary(aten.silu.default, slack=20),
    unary(aten.mish.default, slack=20),
    unary(
        aten.leaky_relu.default, 0.2, preset="paper",
        ccp="divides by 0.5 whatever the slope (the paper's rule)", mdp="paper rule: not the nearest preimage",
    ),
    unary(aten.leaky_relu.default, 0.5, preset="paper", note="slope.5", mdp="paper rule: minimality is not claimed"),
    unary(aten.tanh.default, preset="paper", slack=50, mdp="paper rule: minimality is not claimed"),
    unary(aten.sigmoid.default, preset="paper", slack=50, mdp="paper rule: minimality is not claimed"),
]  # fmt: skip

ARITHMETIC = [
    Case(aten.add.Tensor, lambda d: (d.normal(3, 4), d.normal(3, 4))),
    Case(aten.add.Tensor, lambda d: (d.normal(3, 4), d.normal(3, 4)), "other", (("alpha", 0.5),), slot="other"),
    Case(aten.add.Tensor, lambda d: (d.normal(3, 1, 4), d.normal(3, 5, 4)), "broadcast"),
    unary(aten.add.Scalar, 1.5),
    Case(aten.sub.Tensor, lambda d: (d.normal(3, 4), d.normal(4))),
    Case(aten.sub.Tensor, lambda d: (d.normal(3, 4), d.normal(3, 4)), "other", (("alpha", 2.0),), slot="other"),
    unary(aten.sub.Scalar, 1.5),
    unary(aten.rsub.Scalar, 1.0, 2.0),
    Case(aten.rsub.Tensor, lambda d: (d.normal(3, 4), d.normal(3, 4)), "", (("alpha", 2.0),)),
    Case(aten.rsub.Tensor, lambda d: (d.normal(3, 4), d.normal(3, 4)), "other", (("alpha", 2.0),), slot="other"),
    Case(aten.mul.Tensor, lambda d: (d.normal(3, 4), d.positive(3, 4))),
    Case(aten.mul.Tensor, lambda d: (d.positive(3, 5, 4), d.normal(3, 1, 4)), "broadcast", slot="other"),
    unary(aten.mul.Scalar, -0.7),
    Case(aten.div.Tensor, lambda d: (d.normal(3, 4), d.positive(3, 4))),
    unary(aten.div.Scalar, 3.0),
    unary(aten.neg.default),
    on(aten.exp.default, (3, 8), slack=10),
    Case(aten.log.default, lambda d: (d.positive(3, 8),), nudge=0.02),
    Case(aten.sqrt.default, lambda d: (d.positive(3, 8),), nudge=0.02),
    Case(aten.pow.Tensor_Scalar, lambda d: (d.positive(3, 8) * d.normal(3, 8).sign(), 2), "even", nudge=0.02),
    Case(aten.pow.Tensor_Scalar, lambda d: (d.positive(3, 8) * d.normal(3, 8).sign(), 3), "odd", nudge=0.02),
    Case(aten.pow.Tensor_Scalar, lambda d: (d.positive(3, 8), 1.5), "fraction", nudge=0.02),
]

LINEAR = [
    Case(aten.linear.default, lambda d: (d.normal(3, 6), d.normal(4, 6), d.normal(4)), "I", slot="input", slack=5),
    Case(aten.linear.default, lambda d: (d.normal(3, 5, 4), d.normal(7, 4)), "II", slot="input", slack=5),
    Case(
        aten.addmm.default, lambda d: (d.normal(4), d.normal(3, 6), d.normal(6, 4)), "mat1",
        (("beta", 0.5), ("alpha", 2.0)), slot="mat1", slack=5,
    ),
    Case(
        aten.addmm.default, lambda d: (d.normal(3, 4), d.normal(3, 6), d.normal(6, 4)), "self",
        (("beta", 0.5), ("alpha", 2.0)), slack=5,
    ),
    Case(aten.matmul.default, lambda d: (d.normal(3, 2, 6), d.normal(6, 4)), "right2d", slack=5),
    Case(aten.matmul.default, lambda d: (d.normal(4, 6), d.normal(3, 6, 2)), "left2d", slot="other", slack=5),
    Case(aten.matmul.default, lambda d: (d.normal(3, 2, 5, 6), d.normal(3, 2, 6, 4)), "batched", slack=5),
    Case(aten.matmul.default, lambda d: (d.normal(3, 1, 7, 4), d.normal(3, 2, 4, 5)), "shared", slot="other", slack=5),
    Case(aten.bmm.default, lambda d: (d.normal(3, 4, 6), d.normal(3, 6, 2)), slack=10),
    Case(aten.bmm.default, lambda d: (d.normal(3, 7, 4), d.normal(3, 4, 2)), "mat2", slot="mat2", slack=10),
    Case(aten.mm.default, lambda d: (d.normal(3, 6), d.normal(6, 4)), slack=5),
]  # fmt: skip


def _conv(
    op: OpOverload, x: tuple[int, ...], w: tuple[int, ...], *rest: Any, bias: int | None = None, **f: Any
) -> Case:
    def build(d: Draw) -> tuple[Any, ...]:
        return d.normal(*x), d.normal(*w), None if bias is None else d.normal(bias), *rest

    return Case(op, build, slot="input", slack=20, **f)


CONVOLUTIONS = [
    _conv(aten.conv1d.default, (2, 3, 9), (2, 3, 3), [2], [1], bias=2),
    _conv(aten.conv1d.default, (2, 3, 9), (5, 3, 3), note="II"),
    _conv(aten.conv2d.default, (2, 4, 6, 5), (3, 4, 3, 3), [1, 1], [1, 1], bias=3),
    _conv(aten.conv2d.default, (2, 4, 6, 5), (3, 4, 1, 1), bias=3, note="pointwise"),
    _conv(aten.conv2d.default, (2, 4, 7, 6), (4, 2, 3, 2), [2, 1], [1, 0], [1, 2], 2, note="groups"),
    _conv(aten.conv2d.default, (2, 3, 6, 6), (3, 1, 3, 3), [1, 1], [1, 1], [1, 1], 3, note="depthwise"),
    _conv(aten.conv2d.default, (2, 3, 8, 8), (4, 3, 4, 4), [4, 4], bias=4, note="patches"),
    _conv(aten.conv3d.default, (2, 2, 4, 3, 4), (3, 2, 2, 3, 3), [1, 1, 2], [0, 1, 1], bias=3),
    _conv(aten.conv1d.padding, (2, 3, 7), (3, 3, 3), [1], "same"),
    _conv(aten.conv1d.padding, (2, 3, 7), (3, 3, 3), [1], "valid", note="valid"),
    _conv(aten.conv2d.padding, (2, 3, 5, 5), (2, 3, 3, 3), [1, 1], "same", [2, 2]),
    _conv(aten.conv3d.padding, (2, 2, 3, 4, 3), (1, 2, 3, 3, 3), [1, 1, 1], "same"),
    _conv(
        aten.convolution.default, (2, 3, 5, 5), (2, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
    ),
    _conv(
        aten.convolution.default, (2, 3, 4, 4), (3, 2, 2, 2), [2, 2], [0, 0], [1, 1], True, [0, 0], 1, note="transposed"
    ),
    _conv(aten.conv_transpose1d.default, (2, 4, 5), (4, 3, 3), [2], [1], [1]),
    _conv(aten.conv_transpose2d.input, (2, 4, 3, 4), (4, 2, 3, 3), [2, 2], [1, 1], [1, 1], 2, bias=4),
    _conv(aten.conv_transpose3d.input, (2, 3, 2, 3, 2), (3, 2, 2, 2, 2)),
]  # fmt: skip

NORMS = [
    Case(
        aten.batch_norm.default, lambda d: (*_norm_args((3, 4, 2, 3))(d), False, 0.1, 1e-5, False),
        slot="input", slack=5,
    ),
    Case(
        aten.batch_norm.default,
        lambda d: (d.normal(3, 4), None, None, d.normal(4), d.positive(4), False, 0.1, 1e-5, False),
        "plain", slot="input", slack=5,
    ),
    Case(
        aten._native_batch_norm_legit_no_training.default, lambda d: (*_norm_args((3, 4, 5))(d), 0.1, 1e-5),
        slot="input", pick=0, slack=5,
    ),
    Case(
        aten.instance_norm.default, lambda d: (*_norm_args((3, 4, 5))(d), False, 0.1, 1e-5, False),
        slot="input", slack=5,
    ),
    Case(
        aten.layer_norm.default, lambda d: (d.normal(3, 5, 6), [6], d.positive(6), d.normal(6), 1e-12),
        slot="input", slack=20,
    ),
    Case(aten.layer_norm.default, lambda d: (d.normal(3, 2, 6), [2, 6]), "plain", slot="input", nudge=0.05,
         ccp="eps = 1e-5 under the root: met to eps only, see test_norm"),
    Case(
        aten.native_layer_norm.default, lambda d: (d.normal(3, 5, 6), [6], d.positive(6), d.normal(6), 1e-12),
        slot="input", pick=0, slack=20,
    ),
    Case(aten.rms_norm.default, lambda d: (d.normal(3, 5, 6), [6], d.positive(6), 1e-12), slot="input", slack=20),
    Case(aten.rms_norm.default, lambda d: (d.normal(3, 6), [6]), "plain", slot="input", slack=20),
    Case(
        aten.group_norm.default, lambda d: (d.normal(3, 4, 2, 3), 2, d.positive(4), d.normal(4), 1e-12),
        slot="input", slack=20,
    ),
    Case(
        aten.native_group_norm.default,
        lambda d: (d.normal(3, 4, 2, 3), d.positive(4), d.normal(4), 3, 4, 6, 2, 1e-12),
        slot="input", pick=0, slack=20,
    ),
    Case(
        aten.layer_norm.default, lambda d: (d.normal(3, 5, 6), [6], d.positive(6), d.normal(6)), preset="paper",
        slot="input", ccp="the paper's scale amplifies rounding by 1/(1 − q)", mdp="paper rule: not the nearest scale",
    ),
    Case(
        aten.native_layer_norm.default, lambda d: (d.normal(3, 5, 6), [6], d.positive(6), d.normal(6), 1e-5),
        preset="paper", slot="input", pick=0,
        ccp="the paper's scale amplifies rounding by 1/(1 − q)", mdp="paper rule: not the nearest scale",
    ),
]  # fmt: skip

_NO_KERNEL = "avg_pool3d has no bfloat16 kernel on the CPU"
AVERAGES = [
    on(aten.avg_pool1d.default, (2, 3, 8), [2]),
    on(aten.avg_pool1d.default, (2, 3, 8), [3], [2], [1], True, False, note="overlap"),
    on(aten.avg_pool2d.default, (2, 3, 6, 6), [2, 2]),
    on(aten.avg_pool2d.default, (2, 3, 7, 6), [3, 2], [2, 1], [1, 0], note="overlap", slack=10),
    on(aten.avg_pool2d.default, (2, 3, 7, 6), [3, 3], [2, 2], [1, 1], True, False, note="ceil", slack=10),
    on(aten.avg_pool2d.default, (2, 3, 7, 6), [3, 3], [2, 2], [1, 1], True, True, note="ceil-padding", slack=10),
    on(aten.avg_pool2d.default, (2, 3, 7, 6), [2, 3], [2, 3], [0, 0], False, True, 5, note="divisor"),
    on(aten.avg_pool2d.default, (2, 3, 5, 5), [2, 2], note="uncovered"),
    on(aten.avg_pool3d.default, (2, 2, 4, 4, 3), [2, 2, 3], bfloat16=_NO_KERNEL),
    on(
        aten.avg_pool3d.default, (2, 2, 4, 5, 4), [2, 3, 2], [2, 2, 1], [1, 1, 0], False, False,
        note="overlap", slack=10, bfloat16=_NO_KERNEL,
    ),
    on(aten.adaptive_avg_pool1d.default, (2, 3, 7), [3]),
    on(aten.adaptive_avg_pool2d.default, (2, 3, 6, 7), [1, 1]),
    on(aten.adaptive_avg_pool2d.default, (2, 3, 6, 7), [4, 3], note="overlap", slack=10),
    on(aten.adaptive_avg_pool2d.default, (2, 3, 2, 3), [4, 3], note="wider"),
    on(aten._adaptive_avg_pool2d.default, (2, 3, 6, 6), [3, 2]),
    on(aten.adaptive_avg_pool3d.default, (2, 2, 4, 4, 5), [2, 1, 2]),
]  # fmt: skip

_PAPER_POOL = "paper rule: the window becomes constant"
PAPER_AVERAGES = [
    on(aten.adaptive_avg_pool1d.default, (2, 3, 6), [3], preset="paper", mdp=_PAPER_POOL),
    on(aten.adaptive_avg_pool2d.default, (2, 3, 6, 4), [2, 2], preset="paper", mdp=_PAPER_POOL),
    on(
        aten.adaptive_avg_pool2d.default, (2, 3, 5, 4), [2, 2], preset="paper", note="uneven", mdp=_PAPER_POOL,
        ccp="nearest-neighbour spreading matches windows only where sizes divide",
    ),
    on(aten._adaptive_avg_pool2d.default, (2, 3, 6, 4), [1, 1], preset="paper", mdp=_PAPER_POOL),
    on(aten.adaptive_avg_pool3d.default, (2, 2, 4, 4, 2), [2, 2, 1], preset="paper", mdp=_PAPER_POOL),
]  # fmt: skip

INTERPOLATIONS = [
    on(aten.upsample_linear1d.default, (2, 3, 5), [10], False, slack=10),
    on(aten.upsample_bilinear2d.default, (2, 3, 4, 3), [8, 6], False, slack=10),
    on(aten.upsample_bilinear2d.default, (2, 3, 4, 3), [7, 7], True, note="corners", slack=10),
    on(aten.upsample_bilinear2d.default, (2, 3, 8, 6), [3, 4], False, note="smaller", slack=10),
    on(aten.upsample_bilinear2d.vec, (2, 3, 4, 3), None, False, [2.0, 1.5], slot="input", slack=10),
    on(aten.upsample_trilinear3d.default, (2, 2, 3, 2, 3), [6, 4, 3], False, slack=10),
]

_OVERLAP = "overlapping windows: consistent, only approximately minimal"


def _image(op: OpOverload, shape: tuple[int, ...], *extra: Any, **fields: Any) -> Case:
    return Case(op, lambda d: (d.image(*shape), *extra), **fields)


MAXIMA = [
    _image(aten.max_pool1d.default, (2, 3, 8), [2]),
    _image(aten.max_pool2d.default, (2, 3, 6, 6), [2, 2]),
    _image(aten.max_pool2d.default, (2, 3, 5, 5), [2, 2], [2, 2], [1, 1], [1, 1], True, note="ceil"),
    _image(aten.max_pool2d.default, (2, 3, 7, 7), [3, 3], [2, 2], [1, 1], note="overlap", mdp=_OVERLAP),
    _image(aten.max_pool2d.default, (2, 2, 8, 8), [2, 2], [1, 1], [0, 0], [2, 2], note="dilated", mdp=_OVERLAP),
    _image(aten.max_pool3d.default, (2, 2, 4, 4, 4), [2, 2, 2]),
    _image(aten.max_pool2d_with_indices.default, (2, 3, 6, 6), [2, 2], pick=0),
    _image(aten.max_pool3d_with_indices.default, (2, 2, 4, 4, 4), [2, 2, 2], pick=0),
    _image(aten.adaptive_max_pool1d.default, (2, 3, 7), [3], pick=0, mdp=_OVERLAP),
    _image(aten.adaptive_max_pool2d.default, (2, 3, 6, 6), [3, 2], pick=0),
    _image(aten.adaptive_max_pool3d.default, (2, 2, 4, 4, 4), [2, 2, 1], pick=0),
]

RESHAPES = [
    on(aten.view.default, (2, 12), [2, 3, 4]),
    on(aten._unsafe_view.default, (2, 12), [2, 3, 4]),
    on(aten.reshape.default, (2, 3, 4), [2, 12]),
    on(aten.flatten.using_ints, (2, 3, 4), 1),
    on(aten.unflatten.int, (2, 12), 1, [3, 4]),
    on(aten.squeeze.default, (2, 1, 3)),
    on(aten.squeeze.dim, (2, 1, 3), 1),
    on(aten.squeeze.dims, (2, 1, 3, 1), [1, 3]),
    on(aten.unsqueeze.default, (2, 3), 1),
    on(aten.clone.default, (2, 3)),
    on(aten.contiguous.default, (2, 3)),
    on(aten.alias.default, (2, 3)),
    on(aten.detach.default, (2, 3)),
    on(aten.dropout.default, (2, 3), 0.5, False, slot="input"),
    on(aten._to_copy.default, (2, 3), keywords=(("dtype", torch.float64),)),
    on(aten.to.dtype, (2, 3), torch.float64),
    on(aten.to.device, (2, 3), torch.device("cpu"), torch.float64),
    on(aten.permute.default, (2, 3, 4), [0, 2, 1]),
    on(aten.permute.default, (2, 3, 4), [2, -3, 1], note="batch", output=BatchAxis(1)),
    on(aten.transpose.int, (2, 3, 4), -1, 1),
    on(aten.t.default, (2, 3), output=BatchAxis(1)),
]


def _index(d: Draw, count: int, high: int) -> Tensor:
    return torch.randint(0, high, (count,), generator=d.generator)


MOVES = [
    on(aten.select.int, (2, 3, 4), 1, -1),
    on(aten.slice.Tensor, (2, 6, 3), 1, 1, 6, 2),
    on(aten.narrow.default, (2, 6), 1, 2, 3),
    Case(aten.index.Tensor, lambda d: (d.normal(2, 5, 3), [None, _index(d, 7, 5)])),
    Case(aten.index_select.default, lambda d: (d.normal(2, 5), 1, _index(d, 4, 5))),
    Case(aten.gather.default, lambda d: (d.normal(2, 5), 1, _index(d, 14, 5).reshape(2, 7))),
    on(aten.split.Tensor, (2, 7), 3, 1, pick=2),
    on(aten.split_with_sizes.default, (2, 7), [2, 5], 1, pick=1),
    on(aten.chunk.default, (2, 7, 2), 3, 1, pick=0),
    on(aten.unbind.int, (2, 3, 4), 1, pick=1),
    Case(aten.cat.default, lambda d: ([d.normal(2, 3), d.normal(2, 4), d.normal(2, 1)], 1), slot="tensors", item=1),
    Case(aten.stack.default, lambda d: ([d.normal(2, 3), d.normal(2, 3)], 1), slot="tensors", item=0),
    on(aten.expand.default, (2, 1, 3), [2, 4, 3]),
    on(aten.repeat.default, (2, 3), [1, 2]),
    on(aten.constant_pad_nd.default, (2, 3, 4), [1, 2, 0, 1], 0.5),
    on(aten.constant_pad_nd.default, (2, 3, 4), [-1, 2], note="crop"),
    on(aten.pad.default, (2, 3, 4), [1, 2], "reflect"),
    on(aten.pad.default, (2, 3, 4), [1, 2], "circular", note="circular"),
    on(aten.reflection_pad1d.default, (2, 3, 4), [1, 2]),
    on(aten.reflection_pad2d.default, (2, 3, 4, 4), [1, 2, 0, 1]),
    on(aten.replication_pad1d.default, (2, 3, 4), [1, 2]),
    on(aten.replication_pad2d.default, (2, 3, 4, 4), [1, 2, 0, 1]),
    on(aten.roll.default, (2, 3, 4), [1, -1], [1, 2]),
    on(aten.flip.default, (2, 3, 4), [1, 2]),
    on(aten.pixel_shuffle.default, (2, 8, 2, 3), 2),
    on(aten.pixel_unshuffle.default, (2, 2, 4, 6), 2),
    on(aten.channel_shuffle.default, (2, 6, 2, 2), 3),
    on(aten.native_channel_shuffle.default, (2, 6, 2, 2), 3),
    on(aten.upsample_nearest1d.default, (2, 3, 4), [7]),
    on(aten.upsample_nearest2d.default, (2, 3, 4, 2), [8, 4]),
    on(aten.upsample_nearest2d.vec, (2, 3, 4, 2), None, [2.0, 1.5], slot="input"),
    on(aten.upsample_nearest3d.default, (2, 2, 3, 2, 2), [6, 4, 2]),
    on(aten.diagonal.default, (2, 4, 4), 1, 1, 2),
    on(aten.unfold.default, (2, 7), 1, 3, 2),
]

REDUCTIONS = [
    on(aten.mean.dim, (2, 3, 4, 5), [-1, -2]),
    on(aten.mean.dim, (2, 3, 4), [1], True, note="keep"),
    on(aten.mean.default, (1, 3, 4), scalar=True),
    on(aten.sum.dim_IntList, (2, 3, 4), [2]),
    on(aten.sum.default, (1, 3, 4), scalar=True),
]

SOFTMAXES = [
    on(aten.softmax.int, (3, 4, 5), -1, slack=20),
    on(aten._softmax.default, (3, 4, 5), 1, False, slack=20),
    on(aten.log_softmax.int, (3, 6), 1, slack=10),
    on(aten._log_softmax.default, (3, 6), 1, False, slack=10),
]

CASES = [
    *ACTIVATIONS, *ARITHMETIC, *LINEAR, *CONVOLUTIONS, *NORMS, *AVERAGES, *PAPER_AVERAGES, *INTERPOLATIONS, *MAXIMA,
    *RESHAPES, *MOVES, *REDUCTIONS, *SOFTMAXES,
]  # fmt: skip
