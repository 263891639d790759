"""Post-training runs, comparisons and trajectories on the page: curves with seeds, paired differences, flips.

``page.py`` makes a section of each of the ``results`` that ``Diagnosis.to_html`` was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frpt.diagnosis.report.page_tables import Column, PageTable, row
from frpt.diagnosis.report.words import number
from frpt.diagnosis.trajectory import Trajectory
from frpt.errors import OptionError
from frpt.train.comparison import BACKPROP, Comparison
from frpt.train.result import Result

Run = Comparison | Result | Trajectory


@dataclass(frozen=True)
class RunSection:
    """One run's part of the page. data: for the script."""

    title: str
    text: str
    table: PageTable
    data: dict[str, Any]


def sections(runs: Sequence[Run]) -> list[RunSection]:
    return [_section(run, i) for i, run in enumerate(runs)]


def _section(run: Run, i: int) -> RunSection:
    match run:
        case Comparison():
            return _comparison(run, f"comparison-{i + 1}")
        case Result():
            return _result(run, f"run-{i + 1}")
        case Trajectory():
            return _trajectory(run, f"trajectory-{i + 1}")
    raise OptionError(
        f"results[{i}] is of type {type(run).__name__!r}: the report shows what frpt.compare and frpt.post_train "
        "return, and trajectories"
    )


def _comparison(c: Comparison, name: str) -> RunSection:
    columns = [
        Column("arm", "text"),
        Column(f"{c.metric}, mean", hint="after the last epoch, over seeds"),
        Column("std"),
        Column("difference", hint=f"to {BACKPROP}, paired by seed, mean"),
        Column("95 % from", hint="of the mean difference, Student's t"),
        Column("to"),
        Column("fixed", hint="samples better than under the starting model, mean over seeds"),
        Column("broken", hint="samples worse than under the starting model, mean over seeds"),
    ]
    gaps = {arm: c.difference(arm) for arm in c.arms if arm != BACKPROP and BACKPROP in c.arms}
    rows = []
    for arm in c.arms.values():
        gap = gaps.get(arm.name)
        shown = (gap.mean, gap.low, gap.high) if gap else (None,) * 3
        rows.append(row(columns, (arm.name, arm.mean, arm.std, *shown, arm.flips("fixed"), arm.flips("broken"))))
    data = {
        "kind": "comparison",
        "metric": c.metric,
        "start": c.start,
        "arms": [{"name": a.name, "runs": [_curve(r) for r in a.runs]} for a in c.arms.values()],
        "gaps": [
            {"name": arm, "seeds": c.seeds, "values": g.values, "mean": g.mean, "low": g.low, "high": g.high}
            for arm, g in gaps.items()
        ],
        "flips": [{"name": a.name, "fixed": a.flips("fixed"), "broken": a.flips("broken")} for a in c.arms.values()],
    }
    seeds = f"{len(c.seeds)} {'seed' if len(c.seeds) == 1 else 'seeds'}"
    text = f"{seeds}, c_rec {c.c_rec:g}; {c.metric} {number(c.start)} at the start; {_better(c.higher)}."
    return RunSection(
        f"Comparison before {c.at}", text, PageTable(name, "Arms after the last epoch", columns, rows), data
    )


def _result(r: Result, name: str) -> RunSection:
    columns = [
        Column("epoch"),
        Column(r.metric),
        Column("task loss"),
        Column("rec. loss"),
        Column("λ", hint="weight of the reconstruction loss"),
        Column("deviation", hint="‖â − a*‖/‖a*‖, mean"),
        Column("fixed"),
        Column("broken"),
        Column("samples/s"),
    ]
    rows = [
        row(columns, (e.epoch, e.metric, e.task_loss, e.rec_loss, e.weight, e.deviation, e.fixed, e.broken,
                      e.samples_per_second))
        for e in r.history
    ]  # fmt: skip
    text = f"c_rec {r.c_rec:g}, targets {r.targets}, seed {r.seed}; {_better(r.higher)}."
    data = {"kind": "run", "metric": r.metric, "start": r.start, **_curve(r)}
    return RunSection(f"Post-training before {r.at}", text, PageTable(name, "Epochs", columns, rows), data)


def _curve(r: Result) -> dict[str, Any]:
    rows = r.history
    return {
        "seed": r.seed,
        "epoch": [e.epoch for e in rows],
        "values": [e.metric for e in rows],
        "loss": [e.task_loss for e in rows],
        "deviation": [e.deviation for e in rows],
        "flips": [(e.fixed, e.broken) for e in rows],
    }


def _trajectory(t: Trajectory, name: str) -> RunSection:
    correlations = [t.correlation(layer) for layer in t.layers]
    columns = [
        Column("layer", "code"),
        Column("Pearson", hint="of deviation and score over checkpoints"),
        Column("p"),
        Column("Spearman"),
        Column("p (Spearman)"),
        *(Column(f"deviation, {c}") for c in t.checkpoints),
    ]
    rows = [
        row(columns, (layer, c.pearson, c.pearson_p, c.spearman, c.spearman_p, *t.deviation[:, j]))
        for j, (layer, c) in enumerate(zip(t.layers, correlations, strict=True))
    ]
    data = {
        "kind": "trajectory",
        "metric": t.score_name,
        "checkpoints": t.checkpoints,
        "score": t.score,
        "layers": [
            {"name": layer, "deviation": t.deviation[:, j], "pearson": c.pearson, "spearman": c.spearman}
            for j, (layer, c) in enumerate(zip(t.layers, correlations, strict=True))
        ],
    }
    text = f"Deviation against {t.score_name} over {len(t.checkpoints)} checkpoints, one panel per layer."
    return RunSection("Deviation along training", text, PageTable(name, "Correlations", columns, rows), data)


def _better(higher: bool) -> str:
    return f"{'higher' if higher else 'lower'} is better"
