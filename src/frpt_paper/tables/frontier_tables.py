"""Tables and the figure of ``experiments.feature_loss``: new against old accuracy, arm by arm.

``runs`` has a row for each run on the reported images under each choice it stands for (``chosen_runs``); accuracies are
in percent, ``both`` is the mean of new and old. Seeds are compared as means over the corruptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
CHOICES = ("balanced", "careful")
"""The setting with the highest mean of new and old accuracy; the one with the highest new accuracy that loses at most
two points of the old: both on the held-out part."""
VALUES = ["new", "old", "both"]


def chosen_runs(report: pd.DataFrame, chosen: Sequence[Mapping[str, object]], fields: Sequence[str]) -> pd.DataFrame:
    """The reported runs, a copy for each choice that a run stands for; in percent."""
    runs = pd.DataFrame(chosen).merge(_percent(report), on=["size", *fields], how="left", sort=False)
    return runs.sort_values(["size"], kind="stable").reset_index(drop=True)


def summary(runs: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """New and old accuracy of every arm at both choices: means over kinds first, then mean ± std over seeds."""
    rows: list[list[Cell | str]] = []
    by = _by_seed(runs)
    for size, part in by.groupby("size", sort=False):
        start = part[["new_start", "old_start"]].mean()
        both = start.mean()
        before = [f"{v:.2f}" for v in (*start, both)]
        rows.append([str(size), "before", *before, *before, "–"])
        for arm, own in part.groupby("arm", sort=False):
            cells: list[Cell | str] = []
            for choice in CHOICES:
                values = own[own["choice"] == choice]
                cells += [_cell(values[c]) for c in VALUES]
            rows.append([str(size), str(arm), *cells, f"{own['seconds'].mean():.1f}"])
    head = [f"{value}, {choice}" for choice in CHOICES for value in ("New, %", "Old, %", "Mean")]
    note = (
        "balanced: the setting with the highest mean of new and old accuracy on the held-out part; careful: with the "
        "highest new accuracy among those that lose at most two points of old accuracy there. Mean ± std over seeds."
    )
    return PrintedTable(name, title, ["Samples", "Arm", *head, "Seconds"], rows, by, note, spans=1)


def by_kind(runs: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """The balanced choice under each corruption."""
    rows: list[list[Cell | str]] = []
    runs = runs[runs["choice"] == CHOICES[0]]
    for (size, kind), part in runs.groupby(["size", "corruption"], sort=False):
        start = part[["new_start", "old_start"]].mean()
        rows.append([str(size), str(kind), "before", *(f"{v:.2f}" for v in (*start, start.mean()))])
        for arm, own in part.groupby("arm", sort=False):
            rows.append([str(size), str(kind), str(arm), *(_cell(own[c]) for c in VALUES)])
    note = "Balanced choice, mean ± std over seeds. Nothing was chosen by jpeg."
    head = ["Samples", "Corruption", "Arm", "New, %", "Old, %", "Mean"]
    return PrintedTable(name, title, head, rows, runs.drop(columns=["job", "row", "rows"]), note, spans=2)


def differences(runs: pd.DataFrame, pairs: Sequence[tuple[str, str]], name: str, title: str) -> PrintedTable:
    """Arm minus arm at each choice, paired by seed; p of the mean of new and old, Holm over a choice."""
    found: list[dict[str, float | int | str]] = []
    by = _by_seed(runs).set_index(["size", "choice", "arm"]).sort_index()
    for size in dict.fromkeys(runs["size"]):
        for choice in CHOICES:
            for arm, other in pairs:
                a, b = (by.loc[[(size, choice, one)]].sort_values("seed") for one in (arm, other))
                if len(a) < 2:
                    continue
                row: dict[str, float | int | str] = {"size": int(size), "choice": choice, "arm": arm, "against": other}
                for value in VALUES:
                    p = stats.paired(a[value].to_numpy(), b[value].to_numpy())
                    row |= {value: p.delta, f"{value}_low": p.ci[0], f"{value}_high": p.ci[1]}
                found.append(row | {"n": p.n, "p_t": p.p_t})
    for choice in CHOICES:
        family = [row for row in found if row["choice"] == choice]
        for row, p_holm in zip(family, stats.holm([float(row["p_t"]) for row in family]) if family else [], strict=True):
            row["p_holm"] = p_holm
    rows = [
        [
            str(row["size"]), str(row["choice"]), f"{row['arm']} − {row['against']}",
            *(interval(*(float(row[f"{v}{end}"]) for end in ("", "_low", "_high"))) for v in VALUES),
            Cell(f"{row['p_holm']:.3f}", bold=float(row["p_holm"]) < LEVEL),
        ]
        for row in found
    ]  # fmt: skip
    note = (
        "Percentage points, each seed the mean over the corruptions, 95 % bootstrap intervals over seeds. p: one-sided "
        "paired t-test that the mean of new and old accuracy is higher, with Holm's correction over all rows of a choice."
    )
    head = ["Samples", "Choice", "Arms", "New", "Old", "Mean", "p_Holm"]
    return PrintedTable(name, title, head, rows, pd.DataFrame(found), note, spans=2)


def held_out(
    choice: pd.DataFrame, chosen: Sequence[Mapping[str, object]], fields: Sequence[str], name: str, title: str
) -> PrintedTable:
    """Every setting on the held-out part, means over kinds, and which were chosen."""
    means = _settings(choice, fields)
    marks = pd.DataFrame(chosen).groupby(["size", *fields], sort=False)["choice"].agg(" and ".join).reset_index()
    data = means.merge(marks, on=["size", *fields], how="left").fillna({"choice": ""})
    shown = ["pull", "hold", "rate", "measure", "rest"]
    rows: list[list[Cell | str]] = [
        [
            str(row["size"]), str(row["arm"]), *(v if isinstance(v := row[f], str) else f"{v:g}" for f in shown),
            *(f"{row[v]:.2f}" for v in VALUES), str(row["choice"]),
        ]
        for _, row in data.iterrows()
    ]  # fmt: skip
    note = "pull, hold: strengths of the features' distance and of what keeps the old behaviour; rest: of right samples."
    head = ["Samples", "Arm", *shown, "New, %", "Old, %", "Mean", "Chosen"]
    return PrintedTable(name, title, head, rows, data, note, spans=2)


@styled
def frontiers(choice: pd.DataFrame, runs: pd.DataFrame, fields: Sequence[str], title: str) -> Figure:
    """Old against new accuracy: above the held-out frontier of every arm, below its two choices on fresh images."""
    sizes = list(dict.fromkeys(runs["size"]))
    figure = sheet(1.2 + 2.9 * len(sizes), 6.8)
    panels = figure.subplots(2, len(sizes), squeeze=False)
    means = _settings(choice, fields)
    fresh = _by_seed(runs).groupby(["size", "arm", "choice"], sort=False)[[*VALUES, "new_start", "old_start"]].mean()
    fresh = fresh.reset_index()
    for column, size in enumerate(sizes):
        for row, (data, name) in enumerate(((means, "held-out part, all strengths"), (fresh, "fresh images"))):
            ax, part = panels[row, column], data[data["size"] == size]
            ax.plot(part["new_start"].mean(), part["old_start"].mean(), "k*", ms=9, label="before")
            for arm, own in part.groupby("arm", sort=False):
                front = pareto(own) if row == 0 else own.sort_values("new")
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
    keys = ["size", "arm", "choice", "seed"]
    return runs.groupby(keys, sort=False)[[*VALUES, "new_start", "old_start", "given", "seconds"]].mean().reset_index()


def _percent(frame: pd.DataFrame) -> pd.DataFrame:
    columns = ("new", "old", "new_start", "old_start", "given")
    percent = frame.assign(**{c: 100 * frame[c] for c in columns})
    return percent.assign(both=(percent["new"] + percent["old"]) / 2)


def _cell(values: pd.Series[float]) -> Cell:
    return Cell(mean=float(values.mean()), std=float(values.std()) if len(values) > 1 else 0.0)
