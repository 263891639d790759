"""Which classes go wrong most, for the verdict, and in which order the page shows classes.

Of n samples of a class, w are wrong (need a correction). A class stands out if its share w/n is clearly larger than the
share wrong of all classes below it, taken together: the lower end of its interval lies above the upper end of theirs.
Both are exact binomial (Clopper–Pearson) intervals at 95 %, divided among the classes, because the worst of many
classes looks bad by chance:

    low = Beta⁻¹(α/2; w, n − w + 1)        high = Beta⁻¹(1 − α/2; w + 1, n − w)        α = 0.05/(classes with samples)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from frpt.diagnosis.findings import Array, Findings

_ALPHA = 0.05  # chance that a class is named although none is worse than another: the usual one
_FEW = 3  # classes that a sentence names; where more stand out it names the first of them


@dataclass(frozen=True)
class Shares:
    """samples, wrong: (classes,), how many of each class there are, and need a correction."""

    samples: Array
    wrong: Array

    @staticmethod
    def of(d: Findings) -> Shares:
        count = len(d.class_names)
        labels = np.asarray(d.samples.label)
        known = (labels >= 0) & (labels < count)
        corrected = known & np.asarray(d.samples.corrected, dtype=bool)
        return Shares(np.bincount(labels[known], minlength=count), np.bincount(labels[corrected], minlength=count))

    @property
    def share(self) -> Array:
        """(classes,), NaN for a class without samples."""
        return np.where(self.samples > 0, self.wrong / np.maximum(self.samples, 1), np.nan)


def standing_out(shares: Shares) -> list[int]:
    """The classes that go wrong clearly more often than those below them, the worst first; at most three."""
    order = np.lexsort((-shares.wrong, -np.nan_to_num(shares.share, nan=-1.0)))
    order = order[shares.samples[order] > 0]
    alpha = _ALPHA / max(len(order), 1)
    found: list[int] = []
    for place, one in enumerate(order[:-1][:_FEW]):
        below = order[place + 1 :]
        low, _ = _interval(int(shares.wrong[one]), int(shares.samples[one]), alpha)
        _, high = _interval(int(shares.wrong[below].sum()), int(shares.samples[below].sum()), alpha)
        if low <= high:
            break
        found.append(int(one))
    return found


def worst_first(d: Findings) -> list[int]:
    """Class ids by the share of their samples that is wrong, then by their mean deviation over layers."""
    count = len(d.class_names)
    moved = mean_of(np.stack([f.by_class for f in d.layers], 1) if d.layers else np.zeros((count, 0)))
    share = np.nan_to_num(Shares.of(d).share, nan=-1.0)
    return [int(c) for c in np.lexsort((-moved, -share))]


def mean_of(values: Array) -> Array:
    """Row means of what is a number; −1 where nothing is."""
    table = np.asarray(values, dtype=float)
    ok = np.isfinite(table)
    total = np.where(ok, table, 0.0).sum(1)
    return np.where(ok.any(1), total / np.maximum(ok.sum(1), 1), -1.0)


def _interval(wrong: int, samples: int, alpha: float) -> tuple[float, float]:
    """The exact interval of a share at the level 1 − alpha."""
    low = 0.0 if wrong == 0 else float(betaincinv(wrong, samples - wrong + 1, alpha / 2))
    high = 1.0 if wrong == samples else float(betaincinv(wrong + 1, samples - wrong, 1 - alpha / 2))
    return low, high
