"""Deviation against accuracy along pretraining (paper IV-C1)."""

from __future__ import annotations

import pandas as pd
from torch.utils.data import Subset

from frpt.diagnosis.figures.curves import trajectory
from frpt.diagnosis.trajectory import along_training
from frpt_paper.ablations import dataset_of
from frpt_paper.bench import Bench, Report
from frpt_paper.layout import plain
from frpt_paper.pretrain import make_model
from frpt_paper.tables import MODEL_NAMES, SET_NAMES

_SAMPLES = 2000
"""Test samples whose features are reconstructed at each checkpoint."""


def deviation(bench: Bench) -> Report:
    """Relative deviation at every l_R and test accuracy, for checkpoints saved along one pretraining."""
    dataset, options = dataset_of(bench), bench.options
    lab = bench.lab(dataset)
    model = (options.models or (("simple_cnn",) if bench.small else ("resnet18",)))[0]
    recipe = bench.recipe(dataset, model, small=8, paper=100)
    step = max(1, recipe.epochs // (4 if bench.small else 20))
    starts = bench.starts(lab, dataset, model, recipe, range(step, recipe.epochs + 1, step))
    made = make_model(model, dataset).eval()
    layers: dict[str, str] = made.layers  # type: ignore[assignment]
    chosen = [layers[name] for name in options.layers] or list(reversed(layers.values()))
    test = lab.split(dataset, "test")
    found = along_training(
        made, {f"epoch {s.epoch}": s.path for s in starts}, Subset(test, range(min(_SAMPLES, len(test)))), chosen,
        preset=(options.presets or ("default",))[0], progress=bench.console.is_terminal,
    )  # fmt: skip
    title = f"Deviation against accuracy: {MODEL_NAMES.get(model, model)} on {SET_NAMES[dataset]}"
    report = Report(title, [str(found).splitlines()[0]])
    report.tables.append(plain("deviation", title, found.to_pandas()))

    tests = [{"layer": name, **vars(found.correlation(name))} for name in chosen]
    report.tables.append(plain("deviation-correlation", "Correlation of deviation and accuracy", pd.DataFrame(tests)))
    report.figures["deviation"] = trajectory(found)
    return report
