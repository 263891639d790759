"""``compare``: back-propagation, anchor-only and FR-PT from the same start, over the same seeds, differences paired.

Users call it; the demo, the command line and the diagnosis report show the ``Comparison`` that it returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from torch import nn

from frpt.common.text import html_table, table
from frpt.datasets.pairs import CollateFn
from frpt.datasets.seeds import own_random, seed_all
from frpt.errors import OptionError
from frpt.reverser import Layer, Reverser, ReverserOptions, layer_name, network_of
from frpt.train.post import run, training_pairs
from frpt.train.prepare import ANCHOR, ONLINE, Places, Request, Targets, other_processes, shared_targets
from frpt.train.result import Result
from frpt.train.training import ShortOptions, Training, sort_options

if TYPE_CHECKING:
    import pandas as pd

BACKPROP, ANCHORED, FRPT = "back-propagation", "anchor-only", "FR-PT"


@dataclass(frozen=True)
class Arm:
    """The runs of one arm, one per seed.

    Attributes:
        name: "back-propagation", "anchor-only" or "FR-PT".
        runs: their results, in the order of the seeds.
    """

    name: str
    runs: list[Result]

    @property
    def values(self) -> list[float]:
        """The metric after the last epoch, one for each seed."""
        return [r.last.metric if r.last.metric is not None else math.nan for r in self.runs]

    @property
    def mean(self) -> float:
        """Of ``values`` over seeds."""
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        """Standard deviation of ``values`` over seeds, with n − 1; 0 for a single seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    def flips(self, which: str) -> float | None:
        """Mean number of samples that are "fixed" or "broken"."""
        counts = [getattr(r.last, which) for r in self.runs]
        return None if None in counts else float(np.mean(counts))


@dataclass(frozen=True)
class Difference:
    """An arm minus another, paired by seed: mean and standard deviation, and the mean's 95 % interval (Student's t).

    Attributes:
        values: one for each seed.
        mean: of the values.
        std: of the values, with n − 1.
        low: lower end of the interval; NaN for a single seed, and where all values are equal: nothing is known of how
            they vary then.
        high: upper end.
    """

    values: list[float]
    mean: float
    std: float
    low: float
    high: float

    @staticmethod
    def of(a: Sequence[float], b: Sequence[float]) -> Difference:
        """a minus b, seed by seed."""
        from scipy import stats

        d = np.subtract(a, b)
        n = len(d)
        rounding = 1e-12 * float(np.abs([a, b]).max(initial=0.0))
        std = float(d.std(ddof=1)) if n > 1 and float(np.ptp(d)) > rounding else 0.0
        half = float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n) if n > 1 and std > 0 else math.nan
        mean = float(d.mean())
        return Difference([float(v) for v in d], mean, std, mean - half, mean + half)


@dataclass(frozen=True)
class Comparison:
    """Three arms over the same seeds; made by ``compare``, prints as a table.

    A gain over back-propagation that anchor-only has as well is not owed to reconstruction.

    Attributes:
        at: the layer; parameters before it were trained.
        c_rec: strength of the feature supervision in anchor-only and FR-PT.
        seeds: every arm ran once with each.
        metric: the name of what was measured on the validation set.
        higher: whether more of it is better.
        start: the metric before training.
        arms: "back-propagation", "anchor-only" and "FR-PT".
    """

    at: str
    c_rec: float
    seeds: list[int]
    metric: str
    higher: bool
    start: float
    arms: dict[str, Arm]

    def difference(self, arm: str, to: str = BACKPROP) -> Difference:
        """An arm minus another, paired by seed, after the last epoch."""
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
        return self._title() + "\n" + table(self._columns(), self._rows())

    def __repr__(self) -> str:
        return f"<Comparison of {self._title()}; print it for the table of its {len(self.arms)} arms>"

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._columns(), self._rows())

    def _digits(self) -> int:
        """Decimals, so that means show four significant digits."""
        size = max((abs(a.mean) for a in self.arms.values()), default=1.0)
        return max(0, 3 - math.floor(math.log10(size))) if size > 0 else 4

    def _title(self) -> str:
        return (
            f"post-training before {self.at!r}: c_rec {self.c_rec:g}, {len(self.seeds)} seeds, {self.metric} "
            f"{self.start:.{self._digits()}f} at the start ({'higher' if self.higher else 'lower'} is better)"
        )

    def _columns(self) -> tuple[str, ...]:
        return ("arm", f"{self.metric}, mean ± std", "difference to back-propagation (95 %)", "fixed", "broken")

    def _rows(self) -> list[tuple[str, ...]]:
        digits, rows = self._digits(), []
        for arm in self.arms.values():
            gap = "-"
            if arm.name != BACKPROP:
                d = self.difference(arm.name)
                gap = f"{d.mean:+.{digits}f}"
                gap += f" ({d.low:+.{digits}f} to {d.high:+.{digits}f})" if math.isfinite(d.low) else " (no interval)"
            flips = ("-" if f is None else f"{f:.1f}" for f in (arm.flips("fixed"), arm.flips("broken")))
            rows.append((arm.name, f"{arm.mean:.{digits}f} ± {arm.std:.{digits}f}", gap, *flips))
        return rows


def compare(
    model: nn.Module | Reverser,
    dataset: Any,
    at: Layer,
    *,
    c_rec: float = 0.3,
    seeds: Iterable[int] = range(5),
    val: Any = None,
    targets: Targets = None,
    training: Training | None = None,
    store: str | Path | None = None,
    log_dir: str | Path | None = None,
    partial: str | Path | None = None,
    collate_fn: CollateFn | None = None,
    progress: bool = True,
    **options: Unpack[ShortOptions],
) -> Comparison:
    """Post-train in three ways from the same start over the same seeds: do the targets help, or the anchoring alone?

    Back-propagation (c_rec = 0), anchor-only (towards the starting model's own features, no label) and FR-PT (towards
    ``targets``). Targets are reconstructed once for all seeds.

    Args:
        model: the trained network, or a Reverser on it; it is not changed.
        dataset: map-style, or a ``DataLoader``, as ``post_train`` takes it.
        at: the layer, by name or as the module itself; the parameters its value depends on are trained.
        c_rec: strength of the feature supervision in anchor-only and FR-PT, above 0 and up to 1.
        seeds: different whole numbers; every arm runs once with each.
        val: the data set that the arms are compared on; needed.
        targets: FR-PT's, as ``post_train`` takes them: a store, None or "online".
        training: everything else about the training; see ``Training``.
        store: where to keep targets that are reconstructed now.
        log_dir: a directory for logs, in one of its own per arm and seed.
        partial: a directory for half-done runs, in one of its own per arm and seed.
        collate_fn: makes batches of items, as in ``post_train``.
        progress: show bars.
        **options: as in ``post_train``: fields of ``Training`` and options of ``Reverser`` by name.

    Returns:
        The runs of all arms, with differences paired by seed.

    Raises:
        OptionError: without ``val``, for equal or no seeds, for ``c_rec=0`` and ``targets="anchor"``, which are arms
            already; and what ``post_train`` raises.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)
        >>> comparison = frpt.compare(model, data, at="1", seeds=[0, 1], val=data, epochs=1, progress=False)
        >>> list(comparison.arms)
        ['back-propagation', 'anchor-only', 'FR-PT']
        >>> len(comparison.difference("FR-PT").values)
        2
    """
    numbers = list(seeds) if isinstance(seeds, Iterable) else []
    if not numbers or len(set(numbers)) != len(numbers):
        raise OptionError(f"seeds must be different whole numbers, at least one, got {seeds!r}")
    if val is None:
        raise OptionError("compare needs val=: the arms are compared on it")
    if targets == ANCHOR or c_rec == 0:
        raise OptionError(
            "compare runs the anchor-only and the c_rec=0 arm by itself; pass FR-PT's targets and c_rec > 0"
        )
    how, given = sort_options(training, options, dataset)
    network = network_of(model, given, ReverserOptions.__annotations__)
    dataset, val = training_pairs(network, collate_fn, dataset, val)
    places, layer = Places.of(store, log_dir, partial), layer_name(network, at)
    reverser = model if isinstance(model, Reverser) else None
    first = Request(
        network, dataset, layer, c_rec, numbers[0], how, targets, val, places, None, reverser, given, progress
    )
    arms: dict[str, list[Result]] = {BACKPROP: [], ANCHORED: [], FRPT: []}
    with ExitStack() as stack:
        with other_processes(how), own_random():
            seed_all(numbers[0])
            fabric, rev, written = shared_targets(first, stack)
        shared = replace(first, fabric=fabric, reverser=rev, options=ReverserOptions())
        strengths = {BACKPROP: 0.0, ANCHORED: c_rec, FRPT: c_rec}
        sources: dict[str, Targets] = {BACKPROP: None, ANCHORED: ANCHOR, FRPT: ONLINE if targets == ONLINE else written}
        for seed in numbers:
            for name, results in arms.items():
                logs, half_done = (
                    None if path is None else Path(path) / f"{name}-{seed}" for path in (log_dir, partial)
                )
                places = Places.of(None, logs, half_done)
                strength, source = strengths[name], sources[name]
                results.append(run(replace(shared, c_rec=strength, seed=seed, targets=source, places=places)))
    some = arms[BACKPROP][0]
    runs = {name: Arm(name, results) for name, results in arms.items()}
    return Comparison(first.at, c_rec, numbers, some.metric, some.higher, some.start or 0.0, runs)
