"""Tables and the figure of ``experiments.feature_loss``: new against old accuracy, arm by arm.

Frames are of runs, one row each, accuracies in [0, 1]; shown are percent, ``both`` is the mean of new and old. Seeds
are compared as means over the corruptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from frpt import stats
from frpt_paper.tables.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, sheet, styled
from frpt_paper.tables.printed import Cell, PrintedTable, interval
from frpt_paper.tables.statistics import LEVEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEAREST_WEIGHTS, ALL_WEIGHTS = "nearest weights", "nearest weights, all layers"
VALUES = ["new", "old", "both"]


def summary(runs: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """New and old accuracy of every arm: means over kinds first, then mean ± std over seeds."""
    rows: list[list[Cell | str]] = []
    by = _by_seed(runs)
    for size, part in by.groupby("size", sort=False):
        rows.append([str(size), "before", *_start(part), "–", "–"])
        for arm, own in part.groupby("arm", sort=False):
            cells = [_cell(own[c]) for c in VALUES]
            rows.append([str(size), str(arm), *cells, f"{own['given'].mean():.0f}", f"{own['seconds'].mean():.1f}"])
    note = (
        "Mean ± std over seeds, each the mean over the corruptions. Given: % of the labelled samples themselves that "
        "are right afterwards. Seconds: of the training or the repair, beside other work."
    )
    head = ["Samples", "Arm", "New, %", "Old, %", "Mean", "Given, %", "Seconds"]
    return PrintedTable(name, title, head, rows, by, note, spans=1)


def by_kind(runs: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """The same under each corruption."""
    rows: list[list[Cell | str]] = []
    percent = _percent(runs)
    for (size, kind), part in percent.groupby(["size", "corruption"], sort=False):
        rows.append([str(size), str(kind), "before", *_start(part)])
        for arm, own in part.groupby("arm", sort=False):
            rows.append([str(size), str(kind), str(arm), *(_cell(own[c]) for c in VALUES)])
    note = "Mean ± std over seeds. Nothing was chosen by jpeg."
    head = ["Samples", "Corruption", "Arm", "New, %", "Old, %", "Mean"]
    return PrintedTable(name, title, head, rows, percent.drop(columns=["job", "row", "rows"]), note, spans=2)


def differences(runs: pd.DataFrame, pairs: Sequence[tuple[str, str]], name: str, title: str) -> PrintedTable:
    """Arm minus arm, paired by seed; p of the mean of new and old, Holm over the table. Arms that did not run lack."""
    found: list[dict[str, float | int | str]] = []
    by = _by_seed(runs)
    for size, part in by.groupby("size", sort=False):
        arms = {str(arm): own.sort_values("seed") for arm, own in part.groupby("arm", sort=False)}
        for arm, other in pairs:
            if arm not in arms or other not in arms or len(arms[arm]) < 2:
                continue
            row: dict[str, float | int | str] = {"size": int(size), "arm": arm, "against": other}
            for value in VALUES:
                p = stats.paired(arms[arm][value].to_numpy(), arms[other][value].to_numpy())
                row |= {value: p.delta, f"{value}_low": p.ci[0], f"{value}_high": p.ci[1]}
            found.append(row | {"n": p.n, "p_t": p.p_t})
    for row, p_holm in zip(found, stats.holm([float(row["p_t"]) for row in found]) if found else [], strict=True):
        row["p_holm"] = p_holm
    rows: list[list[Cell | str]] = []
    for row in found:
        values = [interval(*(float(row[f"{v}{end}"]) for end in ("", "_low", "_high"))) for v in VALUES]
        p_shown = Cell(f"{row['p_holm']:.3f}", bold=float(row["p_holm"]) < LEVEL)
        rows.append([str(row["size"]), f"{row['arm']} − {row['against']}", *values, p_shown])
    note = (
        "Percentage points, each seed the mean over the corruptions, 95 % bootstrap intervals over seeds. p: one-sided "
        "paired t-test that the mean of new and old accuracy is higher, with Holm's correction over the table."
    )
    head = ["Samples", "Arms", "New", "Old", "Mean", "p_Holm"]
    return PrintedTable(name, title, head, rows, pd.DataFrame(found), note, spans=1)


def held_out(choice: pd.DataFrame, runs: pd.DataFrame, fields: Sequence[str], name: str, title: str) -> PrintedTable:
    """Every setting on the held-out part, means over kinds, and which of them were run on the reported images."""
    means = _settings(choice, fields)
    taken = runs[["size", *fields]].drop_duplicates().assign(reported="yes")
    data = means.merge(taken, on=["size", *fields], how="left").fillna({"reported": ""})
    shown = ["pull", "hold", "rate", "measure", "rest"]
    rows: list[list[Cell | str]] = []
    for _, row in data.iterrows():
        setting = [row[f] if f == "measure" else f"{row[f]:g}" for f in shown]
        rows.append([str(row["size"]), row["arm"], *setting, *(f"{row[v]:.2f}" for v in VALUES), row["reported"]])
    note = "pull, hold: strength of the features' distance and of what keeps the old behaviour; rest: of right samples."
    head = ["Samples", "Arm", *shown, "New, %", "Old, %", "Mean", "Reported"]
    return PrintedTable(name, title, head, rows, data, note, spans=2)


@styled
def frontiers(choice: pd.DataFrame, runs: pd.DataFrame, fields: Sequence[str], title: str) -> Figure:
    """Old against new accuracy: above the held-out frontier of every arm, below its choice on fresh images."""
    sizes = list(dict.fromkeys(runs["size"]))
    figure = sheet(1.2 + 2.9 * len(sizes), 6.8)
    panels = figure.subplots(2, len(sizes), squeeze=False)
    means, fresh = _settings(choice, fields), _settings(runs, fields)
    for column, size in enumerate(sizes):
        for row, (data, name) in enumerate(((means, "held-out part, all strengths"), (fresh, "fresh images"))):
            ax, part = panels[row, column], data[data["size"] == size]
            ax.plot(part["new_start"].mean(), part["old_start"].mean(), "k*", ms=9, label="before")
            for arm, own in part.groupby("arm", sort=False):
                front = pareto(own)
                colour, style, mark = _STYLES.get(str(arm).removeprefix("targets: "), (GREY, "-", "o"))
                ax.plot(front["new"], front["old"], style, color=colour, marker=mark, ms=5, lw=1.2, label=arm)
            _label(ax, f"N = {size}, {name}" if column == 0 else f"N = {size}", row == 1, column == 0)
    panels[0, 0].set_title(f"{title}\n{panels[0, 0].get_title(loc='left')}")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def pareto(points: pd.DataFrame) -> pd.DataFrame:
    """The settings that no other one beats both on new and old images, from low to high new accuracy."""
    ordered = points.sort_values(["new", "old"], ascending=False)
    return ordered[ordered["old"] > ordered["old"].cummax().shift(fill_value=-1.0)].iloc[::-1]


_STYLES = {
    "back-propagation": (GREY, "-", "o"), "anchor-only": (SKY, "-", "o"), "EWC": (ORANGE, "-", "o"),
    "replay": (GREEN, "-", "o"), "nearest": (BLUE, "--", "s"), "likeliest": (RED, "--", "s"),
    "class means": (PURPLE, "--", "s"), "replay + nearest": (BLUE, "-", "^"), "replay + likeliest": (RED, "-", "^"),
    "replay + class means": (PURPLE, "-", "^"), NEAREST_WEIGHTS: ("black", "-", "D"), ALL_WEIGHTS: ("black", ":", "D"),
}  # fmt: skip
"""Arm → colour, line, mark."""


def _label(ax: Axes, title: str, below: bool, left: bool) -> None:
    ax.set_title(title)
    ax.grid()
    if below:
        ax.set_xlabel("new accuracy, %")
    if left:
        ax.set_ylabel("old accuracy, %")


def _settings(choice: pd.DataFrame, fields: Sequence[str]) -> pd.DataFrame:
    """A row per size and setting, means over kinds."""
    columns = [*VALUES, "new_start", "old_start"]
    means = _percent(choice).groupby(["size", *fields], sort=False)[columns].mean().reset_index()
    order = {arm: i for i, arm in enumerate(dict.fromkeys(means["arm"]))}
    return means.sort_values(["size", "arm"], key=lambda c: c.map(order) if c.name == "arm" else c, kind="stable")


def _by_seed(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over the corruptions of a seed."""
    columns = [*VALUES, "new_start", "old_start", "given", "seconds"]
    return _percent(runs).groupby(["size", "arm", "seed"], sort=False)[columns].mean().reset_index()


def _start(part: pd.DataFrame) -> list[str]:
    """New and old accuracy before, and their mean."""
    start = part[["new_start", "old_start"]].mean()
    return [f"{v:.2f}" for v in (*start, start.mean())]


def _percent(frame: pd.DataFrame) -> pd.DataFrame:
    columns = ("new", "old", "new_start", "old_start", "given")
    percent = frame.assign(**{c: 100 * frame[c] for c in columns})
    return percent.assign(both=(percent["new"] + percent["old"]) / 2)


def _cell(values: pd.Series[float]) -> Cell:
    return Cell(mean=float(values.mean()), std=float(values.std()) if len(values) > 1 else 0.0)
