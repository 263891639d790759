"""Activations against brute-force grids and bracketed roots, on both branches and at saturated ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload

from frpt.options import Gate
from frpt.rules import RULES
from frpt.solvers.base import Solution
from tests.rules.cases import site
from tests.rules.reference import nearest_preimage
from tests.tolerance import assert_close

aten = torch.ops.aten
Scalar = Callable[[float], float]
OPEN = Gate(enabled=False)


def solve(
    op: OpOverload, anchor: Any, target: Any, *extra: Any, dtype: torch.dtype = torch.float64, **kw: Any
) -> Solution:
    """One reverse step, the gate off: a sample of one entry near zero has no norm to measure its deviation by.

    anchor, target: numbers or lists of them, each a sample of one entry; or tensors.
    """
    a = torch.as_tensor(anchor, dtype=dtype).reshape(-1, 1) if not isinstance(anchor, Tensor) else anchor
    at = site(op, a, *extra, **{"gate": OPEN, **kw})
    t = torch.as_tensor(target, dtype=at.anchor.dtype).reshape(a.shape)
    return RULES["default"][op].solve(at, t)


# --- piecewise linear ones: a grid ------------------------------------------------------------------------------------

GRID = torch.arange(-12_000, 12_001, dtype=torch.float64) / 1000
PIECEWISE = {
    "relu": (aten.relu.default, ()),
    "relu6": (aten.relu6.default, ()),
    "hardtanh": (aten.hardtanh.default, (-0.5, 1.5)),
    "clamp": (aten.clamp.default, (-1.0, 2.0)),
    "clamp-open": (aten.clamp.default, (None, 0.5)),
    "clamp_min": (aten.clamp_min.default, (-0.3,)),
    "clamp_max": (aten.clamp_max.default, (0.3,)),
    "hardsigmoid": (aten.hardsigmoid.default, ()),
    "leaky_relu": (aten.leaky_relu.default, (0.2,)),
    "leaky_relu-steep": (aten.leaky_relu.default, (3.0,)),
    "leaky_relu-flat": (aten.leaky_relu.default, (0.0,)),
    "prelu": (aten.prelu.default, (torch.tensor([0.2], dtype=torch.float64),)),
    "prelu-steep": (aten.prelu.default, (torch.tensor([3.0], dtype=torch.float64),)),
    "prelu-flat": (aten.prelu.default, (torch.tensor([0.0], dtype=torch.float64),)),
    "prelu-valley": (aten.prelu.default, (torch.tensor([-1.0], dtype=torch.float64),)),
    "hardswish": (aten.hardswish.default, ()),
}


@pytest.mark.parametrize(("op", "extra"), PIECEWISE.values(), ids=PIECEWISE.keys())
@given(anchor=st.integers(-8000, 8000), target=st.integers(-15_000, 80_000))
def test_nearest_of_the_best_on_a_grid(op: OpOverload, extra: tuple[Any, ...], anchor: int, target: int) -> None:
    """No grid point is more consistent, and none as consistent is nearer (steps of 1e-3)."""
    a, t = anchor / 1000, target / 10_000
    z = solve(op, a, t, *extra).value
    assert z.abs().item() <= 12
    error = (op(GRID, *extra) - t).abs()
    mine = (op(z, *extra) - t).abs().item()
    assert mine <= error.min().item() + 1e-9
    as_good = GRID[error <= mine + 1e-12]
    if len(as_good):
        assert abs(z.item() - a) <= (as_good - a).abs().min().item() + 1e-9


# --- valleys: both branches by bracketing -----------------------------------------------------------------------------


def _exp_ratio(x: float) -> float:
    """sigmoid(x) without cancellation or overflow."""
    return math.exp(x) / (1 + math.exp(x)) if x < 0 else 1 / (1 + math.exp(-x))


def _gelu(z: float) -> float:
    return z * 0.5 * math.erfc(-z / math.sqrt(2))


def _gelu_tanh(z: float) -> float:
    return z * _exp_ratio(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))


def _silu(z: float) -> float:
    return z * _exp_ratio(z)


def _mish(z: float) -> float:
    return z * math.tanh(math.log1p(math.exp(z))) if z < 30 else z


def _hardswish(z: float) -> float:
    return z * min(max(z + 3, 0), 6) / 6


def _bottom(f: Scalar) -> float:
    """The minimum by golden-section search."""
    low, high, ratio = -3.0, 0.0, (math.sqrt(5) - 1) / 2
    while high - low > 1e-9:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if f(left) < f(right) else (left, high)
    return (low + high) / 2


VALLEYS: dict[str, tuple[OpOverload, dict[str, str], Scalar, float]] = {
    "gelu": (aten.gelu.default, {}, _gelu, -38.0),
    "gelu-tanh": (aten.gelu.default, {"approximate": "tanh"}, _gelu_tanh, -25.0),
    "silu": (aten.silu.default, {}, _silu, -740.0),
    "mish": (aten.mish.default, {}, _mish, -740.0),
}
valleys = pytest.mark.parametrize(("op", "kw", "f", "far"), VALLEYS.values(), ids=VALLEYS.keys())


@valleys
@given(anchor=st.floats(-15, 15), target=st.floats(-0.16, 15))
def test_nearest_root_of_a_valley(
    op: OpOverload, kw: dict[str, str], f: Scalar, far: float, anchor: float, target: float
) -> None:
    bottom = _bottom(f)
    expected = nearest_preimage(f, target, anchor, [far, bottom, 40.0])
    z = solve(op, anchor, target, **kw).value.item()
    conditioned = 1e-9 / max(abs(target - f(bottom)), 1e-8) ** 0.5  # the roots meet at the bottom
    other = abs(abs(expected - anchor) - abs(z - anchor)) < 1e-7 and abs(f(z) - target) < 1e-9  # a tie of two roots
    assert other or abs(z - expected) <= 1e-9 + conditioned + 1e-12 * abs(expected)


@valleys
def test_below_the_bottom_is_the_bottom(op: OpOverload, kw: dict[str, str], f: Scalar, far: float) -> None:
    z = solve(op, [-5.0, -0.1, 3.0], [-0.5, -10.0, -1e6], **kw).value
    assert_close(z, torch.full_like(z, _bottom(f)), torch.float32)


@valleys
@pytest.mark.parametrize("target", [-1e-6, -1e-12, -1e-30, -1e-100, -1e-300])
def test_far_left_branch_is_not_truncated(
    op: OpOverload, kw: dict[str, str], f: Scalar, far: float, target: float
) -> None:
    """Targets just below zero with an anchor far left: the left root, however far out it is."""
    left = nearest_preimage(f, target, far, [far, _bottom(f)])
    assert left < -3
    z = solve(op, [left - 0.5, left + 0.5, 4.0], [target] * 3, **kw).value.flatten()
    assert_close(z[:2], torch.full((2,), left, dtype=torch.float64))
    # from the right the root beside zero is nearest
    assert z[2].item() == pytest.approx(nearest_preimage(f, target, 4.0, [_bottom(f), 10.0]), abs=1e-12)


def test_left_branch_from_anchors_far_out() -> None:
    gelu = solve(aten.gelu.default, -12.0, -1e-30).value.item()
    assert gelu == pytest.approx(nearest_preimage(_gelu, -1e-30, -12.0, [-38.0, -0.75]), abs=1e-9)
    silu = solve(aten.silu.default, -75.0, -1e-30).value.item()
    assert silu == pytest.approx(nearest_preimage(_silu, -1e-30, -75.0, [-740.0, -1.27]), abs=1e-9)
    assert silu < -70


@pytest.mark.parametrize(("op", "f"), [(aten.silu.default, _silu), (aten.mish.default, _mish)], ids=["silu", "mish"])
def test_left_branch_in_single_precision(op: OpOverload, f: Scalar) -> None:
    """A float32 solver reaches as far left as float32 targets do."""
    z = solve(op, -75.0, -1e-30, dtype=torch.float32, precision=torch.float32).value
    expected = nearest_preimage(f, -1e-30, -75.0, [-740.0, -1.3])
    assert z.item() == pytest.approx(expected, rel=1e-4)


@given(anchor=st.floats(-8, 8), target=st.floats(-0.6, 8))
def test_hardswish_nearest_root(anchor: float, target: float) -> None:
    flat = [min(anchor, -3.0)] if target == 0 else []
    expected = nearest_preimage(_hardswish, max(target, -0.375), anchor, [-3.0, -1.5, 3.0, 20.0], flat)
    z = solve(aten.hardswish.default, anchor, target).value.item()
    tie = abs(abs(expected - anchor) - abs(z - anchor)) < 1e-7 and abs(_hardswish(z) - target) < 1e-9
    assert tie or z == pytest.approx(expected, abs=1e-6)


def test_hardswish_both_branches() -> None:
    z = solve(aten.hardswish.default, [-2.9, -0.1, -5.0, 1.0], [-0.2, -0.2, 0.0, 0.0]).value.flatten()
    root = math.sqrt(9 - 4.8)
    assert_close(z, torch.tensor([(-3 - root) / 2, (-3 + root) / 2, -5.0, 0.0], dtype=torch.float64))


# --- strictly monotone ones: roots inside, ends of the range outside --------------------------------------------------

MONOTONE: dict[str, tuple[OpOverload, tuple[Any, ...], Scalar, float, float]] = {
    "tanh": (aten.tanh.default, (), math.tanh, -0.999, 0.999),
    "sigmoid": (aten.sigmoid.default, (), _exp_ratio, 1e-4, 0.9999),
    "log_sigmoid": (aten.log_sigmoid.default, (), lambda z: min(z, 0) - math.log1p(math.exp(-abs(z))), -30.0, -1e-6),
    "softplus": (
        aten.softplus.default, (2.0, 5.0), lambda z: z if 2 * z > 5 else math.log1p(math.exp(2 * z)) / 2, 1e-6, 2.4
    ),
    "softplus-linear": (aten.softplus.default, (2.0, 5.0), lambda z: z, 2.6, 20.0),
    "elu": (
        aten.elu.default, (0.8, 1.2, 0.9), lambda z: 1.2 * z if z > 0 else 1.2 * 0.8 * math.expm1(0.9 * z), -0.95, 10.0
    ),
    "celu": (aten.celu.default, (1.5,), lambda z: z if z > 0 else 1.5 * math.expm1(z / 1.5), -1.49, 10.0),
    "selu": (
        aten.selu.default, (),
        lambda z: 1.0507009873554805 * (z if z > 0 else 1.6732632423543772 * math.expm1(z)), -1.75, 10.0,
    ),
}  # fmt: skip
monotone = pytest.mark.parametrize(("op", "extra", "f", "low", "high"), MONOTONE.values(), ids=MONOTONE.keys())


@monotone
@given(anchor=st.floats(-3, 3), share=st.floats(0, 1))
def test_inverse_of_a_monotone_function(
    op: OpOverload, extra: tuple[Any, ...], f: Scalar, low: float, high: float, anchor: float, share: float
) -> None:
    target = low + share * (high - low)
    expected = nearest_preimage(f, target, anchor, [-60.0, 0.0, 60.0])
    z = solve(op, anchor, target, *extra).value.item()
    assert z == pytest.approx(expected, abs=1e-8)


ENDS = {
    "tanh-high": (aten.tanh.default, (), 1.0, 5.0),
    "tanh-low": (aten.tanh.default, (), -1.0, -5.0),
    "sigmoid-high": (aten.sigmoid.default, (), 1.0, 2.0),
    "sigmoid-low": (aten.sigmoid.default, (), 0.0, -1.0),
    "log_sigmoid": (aten.log_sigmoid.default, (), 0.0, 3.0),
    "softplus": (aten.softplus.default, (), 0.0, -3.0),
    "elu": (aten.elu.default, (2.0,), -2.0, -7.0),
    "elu-wide": (aten.elu.default, (40.0,), -40.0, -70.0),
    "celu": (aten.celu.default, (4.0,), -4.0, -7.0),
    "selu": (aten.selu.default, (), -1.0507009873554805 * 1.6732632423543772, -7.0),
}
PRECISIONS = [(torch.float64, torch.float64), (torch.float32, torch.float64), (torch.float32, torch.float32)]
ends = pytest.mark.parametrize(("op", "extra", "end", "beyond"), ENDS.values(), ids=ENDS.keys())
precisions = pytest.mark.parametrize(("model", "solver"), PRECISIONS, ids=["f64", "f32", "f32-solver"])


@ends
@precisions
def test_targets_at_and_beyond_an_open_end(
    op: OpOverload, extra: tuple[Any, ...], end: float, beyond: float, model: torch.dtype, solver: torch.dtype
) -> None:
    """As near to the end as the model's precision tells apart; finite, and no neighbour in the sample suffers."""
    anchor = torch.tensor([[0.3, 0.3, 0.3], [0.1, 0.2, -0.4]], dtype=model)
    at = site(op, anchor, *extra, precision=solver, gate=OPEN)
    reachable = op(torch.tensor([0.5, -0.6], dtype=solver), *extra)
    target = torch.stack([torch.tensor([end, beyond], dtype=solver), reachable], 0)
    target = torch.cat([target, reachable.flip(0)[:, None]], 1)
    solution = RULES["default"][op].solve(at, target)
    reached = op(solution.value.to(model), *extra)
    expected = target.clone()
    expected[0, :2] = end
    assert_close(reached, expected, model, slack=10)
    assert not bool(solution.fallback.any())


@ends
@precisions
def test_a_saturated_anchor_stays_where_it_is(
    op: OpOverload, extra: tuple[Any, ...], end: float, beyond: float, model: torch.dtype, solver: torch.dtype
) -> None:
    """Where the forward value is at the end already, a target beyond it asks for nothing."""
    far = 200.0 if beyond > end else -200.0
    anchor = torch.tensor([[far, 0.5]], dtype=model)
    at = site(op, anchor, *extra, precision=solver, gate=OPEN)
    target = at.output.clone()
    target[0, 0], target[0, 1] = beyond, float(op(torch.tensor(0.4, dtype=solver), *extra))
    z = RULES["default"][op].solve(at, target).value
    assert z[0, 0].item() == far
    assert z[0, 1].item() == pytest.approx(0.4, abs=1e-5)


def test_a_tiny_slope_goes_through_the_gate() -> None:
    """t/s = −1e9 is refused, reported, and stays finite and within the gate."""
    solution = solve(
        aten.leaky_relu.default, torch.tensor([[0.5, 1.0]], dtype=torch.float64), [-1.0, 1.0], 1e-9, gate=Gate()
    )
    assert solution.fallback.tolist() == [True]
    assert bool(torch.isfinite(solution.value).all())
    assert solution.value.abs().max().item() <= 1e3


def test_the_slope_is_used_in_full_precision() -> None:
    z = solve(aten.leaky_relu.default, 1.0, -0.3, 0.1).value.item()
    assert z == pytest.approx(-3.0, abs=1e-13)


def test_every_channel_has_its_slope() -> None:
    """Against each channel by itself; a channel of slope zero is a relu, one of a negative slope a valley."""
    g = torch.Generator().manual_seed(0)
    anchor, target = (3 * torch.randn(2, 4, 5, generator=g, dtype=torch.float64) for _ in range(2))
    slopes = torch.tensor([0.25, 2.0, 0.0, -0.5], dtype=torch.float64)
    together = solve(aten.prelu.default, anchor, target, slopes).value
    for c, slope in enumerate(slopes.tolist()):
        for a, t, z in zip(*(v[:, c].flatten().tolist() for v in (anchor, target, together)), strict=True):
            roots = [t] if t >= 0 else []
            roots += [t / slope] if slope != 0 and t / slope < 0 else []
            roots += [min(a, 0.0)] if slope == 0 and t <= 0 else []
            assert z == pytest.approx(min(roots or [0.0], key=lambda root: abs(root - a)), abs=1e-12)


# --- the paper's forms ------------------------------------------------------------------------------------------------


def test_paper_forms() -> None:
    anchor = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64)
    t = torch.tensor([[0.5, -0.4, 2.0]], dtype=torch.float64)
    end = 1 - 1e-6
    for op, extra, expected in [
        (aten.leaky_relu.default, (0.1,), [0.5, -0.8, 2.0]),
        (aten.leaky_relu.default, (0.0,), [0.5, -0.2, 2.0]),
        (aten.tanh.default, (), [math.atanh(0.5), math.atanh(-0.4), math.atanh(end)]),
        (aten.sigmoid.default, (), [0.0, math.log(1e-6 / end), math.log(end / (1 - end))]),
    ]:
        z = RULES["paper"][op].solve(site(op, anchor, *extra), t).value
        assert_close(z, torch.tensor([expected], dtype=torch.float64))
