"""The laboratory of one call: its data, checkpoints and targets on disk, and the making of one post-training run.

``Workbench`` builds a ``Lab``; ``sweep`` calls ``Lab.run`` for every job, in this process or in others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

import frpt
from frpt.data import Images, load
from frpt.errors import OptionError
from frpt_paper.runs.augmentation import Draw
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT, ONLINE, PostTrainingJob, ProtocolJob, seed_of
from frpt_paper.runs.pretraining import Recipe, recipe_of
from frpt_paper.runs.protocols import BEFORE, DRAWN
from frpt_paper.runs.runs_table import Row, RunsTable, decided
from frpt_paper.runs.starting_models import StartingModel, load_model, starting_models

WEIGHT_DECAY = 5e-2
"""Of AdamW in every post-training run: ``frpt.post_train``'s default when the runs in ``results/`` were made."""
REFERENCE = "reference"
"""Name of the preset "default" with a reference, ``frpt.Reference.fit`` on what the network is post-trained on."""
EXAMPLES = 8
"""Training samples a Reverser is captured with, as many as it learns blocks' average derivatives from. Another number
may change targets."""


@dataclass(frozen=True)
class Lab:
    """Where runs read and write. data: a folder with the data sets, or None; train, test: samples taken of the splits.

    A part of a split is drawn with a fixed seed. Frozen and hashable: the object goes to other processes, and ``run``
    with it, and models, reversers and splits are cached per process under it.
    """

    out: Path
    data: Path | None = None
    train: int | None = None
    test: int | None = None

    @property
    def table(self) -> RunsTable:
        """The post-training runs of all experiments by our protocol."""
        return RunsTable(self.out / "runs.csv")

    def table_of(self, job: PostTrainingJob) -> RunsTable:
        """Where a job's run is kept: runs of other protocols have more columns."""
        return RunsTable(self.out / "runs-protocol.csv") if isinstance(job, ProtocolJob) else self.table

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def split(self, dataset: str, split: str) -> Images:
        """The split, or as many of its samples as this lab takes."""
        return _split(dataset, split, self.data, self.train if split == "train" else self.test)

    def training_set(self, job: PostTrainingJob) -> Images | Draw:
        """What a job post-trains on: the training split, or its one augmented draw."""
        if isinstance(job, ProtocolJob) and job.images == DRAWN:
            return _drawn(self, job.dataset)
        return self.split(job.dataset, "train")

    def starting_models(
        self,
        dataset: str,
        model: str,
        recipe: Recipe | None = None,
        keep: Iterable[int] = (),
        each: Callable[[int, float], None] | None = None,
    ) -> list[StartingModel]:
        """Pretrained checkpoints, made if they are not there; the last is the one after all epochs."""
        recipe = recipe or recipe_of(dataset, model)
        splits = self.split(dataset, "train"), self.split(dataset, "test")
        return starting_models(self.checkpoints, model, *splits, recipe, keep=keep, each=each)

    def model(self, job: PostTrainingJob) -> nn.Module:
        """The model a job starts from."""
        return load_model(self.checkpoints / f"{job.checkpoint}.safetensors", job.model, job.dataset)

    def store(self, job: PostTrainingJob) -> Path:
        """Where a job's targets are (anchor-only: the starting model's features); strengths and seeds share them."""
        name = f"{job.l_r}-anchor" if job.arm == ANCHOR else f"{job.l_r}-{job.preset}-{job.embed}"
        if isinstance(job, ProtocolJob):
            name = f"{job.images}-{job.features}-{name}"
        return self.out / "targets" / job.checkpoint / name

    def write_stores(self, jobs: Iterable[PostTrainingJob], progress: bool = True) -> None:
        """Write the targets that the jobs read, each once; a store that was begun is completed.

        They are dense. A delta store leaves out samples whose target is the starting model's feature, and would cost a
        forward pass for these in every epoch of every run.
        """
        stores = {self.store(job): job for job in jobs if job.arm in (ANCHOR, FRPT)}
        for path, job in stores.items():
            rev, data = self.reverser(job), self.training_set(job)
            layer = layer_of(rev.model, job)
            reference = None
            if job.preset == REFERENCE:
                reference = frpt.Reference.fit(rev, data, layer, seed=0, progress=False)
            frpt.write_targets(rev, data, layer, path, mode="dense", progress=progress, reference=reference)

    def reverser(self, job: PostTrainingJob) -> frpt.Reverser:
        """On the model a job starts from; made once per process for all its layers, strengths and seeds."""
        embed = unchanged if job.arm == ANCHOR else job.embed or "nearest"
        preset = "default" if job.preset in ("", REFERENCE) else job.preset
        return _reverser(self, job.dataset, job.model, job.checkpoint, preset, embed)

    def run(self, job: PostTrainingJob) -> list[Row]:
        """Post-train once; a row per epoch. metric, start: accuracy on the test split after and before, in [0, 1].

        seconds: of the epoch's training steps; wall: of the whole run, tests included; both 0 where another run has
        every number of this one (``decided``).
        """
        frame = self.table_of(job).frame()
        for same in (job, *self._twins(job)):
            rows = decided(same, frame)
            if rows:
                return rows
        begun = time.perf_counter()
        rev = self.reverser(job)
        targets: str | Path | None = None
        if job.arm != BACKPROP:
            targets = "online" if job.arm == ONLINE else self.store(job)
        result = post_trained(
            _channels_last(rev), self.training_set(job), layer_of(rev.model, job), targets=targets,
            val=self.split(job.dataset, "test"), c_rec=job.c_rec, epochs=job.epochs, seed=job.seed,
            batch_size=job.batch_size, optimizer=partial(_adamw, job.lr),
            whole_train=isinstance(job, ProtocolJob) and job.whole,
        )  # fmt: skip
        wall = round(time.perf_counter() - begun, 3)
        return [
            {"epoch": e.epoch, "metric": e.metric, "start": result.start, "fixed": e.fixed, "broken": e.broken,
             "task_loss": e.task_loss, "rec_loss": e.rec_loss, "weight": e.weight, "deviation": e.distance,
             "seconds": round(e.seconds, 3), "wall": wall}
            for e in result.history
        ]  # fmt: skip

    def _twins(self, job: PostTrainingJob) -> list[PostTrainingJob]:
        """The same job with other presets whose targets are the same, as at l_R = out."""
        if job.arm != FRPT:
            return []
        others = [replace(job, preset=preset) for preset in ("default", "paper", REFERENCE) if preset != job.preset]
        return [other for other in others if _same_targets(self.store(job), self.store(other))]


@lru_cache
def _same_targets(one: Path, other: Path) -> bool:
    """Whether two stores hold the same targets to 1e-5 of their largest entry: single precision rounds to 1e-6."""
    if not (one.is_dir() and other.is_dir()):
        return False
    stores = frpt.TargetStore(one), frpt.TargetStore(other)
    (layer,) = stores[0].layers
    for rows in torch.arange(stores[0].count).split(1024):
        a, b = (store.read(layer, rows.tolist())[0] for store in stores)
        if (a - b).abs().max() > 1e-5 * a.abs().max():
            return False
    return True


def post_trained(rev: frpt.Reverser, dataset: Any, at: str, **options: Any) -> frpt.Result:
    """``frpt.post_train`` of the Reverser's model, without capturing it again and without a bar; batch norm as in the
    paper's code."""
    return frpt.post_train(rev, dataset, at, progress=False, batch_norm="train", **options)


def layer_of(model: nn.Module, job: PostTrainingJob) -> str:
    """The layer's name in the model; the zoo's models know the paper's l_R."""
    before = isinstance(job, ProtocolJob) and job.features == BEFORE
    name = "before_activations" if before and hasattr(model, "before_activations") else "layers"
    layers: dict[str, str] = getattr(model, name)
    if job.l_r not in layers:
        raise OptionError(f"{job.model} on {job.dataset} has no l_R {job.l_r!r}: there are {', '.join(layers)}")
    return layers[job.l_r]


def _adamw(lr: float, parameters: Iterable[nn.Parameter]) -> AdamW:
    """What ``post_train`` uses by default, but fused: one kernel a step, which rounds differently."""
    return AdamW(parameters, lr=lr, weight_decay=WEIGHT_DECAY, fused=True)


def unchanged(output: Tensor, labels: Tensor) -> Tensor:
    """An embedding that asks for nothing: the target of every layer is its own feature."""
    return output


@lru_cache(maxsize=6)
def _reverser(
    lab: Lab, dataset: str, model: str, checkpoint: str, preset: str, embed: str | Callable[[Tensor, Tensor], Tensor]
) -> frpt.Reverser:
    start = load_model(lab.checkpoints / f"{checkpoint}.safetensors", model, dataset)
    data = lab.split(dataset, "train")
    return frpt.Reverser(start, data.take(torch.arange(min(EXAMPLES, len(data))))[0], preset=preset, embed=embed)


@lru_cache(maxsize=6)
def _channels_last(rev: frpt.Reverser) -> frpt.Reverser:
    """The same model laid out channels-last, as most runs in ``results/`` were made; it rounds differently."""
    model = deepcopy(rev.model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return rev.on(model)


@lru_cache(maxsize=2)
def _drawn(lab: Lab, dataset: str) -> Draw:
    """The one draw that all runs on a data set share."""
    return Draw(lab.split(dataset, "train"), seed_of(0, 0, 1))


@lru_cache(maxsize=4)
def _split(dataset: str, split: str, folder: Path | None, count: int | None) -> Images:
    """Read once per process."""
    images = load(dataset, split, None if dataset == "digits" else folder)
    if count is None or count >= len(images):
        return images
    return images.select(torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count])
