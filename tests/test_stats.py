"""Statistics against the paper's tables, scipy, and references written out here."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from frpt import stats
from frpt.errors import InputError, NonFiniteError, OptionError


def draws(n: int = 10, shift: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    b = 65 + rng.normal(size=n)
    return b + shift + 0.4 * rng.normal(size=n), b


def ranked(ranks: list[float], negative: tuple[int, ...] = (), zeros: int = 0) -> np.ndarray:
    """Differences with these absolute values; those at ``negative`` are negative."""
    d = np.array([-r if i in negative else r for i, r in enumerate(ranks)] + [0.0] * zeros)
    return d / 128  # exact in binary


TEN = [float(r) for r in range(1, 11)]


@pytest.mark.parametrize(
    ("d", "w", "p"),
    [
        (ranked(TEN), 55.0, 0.00253),
        (ranked([*TEN[:8], 9.0, 9.0]), 55.0, 0.00252),
        (ranked(TEN, (0,)), 54.0, 0.00346),
        (ranked(TEN, (1,)), 53.0, 0.00467),
        (ranked(TEN, (2,)), 52.0, 0.00626),
        (ranked(TEN, (0, 2)), 51.0, 0.0083),
        (ranked(TEN, (4,)), 50.0, 0.0109),
        (ranked(TEN, (5,)), 49.0, 0.0142),
        (ranked(TEN, (7, 9)), 37.0, 0.166),
        (ranked(TEN[:9], (), 1), 45.0, 0.00384),
    ],
)
def test_wilcoxon_gives_the_papers_p_values(d: np.ndarray, w: float, p: float) -> None:
    """W and p_W of Supplement B.3, from which the differences can be told up to their sizes."""
    found = stats.paired(50 + d, np.full(10, 50.0))
    assert found.w == w
    assert float(f"{found.p_w:.3g}") == p


@pytest.mark.parametrize(
    ("t", "p", "d_z"),
    [(2.02, 0.0369, 0.64), (1.78, 0.0548, 0.56), (3.77, 0.00222, 1.19), (2.93, 0.00844, 0.93), (5.38, 0.000221, 1.70)],
)
def test_t_test_gives_the_papers_p_values(t: float, p: float, d_z: float) -> None:
    """t(9), p_t and d_z of Supplement B.3; t is rounded there, so p_t may be off by what that moves it."""
    d = np.random.default_rng(1).normal(size=10)
    d = (d - d.mean()) / d.std(ddof=1) + t / math.sqrt(10)
    found = stats.paired(d, np.zeros(10))
    assert found.t == pytest.approx(t, rel=1e-9)
    assert found.p_t == pytest.approx(p, rel=0.02)
    assert found.d_z == pytest.approx(d_z, abs=0.006)


def test_paired_against_scipy() -> None:
    a, b = draws()
    found = stats.paired(a, b)
    t = scipy_stats.ttest_rel(a, b, alternative="greater")
    w = scipy_stats.wilcoxon(a, b, alternative="greater", correction=False, method="approx")
    assert (found.t, found.p_t) == pytest.approx((t.statistic, t.pvalue), rel=1e-9)
    assert (found.w, found.p_w) == pytest.approx((w.statistic, w.pvalue), rel=1e-9)
    assert found.delta == pytest.approx(np.mean(a - b))
    assert found.std == pytest.approx(np.std(a - b, ddof=1))
    assert found.d_z == pytest.approx(found.t / math.sqrt(found.n))
    ci = scipy_stats.bootstrap((a - b,), np.mean, method="percentile", n_resamples=20_000, rng=3).confidence_interval
    assert found.ci == pytest.approx(tuple(ci), abs=0.03 * found.std)


def test_interval_is_seeded_and_follows_its_level() -> None:
    a, b = draws()
    first, again, other = (stats.paired(a, b, seed=s).ci for s in (0, 0, 1))
    assert first == again
    assert first != other
    wide = stats.paired(a, b, level=0.99).ci
    assert wide[0] < first[0] < stats.paired(a, b).delta < first[1] < wide[1]


def test_one_sided() -> None:
    a, b = draws()
    assert stats.paired(a, b).p_t + stats.paired(b, a).p_t == pytest.approx(1)
    assert stats.paired(a, b).p_w < 0.1 < 0.9 < stats.paired(b, a).p_w


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=8))
def test_exact_wilcoxon_against_all_signs(values: list[int]) -> None:
    """The share of sign patterns of the nonzero differences whose positive ranks sum to W or more."""
    found = stats.paired(np.array(values, dtype=float), np.zeros(len(values)), wilcoxon="exact", resamples=10)
    rest = [v for v in values if v]
    if not rest:
        assert (found.w, found.p_w) == (0.0, 1.0)
        return
    sizes = sorted(abs(v) for v in rest)
    rank = {s: np.mean([i for i, other in enumerate(sizes, 1) if other == s]) for s in sizes}
    w = sum(rank[v] for v in rest if v > 0)
    sums = [sum(rank[abs(v)] for v, up in zip(rest, signs, strict=True) if up)
            for signs in itertools.product((0, 1), repeat=len(rest))]  # fmt: skip
    assert found.w == pytest.approx(w)
    assert found.p_w == pytest.approx(np.mean([s >= w for s in sums]))


def test_rounding_hides_neither_ties_nor_zeros() -> None:
    """97.71 − 97.67 and 97.64 − 97.60 differ in floating point; they are one difference, and so is 0.1 + 0.2 − 0.3."""
    a, b = [97.71, 97.64, 0.1 + 0.2], [97.67, 97.60, 0.3]
    assert len(set(np.subtract(a, b))) == 3
    found = stats.paired(a, b)
    tied = stats.paired([1.0, 1.0, 0.0], [0.0, 0.0, 0.0])
    assert (found.w, found.p_w) == (tied.w, tied.p_w)
    assert found.w == 3.0


def test_degenerate_differences() -> None:
    same = stats.paired([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (same.delta, same.std, same.t, same.p_t, same.w, same.p_w, same.d_z) == (0, 0, 0, 1, 0, 1, 0)
    assert same.ci == (0, 0)
    constant = stats.paired([0.3, 0.4, 0.5], [0.2, 0.3, 0.4])
    assert constant.std == 0
    assert (constant.t, constant.p_t, constant.d_z) == (math.inf, 0.0, math.inf)
    assert constant.ci[0] == constant.ci[1] == constant.delta == pytest.approx(0.1)
    worse = stats.paired([0.2, 0.3, 0.4], [0.3, 0.4, 0.5])
    assert (worse.t, worse.p_t) == (-math.inf, 1.0)


@pytest.mark.parametrize(
    ("a", "b", "error", "says"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], InputError, "2 and 3"),
        ([1.0], [1.0], InputError, "at least two"),
        ([1.0, math.nan], [1.0, 2.0], NonFiniteError, r"a holds .* \[1\]"),
        ([1.0, 2.0], [math.inf, 2.0], NonFiniteError, r"b holds .* \[0\]"),
        ([[1.0, 2.0]], [[1.0, 2.0]], InputError, "one number per seed"),
    ],
)
def test_unusable_values(a: list[float], b: list[float], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        stats.paired(a, b)


def test_unknown_options() -> None:
    a, b = draws()
    with pytest.raises(OptionError, match="normal, exact"):
        stats.paired(a, b, wilcoxon="auto")
    with pytest.raises(OptionError, match="level"):
        stats.paired(a, b, level=95)
    with pytest.raises(OptionError, match="at most 20"):
        stats.paired(*draws(30), wilcoxon="exact")


probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(probabilities)
def test_holm_is_the_step_down_procedure(p: list[float]) -> None:
    """Rejected at level α ⇔ adjusted ≤ α, with the procedure written out: stop at the first p₍ᵢ₎ > α / (m − i + 1)."""
    adjusted = stats.holm(p)
    order = sorted(range(len(p)), key=lambda i: p[i])
    for alpha in (0.01, 0.05, 0.2, 0.7):
        if any(abs(q - alpha) < 1e-9 for q in adjusted):
            continue
        rejected = set()
        for step, i in enumerate(order):
            if p[i] * (len(p) - step) > alpha:
                break
            rejected.add(i)
        assert {i for i, q in enumerate(adjusted) if q <= alpha} == rejected


@given(probabilities)
def test_benjamini_hochberg_is_the_step_up_procedure(p: list[float]) -> None:
    """Rejected at level α: the k smallest, for the largest k with p₍ₖ₎ ≤ α k / m."""
    adjusted = stats.benjamini_hochberg(p)
    order = sorted(range(len(p)), key=lambda i: p[i])
    for alpha in (0.01, 0.05, 0.2, 0.7):
        if any(abs(q - alpha) < 1e-9 for q in adjusted):
            continue
        k = max((k for k in range(1, len(p) + 1) if p[order[k - 1]] * len(p) / k <= alpha), default=0)
        assert {i for i, q in enumerate(adjusted) if q <= alpha} == set(order[:k])


def test_adjusted_p_values_of_a_known_family() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert stats.holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.benjamini_hochberg(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    for bad in ([], [1.2], [math.nan], [-0.1]):
        with pytest.raises(InputError):
            stats.holm(bad)
        with pytest.raises(InputError):
            stats.benjamini_hochberg(bad)


def test_the_papers_selection() -> None:
    zero = [1.0, 2.0, 3.0]
    found = stats.best_against_reference({0.3: [2.0, 3.5, 4.0], 0.0: zero, 0.1: [1.5, 2.0, 3.0]})
    assert (found.setting, found.reference) == (0.3, 0.0)
    assert found.paired.delta == pytest.approx(3.5 / 3)
    turned = stats.best_against_reference({0.0: zero, 0.1: [0.0, 0.0, 0.0], 0.3: [1.0, 1.0, 1.0]})
    assert (turned.setting, turned.reference) == (0.0, 0.3)
    assert turned.paired.delta == 1.0
    equal = stats.best_against_reference({0.02: [3.0, 2.0, 1.0], 0.0: zero})
    assert (equal.setting, equal.reference, equal.paired.t) == (0.0, 0.02, 0.0)  # as in Imagewoof, ResNet-18, l_R = 1


def test_nested_leaves_the_tested_seed_out() -> None:
    """Setting 1 looks best only through seed 0: with that seed out, 2 is chosen for it."""
    values = {0.0: [0.0, 0.0, 0.0, 0.0], 1.0: [9.0, 0.0, 0.0, 0.0], 2.0: [1.0, 1.0, 1.0, 1.5]}
    found = stats.nested(values)
    assert found.chosen == (2.0, 1.0, 1.0, 1.0)
    assert found.paired.delta == pytest.approx(0.25)
    assert found.naive.setting == 1.0
    assert found.naive.paired.delta == pytest.approx(2.25)


def test_nested_with_folds_selected_seeds_and_validation() -> None:
    rng = np.random.default_rng(0)
    values = {c: rng.normal(size=10) for c in (0.0, 0.1, 0.2, 0.3)}
    halves = stats.nested(values, folds=2, seed=3)
    assert halves == stats.nested(values, folds=2, seed=3)
    assert sorted(map(halves.chosen.count, set(halves.chosen))) in ([5, 5], [10])
    once = stats.nested(values, select=range(5))
    best = max((0.1, 0.2, 0.3), key=lambda c: values[c][:5].mean())
    assert once.chosen == (best,) * 5
    assert once.paired == stats.paired(values[best][5:], values[0.0][5:])
    validation = {0.0: np.zeros(10), 0.1: np.zeros(10), 0.2: np.ones(10), 0.3: np.zeros(10)}
    held = stats.nested(values, validation=validation)
    assert held.chosen == (0.2,) * 10
    assert held.paired == stats.paired(values[0.2], values[0.0])


def test_nested_selection_is_not_optimistic() -> None:
    """Where no setting is better, choosing on the tested seeds finds a gain, choosing on others finds none."""
    rng = np.random.default_rng(1)
    naive, fair = [], []
    for _ in range(60):
        found = stats.nested({float(c): rng.normal(size=10) for c in range(5)})
        naive.append(found.naive.paired.delta)
        fair.append(found.paired.delta)
    spread = np.std(fair) / math.sqrt(60)
    assert abs(np.mean(fair)) < 3 * spread
    assert np.mean(naive) > 3 * spread


@pytest.mark.parametrize(
    ("values", "options", "says"),
    [
        ({0.1: [1.0, 2.0], 0.2: [1.0, 2.0]}, {}, "reference 0"),
        ({0.0: [1.0, 2.0]}, {}, "another setting"),
        ({0.0: [1.0, 2.0], 0.1: [1.0, 2.0, 3.0]}, {}, "same seeds"),
        ({0.0: [1.0, 2.0], 0.1: [1.0, 2.0]}, {"folds": 3}, "2 to 2"),
        ({0.0: [1.0, 2.0], 0.1: [1.0, 2.0]}, {"select": [0]}, "leave at least two"),
        ({0.0: [1.0, 2.0], 0.1: [1.0, 2.0]}, {"select": [0], "folds": 2}, "exclude"),
        ({0.0: [1.0, 2.0], 0.1: [1.0, 2.0]}, {"validation": {0.0: [1.0, 2.0], 0.3: [1.0, 2.0]}}, "settings"),
    ],
)
def test_unusable_grids(values: dict[float, list[float]], options: dict[str, object], says: str) -> None:
    with pytest.raises((InputError, OptionError), match=says):
        stats.nested(values, **options)


def test_the_bootstrap_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.random.default_rng(0).random((2, 300))
    whole = stats.paired(a, b, resamples=500)
    monkeypatch.setattr(stats, "_DRAWN", 7 * 300)
    assert stats.paired(a, b, resamples=500).ci == whole.ci
