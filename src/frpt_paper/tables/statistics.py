"""From rows per epoch to the paper's metrics per run, and to its statistics over seeds (Tables 2–7, Supplement B.3).

Every table here is a data frame; ``classification_tables`` prints them, ``published`` sets them beside the paper's.
``runs`` is always what ``metrics`` returns: a row per run, accuracies in percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from frpt import stats
from frpt.errors import OptionError
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT, RECONSTRUCTED, SUPERVISED

if TYPE_CHECKING:
    import pandas as pd

MODEL_NAMES = {"simple_cnn": "SimpleCNN", "resnet18": "ResNet-18", "resnet34": "ResNet-34", "simple_vit": "SimpleViT"}
SET_NAMES = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100",
             "imagenette": "Imagenette", "imagewoof": "Imagewoof", "tiny-imagenet": "Tiny-ImageNet"}  # fmt: skip
"""Our names → the paper's."""
RUN = ["dataset", "model", "checkpoint", "lr", "l_r", "arm", "preset", "embed", "c_rec", "seed"]
"""Columns that tell a run."""
GROUP = ["dataset", "model", "checkpoint", "lr", "l_r"]
"""Columns that tell what is compared: settings within a group differ in arm and strength only."""
START = "start"
"""Doing nothing: the accuracy of the checkpoint, which every run is compared with beside its controls."""
EPOCHS = (1, 5, 10)
"""After which the paper reports accuracies (B.3)."""
LEVEL = 0.05
"""Of significance (IV-A)."""
LEAST_SEEDS = 3
"""For a star or a nested choice; the paper has ten seeds. Two that agree by chance would pass any test."""


def metrics(
    frame: pd.DataFrame, value: str = "metric", scale: float = 100.0, epochs: Iterable[int] = EPOCHS
) -> pd.DataFrame:
    """Per run: best and mean of ``value`` over its epochs, after some epochs, and at the start, in percent.

    frame: ``RunsTable.frame()``, with a column epoch that counts from 1. A row per run.
    """
    runs = frame.assign(value=frame[value] * scale, start=frame["start"] * scale).groupby(RUN)
    table = runs.agg(start=("start", "first"), best=("value", "max"), mean=("value", "mean"))
    for epoch in epochs:
        after = frame[frame["epoch"] == epoch].set_index(RUN)[value] * scale
        if len(after):
            table[f"epoch {epoch}"] = after
    return table.reset_index()


def shown_metrics(runs: pd.DataFrame) -> list[str]:
    """The three metrics of Tables 2–7: after epoch 5 (or the last, in shorter runs), mean, best."""
    epochs = sorted(int(c.split()[1]) for c in runs.columns if c.startswith("epoch "))
    return [f"epoch {5 if 5 in epochs else epochs[-1]}", "mean", "best"]


def arm_of(runs: pd.DataFrame, arm: str, preset: str = "", embed: str = "nearest") -> pd.DataFrame:
    """The runs of an arm beside those of back-propagation."""
    own = runs["arm"] == arm
    if arm in RECONSTRUCTED:
        own &= (runs["preset"] == preset) & (runs["embed"] == embed)
    return runs[own | (runs["arm"] == BACKPROP)]


def layer_order(name: str) -> tuple[int, int]:
    """A sort key: out first, then from the last layer to the first."""
    return (0, 0) if name == "out" else (1, -int(name)) if name.isdigit() else (2, 0)


def main_data(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per l_R, c_rec and metric, in the columns of the paper's numbers. runs: of one arm, ``arm_of``."""
    import pandas as pd

    rows = []
    for group, part in runs.groupby(GROUP, sort=False):
        dataset, model, _, rate, layer = group
        for metric in shown_metrics(runs):
            by_seed = part.pivot_table(index="seed", columns="c_rec", values=metric).dropna()
            values = {float(c): by_seed[c].to_numpy() for c in by_seed}
            best, star = _best(values)
            for c, v in values.items():
                row = {"dataset": SET_NAMES.get(dataset, dataset), "model": MODEL_NAMES.get(model, model)}
                row |= {"rate": rate, "l_R": layer, "c_rec": c, "metric": metric.replace(" ", "")}
                row |= {"start": float(part["start"].iloc[0]), "mean": float(np.mean(v))}
                row |= {"std": float(np.std(v, ddof=1)) if len(v) > 1 else 0.0, "n": len(v)}
                rows.append(row | {"best_in_group": int(c == best), "significant": int(c == best and star)})
    table = pd.DataFrame(rows)
    if rows:
        models = {m: i for i, m in enumerate(dict.fromkeys(table["model"]))}
        table = table.assign(_m=table["model"].map(models), _l=table["l_R"].map(layer_order))
        table = table.sort_values(["_m", "rate", "_l", "c_rec"], kind="stable")
        table = table.drop(columns=["_m", "_l"]).reset_index(drop=True)
    return table


def _best(values: dict[float, np.ndarray]) -> tuple[float, bool]:
    """(the strength with the best mean, whether it is significantly the best)."""
    if len(values) > 1 and 0.0 in values and len(values[0.0]) > 1:
        best = stats.best_against_reference(values)
        return best.setting, best.paired.p_t < LEVEL and best.paired.n >= LEAST_SEEDS
    return max(values, key=lambda c: float(np.mean(values[c]))), False


def paired_table(
    runs: pd.DataFrame, *, arm: str = FRPT, preset: str = "default", embed: str = "nearest", names: Iterable[str] = ()
) -> pd.DataFrame:
    """The best strength of an arm against back-propagation, layer by layer and metric by metric (Supplement B.3).

    names: which metrics of ``runs``; all by default. p_holm and p_bh are p_t adjusted over the whole table. Only seeds
    that every strength of a layer has are compared; layers with fewer than two are left out.
    """
    import pandas as pd

    if arm not in SUPERVISED:
        raise OptionError(f"unknown arm {arm!r}: there are {', '.join(SUPERVISED)}")
    measured = list(names) or [c for c in runs.columns if c not in (*RUN, START)]
    rows = []
    for group, part in arm_of(runs, arm, preset, embed).groupby(GROUP, sort=False):
        for name in measured:
            by_seed = part.pivot(index="seed", columns="c_rec", values=name).dropna()
            if len(by_seed) < 2 or 0.0 not in by_seed or by_seed.shape[1] < 2:
                continue
            best = stats.best_against_reference({float(c): by_seed[c].to_numpy() for c in by_seed})
            p = best.paired
            rows.append(
                dict(zip(GROUP, group, strict=True))
                | {"metric": name, "c_rec_star": best.setting, "reference": best.reference, "n": p.n}
                | {"delta_pp": p.delta, "ci_low": p.ci[0], "ci_high": p.ci[1], "t": p.t, "p_t": p.p_t}
                | {"W": p.w, "p_W": p.p_w, "d_z": p.d_z}
            )
    table = pd.DataFrame(rows)
    if rows:
        table["p_holm"] = stats.holm(table["p_t"].to_numpy())
        table["p_bh"] = stats.benjamini_hochberg(table["p_t"].to_numpy())
    return table


def gains(runs: pd.DataFrame, names: Sequence[str] = ("mean",)) -> pd.DataFrame:
    """Every arm and strength against back-propagation, anchor-only of the same strength and the start, paired by seed.

    delta, low, high: mean difference in percentage points with its 95 % bootstrap interval; p_holm: of the one-sided
    t-test, adjusted over all rows, those against the start apart. Every strength has its row: none is chosen, which
    would favour it. The start is one number, the checkpoint's accuracy: the interval of a difference from it is that of
    the runs.
    """
    import pandas as pd

    rows = []
    keys = [*GROUP, "arm", "preset", "embed", "c_rec"]
    by_setting = {key: part.set_index("seed") for key, part in runs.groupby(keys, sort=False)}
    for key, own in by_setting.items():
        *group, arm, preset, embed, c = key
        references = {
            BACKPROP: by_setting.get((*group, BACKPROP, "", "", 0.0)),
            ANCHOR: by_setting.get((*group, ANCHOR, "", "", c)),
            START: own.assign(**{name: own[START] for name in names}),
        }
        for reference, other in references.items():
            seeds = [] if other is None or reference == arm else sorted(set(own.index) & set(other.index))
            for name in names if len(seeds) > 1 else ():
                assert other is not None
                p = stats.paired(own.loc[seeds, name].to_numpy(), other.loc[seeds, name].to_numpy())
                row = dict(zip(GROUP, group, strict=True)) | {"arm": arm, "preset": preset, "embed": embed, "c_rec": c}
                row |= {"against": reference, "metric": name, "n": p.n, "delta": p.delta, "low": p.ci[0]}
                rows.append(row | {"high": p.ci[1], "p_t": p.p_t})
    table = pd.DataFrame(rows)
    if rows:
        for family in (table["against"] == START, table["against"] != START):
            if family.any():
                table.loc[family, "p_holm"] = stats.holm(table.loc[family, "p_t"].to_numpy())
    return table


def nested_gains(runs: pd.DataFrame, arms: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Gain in mean accuracy over back-propagation, c_rec chosen for each seed on the other seeds.

    arms: (arm, preset). Layers with fewer than three seeds or a single strength are left out. naive: the gain with
    c_rec chosen on the seeds it is tested on, as in the paper's tables.
    """
    import pandas as pd

    rows = []
    for arm, preset in arms:
        for group, part in arm_of(runs, arm, preset).groupby(GROUP, sort=False):
            by_seed = part.pivot(index="seed", columns="c_rec", values="mean").dropna()
            if len(by_seed) < LEAST_SEEDS or by_seed.shape[1] < 3 or 0.0 not in by_seed:
                continue
            nested = stats.nested({float(c): by_seed[c].to_numpy() for c in by_seed})
            p, naive = nested.paired, nested.naive.paired
            row = dict(zip(GROUP, group, strict=True)) | {"arm": arm, "preset": preset, "n": p.n, "delta": p.delta}
            row |= {"low": p.ci[0], "high": p.ci[1], "p_t": p.p_t, "naive": naive.delta}
            rows.append(row | {"chosen": " ".join(f"{c:g}" for c in nested.chosen)})
    table = pd.DataFrame(rows)
    if rows:
        table["p_holm"] = stats.holm(table["p_t"].to_numpy())
        table = table.assign(_l=table["l_r"].map(layer_order)).sort_values(["model", "lr", "_l"], kind="stable")
        table = table.drop(columns="_l").reset_index(drop=True)
    return table
