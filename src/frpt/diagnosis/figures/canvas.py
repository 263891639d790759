"""What all figures share: a sheet, colours that colour-blind readers can tell apart, and the file it goes to.

Used by ``plots``, ``curves`` and the figures of ``frpt_paper``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from frpt.diagnosis.findings import Array
from frpt.errors import OptionError

FORMATS = (".png", ".svg", ".pdf")
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F",
)  # fmt: skip
"""Okabe and Ito's colours."""
CYCLE = (GREY, SKY, RED, BLUE, GREEN, PURPLE, ORANGE)
HEAT = "viridis"
GLOW = "inferno"
_STYLE = {
    "font.size": 9.0, "axes.titlesize": 10.0, "axes.labelsize": 9.0, "legend.fontsize": 8.0, "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666",
    "axes.titleweight": "bold", "axes.titlelocation": "left", "xtick.color": "#444444", "ytick.color": "#444444",
    "grid.color": "#DDDDDD", "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False,
    "svg.fonttype": "none", "pdf.fonttype": 42, "figure.dpi": 100.0, "savefig.dpi": 160.0,
}  # fmt: skip

P = ParamSpec("P")


def drawn(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A figure in frpt's style, written to the ``path`` the call names; the format is checked before any work."""

    takes = signature(draw)

    @wraps(draw)
    def call(*args: P.args, **kwargs: P.kwargs) -> Figure:
        path: Any = takes.bind(*args, **kwargs).arguments.get("path")
        if path is not None:
            check_format(path)
        with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):  # type: ignore[dict-item]
            figure = draw(*args, **kwargs)
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(path)
        return figure

    return call


def check_format(path: str | Path) -> None:
    if Path(path).suffix.lower() not in FORMATS:
        raise OptionError(f"figures are written as {', '.join(FORMATS)}; {str(path)!r} ends in none of them")


def sheet(width: float, height: float) -> Figure:
    """An empty figure, inches. It belongs to no window and no global state."""
    return Figure(figsize=(width, height), layout="constrained")


def pixels(figure: Figure) -> Array:
    """A figure as it would be shown, (h, w, 3) uint8."""
    if not isinstance(figure, Figure):
        raise OptionError(f"a picture of a sample must be a matplotlib figure, got {type(figure).__name__}")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def short(name: str, most: int) -> str:
    """A name with its beginning left out where it is too long: the end tells layers apart."""
    return name if len(name) <= most else "…" + name[1 - most :]


def listed(ax: Axes, names: list[str], bold: set[str] | frozenset[str] = frozenset()) -> None:
    """Names down the vertical axis, the first on top."""
    ax.set_yticks(range(len(names)), [short(n, 44) for n in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    for label, name in zip(ax.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if name in bold else "normal")


def heat(ax: Axes, values: Array, label: str, norm: Normalize | None = None, written: bool = True) -> None:
    """A matrix in colours with its bar beside it; cells without a value are grey. A few values are written in."""
    colours = mpl.colormaps[HEAT].with_extremes(bad="#EEEEEE")
    shown = np.ma.masked_invalid(values)
    image = ax.imshow(shown, cmap=colours, norm=norm, aspect="auto" if norm is not None else "equal")
    ax.spines[:].set_visible(False)
    figure = ax.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=ax, label=label, shrink=0.9, pad=0.02)
    if values.size > 120 or not written:
        return
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = sum(mpl.colormaps[HEAT](image.norm(value))[:3]) < 1.4
            ax.text(j, i, f"{value:.2g}", ha="center", va="center", color="white" if dark else "black", fontsize=7)
