"""Paired statistics over seeds (Supplement B.3), control over many comparisons, and selection nested in the test.

Called by users, ``frpt.compare`` and the tables of the paper's experiments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from frpt.errors import InputError, NonFiniteError, OptionError

Numbers = Sequence[float] | npt.NDArray[np.floating]
Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
_EXACT = 20
"""Differences for which Wilcoxon's test can be exact: 2²⁰ signs are enumerated."""
_ROUNDING = 16 * np.finfo(np.float64).eps
"""Relative to the larger value, 16 units in the last place: differences this close are called equal (chosen)."""

_DRAWN = 1 << 22
"""Numbers that the bootstrap draws at a time, 32 MB: pairs may be seeds, or thousands of scenes (chosen)."""


@dataclass(frozen=True)
class Paired:
    """d_s = a_s − b_s over n seeds, tested one-sided for H₁: the mean of d is positive.

    delta, std: mean and standard deviation (n − 1) of d. ci: bootstrap percentile interval of the mean;
    of no width where all d are equal, when nothing is known of how they vary (tables print none then).
    t, p_t: paired t-test, t = delta / (std / √n). w, p_w: Wilcoxon's sum of the positive ranks, and its p-value.
    d_z: delta / std = t / √n, the effect size.
    """

    delta: float
    std: float
    ci: tuple[float, float]
    t: float
    p_t: float
    w: float
    p_w: float
    d_z: float
    n: int


@dataclass(frozen=True)
class Selected:
    """A setting, what it is compared with, and the paired test of the two."""

    setting: float
    reference: float
    paired: Paired


@dataclass(frozen=True)
class Nested:
    """A test of settings chosen without looking at what they are tested on.

    paired: the test. chosen: for every tested seed, the setting chosen for it. naive: the same with the setting chosen
    on the very values that are tested, as the paper's tables have it; what it gains over ``paired`` is optimism.
    """

    paired: Paired
    chosen: tuple[float, ...]
    naive: Selected


def paired(
    a: Numbers, b: Numbers, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0, wilcoxon: str = "normal"
) -> Paired:
    """Is a larger than b, seed by seed? The paired t-test and Wilcoxon's signed ranks, as in Supplement B.3.

    Wilcoxon's test drops zero differences, gives ties their mean rank and uses the normal approximation corrected for
    ties, not for continuity: only this yields the paper's p-values (0.00253 for W = 55 of 10 seeds, where the exact
    value is 0.00098). Differences that differ by rounding alone count as equal. Without any difference both p-values
    are 1; if all differences are the same, t and d_z are infinite.

    Args:
        a: (seeds,) one value per seed.
        b: (seeds,) what to compare with, in the same order.
        level: Of the interval of the mean difference.
        resamples: Of the bootstrap; the paper does not give its number.
        seed: Of the bootstrap.
        wilcoxon: "normal" as above, or "exact", which enumerates all signs, for up to 20 differences.

    Returns:
        The mean difference with its interval, both tests and the effect size.

    Raises:
        InputError: a and b have different lengths, or fewer than two values.
        NonFiniteError: A value is NaN or infinite.
        OptionError: An option is out of range.

    Example:
        >>> test = frpt.stats.paired([0.91, 0.93, 0.92, 0.95], [0.90, 0.91, 0.92, 0.92])
        >>> round(test.delta, 4), round(test.p_t, 4), test.w
        (0.015, 0.0514, 6.0)
    """
    from scipy import stats

    left, right = _vector("a", a), _vector("b", b)
    if len(left) != len(right):
        raise InputError(f"a and b must be paired by seed: they have {len(left)} and {len(right)} values")
    if not 0 < level < 1 or resamples < 1:
        raise OptionError(f"level must be within (0, 1) and resamples positive, got {level} and {resamples}")
    d = _differences(left, right)
    n, delta, std = len(d), float(d.mean()), float(d.std(ddof=1))
    if np.ptp(d) == 0:
        delta, std = float(d[0]), 0.0
    if std > 0:
        d_z = delta / std
        t = d_z * math.sqrt(n)
        p_t = float(stats.t.sf(t, n - 1))
    else:
        d_z = t = math.copysign(math.inf, delta) if delta else 0.0
        p_t = 0.0 if delta > 0 else 1.0
    w, p_w = _wilcoxon(d, wilcoxon)
    return Paired(delta, std, _bootstrap(d, level, resamples, seed), t, p_t, w, p_w, d_z, n)


def holm(p: Numbers) -> list[float]:
    """p-values adjusted for the family-wise error (Holm's step-down): max over j ≤ i of (m − j + 1) p₍ⱼ₎, at most 1.

    Args:
        p: (m,) p-values of m tests.

    Returns:
        The adjusted p-values, in the same order. Reject those below α: the chance of any false rejection is below α.

    Raises:
        InputError: A value is not within [0, 1].

    Example:
        >>> [round(p, 3) for p in frpt.stats.holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    values = _p_values(p)
    order = np.argsort(values, kind="stable")
    steps = (len(values) - np.arange(len(values))) * values[order]
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(v) for v in adjusted]


def benjamini_hochberg(p: Numbers) -> list[float]:
    """p-values adjusted for the false discovery rate: min over j ≥ i of m p₍ⱼ₎ / j, at most 1.

    Args:
        p: (m,) p-values of m tests.

    Returns:
        The adjusted p-values, in the same order. Of those below α, a share of α is expected to be false.

    Raises:
        InputError: A value is not within [0, 1].

    Example:
        >>> [round(p, 3) for p in frpt.stats.benjamini_hochberg([0.01, 0.04, 0.03])]
        [0.03, 0.04, 0.04]
    """
    from scipy import stats

    return [float(v) for v in stats.false_discovery_control(_p_values(p), method="bh")]


def best_against_reference(values: Mapping[float, Numbers], reference: float = 0.0, *, seed: int = 0) -> Selected:
    """The paper's comparison: the best setting against the reference, chosen on the very values that are tested.

    The setting with the highest mean is tested against ``reference``, or, where that is the best itself, the reference
    against the best other setting. Of equal means the smaller setting counts as the best. Interval and p-values are too
    good because of the choice; those of ``nested`` are not.

    Args:
        values: Setting (c_rec) → one value per seed.
        reference: The setting to compare with, 0 for plain back-propagation.
        seed: Of the bootstrap.

    Returns:
        The setting, what it was compared with, and the paired test.

    Raises:
        InputError: The reference is missing, or settings have different numbers of seeds.

    Example:
        >>> best = frpt.stats.best_against_reference({0.0: [0.90, 0.91], 0.1: [0.91, 0.93], 0.3: [0.90, 0.92]})
        >>> best.setting, best.reference
        (0.1, 0.0)
    """
    grid = _grid(values, reference)
    top = _best(grid)
    other = reference if top != reference else _best({c: v for c, v in grid.items() if c != reference})
    return Selected(top, other, paired(grid[top], grid[other], seed=seed))


def nested(
    values: Mapping[float, Numbers],
    reference: float = 0.0,
    *,
    folds: int | None = None,
    validation: Mapping[float, Numbers] | None = None,
    select: Sequence[int] | None = None,
    seed: int = 0,
) -> Nested:
    """Does the best setting other than ``reference`` beat it, if the choice must not see the test?

    The setting with the highest mean is chosen on other seeds than it is tested on, unless ``validation`` or ``select``
    say otherwise. At most one of ``folds``, ``validation`` and ``select`` may be given.

    Args:
        values: Setting → one test value per seed.
        reference: The setting to compare with.
        folds: Seeds are dealt into so many parts at random (by default one seed each), and each part is tested with the
            choice of the other parts. Every seed is tested once; the parts share seeds for their choices.
        validation: Setting → one validation value per seed of the same runs: chosen on these, tested on all seeds.
        select: Positions of seeds: chosen on these once, tested on the rest; wholly independent.
        seed: Of the parts and of the bootstrap.

    Returns:
        The test, the setting chosen for every tested seed, and the same test with a choice that has seen it.

    Raises:
        InputError: Settings or seeds do not fit together.
        OptionError: Options exclude each other or are out of range.

    Example:
        >>> values = {0.0: [0.90, 0.91, 0.90], 0.1: [0.91, 0.93, 0.92], 0.3: [0.90, 0.92, 0.91]}
        >>> frpt.stats.nested(values).chosen
        (0.1, 0.1, 0.1)
    """
    grid = _grid(values, reference)
    n = len(grid[reference])
    if sum(option is not None for option in (folds, validation, select)) > 1:
        raise OptionError("folds, validation and select exclude each other: pass one of them")
    source = grid if validation is None else _grid(validation, reference)
    if set(source) != set(grid):
        raise InputError(f"validation has the settings {sorted(source)}, the test values {sorted(grid)}")
    everyone: Rows = np.arange(n)
    splits: list[tuple[Rows, Rows]]
    if validation is not None:
        if len(source[reference]) != n:
            raise InputError(f"validation has {len(source[reference])} seeds, the test values {n}")
        splits = [(everyone, everyone)]
    elif select is not None:
        splits = [_chosen_seeds(select, n)]
    else:
        splits = _folds(n, folds, seed)
    others = {c: v for c, v in source.items() if c != reference}
    pick = {int(s): _best({c: v[choose] for c, v in others.items()}) for choose, test in splits for s in test}
    seeds = sorted(pick)
    left = np.array([grid[pick[s]][s] for s in seeds])
    result = paired(left, grid[reference][seeds], seed=seed)
    naive = _best({c: grid[c][seeds] for c in others})
    looked = Selected(naive, reference, paired(grid[naive][seeds], grid[reference][seeds], seed=seed))
    return Nested(result, tuple(pick[s] for s in seeds), looked)


def _vector(name: str, values: Numbers) -> Vector:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or len(vector) < 2:
        raise InputError(f"{name} must hold one number per seed, at least two, got shape {vector.shape}")
    if not np.isfinite(vector).all():
        raise NonFiniteError(f"{name} holds NaN or infinity at {np.flatnonzero(~np.isfinite(vector)).tolist()}")
    return vector


def _differences(a: Vector, b: Vector) -> Vector:
    """a − b with values that are equal but for the rounding of the subtraction made equal, so that ties are ties."""
    d = a - b
    tolerance = _ROUNDING * float(np.maximum(np.abs(a), np.abs(b)).max())
    order = np.argsort(np.abs(d), kind="stable")
    size = np.abs(d)[order]
    if tolerance > 0:
        size[0] = 0.0 if size[0] <= tolerance else size[0]
        for i in range(1, len(size)):
            size[i] = size[i - 1] if size[i] - size[i - 1] <= tolerance else size[i]
    out = np.empty_like(d)
    out[order] = np.copysign(size, d[order])
    return out + 0.0  # no negative zeros


def _wilcoxon(d: Vector, method: str) -> tuple[float, float]:
    """(sum of the positive ranks, one-sided p-value)."""
    from scipy import stats

    if method not in ("normal", "exact"):
        raise OptionError(f"unknown wilcoxon {method!r}: there are normal, exact")
    if not d.any():
        return 0.0, 1.0
    if method == "normal":
        test = stats.wilcoxon(d, alternative="greater", zero_method="wilcox", correction=False, method="approx")
        return float(test.statistic), float(test.pvalue)
    rest = d[d != 0]
    if len(rest) > _EXACT:
        raise OptionError(f"the exact test enumerates all signs, for at most {_EXACT} differences; use 'normal'")
    ranks = stats.rankdata(np.abs(rest))
    w = float(ranks[rest > 0].sum())
    sums = np.zeros(1)
    for rank in ranks:
        sums = np.concatenate([sums, sums + rank])
    return w, float(np.mean(sums >= w - 1e-9))


def _bootstrap(d: Vector, level: float, resamples: int, seed: int) -> tuple[float, float]:
    if np.ptp(d) == 0:
        return float(d[0]), float(d[0])
    generator, together = np.random.default_rng(seed), max(1, _DRAWN // len(d))
    parts = [min(together, resamples - i) for i in range(0, resamples, together)]
    means = np.concatenate([d[generator.integers(0, len(d), (part, len(d)))].mean(1) for part in parts])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _p_values(p: Numbers) -> Vector:
    values = np.asarray(p, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"p must be a list of p-values, got shape {values.shape}")
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"p-values must be within [0, 1]: {values[~((values >= 0) & (values <= 1))].tolist()}")
    return values


def _grid(values: Mapping[float, Numbers], reference: float) -> dict[float, Vector]:
    """The settings in ascending order, all over the same seeds, the reference and another among them."""
    if reference not in values or len(values) < 2:
        raise InputError(f"values must hold the reference {reference:g} and another setting, got {sorted(values)}")
    grid = {c: _vector(f"setting {c:g}", values[c]) for c in sorted(values)}
    lengths = {c: len(v) for c, v in grid.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"all settings need the same seeds; values per setting: {lengths}")
    return grid


def _best(grid: Mapping[float, Vector]) -> float:
    """The setting with the highest mean; the first of equals."""
    means = {c: math.fsum(v) / len(v) for c, v in grid.items()}
    return max(means, key=lambda c: means[c])


def _chosen_seeds(select: Sequence[int], n: int) -> tuple[Rows, Rows]:
    chosen = np.unique(np.asarray(select, dtype=np.int64))
    if len(chosen) == 0 or chosen[0] < 0 or chosen[-1] >= n or n - len(chosen) < 2:
        raise OptionError(f"select must name seeds by position, 0 to {n - 1}, and leave at least two, got {select}")
    return chosen, np.setdiff1d(np.arange(n), chosen)


def _folds(n: int, folds: int | None, seed: int) -> list[tuple[Rows, Rows]]:
    count = n if folds is None else folds
    if not 2 <= count <= n:
        raise OptionError(f"folds must be 2 to {n}, the number of seeds, got {folds}")
    parts = np.array_split(np.random.default_rng(seed).permutation(n), count)
    return [(np.setdiff1d(np.arange(n), part), part) for part in parts]
