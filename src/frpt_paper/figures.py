"""Figures of experiments, in the style of the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from frpt.diagnosis.figures.canvas import BLUE, CYCLE, GREEN, GREY, ORANGE, RED, drawn, sheet
from frpt_paper.jobs import BACKPROP
from frpt_paper.tables import MODEL_NAMES, layer_order

if TYPE_CHECKING:
    import pandas as pd


@drawn
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


@drawn
def maturity(runs: pd.DataFrame, start: Mapping[int, float], title: str) -> Figure:
    """Box plots over seeds of the mean accuracy from each checkpoint; stars: the checkpoint's own accuracy."""
    figure = sheet(8.0, 3.6)
    ax = figure.subplots()
    places, settings = sorted(start), sorted(runs["c_rec"].unique())
    for i, (colour, c) in enumerate(zip((GREY, BLUE, RED, GREEN, ORANGE), settings, strict=False)):
        part = runs[runs["c_rec"] == c]
        values = [part[part["pretrained"] == e]["mean"].to_numpy() for e in places]
        at = np.arange(len(places)) + 0.24 * (i - (len(settings) - 1) / 2)
        ax.boxplot(values, positions=at, widths=0.2, manage_ticks=False, boxprops={"color": colour},
                   medianprops={"color": colour}, whiskerprops={"color": colour}, capprops={"color": colour},
                   flierprops={"markersize": 2})  # fmt: skip
        ax.plot([], [], color=colour, label=f"c_rec = {c:g}")
    ax.plot(range(len(places)), [start[e] for e in places], "*", color="black", ms=8, label="checkpoint")
    ax.set_xticks(range(len(places)), [str(e) for e in places])
    ax.set_xlabel("pretraining epoch of the checkpoint")
    ax.set_ylabel("mean test accuracy, %")
    ax.set_title(title)
    ax.grid(axis="y")
    ax.legend()
    return figure


@drawn
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
            at = [layers.index(name) + 0.8 * (i + 0.5) / len(kinds) - 0.4 for name in part["l_r"]]
            error = [part["delta"] - part["low"], part["high"] - part["delta"]]
            label = f"{arm}{', ' + preset if preset else ''}, {c:g}"
            ax.errorbar(at, part["delta"], error, fmt="o", ms=4, capsize=2, color=CYCLE[i % len(CYCLE)], label=label)
        ax.axhline(0, color="#666666", lw=0.8)
        ax.set_xticks(range(len(layers)), [f"l_R = {name}" for name in layers])
        ax.set_ylabel("gain over\nback-propagation, points")
        name = MODEL_NAMES.get(model, model)
        ax.set_title(f"{title}\n{name}" if ax is panels[0] else name)
        ax.grid(axis="y")
    panels[-1].legend(ncols=3)
    return figure


@drawn
def solvers(times: pd.DataFrame, errors: pd.DataFrame) -> Figure:
    """Seconds against the size of the map; CCP error and deviation against the condition number, gate on and off."""
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


@drawn
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
