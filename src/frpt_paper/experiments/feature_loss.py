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
ADDED = (NEAREST, LIKELIEST)
"""Targets that are tried beside replay too; class means are tried alone."""
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
    """What is tried. Rates and steps were first looked for on the held-out part with N = 500: from 100 to 300 steps
    back-propagation gains 1.4 and 2.9 points of the mean accuracy (noise, contrast), replay 0.7 and 2.8."""

    sizes: tuple[int, ...] = (20, 100, 500)
    seeds: int = 5
    steps: int = 150
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """Of back-propagation, whose only strength it is; the others have the largest and a strength."""
    anchoring: tuple[float, ...] = (1.0, 10.0, 100.0)
    ewc: tuple[float, ...] = (30.0, 100.0, 300.0, 1000.0)
    replay: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    pulls: tuple[float, ...] = (0.03, 0.1, 0.3)
    faint: float = 0.01
    """Beside replay only."""
    weighings: tuple[tuple[str, float], ...] = (("relative", 10.0), ("reference", 1.0))
    """How far features are from their targets: the measure, and the weight of samples that are right already. With 20
    noisy samples all four combinations were tried; they differ by 0.5 points at most. Class means: (relative, 1)."""
    repair: tuple[float, ...] = (1000.0, 100.0)
    most: int = 200
    """Samples up to which repairs are tried at more than one strength, and with all weights."""


GRIDS = {
    "small": Grid(
        (20,),
        2,
        15,
        rates=(3e-3,),
        anchoring=(10.0,),
        ewc=(100.0,),
        replay=(1.0,),
        pulls=(0.1,),
        weighings=(("relative", 1.0),),
        repair=(1000.0,),
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
    ways = {size: [way for way in arms.values() if reported(way)] for size, arms in chosen.items()}
    report = bench.work_off(
        [
            job("report", kind, size, seed, way)
            for seed in range(options.seeds or grid.seeds) for size in grid.sizes for kind in (*KINDS, *UNSEEN)
            for way in ways[size]
        ],
        partial(run, lab), table,
    )  # fmt: skip
    title = f"Feature targets as a loss on {SET_NAMES[dataset]}"
    wall = (report["wall"].sum() + choice["wall"].sum()) / 60
    found = ExperimentReport(title, [f"checkpoint {start.name}; {len(report) + len(choice)} runs, {wall:.0f} minutes"])
    found.tables = [
        tables.summary(report, "feature-loss", title),
        tables.differences(report, comparisons(), "feature-loss-paired", f"{title}: differences"),
    ]
    found.details = [
        tables.by_kind(report, "feature-loss-kinds", f"{title}: kind by kind"),
        tables.held_out(choice, report, FIELDS, "feature-loss-held-out", f"{title}: the held-out part"),
    ]
    found.figures["feature-loss"] = tables.frontiers(choice, report, FIELDS, title)
    return found


def singly(grid: Grid, size: int) -> Iterable[Way]:
    """Every arm with one strength, at every setting."""
    yield from (Way(BACKPROP, rate=rate) for rate in grid.rates)
    yield from (Way(ANCHOR, ANCHORS, pull=pull) for pull in grid.anchoring)
    yield from (Way(EWC, keep=EWC, hold=hold) for hold in grid.ewc)
    yield from (Way(REPLAY, keep=REPLAY, hold=hold) for hold in grid.replay)
    for targets in TARGETS:
        weighings = (("relative", 1.0),) if targets == MEANS else grid.weighings
        yield from (
            Way(f"targets: {targets}", targets, pull=pull, measure=measure, rest=rest)
            for measure, rest in weighings for pull in grid.pulls
        )  # fmt: skip
    few = size <= grid.most
    holds = grid.repair if few else grid.repair[:1]
    yield from (Way(tables.NEAREST_WEIGHTS, keep=REPAIR, hold=hold) for hold in holds)
    if few:
        yield Way(tables.ALL_WEIGHTS, keep=REPAIR)


def jointly(grid: Grid, choice: pd.DataFrame) -> Iterable[Way]:
    """Targets beside cross-entropy and replay.

    Replay is as strong as was best for it alone, and targets measured and weighed as was best for them; and, for a
    faint pull, in every way, with replay also weaker: targets may take over a part of what it does.
    """
    found = settings(choice)
    hold = found[REPLAY].hold
    for targets in ADDED:
        way = replace(found[f"targets: {targets}"], arm=f"{REPLAY} + {targets}", keep=REPLAY, hold=hold)
        yield from (replace(way, pull=pull) for pull in grid.pulls)
        yield from (
            replace(way, pull=grid.faint, hold=held, measure=measure, rest=rest)
            for measure, rest in grid.weighings for held in (hold, round(0.3 * hold, 3))
        )  # fmt: skip


def settings(choice: pd.DataFrame) -> dict[str, Way]:
    """Arm → its choice by held-out runs of one size, means over kinds: the highest mean of new and old accuracy."""
    means = choice.groupby(list(FIELDS), sort=False)[["new", "old"]].mean().sum(axis=1).reset_index(name="both")
    found = {}
    for arm, part in means.groupby("arm", sort=False):
        row = part.loc[part["both"].idxmax()]
        numbers = {name: float(row[name]) for name in ("pull", "hold", "rate", "rest")}
        found[str(arm)] = Way(str(arm), row["targets"], row["keep"], measure=row["measure"], **numbers)
    return found


def reported(way: Way) -> bool:
    """Whether a choice is run on the reported images: not repairs with all weights, which benchmarks/repair.py has."""
    return way.arm != tables.ALL_WEIGHTS


def comparisons() -> Sequence[tuple[str, str]]:
    """(arm, against): what targets add to each of the others, and the others among themselves."""
    added = [(f"{REPLAY} + {t}", REPLAY) for t in ADDED]
    alone = [(f"targets: {t}", other) for t in TARGETS for other in (BACKPROP, ANCHOR, EWC, REPLAY)]
    repairs = [(tables.NEAREST_WEIGHTS, other) for other in (EWC, REPLAY, f"targets: {LIKELIEST}")]
    return [*added, *alone, (REPLAY, EWC), (EWC, BACKPROP), *repairs]
