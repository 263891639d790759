"""Tables 2–7: a data set's models over l_R × c_rec × seed with matched controls, beside the paper's numbers.

``catalogue`` lists it under the data sets' names; ``ablations`` uses its summaries of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import frpt
from frpt.errors import OptionError
from frpt_paper.experiments.workbench import ExperimentReport, Workbench
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT, PostTrainingJob, grid
from frpt_paper.runs.lab import Lab
from frpt_paper.runs.pretraining import MODELS
from frpt_paper.runs.runs_table import LARGEST_WEIGHT, always_at_bound
from frpt_paper.tables import figures, published
from frpt_paper.tables.classification_tables import arms_table, main_table, nested_table, paired
from frpt_paper.tables.printed import plain
from frpt_paper.tables.statistics import EPOCHS, MODEL_NAMES, SET_NAMES, arm_of, metrics

if TYPE_CHECKING:
    import pandas as pd

PRESETS = ("paper", "default")
_STRENGTHS = (0.0, 0.1, 0.3)
"""Of most of the paper's grids; for layers it has no row of."""
_SETTING = ["model", "lr", "l_r", "arm", "preset", "c_rec"]


def classification(bench: Workbench) -> ExperimentReport:
    """The table of the data set the bench is named after; MNIST at small scale is the embedded digits."""
    options = bench.options
    dataset = "digits" if bench.name == "mnist" and bench.small else bench.name
    papers_name = "mnist" if dataset == "digits" else dataset
    models = options.models or (("simple_cnn",) if bench.small else published.papers_models(papers_name))
    presets = options.presets or PRESETS
    others = {path.stem: published.read(path) for path in options.compare}
    theirs = others or {"paper": published.numbers(published.MEANS), "supplement": published.numbers(published.PAIRED)}
    lab, jobs, lines = bench.lab(dataset), [], []
    for model in models:
        if model not in MODELS:
            raise OptionError(f"unknown model {model!r}: there are {', '.join(MODELS)}")
        start = bench.starting_models(lab, dataset, model, bench.recipe(dataset, model, small=6))[-1]
        lines.append(
            f"{MODEL_NAMES.get(model, model)} on {SET_NAMES[dataset]}: {100 * start.accuracy:.2f} % test accuracy "
            f"before post-training, checkpoint {start.name}"
        )
        jobs += _jobs(bench, dataset, model, papers_name, start.name, presets)
    lines.append(str(bench.protocol))
    if dataset == "digits":
        lines.append("a part of MNIST that comes with the package, set beside the paper's MNIST")
    frame = bench.sweep(jobs, lab)
    train, test = (len(lab.split(dataset, split)) for split in ("train", "test"))
    lines.append(f"{runs_line(frame)}; {train} training and {test} test samples")
    report = ExperimentReport(f"{SET_NAMES[dataset]} post-training", lines)
    fill(report, frame, presets, theirs)
    made = targets(lab, jobs)
    if len(made):
        title = f"{SET_NAMES[dataset]}: targets of the training samples"
        note = "corrected: share of samples whose label does not win; deviation: their mean ‖target − anchor‖/‖anchor‖."
        report.details.append(plain("targets", title, made, note))
    return report


def targets(lab: Lab, jobs: Sequence[PostTrainingJob]) -> pd.DataFrame:
    """How many samples get a target of their own, and how far it is; of the stores that are there."""
    import pandas as pd

    rows = []
    for path, job in {lab.store(job): job for job in jobs if job.arm == FRPT}.items():
        if not path.is_dir():
            continue
        manifest = frpt.TargetStore(path).manifest
        corrected, samples = manifest.corrected, sum(shard.count for shard in manifest.shards)
        distance = sum(value * shard.corrected for shard in manifest.shards for value in shard.deviation.values())
        row = {"model": job.model, "l_r": job.l_r, "preset": job.preset, "samples": samples}
        rows.append(row | {"corrected": corrected / samples, "deviation": distance / max(1, corrected)})
    return pd.DataFrame(rows)


def _jobs(
    bench: Workbench, dataset: str, model: str, papers_name: str, checkpoint: str, presets: Sequence[str]
) -> list[PostTrainingJob]:
    """The paper's grid, or the layers and strengths asked for."""
    options = bench.options
    rows = published.papers_grid(papers_name, model)
    layers = options.layers or tuple(rows)
    if not layers:
        raise OptionError(f"the paper has no table of {model} on {papers_name}; name layers with --at")
    return [
        job
        for layer in layers
        for job in grid(
            dataset, model, l_r=[layer], c_rec=options.c_rec or rows.get(layer, _STRENGTHS), seeds=bench.seeds(2, 10),
            arms=(ANCHOR, FRPT), presets=presets, checkpoint=checkpoint, epochs=bench.epochs(2, 10),
            protocol=bench.protocol,
        )
    ]  # fmt: skip


def runs_of(frame: pd.DataFrame) -> pd.DataFrame:
    """``metrics`` with the last epoch among the epochs, in runs shorter than the paper's."""
    return metrics(frame, epochs=sorted({*EPOCHS, int(frame["epoch"].max())}))


def fill(
    report: ExperimentReport, frame: pd.DataFrame, presets: Sequence[str], theirs: Mapping[str, pd.DataFrame]
) -> None:
    """The arms side by side; then for each arm the main table, FR-PT's beside the paper; the rest as details."""
    runs = runs_of(frame)
    shown = SET_NAMES[frame["dataset"].iloc[0]]
    side_by_side = arms_table(runs, "arms", f"{shown}: what each arm gains")
    report.tables.append(side_by_side)
    if len(side_by_side.data):
        report.figures["gains"] = figures.gains(side_by_side.data, side_by_side.title)
        report.figures["from-start"] = figures.from_start(
            side_by_side.data, f"{shown}: mean accuracy minus the start's"
        )
    arms = [*((FRPT, preset) for preset in presets), (ANCHOR, "")]
    nested = nested_table(runs, "nested", f"{shown}: c_rec chosen without looking at the seed it is tested on", arms)
    report.tables += [nested] if nested.rows else []
    title = f"{shown}: test samples fixed and broken after the last epoch, mean over seeds"
    report.details.append(plain("flips", title, flips(frame)))
    title = f"{shown}: the weight λ of the reconstruction loss"
    bound = f"{LARGEST_WEIGHT:g}, its upper bound, in every step"
    note = (
        f"Mean over epochs and seeds; at_bound: share of runs in which it was {bound}; unbounded: the least of "
        "c_rec · (task loss / reconstruction loss) over epochs and seeds, which the bound cuts off."
    )
    report.details.append(plain("weights", title, weights(frame), note))
    for arm, preset in arms:
        label = f"{arm}-{preset}".rstrip("-").lower()
        title = f"{shown} post-training results: {arm}" + (f", {preset} preset" if preset else "")
        report.tables.append(main_table(arm_of(runs, arm, preset), f"table-{label}", title))
        tests = paired(runs, f"paired-{label}", f"{title}, paired tests", arm, preset)
        report.details += [tests] if len(tests.data) else []
        for name, numbers in theirs.items() if arm == FRPT else ():
            slowest = runs[runs["lr"] == runs["lr"].min()]  # the paper's default, where several rates were run
            table = published.beside(slowest, numbers, f"compare-{name}-{label}", arm=arm, preset=preset, label=name)
            (report.details if name == "supplement" else report.tables).append(table)


def runs_line(frame: pd.DataFrame) -> str:
    """How many runs there are, and how long those took that had to be made."""
    wall, seeds = frame.groupby("job")["wall"].first(), sorted(frame["seed"].unique())
    made = wall[wall > 0]
    others = f", {len(wall) - len(made)} of them decided by others" if len(made) < len(wall) else ""
    return (
        f"{len(wall)} runs of {frame['epoch'].max()} epochs over seeds {seeds[0]} to {seeds[-1]}{others}; "
        f"{made.mean():.1f} s a run, {made.sum() / 3600:.2f} h together"
    )


def flips(frame: pd.DataFrame) -> pd.DataFrame:
    """Test samples that the last epoch has fixed and broken, mean over seeds, per l_R, arm and strength."""
    last = frame[frame["epoch"] == frame["epoch"].max()]
    return last.groupby(_SETTING, sort=False)[["fixed", "broken"]].mean().reset_index()


def weights(frame: pd.DataFrame) -> pd.DataFrame:
    """λ of the arms that have one, per l_R, arm and strength."""
    own = frame[frame["arm"] != BACKPROP]
    own = own.assign(
        at_bound=own["job"].isin(always_at_bound(frame)), unbounded=own["c_rec"] * own["task_loss"] / own["rec_loss"]
    )
    columns = {"weight": "mean", "at_bound": "mean", "unbounded": "min"}
    return own.groupby(_SETTING, sort=False).agg(columns).reset_index()
