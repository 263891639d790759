"""Figures of a diagnosis, one call each. Each returns a ``Figure``; ``path`` writes it as .png, .svg or .pdf.

``Diagnosis.plot`` calls them by name through ``draw``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from frpt.common.text import percent
from frpt.diagnosis.figures.canvas import BLUE, GLOW, GREY, ORANGE, RED, SKY, drawn, heat, listed, sheet, short
from frpt.diagnosis.figures.curves import comparison, trajectory
from frpt.diagnosis.findings import Array, Findings, LayerFinding, Specimen
from frpt.diagnosis.report.words import class_name
from frpt.diagnosis.trust import MET, TRUST, WON
from frpt.errors import OptionError, UnknownLayerError

__all__ = [
    "channels", "classes", "comparison", "deviation", "pair", "positions", "responses", "trajectory", "trust",
]  # fmt: skip

Where = str | Path | None
# How figures look: chosen by eye, no result depends on them.
_WIDE = 30.0  # ratio of the largest to the smallest value from which a scale is logarithmic
_TOP = 16  # channels shown by name: as many as fit beside each other
_FINE = 320  # pixels that a small picture is brought to, so that the map over it is smooth


@drawn
def deviation(d: Findings, path: Where = None) -> Figure:
    """Relative deviation by layer over the samples that need a correction: middle half, 5 to 95 %, median and mean."""
    names = [f.name for f in d.layers]
    figure = sheet(6.4, 1.1 + 0.32 * len(names))
    ax = figure.subplots()
    moved = d.samples.deviation[np.asarray(d.samples.corrected, bool)]
    for i, column in enumerate(moved.T):
        values = column[np.isfinite(column)]
        colour = RED if names[i] in d.suspects else BLUE
        if len(values):
            low, q1, middle, q3, high = np.percentile(values, [5, 25, 50, 75, 95])
            ax.plot([low, high], [i, i], color=colour, lw=1.2, solid_capstyle="butt")
            ax.plot([q1, q3], [i, i], color=colour, lw=8, alpha=0.35, solid_capstyle="butt")
            ax.plot([middle] * 2, [i - 0.17, i + 0.17], color=colour, lw=1.8)
        ax.plot(d.layers[i].deviation, i, "o", color=colour, ms=4.5, mec="white", mew=0.8)
    ax.set_xscale("log" if _is_wide(moved) else "linear")
    if not _is_wide(moved):
        ax.set_xlim(left=0)
    ax.grid(axis="x")
    listed(ax, names, set(d.suspects))
    ax.set_xlabel(
        "relative deviation  ‖a* − â‖ / ‖â‖\ndot: mean, stroke: median, bar: middle half, line: 5 to 95 % of samples"
    )
    title = f"How far features are from what the label needs ({len(moved)} samples)"
    ax.set_title(title + (f"\nlikeliest place of the fault: {' or '.join(d.suspects)}" if d.suspects else ""))
    return figure


@drawn
def classes(d: Findings, path: Where = None) -> Figure:
    """Mean relative deviation of every class at every layer; grey where no sample needs a correction."""
    if not d.class_names:
        raise OptionError("this diagnosis has no classes: its labels are no class ids")
    values = np.stack([f.by_class for f in d.layers]).astype(float)
    figure = sheet(2.6 + 0.48 * min(len(d.class_names), 24), 1.7 + 0.32 * len(d.layers))
    ax = figure.subplots()
    finite = values[np.isfinite(values) & (values > 0)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    norm = LogNorm(low, high) if _is_wide(finite) else Normalize(0, high)
    heat(ax, values, "relative deviation", norm=norm)
    listed(ax, [f.name for f in d.layers])
    ax.set_ylim(len(d.layers) - 0.5, -0.5)
    step = math.ceil(len(d.class_names) / 40)
    ax.set_xticks(range(0, len(d.class_names), step), d.class_names[::step], rotation=40, ha="right")
    ax.tick_params(length=0)
    ax.set_title("Deviation by layer and class")
    return figure


@drawn
def trust(d: Findings, path: Where = None) -> Figure:
    """How far each layer's targets can be trusted: one number, of how often the label wins and how steady they are."""
    inner = [f for f in d.layers if f.depth > 0]
    if not inner:
        raise OptionError("this diagnosis has no inner layer: only the output was diagnosed")
    figure = sheet(7.2, 1.45 + 0.32 * len(inner))
    ax = figure.subplots()
    _threshold(ax, TRUST.least, "trusted from here on")
    for i, f in enumerate(inner):
        shown = f.trust if np.isfinite(f.trust) else 0.0
        _lollipop(ax, i, shown, f"{f.trust:.2f}", f.trust >= TRUST.least)
    ax.set_xlim(0, 1.3)
    ax.set_xticks([0, 0.5, TRUST.least, 1])
    listed(ax, [f.name for f in inner], set(d.advice.layers))
    ax.set_xlabel(
        f"trust: share of samples {MET if d.regression else WON}, times the\n"
        "share of a correction that stays when its feature is moved by a tenth of it"
    )
    good = ", ".join(d.advice.layers[:4]) + (" …" if len(d.advice.layers) > 4 else "")
    figure.suptitle(
        f"Targets that can be trusted: {good or 'those of no layer'}", x=0.01, ha="left", fontweight="bold", fontsize=10
    )
    return figure


def _threshold(ax: Axes, value: float, text: str) -> None:
    """A line at a value, and a shade below it, where nothing is trusted."""
    ax.axvspan(0, value, color=RED, alpha=0.06, lw=0)
    ax.axvline(value, color=RED, lw=1.0)
    ax.text(value, 1.02, text, color=RED, fontsize=7, ha="center", va="bottom", transform=ax.get_xaxis_transform())


def _lollipop(ax: Axes, row: int, x: float, text: str, good: bool) -> None:
    """A dot on a stalk with its number beside it."""
    colour = BLUE if good else RED
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    ax.plot([0, x], [row, row], color=colour, lw=1.4, alpha=0.6)
    ax.plot(x, row, "o", color=colour, ms=6, mec="white", mew=0.6, clip_on=False)
    ax.annotate(text, (x, row), (7, 0), textcoords="offset points", color=colour, fontsize=8, va="center", bbox=behind)


@drawn
def channels(d: Findings, layer: str, class_: str | int | None = None, path: Where = None) -> Figure:
    """The channels that carry the correction at a layer, of all samples or those of a class, largest first."""
    f = _layer(d, layer)
    shares = f.channels if class_ is None else f.channels_by_class[_class(d, class_)]
    figure = sheet(7.2, 2.6)
    left, right = figure.subplots(1, 2, width_ratios=[2.2, 1])
    order = np.argsort(shares)[::-1]
    top = order[:_TOP]
    left.bar(range(len(top)), shares[top], color=BLUE, width=0.75, label="share")
    if class_ is not None:
        left.plot(range(len(top)), f.channels[top], "_", color=ORANGE, ms=11, mew=2, label="all samples")
        left.legend()
    left.set_xticks(range(len(top)), [str(c) for c in top])
    left.set_xlabel("channel")
    left.set_ylabel("share of ‖a* − â‖²")
    left.grid(axis="y")
    whose = "" if class_ is None else f", {_name(d, _class(d, class_))}"
    left.set_title(f"Channels to be corrected at {layer}{whose}")
    _cumulative(right, shares[order])
    return figure


@drawn
def positions(d: Findings, layer: str, path: Where = None) -> Figure:
    """Where in space, or at which tokens, the correction at a layer lies."""
    f = _layer(d, layer)
    if f.positions.size == 0:
        raise OptionError(f"{layer!r} is a vector: it has channels, but no positions")
    values, extra = _field(d, f)
    title = f"Where {layer} is to be corrected" + (f"\n{percent(extra)} of it at class tokens" if extra > 0 else "")
    if values.ndim == 1 or min(values.shape) == 1:
        figure = sheet(6.4, 2.2)
        ax = figure.subplots()
        ax.bar(range(values.size), values.ravel(), color=BLUE, width=0.9)
        ax.set_xlabel("token" if f.kind == "tokens" else "position")
        ax.set_ylabel("share of ‖a* − â‖²")
        ax.grid(axis="y")
    else:
        figure = sheet(4.4, 3.4)
        ax = figure.subplots()
        heat(ax, values, "share of ‖a* − â‖²", written=False)
        ax.set_xticks([])
        ax.set_yticks([])
    ax.set_title(title)
    return figure


@drawn
def responses(d: Findings, sample: int, layers: Sequence[str] | None = None, path: Where = None) -> Figure:
    """One sample of the gallery: where each layer responds now, where it should, and the difference (Supplement C)."""
    shown = next((s for s in d.gallery if s.index == sample), None)
    if shown is None:
        there = ", ".join(str(s.index) for s in d.gallery) or "none"
        raise OptionError(f"sample {sample} is not in the gallery; there are {there}")
    names = list(shown.responses) if layers is None else list(layers)
    for name in names:
        if name not in shown.responses:
            raise UnknownLayerError(name, list(shown.responses))
    first = shown.image if shown.image is not None else np.zeros((3, 4))
    tall = min(max(first.shape[0] / first.shape[1], 0.6), 1.2)
    figure = sheet(8.0, 0.7 + (1.85 * tall + 0.15) * max(len(names), 1))
    grid = figure.subplots(max(len(names), 1), 4, squeeze=False)
    label, predicted = _name(d, shown.label), _name(d, shown.predicted)
    says, needs = (f": {predicted}" if predicted else ""), (f": {label}" if label else "")
    for ax, text in zip(grid[0], ["input", f"forward{says}", f"reconstructed{needs}", "difference"], strict=True):
        ax.set_title(text)
    for row, name in zip(grid, names, strict=False):
        _input(row[0], shown)
        row[0].set_ylabel(short(name, 26), fontweight="bold")
        r = shown.responses[name]
        for ax, response in zip(row[1:], (r.forward, r.reconstructed, r.difference), strict=True):
            _response(ax, response, shown.image)
    truth = f"taken for {predicted}, is {label}" if label or predicted else "regression"
    figure.suptitle(f"sample {sample}: {truth}", x=0.01, ha="left", fontweight="bold", fontsize=11)
    return figure


@drawn
def pair(d: Findings, label: str | int, predicted: str | int, path: Where = None) -> Figure:
    """Samples of one class taken for another: how far each layer is off, and the channels behind it."""
    ids = _class(d, label), _class(d, predicted)
    confused = next((p for p in d.pairs if (p.label, p.predicted) == ids), None)
    if confused is None:
        there = ", ".join(f"{_name(d, p.label)} → {_name(d, p.predicted)}" for p in d.pairs) or "none"
        raise OptionError(f"no sample of {label!r} is taken for {predicted!r}; the pairs are {there}")
    names = [f.name for f in d.layers if f.name in confused.deviation]
    ranked = [n for n in d.ranking if n in confused.channels] or names
    figure = sheet(8.0, 1.4 + max(0.32 * len(names), 1.6))
    left, right = figure.subplots(1, 2, width_ratios=[1.1, 1])
    everyone = {f.name: f.deviation for f in d.layers}
    for i, name in enumerate(names):
        left.plot([everyone[name], confused.deviation[name]], [i, i], color=SKY, lw=2)
    left.plot([everyone[n] for n in names], range(len(names)), "o", color=GREY, ms=5, label="all corrected samples")
    left.plot([confused.deviation[n] for n in names], range(len(names)), "o", color=RED, ms=6, label="this pair")
    listed(left, names)
    left.set_xlim(left=0)
    left.grid(axis="x")
    left.set_xlabel("relative deviation")
    left.legend(loc="best")
    left.set_title(f"{_name(d, ids[0])} taken for {_name(d, ids[1])} ({confused.count})")
    shares, usual = confused.channels[ranked[0]], _layer(d, ranked[0]).channels
    top = np.argsort(shares)[::-1][:10]
    right.bar(range(len(top)), shares[top], color=RED, width=0.75, label="this pair")
    right.plot(range(len(top)), usual[top], "_", color="black", ms=10, mew=2, label="all corrected samples")
    right.set_xticks(range(len(top)), [str(c) for c in top])
    right.set_xlabel("channel")
    right.set_ylabel("share of ‖a* − â‖²")
    right.grid(axis="y")
    right.legend()
    right.set_title(f"Channels at {ranked[0]}")
    return figure


FIGURES: dict[str, tuple[Callable[..., Figure], tuple[str, ...]]] = {
    "deviation": (deviation, ()), "classes": (classes, ()), "trust": (trust, ()), "channels": (channels, ("layer",)),
    "positions": (positions, ("layer",)), "responses": (responses, ("sample",)), "pair": (pair, ("label", "predicted")),
}  # fmt: skip
"""Figure → what draws it, and what it is of."""


def draw(d: Findings, figure: str, *of: str | int, path: Where = None) -> Figure:
    """The figure of that name."""
    if figure not in FIGURES:
        raise OptionError(f"there is no figure {figure!r}: there are {', '.join(FIGURES)}")
    make, needs = FIGURES[figure]
    if len(of) != len(needs):
        raise OptionError(f"the figure {figure!r} is of {' and '.join(needs) or 'everything'}; got {of!r}")
    return make(d, *of, path=path)


def _layer(d: Findings, name: str) -> LayerFinding:
    layer = next((f for f in d.layers if f.name == name), None)
    if layer is None:
        raise UnknownLayerError(name, [f.name for f in d.layers])
    return layer


def _class(d: Findings, which: str | int) -> int:
    """The id of a class given by id or name."""
    if isinstance(which, str) and which in d.class_names:
        return d.class_names.index(which)
    if not isinstance(which, str) and 0 <= which < len(d.class_names):
        return int(which)
    few = ", ".join(d.class_names[:12]) or "none"
    raise OptionError(f"there is no class {which!r}; the classes are {few}")


def _name(d: Findings, number: int) -> str:
    return class_name(d.class_names, number, none="")


def _is_wide(values: Array) -> bool:
    kept = values[np.isfinite(values) & (values > 0)]
    return bool(kept.size and kept.max() / kept.min() > _WIDE)


def _cumulative(ax: Axes, ordered: Array) -> None:
    """How many channels carry how much."""
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    ax.plot(range(len(total)), total, color=BLUE, lw=1.6)
    half = int(np.searchsorted(total, 0.5 * total[-1]))
    ax.plot([half, half, 0], [0, 0.5, 0.5], color=GREY, lw=0.9, ls=":")
    ax.text(half, 0.03, f" {half} of {len(ordered)} carry half", color="#444444", fontsize=8)
    ax.set_xlim(0, len(ordered))
    ax.set_ylim(0, 1.02)
    ax.grid()
    ax.set_xlabel("channels, largest first")
    ax.set_title("Cumulative")


def _field(d: Findings, f: LayerFinding) -> tuple[Array, float]:
    """Shares per position as a map where they lie on one, and the share of tokens in front of it."""
    values = np.asarray(f.positions, float)
    if values.ndim == 3:
        return values.sum(0), 0.0
    grids = [s.responses[f.name].forward.shape for s in d.gallery if f.name in s.responses]
    if values.ndim == 1 and f.kind == "tokens" and grids and math.prod(grids[0]) <= values.size:
        extra = values.size - math.prod(grids[0])
        return values[extra:].reshape(grids[0]), float(values[:extra].sum())
    return values, 0.0


def _input(ax: Axes, shown: Specimen) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    if shown.image is None:
        ax.text(0.5, 0.5, "no picture", ha="center", va="center", color=GREY, transform=ax.transAxes)
    else:
        ax.imshow(shown.image)


def _response(ax: Axes, response: Array, image: Array | None) -> None:
    """A map over the picture; signed bars for the channels of a vector."""
    if response.ndim == 1:
        ax.bar(range(len(response)), response, color=[RED if v > 0 else BLUE for v in response], width=0.9)
        ax.axhline(0, color="#666666", lw=0.6)
        ax.set_ylim(-1.05, 1.05)
        ax.set_yticks([-1, 0, 1])
        ax.set_xlabel("channel", fontsize=7, labelpad=1)
        return
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    if image is None:
        ax.imshow(response, cmap=GLOW, vmin=0, vmax=1)
        return
    ax.imshow(_laid_over(response, image))


def _laid_over(response: Array, image: Array) -> Array:
    """The map in colours over the picture in grey, (h', w', 3) in [0, 1]: the stronger the response, the more of it."""
    times = max(1, round(_FINE / max(image.shape[:2])))
    grey = (image.astype(float) @ [0.299, 0.587, 0.114] / 255).repeat(times, 0).repeat(times, 1)[..., None]
    small = torch.as_tensor(np.ascontiguousarray(response, float))[None, None]
    large = F.interpolate(small, grey.shape[:2], mode="bilinear", align_corners=False)[0, 0].numpy()[..., None]
    weight = 0.25 + 0.5 * large
    laid: Array = (1 - weight) * grey + weight * mpl.colormaps[GLOW](large[..., 0])[..., :3]
    return laid
