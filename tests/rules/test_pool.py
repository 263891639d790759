"""Pooling and interpolation: averages against the pseudo-inverse, maxima against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from frpt.rules import RULES, Site
from tests.rules.cases import AVERAGES, INTERPOLATIONS, MAXIMA, Case, Draw, site
from tests.rules.reference import asked, assert_least_change, least_change, matrix_of
from tests.tolerance import assert_close

aten = torch.ops.aten


def draw(seed: int = 0) -> Draw:
    return Draw(torch.float64, torch.Generator().manual_seed(seed))


# --- averages and interpolation: dense matrices -----------------------------------------------------------------------


@pytest.mark.parametrize("case", [*AVERAGES, *INTERPOLATIONS], ids=str)
def test_least_change(case: Case) -> None:
    assert_least_change(case)


@given(
    space=st.tuples(st.integers(3, 6), st.integers(3, 6)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padded=st.booleans(),
    ceil=st.booleans(),
    counted=st.booleans(),
    divisor=st.sampled_from([None, 1, 5]),
)
def test_drawn_average_pools(
    space: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padded: bool,
    ceil: bool,
    counted: bool,
    divisor: int | None,
) -> None:
    """Overlap, padding, ceil_mode, count_include_pad and divisor_override in any combination."""
    padding = [k // 2 if padded else 0 for k in kernel]
    at = site(
        aten.avg_pool2d.default,
        draw().normal(2, 2, *space),
        list(kernel),
        list(stride),
        padding,
        ceil,
        counted,
        divisor,
    )
    values = torch.linalg.svdvals(matrix_of(at))
    assume(float(values.min() / values.max()) > 1e-3)  # singular windows go to the fallback: test_gate
    target = asked(at)
    solution = RULES["default"][aten.avg_pool2d.default].function(at, target)
    assume(not bool(solution.fallback.any()))
    assert_close(solution.value, least_change(at, target), slack=100)


@given(n=st.integers(1, 9), m=st.integers(1, 9))
def test_drawn_adaptive_average_pools(n: int, m: int) -> None:
    at = site(aten.adaptive_avg_pool1d.default, draw().normal(2, 2, n), [m])
    values = torch.linalg.svdvals(matrix_of(at))
    assume(m > n or float(values.min() / values.max()) > 1e-6)
    target = asked(at)
    solution = RULES["default"][aten.adaptive_avg_pool1d.default].function(at, target)
    assert_close(solution.value, least_change(at, target), slack=100)


@given(n=st.integers(1, 6), m=st.integers(1, 12), corners=st.booleans(), scale=st.sampled_from([None, 1.5, 2.0]))
def test_drawn_linear_interpolation(n: int, m: int, corners: bool, scale: float | None) -> None:
    m = m if scale is None else int(n * scale)
    at = site(aten.upsample_linear1d.default, draw().normal(2, 2, n), [m], corners, scale)
    values = torch.linalg.svdvals(matrix_of(at))
    assume(float(values.min() / values.max()) > 1e-3)
    target = asked(at)
    solution = RULES["default"][aten.upsample_linear1d.default].function(at, target)
    assert_close(solution.value, least_change(at, target), slack=100)


def test_uncovered_entries_keep_their_anchor() -> None:
    at = site(aten.avg_pool1d.default, draw().normal(1, 1, 7), [2], [3])
    value = RULES["default"][aten.avg_pool1d.default].solve(at, asked(at)).value
    assert torch.equal(value[0, 0, [2, 5, 6]], at.anchor[0, 0, [2, 5, 6]])


def test_the_papers_pool_broadcasts() -> None:
    at = site(aten.adaptive_avg_pool2d.default, draw().normal(2, 3, 4, 6), [2, 2])
    target = asked(at)
    value = RULES["paper"][aten.adaptive_avg_pool2d.default].solve(at, target).value
    assert_close(value, target.repeat_interleave(2, -2).repeat_interleave(3, -1))


# --- maxima -----------------------------------------------------------------------------------------------------------


def _smallest_change(window: np.ndarray, t: float) -> float:
    """min ‖z − window‖² with max z = t: one entry becomes t, the others are cut at t; every choice of one is tried."""
    cut = np.minimum(window, t)
    costs = []
    for i in range(len(window)):
        z = cut.copy()
        z[i] = t
        costs.append(((z - window) ** 2).sum())
    return float(min(costs))


@given(
    count=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 10_000),
    ties=st.booleans(),
)
def test_without_overlap_the_smallest_change(count: int, kernel: tuple[int, int], seed: int, ties: bool) -> None:
    d = draw(seed)
    height, width = kernel
    a = d.normal(2, 2, count * height, 2 * width)
    a = a.round() if ties else a
    at = site(aten.max_pool2d.default, a, list(kernel))
    target = asked(at, size=1.0, seed=seed)
    value = RULES["default"][aten.max_pool2d.default].function(at, target).value
    assert_close(at.forward(value), target)
    for b, c, i, j in itertools.product(range(2), range(2), range(count), range(2)):
        rows, columns = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
        before, after = a[b, c, rows, columns].flatten().numpy(), value[b, c, rows, columns].flatten().numpy()
        cost = ((after - before) ** 2).sum()
        assert cost <= _smallest_change(before, target[b, c, i, j].item()) + 1e-12


def _brute_force(a: np.ndarray, windows: list[list[int]], t: np.ndarray) -> float:
    """The smallest squared change with overlap, by trying every assignment of a deciding entry to every window."""
    upper = np.full(len(a), np.inf)
    for window, value in zip(windows, t, strict=True):
        upper[window] = np.minimum(upper[window], value)
    best = np.inf
    for chosen in itertools.product(*windows):
        if all(upper[i] >= value for i, value in zip(chosen, t, strict=True)):
            z = np.minimum(a, upper)
            for i, value in zip(chosen, t, strict=True):
                z[i] = value
            best = min(best, float(((z - a) ** 2).sum()))
    return best


@given(n=st.integers(4, 7), kernel=st.integers(2, 3), stride=st.integers(1, 2), seed=st.integers(0, 10_000))
def test_with_overlap_consistent_and_near_the_smallest_change(n: int, kernel: int, stride: int, seed: int) -> None:
    """Targets of a real input are attained; the change is never below, and on average little above, the smallest."""
    d = draw(seed)
    a = d.normal(1, 1, n)
    at = site(aten.max_pool1d.default, a, [kernel], [stride])
    target = at.forward(a + d.normal(1, 1, n))
    value = RULES["default"][aten.max_pool1d.default].function(at, target).value
    assert_close(at.forward(value), target)
    windows = [list(range(j * stride, j * stride + kernel)) for j in range(target.numel())]
    least = _brute_force(a.flatten().numpy(), windows, target.flatten().numpy())
    cost = float((value - a).square().sum())
    assert least - 1e-12 <= cost
    assert cost <= 4 * least + 1e-12


@pytest.mark.parametrize("case", MAXIMA, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_targets_of_a_real_input_are_attained(case: Case, seed: int) -> None:
    """Also far from the anchor: the target comes from another input altogether."""
    at: Site = case.site(torch.float64, seed=seed)
    target = at.forward(draw(seed + 100).normal(*at.anchor.shape))
    solution = case.rule.function(at, target)
    assert_close(at.forward(solution.value), target)


def test_entries_outside_every_window_keep_their_anchor() -> None:
    at = site(aten.max_pool1d.default, draw().normal(1, 1, 7), [2], [3])
    value = RULES["default"][aten.max_pool1d.default].solve(at, at.output - 5).value
    assert torch.equal(value[0, 0, [2, 5, 6]], at.anchor[0, 0, [2, 5, 6]])


def test_indices_are_not_reversed() -> None:
    at: Site = site(aten.max_pool2d_with_indices.default, torch.ones(1, 1, 2, 2), [2, 2], pick=1)
    assert not RULES["default"][aten.max_pool2d_with_indices.default].applies(at)


def test_planes_without_a_channel_axis() -> None:
    """Pooling takes (b, space) as well: every leading axis counts its own planes."""
    a: Tensor = draw(3).normal(3, 8)
    for op in (aten.avg_pool1d.default, aten.max_pool1d.default):
        at = site(op, a, [2])
        target = at.forward(a + 0.1 * draw(4).normal(3, 8))
        assert_close(at.forward(RULES["default"][op].solve(at, target).value), target)
