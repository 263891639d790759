"""Targets kept inside the range of the op before, against constrained programs solved by scipy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frpt.options import Convolutions
from frpt.rules import RULES, Site
from frpt.solvers.base import Range
from tests.rules.cases import Draw, site
from tests.rules.reference import bounded_least_change, matrix_of
from tests.tolerance import assert_close

aten = torch.ops.aten
POSITIVE = Range(0.0, math.inf)
MATRIX_FREE = Convolutions(dense_entries=1)


def draw(seed: int) -> Draw:
    return Draw(torch.float64, torch.Generator().manual_seed(seed))


def rectified(d: Draw, *shape: int) -> Tensor:
    """What a ReLU passes on: half of it zero."""
    return d.normal(*shape).clamp_min(0)


def compare(at: Site, target: Tensor) -> None:
    """Each sample against the program min ‖a − â‖² subject to A a = y, a ≥ 0."""
    solution = RULES["default"][at.op].solve(at, target)
    assert float(solution.value.min()) >= 0.0
    assert not bool(solution.fallback.any())
    A = matrix_of(at)
    y = A @ at.anchor.flatten() + (target - at.output).flatten()
    expected = bounded_least_change(A, at.anchor.flatten(), y, 0.0)
    assert_close(solution.value.flatten(), expected, torch.float32, slack=2)


def test_linear() -> None:
    """Where the dual iteration converges (nine in ten) it finds the constrained solution; elsewhere it is near it."""
    agreed = 0
    for seed in range(60):
        d, m, n = draw(seed), 1 + seed % 3, 6 + seed % 4
        at = site(aten.linear.default, rectified(d, 1, n), d.normal(m, n), d.normal(m), slot="input", within=POSITIVE)
        target = at.forward(rectified(d, 1, n) + 0.1)
        solution = RULES["default"][aten.linear.default].solve(at, target)
        value = solution.value.flatten()
        assert float(value.min()) >= 0.0
        left = (at.forward(solution.value) - target).norm() / (at.output - target).norm()
        expected = bounded_least_change(at.args["weight"], at.anchor[0], (target - at.args["bias"])[0], 0.0)
        distance, least = (value - at.anchor[0]).norm(), (expected - at.anchor[0]).norm()
        assert float(left) <= 1e-3
        assert float(distance) <= 1.05 * float(least)
        agreed += bool((value - expected).abs().max() <= 1e-5)
    assert agreed >= 54


@given(kernel=st.integers(2, 3), seed=st.integers(0, 10_000))
def test_average_pool(kernel: int, seed: int) -> None:
    d = draw(seed)
    at = site(aten.avg_pool1d.default, rectified(d, 1, 1, 3 * kernel), [kernel], within=POSITIVE)
    compare(at, at.forward(rectified(d, 1, 1, 3 * kernel)))


@given(seed=st.integers(0, 10_000), size=st.integers(2, 6))
def test_mean(seed: int, size: int) -> None:
    d = draw(seed)
    at = site(aten.mean.dim, rectified(d, 1, 2, size), [2], within=POSITIVE)
    compare(at, at.forward(rectified(d, 1, 2, size)))


def test_a_mean_that_must_fall_is_taken_from_the_entries_that_have_something_to_give() -> None:
    """(0, 1, 5) with mean 1: the projection is (0, 0, 3), not (−1, 0, 4)."""
    at = site(aten.mean.dim, torch.tensor([[0.0, 1.0, 5.0]], dtype=torch.float64), [1], within=POSITIVE)
    value = RULES["default"][aten.mean.dim].solve(at, torch.tensor([1.0], dtype=torch.float64)).value
    assert_close(value, torch.tensor([[0.0, 0.0, 3.0]], dtype=torch.float64), torch.float32)


RULES_IN_RANGE: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "linear": (aten.linear.default, (4, 8), lambda d: (d.normal(5, 8),)),
    "linear-II": (aten.linear.default, (4, 4), lambda d: (d.normal(9, 4),)),
    "conv": (aten.conv2d.default, (4, 3, 5, 5), lambda d: (d.normal(4, 3, 3, 3), None, [1, 1], [1, 1])),
    "bmm": (aten.bmm.default, (4, 3, 6), lambda d: (d.normal(4, 6, 4),)),
    "mul": (aten.mul.Tensor, (4, 6), lambda d: (d.normal(4, 6),)),
    "add": (aten.add.Tensor, (4, 6), lambda d: (d.normal(4, 6),)),
    "avg_pool": (aten.avg_pool2d.default, (4, 2, 6, 6), lambda d: ([3, 3], [2, 2], [1, 1])),
    "adaptive": (aten.adaptive_avg_pool2d.default, (4, 2, 5, 5), lambda d: ([2, 2],)),
    "upsample": (aten.upsample_bilinear2d.default, (4, 2, 3, 3), lambda d: ([6, 6], False)),
    "mean": (aten.mean.dim, (4, 2, 5), lambda d: ([2],)),
    "sum": (aten.sum.dim_IntList, (4, 2, 5), lambda d: ([2],)),
    "pad": (aten.reflection_pad1d.default, (4, 2, 5), lambda d: ([1, 2],)),
}
ranged = pytest.mark.parametrize(("op", "shape", "extra"), RULES_IN_RANGE.values(), ids=RULES_IN_RANGE.keys())


def slot_of(op: Any) -> str:
    return str(op._schema.arguments[0].name)


@ranged
@pytest.mark.parametrize("within", [POSITIVE, Range(0.0, 1.0), Range(-1.0, 0.5)], ids=["relu", "unit", "skew"])
@pytest.mark.parametrize("conv", [None, MATRIX_FREE], ids=["direct", "matrix-free"])
def test_values_stay_in_the_range_and_gain(
    op: Any, shape: tuple[int, ...], extra: Any, within: Range, conv: Convolutions | None
) -> None:
    """Attainable or not: inside the range, and no sample is less consistent than its anchor was."""
    d = draw(11)
    anchor = d.normal(*shape).clamp(within.low, within.high)
    at = site(op, anchor, *extra(d), slot=slot_of(op), within=within, conv=conv)
    near = (anchor + 0.3 * d.normal(*shape)).clamp(within.low, within.high)
    for target in (at.forward(near), at.output + d.normal(*at.output.shape)):
        value = RULES["default"][op].solve(at, target).value
        assert float(value.min()) >= within.low
        assert float(value.max()) <= within.high
        before = (at.output - target).flatten(1).norm(dim=1)
        after = (at.forward(value) - target).flatten(1).norm(dim=1)
        assert bool((after <= before * (1 + 1e-9)).all())


@pytest.mark.parametrize("conv", [None, MATRIX_FREE], ids=["direct", "matrix-free"])
def test_an_attainable_target_is_reached_inside_the_range(conv: Convolutions | None) -> None:
    """A convolution behind a ReLU, the target made by another non-negative input."""
    d = draw(12)
    anchor = rectified(d, 3, 4, 6, 6)
    weight = d.normal(3, 4, 3, 3)
    at = site(aten.conv2d.default, anchor, weight, None, [1, 1], [1, 1], slot="input", within=POSITIVE, conv=conv)
    near = (anchor + 0.2 * d.normal(3, 4, 6, 6)).clamp_min(0)
    target = at.forward(near)
    solution = RULES["default"][aten.conv2d.default].solve(at, target)
    assert float(solution.value.min()) >= 0
    before = (at.output - target).flatten(1).norm(dim=1)
    after = (at.forward(solution.value) - target).flatten(1).norm(dim=1)
    assert bool((after <= 1e-2 * before).all())
    assert bool((solution.iterations > 0).all())
    moved, its = ((v - anchor).flatten(1).norm(dim=1) for v in (solution.value, near))
    assert bool((moved <= 1.1 * its).all())


def test_an_unattainable_target_leaves_no_sample_worse() -> None:
    """Positive weights and a negative target: zero is the nearest that a non-negative input comes."""
    at = site(
        aten.linear.default, torch.ones(1, 4, dtype=torch.float64), torch.ones(1, 4, dtype=torch.float64),
        slot="input", within=POSITIVE,
    )  # fmt: skip
    solution = RULES["default"][aten.linear.default].solve(at, torch.tensor([[-3.0]], dtype=torch.float64))
    assert_close(solution.value, torch.zeros(1, 4, dtype=torch.float64), torch.float32)


def test_the_fixed_point_inside_a_range() -> None:
    d = draw(13)
    at = site(aten.linear.default, rectified(d, 3, 6), d.normal(4, 6), slot="input", within=POSITIVE)
    assert torch.equal(RULES["default"][aten.linear.default].solve(at, at.output.clone()).value, at.anchor)


def test_rounding_that_put_the_anchor_outside_stretches_the_range() -> None:
    x = torch.tensor([[-1e-7, 1.0]], dtype=torch.float64)
    assert torch.equal(POSITIVE.clamp(x, x), x)
    assert torch.equal(POSITIVE.clamp(x - 1, x), torch.tensor([[-1e-7, 0.0]], dtype=torch.float64))
    assert torch.equal(Range().clamp(x - 1, x), x - 1)
