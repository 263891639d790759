"""The paper's own numbers, and results set beside them: difference, sign of the gain, overlap of intervals.

``experiments.classification`` calls it. The numbers are in ``published/``: Tables 2–7 (classification.csv), the paired
tests of Supplement B.3 (paired_tests.csv), the accuracies before post-training in the captions there (starts.csv) and
Tables 8–9 (navsim.csv), copied from the paper's LaTeX.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from scipy import stats

from frpt.errors import OptionError
from frpt_paper.runs.jobs import BACKPROP
from frpt_paper.tables.printed import PrintedTable, interval, signed
from frpt_paper.tables.statistics import (
    MODEL_NAMES,
    SET_NAMES,
    arm_of,
    gains,
    layer_order,
    main_data,
    paired_table,
    shown_metrics,
)

if TYPE_CHECKING:
    import pandas as pd

MEANS, PAIRED, STARTS = "classification.csv", "paired_tests.csv", "starts.csv"
SEEDS = 10
"""Of the paper (IV-A)."""
_MEAN_COLUMNS = {"dataset", "model", "l_R", "c_rec", "metric", "mean", "std"}
_SCORE_COLUMNS = {"backbone", "l_R", "c_rec", "NC", "DAC", "EP", "TTC", "Comf", "DDC", "PDMS"}
_START_COLUMNS = {"dataset", "model", "checkpoint", "start"}
_PAIRED_COLUMNS = {"checkpoint", "l_R", "metric", "c_rec_star", "delta_pp", "ci_low", "ci_high"}
_SET_CODES = {"mn": "mnist", "ci10": "cifar10", "ci100": "cifar100", "nette": "imagenette", "woof": "imagewoof",
              "tin": "tiny-imagenet"}  # fmt: skip
_MODEL_CODES = {"simplecnnv2": "simple_cnn", "resnet18": "resnet18", "resnet34": "resnet34", "simplevit": "simple_vit"}
"""In the names of the paper's checkpoints, which are the captions of B.3, e.g. mn_simplecnnv2_relu_0.9771."""
_KEY = ["dataset", "model", "l_R", "metric"]


@cache
def numbers(name: str = MEANS) -> pd.DataFrame:
    """The paper's Tables 2–7 (``MEANS``) or the supplement's paired tests (``PAIRED``)."""
    return read(Path(str(files("frpt_paper").joinpath("published", name))))


def read(path: Path) -> pd.DataFrame:
    """A file of means or of paired tests, as the paper's are, or as an experiment wrote them."""
    import pandas as pd

    if not path.is_file():
        raise OptionError(f"there is no file {str(path)!r} to compare with")
    frame = pd.read_csv(path, dtype={"l_R": str})
    known = (_MEAN_COLUMNS, _PAIRED_COLUMNS, _SCORE_COLUMNS, _START_COLUMNS)
    if not any(set(frame.columns) >= columns for columns in known):
        raise OptionError(
            f"{str(path)!r} has the columns {list(frame.columns)}; to compare with it needs {sorted(_MEAN_COLUMNS)} or "
            f"{sorted(_PAIRED_COLUMNS)}"
        )
    return frame


def papers_grid(dataset: str, model: str) -> dict[str, tuple[float, ...]]:
    """l_R → the strengths c_rec of the paper's table; empty where it has none."""
    table = numbers()
    table = table[(table["dataset"] == SET_NAMES.get(dataset)) & (table["model"] == MODEL_NAMES.get(model))]
    return {layer: tuple(sorted({float(c) for c in part["c_rec"]})) for layer, part in table.groupby("l_R", sort=False)}


def papers_models(dataset: str) -> tuple[str, ...]:
    """The models of a data set's table."""
    names = {shown: name for name, shown in MODEL_NAMES.items()}
    return tuple(names[m] for m in dict.fromkeys(numbers()[numbers()["dataset"] == SET_NAMES[dataset]]["model"]))


def against_starts() -> pd.DataFrame:
    """A row per model and layer of Tables 2–7: the start, back-propagation, FR-PT of the best strength, differences."""
    import pandas as pd

    starts = numbers(STARTS).set_index(["dataset", "model"])["start"]
    means = numbers()[numbers()["metric"] == "mean"]
    rows = []
    for (dataset, model, layer), part in means.groupby(["dataset", "model", "l_R"], sort=False):
        start, bp = float(starts[dataset, model]), float(part.loc[part["c_rec"] == 0, "mean"].iloc[0])
        best = part[part["c_rec"] > 0].sort_values("mean").iloc[-1]
        fr = float(best["mean"])
        row = {"dataset": dataset, "model": model, "l_R": layer, "start": start, "bp": bp, "fr": fr}
        row |= {"c_rec": float(best["c_rec"]), "fr_minus_bp": fr - bp, "start_minus_bp": start - bp}
        rows.append(row | {"fr_minus_start": fr - start})
    return pd.DataFrame(rows)


def beside(
    runs: pd.DataFrame, theirs: pd.DataFrame, name: str, *, arm: str, preset: str = "", embed: str = "nearest",
    label: str = "paper",
) -> PrintedTable:  # fmt: skip
    """An arm's gains over c_rec = 0 beside other numbers. runs: ``metrics``; theirs: ``read``.

    Where they are means without seeds, their interval is that of a difference of independent means over 10 seeds, which
    is wider than a paired one. A gain that is zero to two digits has the same sign as another such gain only.
    """
    if set(theirs.columns) >= _MEAN_COLUMNS:
        data = _beside_means(arm_of(runs, arm, preset, embed), theirs)
        keys = ["l_R", "c_rec", "metric"]
    else:
        data = _beside_paired(paired_table(runs, arm=arm, preset=preset, embed=embed), theirs)
        keys = ["l_R", "metric"]
    if len(data):
        order = data["l_R"].map(layer_order)
        data = data.assign(_l=order).sort_values(["model", "_l"], kind="stable").drop(columns="_l")
        data = data.reset_index(drop=True)
    rows = [
        [MODEL_NAMES.get(r["model"], r["model"]), *(f"{r[k]:g}" if k == "c_rec" else str(r[k]) for k in keys),
         *(f"{r[k]:.2f}" for k in ("ours", "theirs") if k in r),
         interval(r["gain"], r["low"], r["high"]),
         interval(r["their_gain"], r["their_low"], r["their_high"]),
         signed(r["difference"]), "yes" if r["same_sign"] else "no", "yes" if r["overlap"] else "no"]
        for r in data.to_dict("records")
    ]  # fmt: skip
    means = ["ours", label] if "ours" in data else []
    head = ["Model", *keys, *means, "gain here", f"gain, {label}", "difference", "same sign", "overlap"]
    if len(data):
        signs, overlaps = int(data["same_sign"].sum()), int(data["overlap"].sum())
        note = f"{signs} of {len(data)} gains have the same sign, {overlaps} intervals overlap. Percentage points."
    else:
        note = f"The {label} has no row for these models, layers and strengths."
    shown = arm + (f", {preset} preset" if preset else "")
    return PrintedTable(name, f"{shown}, beside the {label}", head, rows, data, note, spans=2)


def _in_our_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Our names of data sets and models; the digits stand for MNIST, which they are a part of."""
    sets = {shown: name for name, shown in SET_NAMES.items()} | {"digits": "mnist"}
    models = {shown: name for name, shown in MODEL_NAMES.items()}
    return frame.assign(
        dataset=frame["dataset"].replace(sets), model=frame["model"].replace(models),
        metric=frame["metric"].str.replace(" ", ""),
    )  # fmt: skip


def _beside_means(runs: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    if runs.empty:
        return pd.DataFrame()
    own = _gains(_in_our_names(main_data(runs)), runs)
    rows = []
    for key, part in _in_our_names(theirs).groupby(_KEY, sort=False):
        base = part[part["c_rec"] == 0]
        for row in part[part["c_rec"] != 0].to_dict("records") if len(base) else ():
            ours = own.get((*key, float(row["c_rec"])))
            if ours is None:
                continue
            mean, gain, low, high = ours
            their_gain = row["mean"] - float(base["mean"].iloc[0])
            spread = math.sqrt((row["std"] ** 2 + float(base["std"].iloc[0]) ** 2) / SEEDS)
            half = float(stats.t.ppf(0.975, 2 * SEEDS - 2)) * spread
            line = dict(zip(_KEY, key, strict=True)) | {"c_rec": row["c_rec"], "ours": mean, "theirs": row["mean"]}
            rows.append(line | _judged(gain, low, high, their_gain, their_gain - half, their_gain + half))
    return pd.DataFrame(rows)


def _gains(ours: pd.DataFrame, runs: pd.DataFrame) -> dict[tuple[object, ...], tuple[float, float, float, float]]:
    """(dataset, model, l_R, metric, c_rec) → mean, gain over c_rec = 0 and its interval; nothing for a single seed."""
    table = gains(runs, shown_metrics(runs))
    if table.empty:
        return {}
    table = _in_our_names(table[table["against"] == BACKPROP])
    means = ours.set_index([*_KEY, "c_rec"])["mean"]
    by_setting: dict[tuple[object, ...], tuple[float, float, float, float]] = {}
    for row in table.to_dict("records"):
        key = (row["dataset"], row["model"], row["l_r"], row["metric"], float(row["c_rec"]))
        by_setting[key] = (float(means.loc[key]), row["delta"], row["low"], row["high"])
    return by_setting


def _beside_paired(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    if ours.empty:
        return pd.DataFrame()
    own = _in_our_names(ours.rename(columns={"l_r": "l_R"}))
    named = theirs["checkpoint"].map(_of_checkpoint)
    other = _in_our_names(theirs.assign(dataset=named.str[0], model=named.str[1]))
    by_key = {tuple(r[k] for k in _KEY): r for r in own.to_dict("records")}
    rows = []
    for row in other.to_dict("records"):
        mine = by_key.get(tuple(row[k] for k in _KEY))
        if mine is not None:
            rows.append({k: row[k] for k in _KEY} | _judged(*_gain(mine), *_gain(row)))
    return pd.DataFrame(rows)


def _gain(row: dict[str, float]) -> tuple[float, float, float]:
    """The gain of c_rec > 0 over c_rec = 0; paired tables have it the other way round where c_rec = 0 is the best."""
    if row["c_rec_star"] > 0:
        return row["delta_pp"], row["ci_low"], row["ci_high"]
    return -row["delta_pp"], -row["ci_high"], -row["ci_low"]


def _of_checkpoint(name: str) -> tuple[str, str]:
    """The data set and the model in a checkpoint's name, the paper's or ours."""
    first, second = name.split("_")[:2]
    if first in _SET_CODES:
        return _SET_CODES[first], _MODEL_CODES.get(second, second)
    longest_first = sorted(MODEL_NAMES, key=len, reverse=True)
    return first, next((m for m in longest_first if name.startswith(f"{first}_{m}")), second)


def _judged(
    gain: float, low: float, high: float, their: float, their_low: float, their_high: float
) -> dict[str, object]:
    sides = [(round(g, 2) > 0) - (round(g, 2) < 0) for g in (gain, their)]
    return {
        "gain": gain, "low": low, "high": high, "their_gain": their, "their_low": their_low, "their_high": their_high,
        "difference": gain - their, "same_sign": sides[0] == sides[1],
        "overlap": low <= their_high and their_low <= high,
    }  # fmt: skip
