"""The tables of ``conv.py`` as files and the paper's two figures of convolution solvers (IV-B1) drawn from them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
COLOURS = {
    "matrix": "#7f7f7f", "cg": "#d62728", "fft_padded": "#1f77b4", "fft_boundary": "#2ca02c", "exact": "#9467bd",
    "auto": "k",
}  # fmt: skip


def save(rows: list[dict[str, Any]], name: str) -> None:
    """A CSV beside the figures."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    with (FIGURES / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def draw_resolution(rows: list[dict[str, Any]]) -> None:
    """Seconds and memory against the size of the map, for the paper's two cases. rows: of ``conv.resolution``."""
    from matplotlib import pyplot as plt

    sizes = sorted({r["size"] for r in rows})
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.5), sharex=True, layout="constrained")
    for column, outputs in enumerate((1, 4)):
        for solver in dict.fromkeys(r["solver"] for r in rows):
            mine = [r for r in rows if r["c_out"] == outputs and r["solver"] == solver]
            own = [r["size"] for r in mine]
            seconds_of = [[r[k] * r["bare_seconds"] for r in mine] for k in ("again", "first")]
            axes[0, column].plot(own, seconds_of[0], "o-", color=COLOURS[solver], label=solver)
            axes[0, column].plot(own, seconds_of[1], ":", color=COLOURS[solver])
            axes[1, column].plot(own, [r["mib"] for r in mine], "o-", color=COLOURS[solver])
        case = "I" if outputs == 1 else "II"
        axes[0, column].set_title(f"C_out = {outputs} (case {case})")
        axes[1, column].set_xlabel("map size")
    axes[0, 0].set_ylabel("seconds (dotted: with preparation)")
    axes[1, 0].set_ylabel("peak memory of tensors, MiB")
    axes[0, 0].legend()
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(sizes, [f"{s}²" for s in sizes])
        axis.grid(alpha=0.3)
    figure.savefig(FIGURES / "conv_resolution.png", dpi=110)
    plt.close(figure)


def draw_condition(rows: list[dict[str, Any]]) -> None:
    """CCP error and deviation against the kernel's condition number, gate on and off. rows: of ``conv.condition``."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 6, figsize=(17, 6), sharex=True, sharey="row", layout="constrained")
    for column, (outputs, padding) in enumerate((o, p) for o in (4, 8, 16) for p in (0, 1)):
        for solver in dict.fromkeys(r["solver"] for r in rows):
            for gate, line in ((True, "-"), (False, "--")):
                mine = [r for r in rows if r["c_out"] == outputs and r["padding"] == padding]
                mine = [r for r in mine if r["solver"] == solver and r["gate"] is gate]
                for axis, value in zip(axes[:, column], ("ccp", "deviation"), strict=True):
                    label = solver if gate else None
                    axis.plot(
                        [r["kappa"] for r in mine], [r[value] for r in mine], line, color=COLOURS[solver], label=label
                    )
        axes[0, column].set_title(f"C_out = {outputs}, padding {padding}")
        axes[1, column].set_xlabel("condition number of the kernel")
    axes[0, 0].set_ylabel("CCP error (relative)")
    axes[1, 0].set_ylabel("deviation (relative)")
    axes[0, 0].legend(title="gate on (dashed: off)")
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
    figure.savefig(FIGURES / "conv_condition.png", dpi=110)
    plt.close(figure)
