"""Are feature targets a loss worth having? A few labelled samples of a new kind, and every way to learn from them.

``catalogue`` lists it. Each arm learns up to one layer with a loss of its own (``adapting``). Strengths, the measure of
the features' distance and the weight of samples that are right already are chosen on one part of the test split, under
two corruptions; reported are other samples and other images, under these and one more that nothing was chosen by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from frpt.errors import OptionError
from frpt_paper.experiments.adapting import (
    ANCHORS,
    EWC,
    LIKELIEST,
    MEANS,
    NEAREST,
    NONE,
    REPAIR,
    REPLAY,
    AdaptingJob,
    run,
)
from frpt_paper.experiments.corruptions import UNSEEN
from frpt_paper.experiments.workbench import ExperimentReport, Workbench
from frpt_paper.runs.jobs import ANCHOR, BACKPROP
from frpt_paper.runs.runs_table import RunsTable
from frpt_paper.tables import frontier_tables as tables
from frpt_paper.tables.statistics import SET_NAMES

if TYPE_CHECKING:
    import pandas as pd

TARGETS = (NEAREST, LIKELIEST, MEANS)
KINDS = ("noise", "contrast")
"""Corruptions under which strengths are chosen."""
STRENGTH = 4


@dataclass(frozen=True)
class Way:
    """An arm at one setting: what an ``AdaptingJob`` has beside its samples."""

    arm: str
    targets: str = NONE
    keep: str = NONE
    pull: float = 0.0
    hold: float = 0.0
    rate: float = 3e-3
    measure: str = "relative"
    rest: float = 1.0


FIELDS = ("arm", "targets", "keep", "pull", "hold", "rate", "measure", "rest")
"""Of a ``Way``."""


@dataclass(frozen=True)
class Grid:
    """What is tried. Rates and steps were first looked for on the held-out part with N = 500, by replay and
    back-propagation; more steps gain all arms alike."""

    sizes: tuple[int, ...] = (20, 100, 500)
    seeds: int = 5
    steps: int = 150
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """Of back-propagation, whose only strength it is; the others have the largest and a strength."""
    anchoring: tuple[float, ...] = (1.0, 10.0, 100.0)
    ewc: tuple[float, ...] = (10.0, 30.0, 100.0, 300.0, 1000.0)
    replay: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)
    pulls: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    rests: tuple[float, ...] = (1.0, 10.0)
    measures: tuple[str, ...] = ("relative", "reference")
    joined: tuple[float, ...] = (0.03, 0.1, 0.3)
    """Pulls of targets beside replay, which keeps the strengths that were chosen for it alone."""
    repair: tuple[float, ...] = (1000.0, 100.0)
    most: int = 200
    """Samples up to which a repair is tried at more than the first strength, and with all weights: it takes longest."""


GRIDS = {
    "small": Grid(
        (20,), 2, 15, (3e-3,), (10.0,), (100.0,), (1.0,), (0.1,), (1.0,), ("relative",), (0.1,), (1000.0,), 200
    ),
    "paper": Grid(),
}


def feature_loss(bench: Workbench) -> ExperimentReport:
    """Choose each arm's settings on the held-out part, run them on the other, compare."""
    options, grid = bench.options, GRIDS[bench.options.scale]
    if options.epochs or options.c_rec or options.presets:
        raise OptionError(
            "feature-loss counts steps and chooses its strengths itself: leave --epochs, --c-rec and --preset out"
        )
    dataset = bench.figure_dataset
    lab = bench.lab(dataset)
    model = (options.models or ("simple_cnn",))[0]
    start = bench.starting_models(lab, dataset, model, bench.recipe(dataset, model, small=8))[-1]
    layer = (options.layers or ("2" if dataset in ("digits", "mnist") else "3",))[0]
    table = RunsTable(bench.folder / "runs.csv")

    def job(part: str, kind: str, size: int, seed: int, way: Way) -> AdaptingJob:
        fields = {name: getattr(way, name) for name in FIELDS}
        return AdaptingJob(
            dataset, model, layer, start.name, part, kind, STRENGTH, size, seed, steps=grid.steps, **fields
        )

    def held_out(ways: dict[int, list[Way]]) -> pd.DataFrame:
        jobs = [job("choice", kind, size, 0, way) for size in grid.sizes for kind in KINDS for way in ways[size]]
        return bench.work_off(jobs, partial(run, lab), table)

    alone = {size: list(singly(grid, size)) for size in grid.sizes}
    first = held_out(alone)
    beside = {size: list(jointly(grid, first[first["size"] == size])) for size in grid.sizes}
    choice = held_out({size: [*alone[size], *beside[size]] for size in grid.sizes})
    chosen = {size: settings(choice[choice["size"] == size]) for size in grid.sizes}
    report = bench.work_off(
        [
            job("report", kind, size, seed, way)
            for seed in range(options.seeds or grid.seeds) for size in grid.sizes for kind in (*KINDS, *UNSEEN)
            for way in dict.fromkeys(way for pair in chosen[size].values() for way in pair)
        ],
        partial(run, lab), table,
    )  # fmt: skip
    return _report(choice, report, chosen, f"Feature targets as a loss on {SET_NAMES[dataset]}", start.name)


def singly(grid: Grid, size: int) -> Iterable[Way]:
    """Every arm with one strength, at every setting."""
    yield from (Way(BACKPROP, rate=rate) for rate in grid.rates)
    yield from (Way(ANCHOR, ANCHORS, pull=pull) for pull in grid.anchoring)
    yield from (Way(EWC, keep=EWC, hold=hold) for hold in grid.ewc)
    yield from (Way(REPLAY, keep=REPLAY, hold=hold) for hold in grid.replay)
    for targets in TARGETS:
        yield from (
            Way(f"targets: {targets}", targets, pull=pull, measure=measure, rest=rest)
            for measure in grid.measures for rest in grid.rests for pull in grid.pulls
        )  # fmt: skip
    few = size <= grid.most
    repairs = grid.repair if few else grid.repair[:1]
    yield from (Way(tables.NEAREST_WEIGHTS, keep=REPAIR, hold=hold) for hold in repairs)
    if few:
        yield Way(tables.ALL_WEIGHTS, keep=REPAIR)


def jointly(grid: Grid, choice: pd.DataFrame) -> Iterable[Way]:
    """Targets beside cross-entropy and replay, measured and weighed as was best for them alone."""
    found = settings(choice)
    holds = dict.fromkeys(way.hold for way in found[REPLAY])
    for targets in TARGETS:
        best = found[f"targets: {targets}"][0]
        yield from (
            replace(best, arm=f"{REPLAY} + {targets}", keep=REPLAY, pull=pull, hold=hold)
            for hold in holds for pull in grid.joined
        )  # fmt: skip


def settings(choice: pd.DataFrame, spare: float = 0.02) -> dict[str, tuple[Way, Way]]:
    """Arm → its two choices by held-out runs of one size, means over kinds: the highest mean of new and old accuracy,
    and the highest new accuracy at an old loss of at most ``spare`` (the smallest loss, where all lose more)."""
    means = choice.groupby(list(FIELDS), sort=False)[["new", "old", "old_start"]].mean().reset_index()
    found = {}
    for arm, part in means.groupby("arm", sort=False):
        lost = part["old_start"] - part["old"]
        within = part[lost <= max(spare, float(lost.min()))]
        rows = (part["new"] + part["old"]).idxmax(), within["new"].idxmax()
        balanced, careful = (Way(**{name: part.loc[row, name] for name in FIELDS}) for row in rows)
        found[str(arm)] = (_plain(balanced), _plain(careful))
    return found


def _plain(way: Way) -> Way:
    """Numbers of a data frame as Python's own, so that keys are what they were."""
    numbers = {name: float(getattr(way, name)) for name in ("pull", "hold", "rate", "rest")}
    return replace(way, **numbers)  # type: ignore[arg-type]


def _report(
    choice: pd.DataFrame, report: pd.DataFrame, chosen: dict[int, dict[str, tuple[Way, Way]]], title: str, start: str
) -> ExperimentReport:
    rows = [
        {"size": size, "choice": which, **{name: getattr(way, name) for name in FIELDS}}
        for size, arms in chosen.items() for pair in arms.values() for which, way in zip(tables.CHOICES, pair, strict=True)
    ]  # fmt: skip
    runs = tables.chosen_runs(report, rows, FIELDS)
    pairs = comparisons()
    found = ExperimentReport(title, [f"checkpoint {start}; wall time {report['wall'].sum() + choice['wall'].sum():.0f} s"])
    found.tables = [
        tables.summary(runs, "feature-loss", title),
        tables.differences(runs, pairs, "feature-loss-paired", f"{title}: differences"),
    ]
    found.details = [
        tables.by_kind(runs, "feature-loss-kinds", f"{title}: kind by kind"),
        tables.held_out(choice, rows, FIELDS, "feature-loss-held-out", f"{title}: the held-out part"),
    ]
    found.figures["feature-loss"] = tables.frontiers(choice, runs, FIELDS, title)
    return found


def comparisons() -> Sequence[tuple[str, str]]:
    """(arm, against): what targets add to each of the others, and the others among themselves."""
    alone = [(f"targets: {t}", other) for t in TARGETS for other in (BACKPROP, ANCHOR, EWC, REPLAY)]
    added = [(f"{REPLAY} + {t}", REPLAY) for t in TARGETS]
    others = [(REPLAY, EWC), (REPLAY, tables.NEAREST_WEIGHTS), (tables.NEAREST_WEIGHTS, EWC), (EWC, BACKPROP)]
    return [*added, *alone, *others]
