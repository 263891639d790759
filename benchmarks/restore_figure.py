"""The figure of restore.py: for each layer, the share of the distance to the truth that is left.

``python benchmarks/restore_figure.py docs/figures/restore.csv`` draws it again without measuring.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

DRAWN = {
    "paper": ("#8c8c8c", "paper preset", "s"),
    "default": ("#0072b2", "default", "o"),
    "line": ("#e69f00", "line to the label's mean", "^"),
    "reference": ("#c0282d", "default with a reference", "D"),
}
"""Method → colour, name, marker; from the top of a row to its bottom."""
TITLES = {"cifar10": "SimpleCNN", "resnet": "ResNet", "vit": "ViT", "crepe": "CREPE", "mnist": "SimpleCNN, MNIST"}
LOW, HIGH = 0.18, 1.48
"""What the axis shows: everything but the paper preset's largest."""


def draw(means: pd.DataFrame, path: Path) -> None:
    """A small dot for every fault, a large marker for their mean; only a number for a mean beyond the axis."""
    means = means[~means.fault.str.endswith("sound")]
    figure = Figure((8, 7), layout="constrained")
    ax = figure.subplots()
    ax.axvline(1, color="#333333", lw=1.2, zorder=1)
    height, ticks = 0.0, {}
    for network, layers in means.groupby("network", sort=False):
        top = height + 0.55
        for layer, part in layers.groupby("layer", sort=False):
            if len(ticks) and height + 0.55 < top:
                ax.axhline(height + 0.5, color="#e4e4e4", lw=0.8, zorder=0)
            ticks[height] = f"{TITLES[network]}  {layer}"
            for k, (method, (colour, label, marker)) in enumerate(DRAWN.items()):
                y, left = height + 0.3 - 0.2 * k, part[part.method == method].left
                mean, name = left.mean(), label if len(ticks) == 1 else None
                if mean < HIGH:
                    ax.plot(left, [y] * len(left), "o", ms=3.5, color=colour, alpha=0.4, mew=0)
                    ax.plot(mean, y, marker, ms=6.5, color=colour, mec="white", mew=0.6, ls="", label=name, zorder=3)
                else:
                    ax.text(HIGH, y, f"{mean:.2g} →", color=colour, fontsize=9, va="center", ha="right")
            height -= 1
        height -= 0.35
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(LOW, HIGH), ylim=(height + 0.85, 0.95), yticks=list(ticks), yticklabels=list(ticks.values()))
    ax.text(0.995, 0.6, "nearer to the truth ←", ha="right", va="bottom", fontsize=9)
    ax.text(1.005, 0.6, "→ farther than before", ha="left", va="bottom", fontsize=9)
    ax.set_xlabel("distance to the true feature that is left  (1 = as far as before; large: mean over the faults)")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw(pd.read_csv(source), source.with_suffix(".png"))
