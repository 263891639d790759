"""Adaptation: a trained network meets another distribution, with a few labelled samples of it.

``catalogue`` lists it. The paper argues that FR-PT helps there, and does not test it. Arms: post-training up to l_R by
back-propagation, anchor-only, FR-PT with targets written once, FR-PT with targets reconstructed at every step. Measured
is the accuracy on the new and on the old distribution.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from frpt import stats
from frpt.errors import OptionError
from frpt_paper.experiments.corruptions import KINDS, corrupted
from frpt_paper.experiments.workbench import ExperimentReport, Workbench
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT, ONLINE, PostTrainingJob, seed_of
from frpt_paper.runs.lab import Lab, layer_of, post_trained
from frpt_paper.runs.runs_table import Row, RunsTable
from frpt_paper.tables import figures
from frpt_paper.tables.printed import Cell, PrintedTable, interval
from frpt_paper.tables.statistics import SET_NAMES, layer_order

if TYPE_CHECKING:
    import pandas as pd

ARMS = (BACKPROP, ANCHOR, FRPT, ONLINE)
SIZES = {"small": (50, 200), "paper": (100, 500, 2000)}
"""Scale → labelled samples of the new kind. These and the strengths are ours: the paper has no such experiment."""
STRENGTHS = {"small": (4,), "paper": (2, 4)}
TEST_SEED = 1
"""Of the corruption of the test split; training samples have the run's own."""
_TARGETS = {ANCHOR: "anchor", ONLINE: "online"}
"""Arm → ``targets`` of ``frpt.post_train``; without, targets are written once before the run."""


@dataclass(frozen=True)
class AdaptationJob(PostTrainingJob):
    """A run on ``size`` labelled samples of the new kind, drawn by the seed from the training split."""

    corruption: str = "noise"
    strength: int = 3
    size: int = 500


def adaptation(bench: Workbench) -> ExperimentReport:
    """All arms over kinds, strengths, sizes of the new set and seeds."""
    dataset, options = bench.figure_dataset, bench.options
    lab = bench.lab(dataset)
    model = (options.models or ("simple_cnn",))[0]
    start = bench.starting_models(lab, dataset, model, bench.recipe(dataset, model, small=8))[-1]
    sizes = SIZES[options.scale]
    strengths = STRENGTHS[options.scale]
    layers = options.layers or ("2",)
    jobs = [
        AdaptationJob(
            dataset, model, layer, 0.0 if arm == BACKPROP else c, seed, arm, _preset(arm), _embed(arm), start.name,
            bench.epochs(10, 20), 32, 1e-3, kind, strength, size,
        )
        for seed in bench.seeds(2, 5) for layer in layers for kind in KINDS for strength in strengths for size in sizes
        for arm in ARMS for c in ([c for c in options.c_rec if c] or (0.3,))
    ]  # fmt: skip
    largest = len(lab.split(dataset, "train"))
    if max(sizes) > largest:
        raise OptionError(f"the new set would have {max(sizes)} samples, the training split has {largest}")
    table = RunsTable(bench.folder / "runs.csv")
    frame = bench.work_off(list({job.key: job for job in jobs}.values()), partial(run, lab), table)
    shown = SET_NAMES[dataset]
    title = f"Adaptation on {shown}"
    report = ExperimentReport(title, [f"{100 * start.accuracy:.2f} % on the old distribution, checkpoint {start.name}"])
    report.tables = [
        summary(frame, "adaptation", title),
        means(frame, "adaptation-means", f"{title}: means over kinds and strengths"),
        against(frame, "adaptation-paired", f"{title}: differences"),
    ]
    percent = frame.assign(**{c: 100 * frame[c] for c in ("new", "old", "new_start", "old_start")})
    report.figures["adaptation"] = figures.adaptation(percent, title)
    return report


def run(lab: Lab, job: AdaptationJob) -> list[Row]:
    """One run, one row: accuracies in [0, 1] after the last epoch and before, samples fixed and broken."""
    begun = time.perf_counter()
    rev = lab.reverser(job)
    train, test = lab.split(job.dataset, "train"), lab.split(job.dataset, "test")
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed_of(job.seed, job.size)))
    x, y = corrupted(train.select(order[: job.size]), job.corruption, job.strength, job.seed)
    before = {"new": _before(lab, _start(job), job.corruption, job.strength), "old": _before(lab, _start(job), "", 0)}
    result = post_trained(
        rev, TensorDataset(x, y), layer_of(rev.model, job), targets=_TARGETS.get(job.arm), c_rec=job.c_rec,
        epochs=job.epochs, seed=job.seed, batch_size=job.batch_size, lr=job.lr,
    )  # fmt: skip
    row: dict[str, float | int | str | None] = {}
    for name, data in _tests(lab, job).items():
        after = _right(result.model, *data)
        row |= {f"{name}_start": float(before[name].double().mean()), name: float(after.double().mean())}
        row |= {
            f"{name}_fixed": int((after & ~before[name]).sum()),
            f"{name}_broken": int((before[name] & ~after).sum()),
        }
    return [{**row, "tested": len(test), "wall": round(time.perf_counter() - begun, 3)}]


def summary(frame: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """Accuracy on both distributions, mean ± std over seeds; the best arm on each in bold."""
    keys = ["l_r", "corruption", "strength", "size"]
    rows: list[list[Cell | str]] = []
    for key, part in _ordered(frame).groupby(keys, sort=False):
        means = part.groupby("arm", sort=False)[["new", "old"]].mean()
        best = {arm: [c for c in means if means[c].idxmax() == arm] for arm in means.index}
        for arm, own in part.groupby("arm", sort=False):
            cells = [
                Cell(mean=100 * own[c].mean(), std=100 * (own[c].std() if len(own) > 1 else 0.0), bold=c in best[arm])
                for c in ("new", "old")
            ]
            counts = [f"{own[c].mean():.1f}" for c in ("new_fixed", "new_broken", "old_fixed", "old_broken")]
            starts = f"{100 * own['new_start'].mean():.2f}"
            rows.append([*(str(k) for k in key), starts, arm, *cells, *counts])
    head = ["l_R", "Corruption", "Strength", "Samples", "Before", "Arm", "New, %", "Old, %", "New fixed", "New broken"]
    data = frame.drop(columns=["job", "row", "rows"])
    note = "Test accuracy after the last epoch, mean ± std over seeds; test samples fixed and broken against the start."
    return PrintedTable(name, title, [*head, "Old fixed", "Old broken"], rows, data, note, spans=5)


def means(frame: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """Accuracy and flips of each arm over all kinds and strengths at once, ± over seeds."""
    flips = ["new_fixed", "new_broken", "old_fixed", "old_broken"]
    keys = ["l_r", "size", "arm"]
    by = _ordered(frame).groupby([*keys, "seed"], sort=False)[["new_start", "new", "old", *flips]].mean().reset_index()
    rows: list[list[Cell | str]] = []
    for key, part in by.groupby(keys, sort=False):
        start, new, old = (100 * part[c] for c in ("new_start", "new", "old"))
        cells = [Cell(mean=v.mean(), std=v.std() if len(v) > 1 else 0.0) for v in (new, old)]
        rows.append(
            [*map(str, key[:2]), f"{start.mean():.2f}", key[2], *cells, *(f"{part[c].mean():.0f}" for c in flips)]
        )
    head = ["l_R", "Samples", "Before", "Arm", "New, %", "Old, %", "New fixed", "New broken", "Old fixed", "Old broken"]
    note = "Each seed's mean over kinds and strengths first, then mean ± std over seeds."
    return PrintedTable(name, title, head, rows, by, note, spans=3)


def against(frame: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """FR-PT and anchor-only against back-propagation, and FR-PT against anchor-only, over all kinds at once.

    A pair is one kind, strength and seed; the interval is over seeds, each the mean of its kinds and strengths.
    """
    import pandas as pd

    pairs = [(ANCHOR, BACKPROP), (FRPT, BACKPROP), (ONLINE, BACKPROP), (FRPT, ANCHOR), (ONLINE, ANCHOR)]
    rows, data = [], []
    by = frame.groupby(["l_r", "size", "arm", "seed"])[["new", "old"]].mean() * 100
    for (layer, size), part in by.groupby(level=[0, 1], sort=False):
        for arm, other in pairs:
            if len(part.loc[(layer, size, arm)]) < 2:
                continue
            cells = []
            for which in ("new", "old"):
                a, b = (part.loc[(layer, size, one)][which].sort_index().to_numpy() for one in (arm, other))
                p = stats.paired(a, b)
                cells.append(interval(p.delta, *p.ci))
                row = {"l_R": layer, "size": size, "arm": arm, "against": other, "distribution": which, "n": p.n}
                data.append(row | {"delta": p.delta, "low": p.ci[0], "high": p.ci[1], "p_t": p.p_t})
            rows.append([str(layer), str(size), f"{arm} − {other}", *cells])
    note = "Percentage points, paired by seed, mean over kinds and strengths, 95 % bootstrap intervals over seeds."
    return PrintedTable(name, title, ["l_R", "Samples", "Arms", "New", "Old"], rows, pd.DataFrame(data), note, spans=2)


def _preset(arm: str) -> str:
    return {FRPT: "default", ONLINE: "online"}.get(arm, "")


def _embed(arm: str) -> str:
    return "nearest" if arm in (FRPT, ONLINE) else ""


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    arms, kinds = frame["arm"].map(ARMS.index), frame["corruption"].map(list(KINDS).index)
    frame = frame.assign(_l=frame["l_r"].map(layer_order), _k=kinds, _a=arms)
    frame = frame.sort_values(["_l", "_k", "strength", "size", "_a", "seed"], kind="stable")
    return frame.drop(columns=["_l", "_k", "_a"])


def _tests(lab: Lab, job: AdaptationJob) -> dict[str, tuple[Tensor, Tensor]]:
    return {"new": _test(lab, job.dataset, job.corruption, job.strength), "old": _test(lab, job.dataset, "", 0)}


@lru_cache(maxsize=3)
def _test(lab: Lab, dataset: str, kind: str, strength: int) -> tuple[Tensor, Tensor]:
    """The test split as it is, or corrupted; kept for the next job."""
    images = lab.split(dataset, "test")
    return corrupted(images, kind, strength, TEST_SEED) if kind else images.tensors


def _start(job: PostTrainingJob) -> PostTrainingJob:
    """The same for all jobs that start from one model, so that what is measured on it is cached once."""
    return PostTrainingJob(job.dataset, job.model, job.l_r, 0.0, 0, BACKPROP, "", "", job.checkpoint)


@lru_cache(maxsize=16)
def _before(lab: Lab, start: PostTrainingJob, kind: str, strength: int) -> Tensor:
    """Which test samples the starting model classifies correctly."""
    return _right(lab.model(start), *_test(lab, start.dataset, kind, strength))


@torch.no_grad()
def _right(model: nn.Module, x: Tensor, y: Tensor, batch: int = 512) -> Tensor:
    """(n,) bool: which samples are classified correctly."""
    model.eval()
    device = next(model.parameters()).device
    predicted = [model(part.to(device)).argmax(1).cpu() for part in x.split(batch)]
    return torch.cat(predicted) == y
