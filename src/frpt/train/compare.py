"""Back-propagation, anchor-only and FR-PT from the same start, over the same seeds, with paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from scipy import stats
from torch import nn

from frpt.common.text import table
from frpt.errors import OptionError
from frpt.train.data import own_random, seed_all
from frpt.train.loop import run
from frpt.train.post import places
from frpt.train.result import Result
from frpt.train.settings import Options, Settings
from frpt.train.setup import ANCHOR, ONLINE, Job, Targets, shared_targets

if TYPE_CHECKING:
    import pandas as pd

BACKPROP, ANCHORED, FRPT = "back-propagation", "anchor-only", "FR-PT"


@dataclass(frozen=True)
class Arm:
    """The runs of one arm, one per seed, and what they give after the last epoch. values: (seeds,)."""

    name: str
    runs: list[Result]

    @property
    def values(self) -> list[float]:
        return [r.last.metric if r.last.metric is not None else math.nan for r in self.runs]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        """Over seeds, with n − 1; 0 for a single seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    def flips(self, which: str) -> float | None:
        """Mean number of samples that are "fixed" or "broken"."""
        counts = [getattr(r.last, which) for r in self.runs]
        return None if None in counts else float(np.mean(counts))


@dataclass(frozen=True)
class Difference:
    """values: (seeds,), arm minus reference, seed by seed; mean, std and the mean's 95 % interval (Student's t)."""

    values: list[float]
    mean: float
    std: float
    low: float
    high: float

    @staticmethod
    def of(a: Sequence[float], b: Sequence[float]) -> Difference:
        d = np.subtract(a, b)
        n = len(d)
        std = float(d.std(ddof=1)) if n > 1 else 0.0
        half = float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n) if n > 1 else math.nan
        mean = float(d.mean())
        return Difference([float(v) for v in d], mean, std, mean - half, mean + half)


@dataclass(frozen=True)
class Comparison:
    """Three arms over the same seeds: back-propagation, anchor-only and FR-PT. Prints as a table."""

    at: str
    c_rec: float
    seeds: list[int]
    metric: str
    higher: bool
    start: float
    arms: dict[str, Arm]

    def difference(self, arm: str, to: str = BACKPROP) -> Difference:
        """Paired by seed, after the last epoch."""
        for name in (arm, to):
            if name not in self.arms:
                raise OptionError(f"there is no arm {name!r}: there are {', '.join(map(repr, self.arms))}")
        return Difference.of(self.arms[arm].values, self.arms[to].values)

    def to_pandas(self) -> pd.DataFrame:
        """A row per arm, seed and epoch."""
        import pandas as pd

        parts = []
        for arm in self.arms.values():
            for result in arm.runs:
                frame = result.to_pandas()
                frame.insert(0, "arm", arm.name)
                frame.insert(1, "seed", result.seed)
                parts.append(frame)
        return pd.concat(parts, ignore_index=True)

    def __str__(self) -> str:
        size = max((abs(a.mean) for a in self.arms.values()), default=1.0)
        digits = max(0, 3 - math.floor(math.log10(size))) if size > 0 else 4
        rows = []
        for arm in self.arms.values():
            gap = "-"
            if arm.name != BACKPROP:
                d = self.difference(arm.name)
                gap = f"{d.mean:+.{digits}f}"
                gap += f" ({d.low:+.{digits}f} to {d.high:+.{digits}f})" if len(self.seeds) > 1 else ""
            flips = [arm.flips("fixed"), arm.flips("broken")]
            rows.append(
                (arm.name, f"{arm.mean:.{digits}f} ± {arm.std:.{digits}f}", gap,
                 *("-" if f is None else f"{f:.1f}" for f in flips))
            )  # fmt: skip
        head = (
            f"post-training before {self.at!r}: c_rec {self.c_rec:g}, {len(self.seeds)} seeds, {self.metric} "
            f"{self.start:.{digits}f} at the start ({'higher' if self.higher else 'lower'} is better)"
        )
        columns = ("arm", f"{self.metric}, mean ± std", "difference to back-propagation (95 %)", "fixed", "broken")
        return head + "\n" + table(columns, rows)


def compare(
    model: nn.Module,
    dataset: Any,
    at: str,
    *,
    c_rec: float = 0.3,
    seeds: Iterable[int] = range(5),
    val: Any = None,
    targets: Targets = None,
    store: str | Path | None = None,
    log_dir: str | Path | None = None,
    checkpoint: str | Path | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Post-train three times from the same start over the same seeds: is a gain from reconstruction, or from anchoring?

    Back-propagation (c_rec = 0), anchor-only (the starting model's own features, no label) and FR-PT (``targets`` as in
    ``post_train``). Targets are reconstructed once for all seeds. val: needed, the arms are compared on it. log_dir and
    checkpoint get a directory per arm and seed. options: those of ``post_train``.
    """
    numbers = list(seeds)
    if not numbers or len(set(numbers)) != len(numbers):
        raise OptionError(f"seeds must be different whole numbers, at least one, got {numbers}")
    if val is None:
        raise OptionError("compare needs val=: the arms are compared on it")
    if targets == ANCHOR or c_rec == 0:
        raise OptionError(
            "compare runs the anchor-only and the c_rec=0 arm by itself; pass FR-PT's targets and c_rec > 0"
        )
    plans = {BACKPROP: (0.0, None), ANCHORED: (c_rec, ANCHOR), FRPT: (c_rec, targets)}
    runs: dict[str, list[Result]] = {name: [] for name in plans}
    with ExitStack() as stack:
        first = Job(model, dataset, at, Settings(c_rec=c_rec, seed=numbers[0], **options), targets, val, store)
        with own_random():
            seed_all(numbers[0])
            fabric, rev, found = shared_targets(first, stack)
        for n in numbers:
            for name, (strength, source) in plans.items():
                folder = f"{name}-{n}"
                here = places(*(None if p is None else Path(p) / folder for p in (log_dir, checkpoint)))
                own = Settings(c_rec=strength, seed=n, **options)
                source = found if name == FRPT and targets != ONLINE else source
                runs[name].append(run(Job(model, dataset, at, own, source, val, None, here, fabric, rev)))
    arms = {name: Arm(name, results) for name, results in runs.items()}
    some = runs[BACKPROP][0]
    return Comparison(at, c_rec, numbers, some.metric, some.higher, some.start or 0.0, arms)
