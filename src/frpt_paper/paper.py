"""The paper's own numbers, and results set beside them: difference, sign of the gain, overlap of intervals."""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from scipy import stats

from frpt.errors import OptionError
from frpt_paper.layout import Table, interval, signed
from frpt_paper.summary import paired_table
from frpt_paper.tables import MODEL_NAMES, SET_NAMES, arm_of, gains, layer_order, main_data, shown_metrics

if TYPE_CHECKING:
    import pandas as pd

MEANS, PAIRED = "classification.csv", "paired_tests.csv"
SEEDS = 10
_MEAN_COLUMNS = {"dataset", "model", "l_R", "c_rec", "metric", "mean", "std"}
_PAIRED_COLUMNS = {"checkpoint", "l_R", "metric", "c_rec_star", "delta_pp", "ci_low", "ci_high"}
_CHECKPOINTS = {"mn": "mnist", "ci10": "cifar10", "ci100": "cifar100", "nette": "imagenette", "woof": "imagewoof",
                "tin": "tiny-imagenet"}  # fmt: skip
_FAMILIES = {"simplecnnv2": "simple_cnn", "resnet18": "resnet18", "resnet34": "resnet34", "simplevit": "simple_vit"}
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
    if not (set(frame.columns) >= _MEAN_COLUMNS or set(frame.columns) >= _PAIRED_COLUMNS):
        raise OptionError(
            f"{str(path)!r} has the columns {list(frame.columns)}; to compare with it needs {sorted(_MEAN_COLUMNS)} or "
            f"{sorted(_PAIRED_COLUMNS)}"
        )
    return frame


def papers_grid(dataset: str, model: str) -> dict[str, tuple[float, ...]]:
    """l_R → the strengths c_rec of the paper's table; empty where it has none."""
    found = numbers()
    found = found[(found["dataset"] == SET_NAMES.get(dataset)) & (found["model"] == MODEL_NAMES.get(model))]
    return {layer: tuple(sorted({float(c) for c in part["c_rec"]})) for layer, part in found.groupby("l_R", sort=False)}


def papers_models(dataset: str) -> tuple[str, ...]:
    """The models of a data set's table."""
    names = {shown: name for name, shown in MODEL_NAMES.items()}
    return tuple(names[m] for m in dict.fromkeys(numbers()[numbers()["dataset"] == SET_NAMES[dataset]]["model"]))


def beside(
    runs: pd.DataFrame, theirs: pd.DataFrame, name: str, *, arm: str, preset: str = "", embed: str = "nearest",
    label: str = "paper",
) -> Table:  # fmt: skip
    """An arm's results beside other numbers. runs: ``metrics``; theirs: ``read``.

    Gains are over c_rec = 0. Of means alone, their interval is that of a difference of independent means over 10 seeds,
    wider than a paired one. Zero, to two digits, agrees with no sign but its own.
    """
    if set(theirs.columns) >= _MEAN_COLUMNS:
        data = _means(arm_of(runs, arm, preset, embed), theirs)
        keys = ["l_R", "c_rec", "metric"]
    else:
        data = _paired(paired_table(runs, arm=arm, preset=preset, embed=embed), theirs)
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
    return Table(name, f"{shown}, beside the {label}", head, rows, data, note, spans=2)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Our names of data sets and models; the digits stand for MNIST, which they are from."""
    sets = {shown: name for name, shown in SET_NAMES.items()} | {"digits": "mnist"}
    models = {shown: name for name, shown in MODEL_NAMES.items()}
    return frame.assign(
        dataset=frame["dataset"].replace(sets), model=frame["model"].replace(models),
        metric=frame["metric"].str.replace(" ", ""),
    )  # fmt: skip


def _means(runs: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    if runs.empty:
        return pd.DataFrame()
    ours, other = _plain(main_data(runs)), _plain(theirs)
    own = _gains(ours, runs)
    rows = []
    for key, part in other.groupby(_KEY, sort=False):
        base = part[part["c_rec"] == 0]
        for row in part[part["c_rec"] != 0].to_dict("records") if len(base) else ():
            found = own.get((*key, float(row["c_rec"])))
            if found is None:
                continue
            mean, gain, low, high = found
            their = row["mean"] - float(base["mean"].iloc[0])
            spread = math.sqrt((row["std"] ** 2 + float(base["std"].iloc[0]) ** 2) / SEEDS)
            half = float(stats.t.ppf(0.975, 2 * SEEDS - 2)) * spread
            line = dict(zip(_KEY, key, strict=True)) | {"c_rec": row["c_rec"], "ours": mean, "theirs": row["mean"]}
            rows.append(line | _judged(gain, low, high, their, their - half, their + half))
    return pd.DataFrame(rows)


def _gains(ours: pd.DataFrame, runs: pd.DataFrame) -> dict[tuple[object, ...], tuple[float, float, float, float]]:
    """(dataset, model, l_R, metric, c_rec) → mean, gain over c_rec = 0 and its interval; nothing for a single seed."""
    names = shown_metrics(runs)
    table = gains(runs, names)
    found: dict[tuple[object, ...], tuple[float, float, float, float]] = {}
    if table.empty:
        return found
    table = _plain(table[table["against"] == "back-propagation"])
    means = ours.set_index([*_KEY, "c_rec"])["mean"]
    for row in table.to_dict("records"):
        key = (row["dataset"], row["model"], row["l_r"], row["metric"], float(row["c_rec"]))
        found[key] = (float(means.loc[key]), row["delta"], row["low"], row["high"])
    return found


def _paired(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    if ours.empty:
        return pd.DataFrame()
    own = _plain(ours.rename(columns={"l_r": "l_R"}))
    named = theirs["checkpoint"].map(_of_checkpoint)
    other = _plain(theirs.assign(dataset=named.str[0], model=named.str[1]))
    found = {tuple(r[k] for k in _KEY): r for r in own.to_dict("records")}
    rows = []
    for row in other.to_dict("records"):
        mine = found.get(tuple(row[k] for k in _KEY))
        if mine is not None:
            rows.append({k: row[k] for k in _KEY} | _judged(*_signed(mine), *_signed(row)))
    return pd.DataFrame(rows)


def _signed(row: dict[str, float]) -> tuple[float, float, float]:
    """The gain of c_rec > 0 over c_rec = 0; the tables have it the other way round where c_rec = 0 is the best."""
    if row["c_rec_star"] > 0:
        return row["delta_pp"], row["ci_low"], row["ci_high"]
    return -row["delta_pp"], -row["ci_high"], -row["ci_low"]


def _of_checkpoint(name: str) -> tuple[str, str]:
    """The data set and the model in a checkpoint's name, the paper's or ours."""
    first, second = name.split("_")[:2]
    if first in _CHECKPOINTS:
        return _CHECKPOINTS[first], _FAMILIES.get(second, second)
    known = next((m for m in sorted(MODEL_NAMES, key=len, reverse=True) if name.startswith(f"{first}_{m}")), second)
    return first, known


def _judged(
    gain: float, low: float, high: float, their: float, their_low: float, their_high: float
) -> dict[str, object]:
    sides = [(round(g, 2) > 0) - (round(g, 2) < 0) for g in (gain, their)]
    return {
        "gain": gain, "low": low, "high": high, "their_gain": their, "their_low": their_low, "their_high": their_high,
        "difference": gain - their, "same_sign": sides[0] == sides[1],
        "overlap": low <= their_high and their_low <= high,
    }  # fmt: skip
