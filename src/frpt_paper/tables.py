"""Tables 2–7 and the supplement's paired tables from the runs of a grid; and the arms side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from frpt import stats
from frpt_paper.jobs import ANCHOR, BACKPROP, FRPT, ONLINE, RECONSTRUCTED
from frpt_paper.layout import Cell, Table, interval
from frpt_paper.summary import GROUP, paired_table

if TYPE_CHECKING:
    import pandas as pd

MODEL_NAMES = {"simple_cnn": "SimpleCNN", "resnet18": "ResNet-18", "resnet34": "ResNet-34", "simple_vit": "SimpleViT"}
SET_NAMES = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100",
             "imagenette": "Imagenette", "imagewoof": "Imagewoof", "tiny-imagenet": "Tiny-ImageNet"}  # fmt: skip
ARM_ORDER = (BACKPROP, ANCHOR, FRPT, ONLINE)
LEVEL, LEAST = 0.05, 3
"""Two seeds that agree by chance would pass any test."""
STAR = (
    r"\* marks a nominal paired one-sided t-test at p<0.05 for the best of its block against c_rec=0 where the best "
    "has c_rec>0; otherwise against the best other setting."
)


def shown_metrics(runs: pd.DataFrame) -> list[str]:
    """The main tables' three metrics: after epoch 5 (or the last, in shorter runs), mean, best."""
    epochs = sorted(int(c.split()[1]) for c in runs.columns if c.startswith("epoch "))
    return [f"epoch {5 if 5 in epochs else epochs[-1]}", "mean", "best"]


def arm_of(runs: pd.DataFrame, arm: str, preset: str = "", embed: str = "nearest") -> pd.DataFrame:
    """The runs of an arm beside those of back-propagation."""
    own = runs["arm"] == arm
    if arm in RECONSTRUCTED:
        own &= (runs["preset"] == preset) & (runs["embed"] == embed)
    return runs[own | (runs["arm"] == BACKPROP)]


def layer_order(name: str) -> tuple[int, int]:
    """out first, then from the last layer to the first."""
    return (0, 0) if name == "out" else (1, -int(name)) if name.isdigit() else (2, 0)


def main_data(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per l_R, c_rec and metric, in the columns of the paper's numbers. runs: ``arm_of``."""
    import pandas as pd

    rows = []
    for group, part in runs.groupby(GROUP, sort=False):
        dataset, model, _, layer = group
        for metric in shown_metrics(runs):
            by_seed = part.pivot_table(index="seed", columns="c_rec", values=metric).dropna()
            values = {float(c): by_seed[c].to_numpy() for c in by_seed}
            best, star = _marks(values)
            for c, v in values.items():
                row = {"dataset": SET_NAMES.get(dataset, dataset), "model": MODEL_NAMES.get(model, model)}
                row |= {"l_R": layer, "c_rec": c, "metric": metric.replace(" ", ""), "mean": float(np.mean(v))}
                row |= {"std": float(np.std(v, ddof=1)) if len(v) > 1 else 0.0, "n": len(v)}
                rows.append(row | {"best_in_group": int(c == best), "significant": int(c == best and star)})
    found = pd.DataFrame(rows)
    if rows:
        places = found["l_R"].map(layer_order)
        models = found["model"].map({m: i for i, m in enumerate(dict.fromkeys(found["model"]))})
        found = found.assign(_m=models, _l=places).sort_values(["_m", "_l", "c_rec"], kind="stable")
        found = found.drop(columns=["_m", "_l"]).reset_index(drop=True)
    return found


def _marks(values: dict[float, np.ndarray]) -> tuple[float, bool]:
    """(the best setting, whether it is significantly so)."""
    if len(values) > 1 and 0.0 in values and len(values[0.0]) > 1:
        found = stats.best_against_reference(values)
        return found.setting, found.paired.p_t < LEVEL and found.paired.n >= LEAST
    return max(values, key=lambda c: float(np.mean(values[c]))), False


def main_table(runs: pd.DataFrame, name: str, title: str) -> Table:
    """A block per l_R, a row per c_rec, the paper's three metrics as mean ± std. runs: ``arm_of``."""
    data = main_data(runs)
    metrics = list(dict.fromkeys(data["metric"]))
    rows: list[list[Cell | str]] = []
    for key, part in data.groupby(["model", "l_R", "c_rec"], sort=False):
        model, layer, c = key
        cells = part.set_index("metric")
        marked = [
            Cell(mean=m["mean"], std=m["std"], bold=bool(m["best_in_group"]), star=bool(m["significant"]))
            for m in (cells.loc[metric] for metric in metrics)
        ]
        rows.append([model, layer, f"{c:g}", *marked])
    heads = [f"Epoch {m[5:]} Acc" if m.startswith("epoch") else f"{m.capitalize()} Acc" for m in metrics]
    return Table(name, title, ["Model", "l_R", "c_rec", *heads], rows, data, STAR, spans=2)


def paired(runs: pd.DataFrame, name: str, title: str, arm: str, preset: str = "", embed: str = "nearest") -> Table:
    """The supplement's table (B.3): c_rec* against its reference; p_t adjusted over the table. runs: ``metrics``."""
    data = paired_table(runs, arm=arm, preset=preset, embed=embed)
    rows: list[list[Cell | str]] = []
    if len(data):
        order = data["l_r"].map(layer_order)
        data = data.assign(_l=order).sort_values("_l", kind="stable").drop(columns="_l").reset_index(drop=True)
        data = data.rename(columns={"l_r": "l_R"})
    for row in data.to_dict("records"):
        against = "c_rec=0" if row["c_rec_star"] else f"second-best c_rec={row['reference']:g}"
        rows.append(
            [row["l_R"], row["metric"], f"{row['c_rec_star']:g}", against, str(row["n"]), f"{row['delta_pp']:.2f}",
             f"[{row['ci_low']:.2f}, {row['ci_high']:.2f}]", f"{row['t']:.2f}({row['n'] - 1})", p_text(row["p_t"]),
             f"{row['W']:.2f}", p_text(row["p_W"]), f"{row['d_z']:.2f}", p_text(row["p_holm"]), p_text(row["p_bh"])]
        )  # fmt: skip
    head = ["l_R", "Metric", "c_rec*", "Reference", "n", "Δ", "95% CI", "t(df)", "p_t", "W", "p_W", "d_z", "p_Holm"]
    note = "c_rec* is chosen on the seeds it is tested on; p_Holm and p_BH adjust p_t over the table, not for that."
    return Table(name, title, [*head, "p_BH"], rows, data, note)


def p_text(p: float) -> str:
    """As in the paper: three digits, and "<1e-4" below."""
    return "<1e-4" if p < 1e-4 else f"{p:.3g}"


def gains(runs: pd.DataFrame, names: Sequence[str] = ("mean",)) -> pd.DataFrame:
    """Every arm and strength against back-propagation and against anchor-only of the same strength, paired by seed.

    delta, low, high: mean difference in percentage points with its 95 % bootstrap interval; p_holm: of the one-sided
    t-test, adjusted over all rows. No strength is chosen, so that nothing is too good. runs: ``metrics``.
    """
    import pandas as pd

    rows = []
    keys = [*GROUP, "arm", "preset", "embed", "c_rec"]
    table = {key: part.set_index("seed") for key, part in runs.groupby(keys, sort=False)}
    for key, own in table.items():
        *group, arm, preset, embed, c = key
        if arm == BACKPROP:
            continue
        references = {BACKPROP: (*group, BACKPROP, "", "", 0.0), ANCHOR: (*group, ANCHOR, "", "", c)}
        for reference, place in references.items():
            other = table.get(place)
            seeds = [] if other is None or reference == arm else sorted(set(own.index) & set(other.index))
            for name in names if len(seeds) > 1 else ():
                assert other is not None
                p = stats.paired(own.loc[seeds, name].to_numpy(), other.loc[seeds, name].to_numpy())
                row = dict(zip(GROUP, group, strict=True)) | {"arm": arm, "preset": preset, "embed": embed, "c_rec": c}
                row |= {"against": reference, "metric": name, "n": p.n, "delta": p.delta, "low": p.ci[0]}
                rows.append(row | {"high": p.ci[1], "p_t": p.p_t})
    found = pd.DataFrame(rows)
    if rows:
        found["p_holm"] = stats.holm(found["p_t"].to_numpy())
    return found


def arms_table(runs: pd.DataFrame, name: str, title: str) -> Table:
    """What each arm gains in mean accuracy, over back-propagation and over anchor-only of the same strength."""
    data = gains(runs)
    rows: list[list[Cell | str]] = []
    if len(data):
        order = data["l_r"].map(layer_order)
        data = data.assign(_l=order, _p=data["preset"] == "default")
        data = data.sort_values(["model", "_l", "c_rec", "arm", "_p"], kind="stable", key=_later).drop(
            columns=["_l", "_p"]
        )
        data = data.reset_index(drop=True)
    several = len(data) > 0 and data.loc[data["arm"] == FRPT, "embed"].nunique() > 1
    for key, part in data.groupby(["model", "l_r", "c_rec", "arm", "preset", "embed"], sort=False) if len(data) else ():
        model, layer, c, arm, preset, embed = key
        cells = {r["against"]: _gain(r) for r in part.to_dict("records")}
        label = ", ".join([arm, preset, *([embed] if several else [])]) if arm == FRPT else arm
        rows.append(
            [MODEL_NAMES.get(model, model), layer, f"{c:g}", label, *(cells.get(a, "–") for a in (BACKPROP, ANCHOR))]
        )
    head = ["Model", "l_R", "c_rec", "Arm", "− back-propagation", "− anchor-only"]
    note = (
        "Differences of mean accuracy in percentage points, paired by seed, with 95 % bootstrap intervals; "
        r"\* where Holm's adjusted p over this table is below 0.05."
    )
    return Table(name, title, head, rows, data, note, spans=3)


def nested_table(runs: pd.DataFrame, name: str, title: str, arms: Sequence[tuple[str, str]]) -> Table:
    """Mean accuracy of each arm against back-propagation, c_rec chosen for each seed on the other seeds.

    arms: (arm, preset). Layers with fewer than three seeds or a single strength are left out. runs: ``metrics``.
    """
    import pandas as pd

    rows = []
    for arm, preset in arms:
        for group, part in arm_of(runs, arm, preset).groupby(GROUP, sort=False):
            by_seed = part.pivot(index="seed", columns="c_rec", values="mean").dropna()
            if len(by_seed) < LEAST or by_seed.shape[1] < 3 or 0.0 not in by_seed:
                continue
            found = stats.nested({float(c): by_seed[c].to_numpy() for c in by_seed})
            p, naive = found.paired, found.naive.paired
            row = dict(zip(GROUP, group, strict=True)) | {"arm": arm, "preset": preset, "n": p.n, "delta": p.delta}
            row |= {"low": p.ci[0], "high": p.ci[1], "p_t": p.p_t, "naive": naive.delta}
            rows.append(row | {"chosen": " ".join(f"{c:g}" for c in found.chosen)})
    data = pd.DataFrame(rows)
    cells: list[list[Cell | str]] = []
    if rows:
        data["p_holm"] = stats.holm(data["p_t"].to_numpy())
        data = data.assign(_l=data["l_r"].map(layer_order)).sort_values(["model", "_l"], kind="stable")
        data = data.drop(columns="_l").reset_index(drop=True)
        for r in data.to_dict("records"):
            label = f"{r['arm']}, {r['preset']}" if r["preset"] else r["arm"]
            tests = [p_text(r["p_t"]), p_text(r["p_holm"]), f"{r['naive']:+.2f}"]
            cells.append([MODEL_NAMES.get(r["model"], r["model"]), r["l_r"], label, str(r["n"]), _gain(r), *tests])
    head = ["Model", "l_R", "Arm", "n", "Δ", "p_t", "p_Holm", "Δ, chosen on itself"]
    note = "Mean accuracy minus back-propagation's, percentage points; c_rec is chosen for each seed on the others."
    return Table(name, title, head, cells, data, note, spans=2)


def _later(column: pd.Series) -> pd.Series:
    """Arms in the order of ``ARM_ORDER``, everything else in its own."""
    return column.map(ARM_ORDER.index) if column.name == "arm" else column


def _gain(row: dict[str, float]) -> Cell:
    star = row["p_holm"] < LEVEL and row["n"] >= LEAST
    return Cell(interval(row["delta"], row["low"], row["high"]), star=star)
