"""Figures of runs: deviation along training, and arms of post-training compared over seeds.

Called by ``Trajectory.figure`` and through ``plots``. What is drawn comes in as a protocol: nothing that trains is
imported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from frpt.diagnosis.figures.canvas import CYCLE, HEAT, drawn, sheet
from frpt.diagnosis.findings import Array

_COLUMNS = 4  # panels in a row, so that a panel stays as wide as a column of a paper


class Followed(Protocol):
    """What ``frpt.along_training`` returns: a protocol, since a ``Trajectory`` draws itself with this module."""

    @property
    def checkpoints(self) -> tuple[str, ...]: ...
    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def score_name(self) -> str: ...
    @property
    def score(self) -> Array: ...
    @property
    def deviation(self) -> Array: ...
    def correlation(self, layer: str, /) -> Any: ...


class Compared(Protocol):
    """What ``frpt.compare`` returns."""

    @property
    def at(self) -> str: ...
    @property
    def seeds(self) -> Sequence[int]: ...
    @property
    def metric(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def arms(self) -> Mapping[str, Any]: ...
    def difference(self, arm: str, /) -> Any: ...


@drawn
def trajectory(t: Followed, path: str | Path | None = None) -> Figure:
    """Score against relative deviation over checkpoints, a panel per layer, with their correlations (paper IV-C1)."""
    columns = min(len(t.layers), _COLUMNS)
    rows = math.ceil(len(t.layers) / columns)
    figure = sheet(max(2.5 * columns, 3.4) + 0.6, 2.5 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for ax in grid.flat[len(t.layers) :]:
        ax.set_visible(False)
    dots = None
    for i, (ax, layer) in enumerate(zip(grid.flat, t.layers, strict=False)):
        x = t.deviation[:, i]
        ax.plot(x, t.score, color="#CCCCCC", lw=0.9, zorder=1)
        dots = ax.scatter(x, t.score, c=range(len(x)), cmap=HEAT, s=24, edgecolor="white", linewidth=0.5, zorder=2)
        c = t.correlation(layer)
        ax.set_title(layer, pad=26)
        tests = f"r = {_number(c.pearson)}, {_p(c.pearson_p)}\nρ = {_number(c.spearman)}, {_p(c.spearman_p)}"
        ax.text(0, 1.03, tests, transform=ax.transAxes, fontsize=8, color="#444444", va="bottom")
        ax.grid()
        ax.set_xlabel("relative deviation")
        if i % columns == 0:
            ax.set_ylabel(t.score_name)
    if dots is not None and len(t.checkpoints) > 1:
        bar = figure.colorbar(dots, ax=grid, pad=0.02, fraction=0.05, ticks=[0, len(t.checkpoints) - 1])
        bar.ax.set_yticklabels([t.checkpoints[0], t.checkpoints[-1]])
        bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


@drawn
def comparison(c: Compared, path: str | Path | None = None) -> Figure:
    """The metric by epoch for every arm, seeds thin and their mean bold; then differences to the first arm, by seed."""
    figure = sheet(8.0, 3.1)
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    for colour, (name, arm) in zip(CYCLE, c.arms.items(), strict=False):
        curves = np.array([[c.start, *(_value(e.metric) for e in run.history)] for run in arm.runs])
        epochs = range(curves.shape[1])
        if len(curves) > 1:
            left.plot(epochs, curves.T, color=colour, lw=0.7, alpha=0.4)
        left.plot(epochs, curves.mean(0), color=colour, lw=2.2, label=name, marker="o", ms=3.5, mec="white", mew=0.5)
    left.set_xlabel("epoch")
    left.set_ylabel(c.metric)
    left.xaxis.get_major_locator().set_params(integer=True)
    left.grid()
    left.legend()
    seeds = f"{len(c.seeds)} seed" + ("s" if len(c.seeds) != 1 else "")
    left.set_title(f"Post-training before {c.at}, {seeds}")
    first, *others = c.arms
    for i, name in enumerate(others):
        _difference(right, i, c.difference(name), CYCLE[(i + 1) % len(CYCLE)])
    right.axhline(0, color="#666666", lw=0.8)
    right.set_xticks(range(len(others)), others)
    right.set_xlim(-0.6, len(others) - 0.4)
    right.grid(axis="y")
    interval = "\nseeds, mean and its 95 % interval" if len(c.seeds) > 1 else ""
    right.set_ylabel(f"difference in {c.metric}")
    right.set_xlabel(f"after the last epoch{interval}")
    right.set_title(f"Minus {first}")
    return figure


def _difference(ax: Axes, x: int, gap: Any, colour: str) -> None:
    """Seeds as dots, beside them the mean with its interval."""
    values: Array = np.asarray(gap.values, float)
    ax.plot(np.full(len(values), x - 0.12), values, "o", color=colour, ms=4.5, alpha=0.55, mew=0)
    if math.isfinite(gap.low):
        ax.errorbar(x + 0.12, gap.mean, [[gap.mean - gap.low], [gap.high - gap.mean]], color=colour, capsize=4)
    ax.plot(x + 0.12, gap.mean, "D", color=colour, ms=5.5, mec="white", mew=0.6)


def _value(metric: float | None) -> float:
    return math.nan if metric is None else metric


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.2f}".replace("-", "−")


def _p(value: float) -> str:
    return "p –" if math.isnan(value) else "p < 0.001" if value < 1e-3 else f"p = {value:.3f}"
