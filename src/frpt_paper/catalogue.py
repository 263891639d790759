"""Every table and figure of the paper by name, and ``reproduce``, which runs one; ``frpt reproduce`` calls it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from frpt.errors import DatasetError, OptionError
from frpt_paper.experiments.ablations import deviation, embedding, geometry, maturity
from frpt_paper.experiments.adaptation import adaptation
from frpt_paper.experiments.classification import classification
from frpt_paper.experiments.conv_solvers import runtime
from frpt_paper.experiments.driving_planners import driving
from frpt_paper.experiments.feature_loss import feature_loss
from frpt_paper.experiments.papers_gains import papers_gains
from frpt_paper.experiments.workbench import ExperimentReport, ReproduceOptions, Workbench


@dataclass(frozen=True)
class Experiment:
    """what: in a line. where: in the paper. small: what the small scale takes instead."""

    what: str
    where: str
    small: str
    run: Callable[[Workbench], ExperimentReport]


def _navsim(bench: Workbench) -> ExperimentReport:
    raise DatasetError(
        "navsim needs the NAVSIM logs, sensor data and metric cache, which are not public without registration, and "
        "its devkit for the scores; frpt cannot fetch them. With them, the devkit runs both tables with frpt's agent: "
        "docs/navsim.md has the commands, `frpt navsim` the rest. `frpt reproduce driving` runs the same grid on "
        "synthetic scenes."
    )


EXPERIMENTS = {
    "mnist": Experiment("post-training of SimpleCNN", "Table 2", "embedded digits", classification),
    "cifar10": Experiment("post-training of SimpleCNN, ResNet-18", "Table 3", "2000 images", classification),
    "cifar100": Experiment(
        "post-training of SimpleCNN, ResNet-18, SimpleViT", "Table 4", "2000 images", classification
    ),
    "imagenette": Experiment("post-training of SimpleCNN, ResNet-18", "Table 5", "400 images", classification),
    "imagewoof": Experiment("post-training of SimpleCNN, ResNet-18", "Table 6", "400 images", classification),
    "tiny-imagenet": Experiment(
        "post-training of SimpleCNN, ResNet-34, SimpleViT", "Table 7", "400 images", classification
    ),
    "navsim": Experiment("trajectory planners; its data are not public", "Tables 8, 9", "not available", _navsim),
    "driving": Experiment(
        "trajectory planners on synthetic scenes", "Tables 8, 9 on other data", "a small planner, 1536 scenes", driving
    ),
    "starts": Experiment("the paper's gains beside its starting networks", "Tables 2–7, B.3", "the same", papers_gains),
    "runtime": Experiment("convolution solvers: runtime and conditioning", "IV-B1", "small maps", runtime),
    "embedding": Experiment("one-hot, max-assign, nearest over c_rec", "IV-B2", "embedded digits", embedding),
    "deviation": Experiment("deviation against accuracy along training", "IV-C1", "embedded digits", deviation),
    "maturity": Experiment("post-training from checkpoints along training", "IV-D1", "embedded digits", maturity),
    "geometry": Experiment("channel profiles 5→10→15 and 15→10→5", "IV-D2", "embedded digits, 2→6 and 6→2", geometry),
    "adaptation": Experiment("a few labels of a corrupted distribution", "not in it", "embedded digits", adaptation),
    "feature-loss": Experiment(
        "feature targets beside EWC, replay and repair", "not in it", "embedded digits", feature_loss
    ),
}


def reproduce(name: str, options: ReproduceOptions | None = None, console: Console | None = None) -> ExperimentReport:
    """Run an experiment, or what is missing of it; its tables and figures are written to a folder of its name.

    A call that was stopped goes on when it is made again: checkpoints, targets and finished runs are kept in
    ``options.out``.

    Args:
        name: a key of ``EXPERIMENTS``.
        options: scale, folders and parts of the experiment; the small scale by default.
        console: where progress is told; standard error by default.

    Raises:
        OptionError: there is no such experiment, or an option does not fit it.
        SweepError: some runs failed; the others are kept.

    Example:
        >>> reproduce("mnist", ReproduceOptions(scale="small")).markdown()  # doctest: +SKIP
    """
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise OptionError(f"there is no experiment {name!r}: there are {', '.join(EXPERIMENTS)}{hint}")
    bench = Workbench(name, options or ReproduceOptions(), console or Console(stderr=True, soft_wrap=True))
    report = EXPERIMENTS[name].run(bench)
    report.save(bench.folder)
    return report
