"""Figures of experiments; each function draws one from the data frame of a table, in one style.

Experiments call it and hand the figure to their report, which saves it as PNG and SVG.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from frpt_paper.runs.jobs import ARMS, BACKPROP, FRPT
from frpt_paper.tables.statistics import MODEL_NAMES, START, layer_order

if TYPE_CHECKING:
    import pandas as pd

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F",
)  # fmt: skip
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
CYCLE = (GREY, SKY, RED, BLUE, GREEN, PURPLE, ORANGE)
_STYLE = {
    "font.size": 9.0, "axes.titlesize": 10.0, "axes.labelsize": 9.0, "legend.fontsize": 8.0, "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666",
    "axes.titleweight": "bold", "axes.titlelocation": "left", "xtick.color": "#444444", "ytick.color": "#444444",
    "grid.color": "#DDDDDD", "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False,
}  # fmt: skip

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in this style, whatever the user's matplotlib is set to."""

    @wraps(draw)
    def call(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):  # type: ignore[dict-item]
            return draw(*args, **kwargs)

    return call


def sheet(width: float, height: float) -> Figure:
    """An empty figure, inches. It belongs to no window and no global state."""
    return Figure(figsize=(width, height), layout="constrained")


@styled
def strengths(data: pd.DataFrame, names: Mapping[str, str], title: str) -> Figure:
    """Mean accuracy against c_rec, a line per embedding, back-propagation as a level."""
    figure = sheet(6.0, 3.6)
    ax = figure.subplots()
    for colour, (name, label) in zip((GREY, ORANGE, BLUE, RED), names.items(), strict=False):
        part = data[data["embed"] == name].sort_values("c_rec")
        if name == BACKPROP:
            ax.axhline(float(part["mean"].iloc[0]), color=colour, ls="--", lw=1.2, label=label)
            continue
        ax.plot(part["c_rec"], part["mean"], color=colour, marker="o", ms=4, label=label)
        ax.fill_between(part["c_rec"], part["low"], part["high"], color=colour, alpha=0.2, lw=0)
    ax.set_xscale("log")
    ax.set_xlabel("c_rec")
    ax.set_ylabel("mean test accuracy, %")
    ax.set_title(title)
    ax.grid()
    ax.legend()
    return figure


@styled
def maturity(runs: pd.DataFrame, start: Mapping[int, float], title: str) -> Figure:
    """Box plots over seeds of the mean accuracy from each checkpoint; stars: the checkpoint's own accuracy."""
    figure = sheet(8.0, 3.6)
    ax = figure.subplots()
    epochs, settings = sorted(start), sorted(runs["c_rec"].unique())
    for i, (colour, c) in enumerate(zip((GREY, BLUE, RED, GREEN, ORANGE), settings, strict=False)):
        part = runs[runs["c_rec"] == c]
        values = [part[part["pretrained"] == e]["mean"].to_numpy() for e in epochs]
        across = np.arange(len(epochs)) + 0.24 * (i - (len(settings) - 1) / 2)
        ax.boxplot(values, positions=across, widths=0.2, manage_ticks=False, boxprops={"color": colour},
                   medianprops={"color": colour}, whiskerprops={"color": colour}, capprops={"color": colour},
                   flierprops={"markersize": 2})  # fmt: skip
        ax.plot([], [], color=colour, label=f"c_rec = {c:g}")
    ax.plot(range(len(epochs)), [start[e] for e in epochs], "*", color="black", ms=8, label="checkpoint")
    ax.set_xticks(range(len(epochs)), [str(e) for e in epochs])
    ax.set_xlabel("pretraining epoch of the checkpoint")
    ax.set_ylabel("mean test accuracy, %")
    ax.set_title(title)
    ax.grid(axis="y")
    ax.legend()
    return figure


@styled
def maturity_gains(data: pd.DataFrame, title: str) -> Figure:
    """FR-PT − back-propagation, FR-PT − start and back-propagation − start against the start's accuracy."""
    figure = sheet(6.0, 3.8)
    ax = figure.subplots()
    own = data[(data["arm"] == FRPT) & (data["c_rec"] == data["c_rec"].max())]
    lines = (
        ("FR-PT − back-propagation", own[own["against"] == BACKPROP], RED),
        ("FR-PT − start", own[own["against"] == START], BLUE),
        ("back-propagation − start", data[data["arm"] == BACKPROP], GREY),
    )
    for label, part, colour in lines:
        ordered = part.sort_values("start")
        _intervals(ax, ordered["start"], ordered, colour, label, "o-")
    return _finished(figure, ax, "accuracy of the start, %", "points of mean accuracy", title)


def _intervals(ax: Axes, across: Any, part: pd.DataFrame, colour: str, label: str, mark: str = "o") -> None:
    """Differences with their intervals."""
    error = [part["delta"] - part["low"], part["high"] - part["delta"]]
    ax.errorbar(across, part["delta"], error, fmt=mark, ms=4, capsize=2, color=colour, label=label)


def _finished(figure: Figure, ax: Axes, across: str, up: str, title: str) -> Figure:
    """One panel of differences: zero, names, a grid and a legend."""
    ax.axhline(0, color="#666666", lw=0.8)
    ax.set(xlabel=across, ylabel=up, title=title)
    ax.grid()
    ax.legend()
    return figure


@styled
def gains(data: pd.DataFrame, title: str) -> Figure:
    """Gain over back-propagation per l_R with intervals, a panel per model, a mark per arm and strength."""
    data = data[data["against"] == BACKPROP]
    models = list(dict.fromkeys(data["model"]))
    figure = sheet(8.0, 2.8 * len(models))
    panels = figure.subplots(len(models), 1, squeeze=False)[:, 0]
    kinds = list(dict.fromkeys(zip(data["arm"], data["preset"], data["c_rec"], strict=True)))
    layers = sorted(dict.fromkeys(data["l_r"]), key=layer_order)
    for ax, model in zip(panels, models, strict=True):
        for i, (arm, preset, c) in enumerate(kinds):
            own = (data["model"] == model) & (data["arm"] == arm) & (data["preset"] == preset) & (data["c_rec"] == c)
            part = data[own]
            across = [layers.index(name) + 0.8 * (i + 0.5) / len(kinds) - 0.4 for name in part["l_r"]]
            label = f"{arm}{', ' + preset if preset else ''}, {c:g}"
            _intervals(ax, across, part, CYCLE[i % len(CYCLE)], label, "os"[i // len(CYCLE) % 2])
        ax.axhline(0, color="#666666", lw=0.8)
        ax.set_xticks(range(len(layers)), [f"l_R = {name}" for name in layers])
        ax.set_ylabel("gain over\nback-propagation, points")
        name = MODEL_NAMES.get(model, model)
        ax.set_title(f"{title}\n{name}" if ax is panels[0] else name)
        ax.grid(axis="y")
    panels[-1].legend(ncols=3)
    return figure


@styled
def from_start(data: pd.DataFrame, title: str) -> Figure:
    """Mean accuracy of every arm minus the start's, per l_R with intervals, a panel per rate; 0 is doing nothing."""
    data = data[data["against"] == START]
    rates, layers = sorted(data["lr"].unique()), sorted(dict.fromkeys(data["l_r"]), key=layer_order)
    kinds = list(dict.fromkeys(zip(data["arm"], data["preset"], data["c_rec"], strict=True)))
    kinds.sort(key=lambda kind: (ARMS.index(kind[0]), kind[2]))
    strengths = len({c for _, _, c in kinds if c}) > 1
    figure = sheet(7.0, 2.4 * len(rates) + 0.8)
    panels = figure.subplots(len(rates), 1, squeeze=False, sharex=True)[:, 0]
    for ax, rate in zip(panels, rates, strict=True):
        for i, (arm, preset, c) in enumerate(kinds):
            same = (data["arm"] == arm) & (data["preset"] == preset) & (data["c_rec"] == c)
            part = data[(data["lr"] == rate) & same]
            across = [layers.index(name) + 0.7 * (i + 0.5) / len(kinds) - 0.35 for name in part["l_r"]]
            label = f"{arm}{', ' + preset if preset else ''}" + (f", {c:g}" if strengths and c else "")
            _intervals(ax, across, part, CYCLE[i % len(CYCLE)], label, "os"[i // len(CYCLE) % 2])
        ax.axhline(0, color="#666666", lw=0.8)
        ax.set_ylabel(f"rate {rate:g}\nminus start, points" if len(rates) > 1 else "minus start, points")
        ax.grid(axis="y")
    panels[0].set_title(title)
    panels[-1].set_xticks(range(len(layers)), [f"l_R = {name}" for name in layers])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def starts(data: pd.DataFrame, title: str) -> Figure:
    """A point per model: FR-PT's gain over back-propagation against what the start has over back-propagation."""
    figure = sheet(6.0, 4.2)
    ax = figure.subplots()
    low, high = -0.4, float(data[["fr_minus_bp", "start_minus_bp"]].max().max()) + 0.2
    ax.plot([low, high], [low, high], color=GREY, lw=1.0, ls="--", label="FR-PT = start")
    for colour, (model, part) in zip((BLUE, ORANGE, RED, GREEN), data.groupby("model", sort=False), strict=False):
        ax.plot(part["start_minus_bp"], part["fr_minus_bp"], "o", color=colour, ms=5, label=model)
    return _finished(figure, ax, "start − back-propagation, points", "FR-PT − back-propagation, points", title)


@styled
def planners(data: pd.DataFrame, title: str) -> Figure:
    """Gain in PDMS over back-propagation per l_R with intervals over scenes, a panel per strength, a mark per arm."""
    data = data[data["against"] == BACKPROP]
    strengths, layers = sorted(data["c_rec"].unique()), list(dict.fromkeys(data["l_r"]))
    arms = list(dict.fromkeys(zip(data["arm"], data["preset"], strict=True)))
    figure = sheet(8.0, 2.0 * len(strengths) + 0.8)
    panels = figure.subplots(len(strengths), 1, squeeze=False, sharex=True)[:, 0]
    for ax, c in zip(panels, strengths, strict=True):
        for i, (colour, (arm, preset)) in enumerate(zip((GREY, RED, BLUE, GREEN), arms, strict=False)):
            part = data[(data["c_rec"] == c) & (data["arm"] == arm) & (data["preset"] == preset)]
            across = [layers.index(name) + 0.6 * (i + 0.5) / len(arms) - 0.3 for name in part["l_r"]]
            _intervals(ax, across, part, colour, f"{arm}{', ' + preset if preset else ''}")
        ax.axhline(0, color="#666666", lw=0.8)
        ax.set_ylabel(f"c_rec = {c:g}\npoints of PDMS")
        ax.grid(axis="y")
    panels[0].set_title(f"{title}:\ngain over back-propagation")
    panels[-1].set_xticks(range(len(layers)), [textwrap.fill(name, 18) for name in layers])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@styled
def solvers(times: pd.DataFrame, errors: pd.DataFrame) -> Figure:
    """Seconds against the size of the map; CCP error and deviation against the condition number, gate on and off.

    A solid line in the first panel has one output channel (Case I), a dashed one four (Case II).
    """
    figure = sheet(9.0, 3.2)
    left, middle, right = figure.subplots(1, 3)
    names = list(dict.fromkeys(times["solver"]))
    colours = dict(zip(names, CYCLE, strict=False))
    for (solver, outputs), part in times.groupby(["solver", "c_out"], sort=False):
        style = "-" if outputs == 1 else "--"
        left.plot(part["size"], part["seconds"], style, color=colours[solver], marker="o", ms=3,
                  label=solver if outputs == 1 else None)  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="size of the map", ylabel="seconds (dashed: C_out = 4)")
    for ax, column in ((middle, "ccp"), (right, "deviation")):
        means = errors.groupby(["solver", "gate", "kappa"], sort=False)[column].mean().reset_index()
        for (solver, gate), part in means.groupby(["solver", "gate"], sort=False):
            ax.plot(part["kappa"], part[column], "-" if gate else "--", color=colours[solver], marker="o", ms=3)
        ax.set(xscale="log", yscale="log", xlabel="condition number of the kernel", ylabel=f"{column} (solid: gated)")
    for ax in (left, middle, right):
        ax.grid()
    left.legend()
    return figure


@styled
def adaptation(data: pd.DataFrame, title: str) -> Figure:
    """Accuracy on the new and the old distribution against the size of the new set, a line per arm."""
    figure = sheet(8.0, 3.8)
    panels, sizes = figure.subplots(1, 2), sorted(data["size"].unique())
    for ax, (column, start, name) in zip(
        panels, (("new", "new_start", "new"), ("old", "old_start", "old")), strict=True
    ):
        for colour, (arm, part) in zip(CYCLE, data.groupby("arm", sort=False), strict=False):
            by_size = part.groupby("size")[column].mean()
            wide = 5.0 if arm == BACKPROP else 1.5  # seen below a line that lies on it
            ax.plot(by_size.index, by_size, color=colour, marker="o", ms=4, lw=wide, label=arm)
        ax.axhline(float(data[start].mean()), color="black", ls=":", lw=1.0, label="before")
        ax.set(xscale="log", xlabel="labelled samples of the new kind", ylabel="accuracy, %")
        ax.set_xticks(sizes, [str(s) for s in sizes])
        ax.minorticks_off()
        ax.set_title(f"{title}: {name} distribution" if ax is panels[0] else f"{name} distribution")
        ax.grid()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure
