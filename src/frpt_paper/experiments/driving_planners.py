"""Tables 8 and 9 on synthetic scenes: a planner post-trained at the paper's layers, scored by PDMS, scene by scene.

``catalogue`` lists it as ``driving``. NAVSIM's data are not public; the scenes are those of ``frpt.driving``, so that
its numbers say how the arms compare there, and nothing about NAVSIM. Beside post-training, repairs of failing scenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from frpt.errors import OptionError
from frpt_paper.experiments.classification import weights
from frpt_paper.experiments.workbench import ExperimentReport, Workbench
from frpt_paper.runs.jobs import ANCHOR, FRPT, grid
from frpt_paper.runs.planner_repairs import RepairJob, failures, run_repair
from frpt_paper.runs.planners import (
    FRESH,
    OWN_LAYERS,
    REFERENCE,
    SCORES,
    TEST,
    PlannerJob,
    PlannerLab,
    Values,
    run,
    seconds_of_a_run,
    target_quality,
)
from frpt_paper.runs.protocols import PROTOCOLS
from frpt_paper.runs.runs_table import RunsTable
from frpt_paper.tables import driving_tables as tables
from frpt_paper.tables import figures
from frpt_paper.tables.navsim_tables import REMARK, navsim_rows
from frpt_paper.tables.printed import plain

if TYPE_CHECKING:
    import pandas as pd

PRESETS = ("paper", "default", REFERENCE)
STRENGTHS = (0.02, 0.1, 0.3)
"""The paper's (Tables 8 and 9), beside 0."""
METHODS = ("nearest", "finetune")
"""Of repair: the nearest weights, and fine-tuning on the failing scenes alone."""


@dataclass(frozen=True)
class Size:
    """How large an experiment is; ``PlannerLab`` has the words. batch, epochs: of post-training; repairs: their N."""

    model: str
    train: int
    part: int
    test: int
    fresh: int
    images: tuple[int, int]
    pretrain: int
    epochs: int
    batch: int
    memory: int
    repairs: tuple[int, ...]


SIZES = {
    "small": Size("resnet10", 1536, 256, 320, 384, (32, 128), 16, 2, 16, 256, (20,)),
    "paper": Size("resnet34", 8000, 8000, 1000, 1000, (256, 1024), 100, 5, 256, 500, (20, 100)),
}
"""small: what one core makes in about an hour; the nearest weights for 20 scenes take three minutes of it. paper: the
images, epochs, batches and planners are the paper's; the number of scenes is not, and takes 8 GB of memory as bytes."""


def driving(bench: Workbench) -> ExperimentReport:
    """All arms over layers, strengths and seeds; repairs of the scale's planner; all scored on the same scenes."""
    size = SIZES[bench.options.scale]
    lab = laboratory(bench, size)
    checkpoint = lab.pretrained(bench.console.is_terminal)
    before = lab.before(checkpoint, TEST, lab.test)
    bench.console.print(f"{lab.model} on synthetic scenes: PDMS {100 * before['PDMS'].mean():.2f} % ({checkpoint})")
    jobs = post_training(bench, lab, size, checkpoint)
    done = lab.table.done()
    missing = [job for job in jobs if job.key not in done]
    if missing:
        each = seconds_of_a_run(lab, missing[0])
        minutes = len(missing) * each / 60 / bench.options.workers
        bench.console.print(
            f"{len(missing)} runs of about {each:.0f} s each, {minutes:.0f} min with {bench.options.workers} workers; "
            "targets are written first, and runs that others decide take no time"
        )
    lab.write_stores(missing, progress=bench.console.is_terminal)
    frame = in_order(bench.work_off(jobs, partial(run, lab), lab.table), jobs)
    report = _report(lab, jobs, frame, before)
    if lab.model != size.model:
        report.lines.append(f"repairs are those of {size.model} alone")
        return report
    failing = len(failures(lab.before(checkpoint, FRESH, lab.fresh)))
    repairs = [
        RepairJob(lab.model, checkpoint, method, n, seed, lab.fresh, min(size.memory, lab.train), lab.test, *lab.size)
        for method in METHODS for n in size.repairs for seed in bench.seeds(1, 5) if n <= failing
    ]  # fmt: skip
    mended = bench.work_off(repairs, partial(run_repair, lab), RunsTable(bench.folder / "repairs.csv"))
    report.lines.append(_repair_line(lab, size, failing))
    if repairs:
        shown = tables.repair_table(in_order(mended, repairs), before, "driving-repair", f"{report.title}: repairs")
        report.tables.append(shown)
    return report


def laboratory(bench: Workbench, size: Size) -> PlannerLab:
    """Of the scale, or as large as the options say: ``--samples`` are scenes of training and of tests."""
    train, test = bench.options.samples or (size.train, size.test)
    model = (bench.options.models or (size.model,))[0]
    epochs = bench.options.pretrain or size.pretrain
    part, fresh = min(size.part, train), size.fresh if bench.options.samples is None else test
    return PlannerLab(bench.options.out.resolve(), model, train, part, test, fresh, size.images, epochs)


def post_training(bench: Workbench, lab: PlannerLab, size: Size, checkpoint: str) -> list[PlannerJob]:
    """The paper's grid of layers and strengths, or what was asked for, with matched controls."""
    options = bench.options
    presets = options.presets or PRESETS
    if unknown := set(presets) - set(PRESETS):
        raise OptionError(f"unknown preset {min(unknown)!r}: there are {', '.join(PRESETS)}")
    jobs = grid(
        "driving", lab.model, l_r=options.layers or papers_layers(lab.model), c_rec=options.c_rec or STRENGTHS,
        seeds=bench.seeds(2, 5), arms=(ANCHOR, FRPT), presets=presets, embeds=("",), checkpoint=checkpoint,
        epochs=options.epochs or size.epochs, protocol=replace(PROTOCOLS["clean"], batch_size=size.batch),
    )  # fmt: skip
    return [
        PlannerJob(**asdict(job), train=lab.part, test=lab.test, height=lab.size[0], width=lab.size[1]) for job in jobs
    ]


def papers_layers(model: str) -> tuple[str, ...]:
    """The layers of the planner's table in the paper, from the output on, by the planner's own names."""
    return tuple(dict.fromkeys(_papers_rows(model)["l_R"]))


def in_order(frame: pd.DataFrame, jobs: Sequence[PlannerJob] | Sequence[RepairJob]) -> pd.DataFrame:
    """Rows in the order of the jobs, whatever order they ended in."""
    place = {job.key: i for i, job in enumerate(jobs)}
    return frame.sort_values("job", key=lambda keys: keys.map(place), kind="stable").reset_index(drop=True)


def _report(lab: PlannerLab, jobs: Sequence[PlannerJob], frame: pd.DataFrame, before: Values) -> ExperimentReport:
    title = f"Driving, synthetic scenes, planner {lab.model}"
    report = ExperimentReport(title, _lines(lab, jobs[0], frame, before))
    data = tables.differences(frame, before, (*SCORES, "ADE"))
    everything = tables.overall(frame, before)
    report.tables = [
        tables.overall_table(everything, "driving-overall", f"{title}: each arm over all layers and strengths"),
        tables.paired_table(data, "driving-paired", f"{title}: differences in PDMS"),
        tables.targets_table(_targets(lab, jobs), "driving-targets", f"{title}: the targets"),
    ]
    report.details = [
        tables.scores_table(frame, before, "driving", f"{title}: scores"),
        tables.parts_table(data, "driving-parts", f"{title}: differences in the parts of the score"),
        tables.beside_paper(data, _papers_rows(lab.model), "driving-paper", f"{title}: gains beside the paper's"),
        plain("driving-weights", f"{title}: the weight λ of the reconstruction loss", weights(frame),
              "Mean over epochs and seeds; at_bound: share of runs in which it was at its upper bound in every step."),
    ]  # fmt: skip
    report.figures["driving"] = figures.planners(data[data["metric"] == "PDMS"], title)
    return report


def _lines(lab: PlannerLab, job: PlannerJob, frame: pd.DataFrame, before: Values) -> list[str]:
    made = frame.groupby("job")["wall"].first()
    made, runs = made[made > 0], len(frame)
    shown = ", ".join(f"{tables.SHOWN.get(s, s)} {100 * before[s].mean():.2f}" for s in SCORES)
    return [
        f"scenes are synthetic (frpt.driving), images {lab.size[0]}×{lab.size[1]}: nothing here is a score on NAVSIM",
        f"pretrained on {lab.train} scenes for {lab.epochs} epochs (L1), checkpoint {job.checkpoint}; on {lab.test} "
        f"test scenes: {shown} %, ADE {before['ADE'].mean():.2f} m",
        f"post-training: {lab.part} of these scenes, {job.epochs} epochs, batch {job.batch_size}, AdamW {job.lr:g}, "
        f"MSE; {runs} runs over {frame['seed'].nunique()} seeds, {runs - len(made)} of them decided by others; "
        f"{made.mean():.1f} s a run, {made.sum() / 60:.0f} min together",
        REMARK,
    ]


def _repair_line(lab: PlannerLab, size: Size, failing: int) -> str:
    left_out = [n for n in size.repairs if n > failing]
    more = f"; repairs of {', '.join(map(str, left_out))} scenes are left out" if left_out else ""
    return f"repairs: of {lab.fresh} new scenes {failing} score 0, from which failing ones are drawn{more}"


def _targets(lab: PlannerLab, jobs: Sequence[PlannerJob]) -> pd.DataFrame:
    import pandas as pd

    first = {(job.l_r, job.preset): job for job in jobs if job.arm == FRPT}
    lab.write_stores(first.values(), progress=False)  # of runs that are done, and whose targets are not kept
    return pd.DataFrame([{"l_r": layer, "preset": p, **target_quality(lab, job)} for (layer, p), job in first.items()])


def _papers_rows(model: str) -> pd.DataFrame:
    """The rows of the planner's table in the paper, without the baseline, layers by the planner's own names."""
    rows = navsim_rows("vit_b16" if model.startswith("vit") else "resnet34")
    rows = rows[rows["l_R"] != "baseline"]
    return rows.assign(l_R=rows["l_R"].replace(OWN_LAYERS.get(model, {})))
