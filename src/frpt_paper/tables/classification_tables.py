"""Statistics of post-training runs as printed tables: Tables 2–7, the paired tables of B.3, and the arms side by side.

Experiments call it with ``runs`` as ``statistics.metrics`` returns them; numbers come from ``statistics``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frpt_paper.runs.jobs import ANCHOR, ARMS, BACKPROP, FRPT
from frpt_paper.tables.printed import Cell, PrintedTable, interval
from frpt_paper.tables.statistics import (
    LEAST_SEEDS,
    LEVEL,
    MODEL_NAMES,
    START,
    gains,
    layer_order,
    main_data,
    nested_gains,
    paired_table,
)

if TYPE_CHECKING:
    import pandas as pd

STAR = (
    r"\* marks a nominal paired one-sided t-test at p<0.05 for the best of its block against c_rec=0 where the best "
    "has c_rec>0; otherwise against the best other setting."
)


def main_table(runs: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """Tables 2–7: a block per l_R, a row per c_rec, three metrics as mean ± std. runs: of one arm, ``arm_of``."""
    data = main_data(runs)
    metrics = list(dict.fromkeys(data["metric"]))
    rows: list[list[Cell | str]] = []
    rates = _Rates(data, "rate")
    for key, part in data.groupby(["model", "rate", "l_R", "c_rec"], sort=False):
        model, rate, layer, c = key
        by_metric = part.set_index("metric")
        cells = [
            Cell(mean=m["mean"], std=m["std"], bold=bool(m["best_in_group"]), star=bool(m["significant"]))
            for m in (by_metric.loc[metric] for metric in metrics)
        ]
        rows.append([model, *rates(rate), layer, f"{c:g}", f"{part['start'].iloc[0]:.2f}", *cells])
    heads = [f"Epoch {m[5:]} Acc" if m.startswith("epoch") else f"{m.capitalize()} Acc" for m in metrics]
    head = ["Model", *rates.head, "l_R", "c_rec", "Start", *heads]
    return PrintedTable(name, title, head, rows, data, STAR, spans=2 + len(rates.head))


class _Rates:
    """The column of rates, which is there where a table has several."""

    def __init__(self, data: pd.DataFrame, column: str) -> None:
        several = len(data) > 0 and data[column].nunique() > 1
        self.head = ["rate"] if several else []

    def __call__(self, rate: float) -> list[str]:
        return [f"{rate:g}"] if self.head else []


def paired(
    runs: pd.DataFrame, name: str, title: str, arm: str, preset: str = "", embed: str = "nearest"
) -> PrintedTable:
    """A table of Supplement B.3: c_rec* against its reference; p_t also adjusted over the table."""
    data = paired_table(runs, arm=arm, preset=preset, embed=embed)
    rows: list[list[Cell | str]] = []
    if len(data):
        data = data.assign(_l=data["l_r"].map(layer_order)).sort_values(["lr", "_l"], kind="stable")
        data = data.drop(columns="_l").reset_index(drop=True).rename(columns={"l_r": "l_R"})
    rates = _Rates(data, "lr")
    for row in data.to_dict("records"):
        against = "c_rec=0" if row["c_rec_star"] else f"second-best c_rec={row['reference']:g}"
        rows.append(
            [*rates(row["lr"]), row["l_R"], row["metric"], f"{row['c_rec_star']:g}", against, str(row["n"]),
             f"{row['delta_pp']:.2f}", _interval(row), f"{row['t']:.2f}({row['n'] - 1})", p_text(row["p_t"]),
             f"{row['W']:.2f}", p_text(row["p_W"]), f"{row['d_z']:.2f}", p_text(row["p_holm"]), p_text(row["p_bh"])]
        )  # fmt: skip
    head = [*rates.head, "l_R", "Metric", "c_rec*", "Reference", "n", "Δ", "95% CI", "t(df)", "p_t", "W", "p_W", "d_z"]
    note = "c_rec* is chosen on the seeds it is tested on; p_Holm and p_BH adjust p_t over the table, not for that."
    return PrintedTable(name, title, [*head, "p_Holm", "p_BH"], rows, data, note)


def p_text(p: float) -> str:
    """As in the paper: three digits, and "<1e-4" below."""
    return "<1e-4" if p < 1e-4 else f"{p:.3g}"


def arms_table(runs: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """Mean accuracy of each arm against back-propagation, anchor-only of the same strength, and the start."""
    data = gains(runs)
    rows: list[list[Cell | str]] = []
    if len(data):
        started = data["checkpoint"].map(runs.groupby("checkpoint")["start"].first())
        data = data.assign(_s=started, _l=data["l_r"].map(layer_order), _p=data["preset"] == "default")
        data = data.sort_values(["model", "_s", "lr", "_l", "c_rec", "arm", "_p"], kind="stable", key=_in_arm_order)
        data = data.drop(columns=["_s", "_l", "_p"]).reset_index(drop=True)
    several = len(data) > 0 and data.loc[data["arm"] == FRPT, "embed"].nunique() > 1
    rates, starts = _Rates(data, "lr"), runs.groupby("checkpoint")["start"].first()
    settings = ["model", "checkpoint", "lr", "l_r", "c_rec", "arm", "preset", "embed"]
    for key, part in data.groupby(settings, sort=False) if len(data) else ():
        model, checkpoint, rate, layer, c, arm, preset, embed = key
        cells = {r["against"]: _gain(r) for r in part.to_dict("records")}
        label = ", ".join([arm, preset, *([embed] if several else [])]) if arm == FRPT else arm
        differences = (cells.get(a, "–") for a in (BACKPROP, ANCHOR, START))
        where = [MODEL_NAMES.get(model, model), *rates(rate), layer, f"{c:g}"]
        rows.append([*where, label, f"{starts[checkpoint]:.2f}", *differences])
    head = ["Model", *rates.head, "l_R", "c_rec", "Arm", "start", "− back-propagation", "− anchor-only", "− start"]
    note = (
        "Start: accuracy before post-training, %. Differences of mean accuracy in percentage points, paired by seed, "
        r"with 95 % bootstrap intervals; \* where p, adjusted after Holm over this table (differences from the start "
        "apart), is below 0.05."
    )
    return PrintedTable(name, title, head, rows, data, note, spans=3 + len(rates.head))


def nested_table(runs: pd.DataFrame, name: str, title: str, arms: Sequence[tuple[str, str]]) -> PrintedTable:
    """Mean accuracy of each arm against back-propagation, c_rec chosen for each seed on the other seeds.

    arms: (arm, preset). Layers with fewer than three seeds or a single strength are left out.
    """
    data = nested_gains(runs, arms)
    rows: list[list[Cell | str]] = []
    rates = _Rates(runs, "lr")  # of all runs: where only one of several rates has two strengths, the table names it
    for r in data.to_dict("records"):
        label = f"{r['arm']}, {r['preset']}" if r["preset"] else r["arm"]
        tests = [p_text(r["p_t"]), p_text(r["p_holm"]), f"{r['naive']:+.2f}"]
        where = [MODEL_NAMES.get(r["model"], r["model"]), *rates(r["lr"]), r["l_r"]]
        rows.append([*where, label, str(r["n"]), _gain(r), *tests])
    head = ["Model", *rates.head, "l_R", "Arm", "n", "Δ", "p_t", "p_Holm", "Δ, chosen on itself"]
    note = "Mean accuracy minus back-propagation's, percentage points; c_rec is chosen for each seed on the others."
    return PrintedTable(name, title, head, rows, data, note, spans=2 + len(rates.head))


def _in_arm_order(column: pd.Series) -> pd.Series:
    """A sort key: arms in the order of ``ARMS``, everything else as it is."""
    return column.map(ARMS.index) if column.name == "arm" else column


def _gain(row: dict[str, float]) -> Cell:
    star = row["p_holm"] < LEVEL and row["n"] >= LEAST_SEEDS
    return Cell(interval(row["delta"], row["low"], row["high"]), star=star)


def _interval(row: Mapping[str, Any]) -> str:
    """[low, high]; a dash where all differences are equal, and nothing is known of how they vary."""
    low, high = float(row["ci_low"]), float(row["ci_high"])
    return f"[{low:.2f}, {high:.2f}]" if high > low else "–"
