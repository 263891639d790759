"""The paper's single-question figures: label embeddings, deviation along training, maturity, channel profiles.

``catalogue`` lists each by name. All but the deviation compare post-training runs, as the tables do.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from scipy import stats
from torch.utils.data import Subset

import frpt
from frpt_paper.experiments.classification import runs_line, runs_of
from frpt_paper.experiments.workbench import ExperimentReport, Workbench
from frpt_paper.runs.jobs import BACKPROP, FRPT, PostTrainingJob, grid
from frpt_paper.runs.pretraining import PlateauRecipe, make_model, recipe_of
from frpt_paper.tables import figures
from frpt_paper.tables.classification_tables import arms_table
from frpt_paper.tables.printed import plain
from frpt_paper.tables.statistics import MODEL_NAMES, SET_NAMES

if TYPE_CHECKING:
    import pandas as pd

EMBEDDINGS = {"one_hot": "one-hot", "max_assign": "maximum assignment", "nearest": "nearest"}
STRENGTHS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""c_rec of the figure of embeddings: "from 0.01 to 0.9" (IV-B2); the steps between are ours."""
_FEW_STRENGTHS = (0.01, 0.1, 0.3, 0.9)
_DEVIATION_SAMPLES = 2000
"""Test samples whose features are reconstructed at each checkpoint; the paper does not state how many it took."""


def embedding(bench: Workbench) -> ExperimentReport:
    """One-hot, maximum assignment and nearest embedding at l_R = out, over c_rec from 0.01 to 0.9 (paper IV-B2)."""
    dataset = bench.figure_dataset
    lab = bench.lab(dataset)
    model = (bench.options.models or ("simple_cnn",))[0]
    start = bench.starting_models(lab, dataset, model, bench.recipe(dataset, model, small=6))[-1]
    jobs = grid(
        dataset, model, l_r=bench.options.layers or ("out",), arms=(FRPT,), seeds=bench.seeds(2, 10),
        c_rec=bench.options.c_rec or (_FEW_STRENGTHS if bench.small else STRENGTHS),
        presets=bench.options.presets or ("default",), embeds=tuple(EMBEDDINGS), checkpoint=start.name,
        epochs=bench.epochs(2, 10), protocol=bench.protocol,
    )  # fmt: skip
    frame = bench.sweep(jobs, lab)
    runs = runs_of(frame)
    data = _means(runs, ["l_r", "embed", "c_rec"])
    data["embed"] = data["embed"].replace({"": BACKPROP})
    title = f"Label embeddings on {SET_NAMES[dataset]}: mean test accuracy"
    note = "Mean over the epochs of post-training and over seeds, with the 95 % interval of the mean (Student's t)."
    before = f"{100 * start.accuracy:.2f} % before post-training, checkpoint {start.name}"
    report = ExperimentReport(title, [before, runs_line(frame)])
    report.tables.append(plain("embedding", title, data, note))
    paired = arms_table(runs, "embedding-paired", f"{title}, paired by seed")
    report.tables += [paired] if paired.rows else []
    report.figures["embedding"] = figures.strengths(data, {BACKPROP: BACKPROP, **EMBEDDINGS}, title)
    return report


def deviation(bench: Workbench) -> ExperimentReport:
    """Deviation at every l_R and test accuracy, for checkpoints saved along one pretraining (paper IV-C1).

    The paper trains for 100 epochs and saves every five.
    """
    import pandas as pd

    dataset, options = bench.figure_dataset, bench.options
    lab = bench.lab(dataset)
    model = (options.models or (("simple_cnn",) if bench.small else ("resnet18",)))[0]
    recipe = bench.recipe(dataset, model, small=8, paper=100)
    step = max(1, recipe.epochs // (4 if bench.small else 20))
    along = () if isinstance(recipe, PlateauRecipe) else range(step, recipe.epochs + 1, step)
    starts = bench.starting_models(lab, dataset, model, recipe, along)
    network = make_model(model, dataset).eval()
    layers: dict[str, str] = network.layers  # type: ignore[assignment]
    chosen = [layers[name] for name in options.layers] or list(reversed(layers.values()))
    test = lab.split(dataset, "test")
    trajectory = frpt.along_training(
        network, {f"epoch {s.epoch}": s.path for s in starts},
        Subset(test, range(min(_DEVIATION_SAMPLES, len(test)))), chosen,
        preset=(options.presets or ("default",))[0], progress=bench.console.is_terminal,
    )  # fmt: skip
    title = f"Deviation against accuracy: {MODEL_NAMES.get(model, model)} on {SET_NAMES[dataset]}"
    report = ExperimentReport(title, [str(trajectory).splitlines()[0]])
    report.tables.append(plain("deviation", title, trajectory.to_pandas()))
    tests = [{"layer": name, **vars(trajectory.correlation(name))} for name in chosen]
    report.tables.append(plain("deviation-correlation", "Correlation of deviation and accuracy", pd.DataFrame(tests)))
    report.figures["deviation"] = trajectory.figure()
    return report


def maturity(bench: Workbench) -> ExperimentReport:
    """Post-training from checkpoints along pretraining, at l_R = out (paper IV-D1: 21 of the epochs 40 to 80).

    By the paper's protocol they are those that its pretraining keeps on the way, and the best on the test split.
    """
    dataset = bench.figure_dataset
    lab = bench.lab(dataset)
    model = (bench.options.models or ("simple_cnn",))[0]
    recipe = bench.recipe(dataset, model, small=8, paper=80)
    shares = () if isinstance(recipe, PlateauRecipe) else _shares(5 if bench.small else 21)
    starts = bench.starting_models(lab, dataset, model, recipe, sorted({round(recipe.epochs * s) for s in shares}))
    jobs = [
        job
        for start in starts
        for job in grid(
            dataset, model, l_r=bench.options.layers or ("out",), c_rec=bench.options.c_rec or (0.02, 0.1),
            seeds=bench.seeds(2, 10), arms=(FRPT,), presets=bench.options.presets or ("default",),
            checkpoint=start.name, epochs=bench.epochs(2, 10), protocol=bench.protocol,
        )
    ]  # fmt: skip
    frame = bench.sweep(jobs, lab)
    runs = runs_of(frame)
    epochs = {start.name: start.epoch for start in starts}
    accuracy = {start.epoch: 100 * start.accuracy for start in starts}
    runs = runs.assign(pretrained=runs["checkpoint"].map(epochs))
    data = _means(runs, ["pretrained", "c_rec"])
    data.insert(1, "start", data["pretrained"].map(accuracy))
    data = data.sort_values(["pretrained", "c_rec"]).reset_index(drop=True)
    title = f"Maturity of the pretrained model on {SET_NAMES[dataset]}"
    report = ExperimentReport(
        title,
        [f"checkpoints after the epochs {', '.join(map(str, accuracy))} of one pretraining", str(bench.protocol),
         runs_line(frame)],
    )  # fmt: skip
    note = (
        "pretrained: epoch of the checkpoint; start: its accuracy; mean: over epochs and seeds, with its 95 % interval."
    )
    report.tables.append(plain("maturity", title, data, note))
    report.figures["maturity"] = figures.maturity(runs, accuracy, title)
    table = arms_table(runs, "maturity-gains", f"{title}: differences")
    if table.rows:
        differences = table.data.assign(pretrained=table.data["checkpoint"].map(epochs))
        differences = differences.assign(start=differences["pretrained"].map(accuracy))
        report.tables.append(replace(table, data=differences))
        report.figures["maturity-gains"] = figures.maturity_gains(differences, title)
    return report


def geometry(bench: Workbench) -> ExperimentReport:
    """Two SimpleCNNs of opposite channel profiles, narrow to wide and wide to narrow (paper IV-D2)."""
    dataset = bench.figure_dataset
    lab = bench.lab(dataset)
    digits = dataset in ("digits", "mnist")
    profiles = ("simple_cnn-2-6", "simple_cnn-6-2") if digits else ("simple_cnn-5-10-15", "simple_cnn-15-10-5")
    layers = bench.options.layers or (("out", "2", "1") if digits else ("out", "4", "3", "2", "1"))
    jobs: list[PostTrainingJob] = []
    lines: list[str] = []
    for model in profiles:
        recipe = bench.recipe(dataset, model, 6, recipe_of(dataset, model).epochs)
        start = bench.starting_models(lab, dataset, model, recipe)[-1]
        lines.append(f"{model}: {100 * start.accuracy:.2f} % before post-training, checkpoint {start.name}")
        jobs += grid(
            dataset, model, l_r=layers, c_rec=bench.options.c_rec or ((0.3,) if bench.small else (0.02, 0.1, 0.3)),
            seeds=bench.seeds(2, 10), presets=bench.options.presets or ("paper", "default"), checkpoint=start.name,
            epochs=bench.epochs(2, 10), protocol=bench.protocol,
        )  # fmt: skip
    frame = bench.sweep(jobs, lab)
    title = f"Reconstruction geometry on {SET_NAMES[dataset]}: opposite channel profiles"
    table = arms_table(runs_of(frame), "geometry", title)
    report = ExperimentReport(title, [*lines, runs_line(frame)], [table])
    if len(table.data):
        report.figures["geometry"] = figures.gains(table.data, title)
    return report


def _shares(count: int) -> list[float]:
    """From half of the pretraining to its end, evenly."""
    return [0.5 + 0.5 * i / (count - 1) for i in range(count)]


def _means(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean of the runs' mean accuracies per key, with Student's 95 % interval."""
    table = runs.groupby(keys, sort=False)["mean"].agg(["mean", "std", "count"]).reset_index()
    half = [
        float(stats.t.ppf(0.975, n - 1)) * s / math.sqrt(n) if n > 1 else math.nan
        for s, n in zip(table["std"], table["count"], strict=True)
    ]
    table["low"], table["high"] = table["mean"] - half, table["mean"] + half
    return table.rename(columns={"count": "n"})
