"""Deviation against accuracy along training (paper IV-C1)."""

from __future__ import annotations

from dataclasses import dataclass

from frpt.diagnose.diagnosis import Array


@dataclass(frozen=True)
class Correlation:
    """Pearson's and Spearman's correlation of deviation and score over checkpoints, with two-sided p-values."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Several checkpoints of one model. score: (k,); deviation: (k, layers), mean over samples to be corrected."""

    checkpoints: tuple[str, ...]
    layers: tuple[str, ...]
    score_name: str
    score: Array
    deviation: Array
