"""The paper's figures made of post-training runs: label embeddings, maturity of the checkpoint, channel profiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scipy import stats

from frpt_paper import figures
from frpt_paper.bench import Bench, Report
from frpt_paper.classification import runs_line, runs_of
from frpt_paper.jobs import BACKPROP, FRPT, grid
from frpt_paper.layout import Table, plain
from frpt_paper.recipes import recipe_of
from frpt_paper.tables import SET_NAMES, arms_table

if TYPE_CHECKING:
    import pandas as pd

EMBEDDINGS = {"one_hot": "one-hot", "max_assign": "maximum assignment", "nearest": "nearest"}
STRENGTHS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_FEW = (0.01, 0.1, 0.3, 0.9)


def dataset_of(bench: Bench) -> str:
    """What figures are drawn on: the digits, or CIFAR-10 at the paper's scale, or what was asked for."""
    return bench.options.dataset or ("digits" if bench.small else "cifar10")


def embedding(bench: Bench) -> Report:
    """One-hot, maximum assignment and nearest embedding at l_R = out, over c_rec from 0.01 to 0.9 (paper IV-B2)."""
    dataset = dataset_of(bench)
    lab = bench.lab(dataset)
    model = (bench.options.models or ("simple_cnn",))[0]
    start = bench.starts(lab, dataset, model, bench.recipe(dataset, model, small=6))[-1]
    jobs = grid(
        dataset, model, l_r=bench.options.layers or ("out",),
        c_rec=bench.options.c_rec or (_FEW if bench.small else STRENGTHS), seeds=bench.seeds(2, 10), arms=(FRPT,),
        presets=bench.options.presets or ("default",), embeds=tuple(EMBEDDINGS), checkpoint=start.name,
        epochs=bench.epochs(2, 10),
    )  # fmt: skip
    frame = bench.sweep(jobs, lab)
    runs = runs_of(frame)
    data = _means(runs, ["l_r", "embed", "c_rec"])
    data["embed"] = data["embed"].replace({"": BACKPROP})
    title = f"Label embeddings on {SET_NAMES[dataset]}: mean test accuracy"
    note = "Mean over the epochs of post-training and over seeds, with the 95 % interval of the mean (Student's t)."
    before = f"{100 * start.accuracy:.2f} % before post-training, checkpoint {start.name}"
    report = Report(title, [before, runs_line(frame)])
    report.tables.append(plain("embedding", title, data, note))
    paired = arms_table(runs, "embedding-paired", f"{title}, paired by seed")
    report.tables += [paired] if paired.rows else []
    report.figures["embedding"] = figures.strengths(data, {BACKPROP: BACKPROP, **EMBEDDINGS}, title)
    return report


def maturity(bench: Bench) -> Report:
    """Post-training from checkpoints along pretraining, at l_R = out (paper IV-D1)."""
    dataset = dataset_of(bench)
    lab = bench.lab(dataset)
    model = (bench.options.models or ("simple_cnn",))[0]
    recipe = bench.recipe(dataset, model, small=8, paper=80)
    keep = sorted({round(recipe.epochs * share) for share in _shares(5 if bench.small else 21)})
    starts = bench.starts(lab, dataset, model, recipe, keep)
    jobs = [
        job
        for start in starts
        for job in grid(
            dataset, model, l_r=bench.options.layers or ("out",), c_rec=bench.options.c_rec or (0.02, 0.1),
            seeds=bench.seeds(2, 10), arms=(FRPT,), presets=bench.options.presets or ("default",),
            checkpoint=start.name, epochs=bench.epochs(2, 10),
        )
    ]  # fmt: skip
    runs = runs_of(bench.sweep(jobs, lab))
    epochs = {start.name: start.epoch for start in starts}
    accuracy = {start.epoch: 100 * start.accuracy for start in starts}
    runs = runs.assign(pretrained=runs["checkpoint"].map(epochs))
    data = _means(runs, ["pretrained", "c_rec"])
    data.insert(1, "start", data["pretrained"].map(accuracy))
    data = data.sort_values(["pretrained", "c_rec"]).reset_index(drop=True)
    title = f"Maturity of the pretrained model on {SET_NAMES[dataset]}"
    report = Report(title, [f"checkpoints after the epochs {', '.join(map(str, accuracy))} of one pretraining"])
    note = (
        "pretrained: epoch of the checkpoint; start: its accuracy; mean: over epochs and seeds, with its 95 % interval."
    )
    report.tables.append(plain("maturity", title, data, note))
    report.figures["maturity"] = figures.maturity(runs, accuracy, title)
    return report


def geometry(bench: Bench) -> Report:
    """Two SimpleCNNs of opposite channel profiles, narrow to wide and wide to narrow (paper IV-D2)."""
    dataset = dataset_of(bench)
    lab = bench.lab(dataset)
    digits = dataset in ("digits", "mnist")
    profiles = ("simple_cnn-2-6", "simple_cnn-6-2") if digits else ("simple_cnn-5-10-15", "simple_cnn-15-10-5")
    layers = bench.options.layers or (("out", "2", "1") if digits else ("out", "4", "3", "2", "1"))
    jobs, lines = [], []
    for model in profiles:
        start = bench.starts(lab, dataset, model, bench.recipe(dataset, model, 6, recipe_of(dataset, model).epochs))[-1]
        lines.append(f"{model}: {100 * start.accuracy:.2f} % before post-training, checkpoint {start.name}")
        jobs += grid(
            dataset, model, l_r=layers, c_rec=bench.options.c_rec or ((0.3,) if bench.small else (0.02, 0.1, 0.3)),
            seeds=bench.seeds(2, 10), presets=bench.options.presets or ("paper", "default"), checkpoint=start.name,
            epochs=bench.epochs(2, 10),
        )  # fmt: skip
    frame = bench.sweep(jobs, lab)
    title = f"Reconstruction geometry on {SET_NAMES[dataset]}: opposite channel profiles"
    table: Table = arms_table(runs_of(frame), "geometry", title)
    report = Report(title, [*lines, runs_line(frame)], [table])
    if len(table.data):
        report.figures["geometry"] = figures.gains(table.data, title)
    return report


def _shares(count: int) -> list[float]:
    """From half of the pretraining to its end, evenly."""
    return [0.5 + 0.5 * i / (count - 1) for i in range(count)]


def _means(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """mean of the runs' mean accuracies per key, with Student's 95 % interval."""
    found = runs.groupby(keys, sort=False)["mean"].agg(["mean", "std", "count"]).reset_index()
    half = [
        float(stats.t.ppf(0.975, n - 1)) * s / math.sqrt(n) if n > 1 else math.nan
        for s, n in zip(found["std"], found["count"], strict=True)
    ]
    found["low"], found["high"] = found["mean"] - half, found["mean"] + half
    return found.rename(columns={"count": "n"})
