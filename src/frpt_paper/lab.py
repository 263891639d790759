"""One post-training run of a grid: its data, its checkpoint, its targets; and what is written before the runs start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from frpt.data import Images, load
from frpt.embed import Embed
from frpt.errors import OptionError
from frpt.reverser import Reverser
from frpt.solvers.blocks.mean_jacobian import MeanJacobian
from frpt.targets import write_targets
from frpt.train import post_train
from frpt.train.settings import Settings
from frpt.train.setup import ONLINE as FROM_STEP
from frpt_paper.jobs import ANCHOR, BACKPROP, FRPT, ONLINE, Job
from frpt_paper.known import decided
from frpt_paper.pretrain import Recipe
from frpt_paper.recipes import Start, load_start, pretrained, recipe_of
from frpt_paper.results import Results, Row


@dataclass(frozen=True)
class Lab:
    """Where runs read and write. data: a folder with the data sets, or None; train, test: samples taken of the splits.

    A part of a split is drawn by a fixed seed. The object goes to other processes, and ``run`` with it.
    """

    out: Path
    data: Path | None = None
    train: int | None = None
    test: int | None = None

    @property
    def results(self) -> Results:
        """The post-training runs of all experiments."""
        return Results(self.out / "runs.csv")

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def split(self, dataset: str, split: str) -> Images:
        """The split, or as many of its samples as this lab takes."""
        return _split(dataset, split, self.data, self.train if split == "train" else self.test)

    def starts(
        self,
        dataset: str,
        model: str,
        recipe: Recipe | None = None,
        keep: Iterable[int] = (),
        each: Callable[[int, float], None] | None = None,
    ) -> list[Start]:
        """Pretrained checkpoints, made if they are not there; the last is the one after all epochs."""
        recipe = recipe or recipe_of(dataset, model)
        splits = self.split(dataset, "train"), self.split(dataset, "test")
        return pretrained(self.checkpoints, model, *splits, recipe, keep=keep, each=each)

    def model(self, job: Job) -> nn.Module:
        return load_start(self.checkpoints / f"{job.checkpoint}.safetensors", job.model, job.dataset)

    def store(self, job: Job) -> Path:
        """Where the targets of a job are, of anchor-only the starting features; strengths and seeds share them."""
        name = f"{job.l_r}-anchor" if job.arm == ANCHOR else f"{job.l_r}-{job.preset}-{job.embed}"
        return self.out / "targets" / job.checkpoint / name

    def write_stores(self, jobs: Iterable[Job], progress: bool = True) -> None:
        """Write the targets that the jobs read, each once; a store that was begun is completed.

        Dense ones: rows that are the starting model's features would cost a forward pass in every epoch of every run.
        """
        stores = {self.store(job): job for job in jobs if job.arm in (ANCHOR, FRPT)}
        for path, job in stores.items():
            rev = self.reverser(job)
            write_targets(
                rev, self.split(job.dataset, "train"), layer_of(rev.model, job), path, mode="dense", progress=progress
            )

    def reverser(self, job: Job) -> Reverser:
        """On the model a job starts from; made once per process for all its layers, strengths and seeds."""
        embed = _unchanged if job.arm == ANCHOR else job.embed or "nearest"
        return _reverser(self, job.dataset, job.model, job.checkpoint, job.preset or "default", embed)

    def run(self, job: Job) -> list[Row]:
        """Post-train once; a row per epoch. metric, start: accuracy on the test split after and before, in [0, 1].

        seconds: of the epoch's training steps; wall: of the whole run, tests included; both 0 where another run has
        decided the numbers (``known``).
        """
        known = decided(job, self.results.frame())
        if known:
            return known
        begun = time.perf_counter()
        rev = self.reverser(job)
        targets: str | Path | None = None
        if job.arm != BACKPROP:
            targets = FROM_STEP if job.arm == ONLINE else self.store(job)
        model = deepcopy(rev.model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        result = post_train(
            model, self.split(job.dataset, "train"), layer_of(model, job), targets=targets,
            val=self.split(job.dataset, "test"), c_rec=job.c_rec, epochs=job.epochs, seed=job.seed,
            batch_size=job.batch_size, optimizer=partial(_adamw, job.lr), reverser=rev, progress=False,
        )  # fmt: skip
        wall = round(time.perf_counter() - begun, 3)
        return [
            {"epoch": e.epoch, "metric": e.metric, "start": result.start, "fixed": e.fixed, "broken": e.broken,
             "task_loss": e.task_loss, "rec_loss": e.rec_loss, "weight": e.weight, "deviation": e.deviation,
             "seconds": round(e.seconds, 3), "wall": wall}
            for e in result.history
        ]  # fmt: skip


def layer_of(model: nn.Module, job: Job) -> str:
    """The layer's name in the model; the zoo's models know the paper's numbers."""
    layers: dict[str, str] = model.layers  # type: ignore[assignment]
    if job.l_r not in layers:
        raise OptionError(f"{job.model} on {job.dataset} has no l_R {job.l_r!r}: there are {', '.join(layers)}")
    return layers[job.l_r]


def _adamw(lr: float, parameters: Iterable[nn.Parameter]) -> AdamW:
    """What ``post_train`` uses, in one call a step."""
    return AdamW(parameters, lr=lr, weight_decay=Settings.weight_decay, fused=True)


def _unchanged(output: Tensor, labels: Tensor) -> Tensor:
    """No label: the target of every layer is its own feature."""
    return output


@lru_cache(maxsize=4)
def _reverser(lab: Lab, dataset: str, model: str, checkpoint: str, preset: str, embed: str | Embed) -> Reverser:
    start = load_start(lab.checkpoints / f"{checkpoint}.safetensors", model, dataset)
    data = lab.split(dataset, "train")
    return Reverser(start, data.take(torch.arange(min(MeanJacobian.samples, len(data))))[0], preset=preset, embed=embed)


@lru_cache(maxsize=4)
def _split(dataset: str, split: str, folder: Path | None, count: int | None) -> Images:
    """Read once per process."""
    images = load(dataset, split, None if dataset == "digits" else folder)
    if count is None or count >= len(images):
        return images
    return images.select(torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count])
