"""The planners' laboratory: synthetic scenes, a pretrained planner, targets, and one post-training run.

``experiments.driving_planners`` builds a ``PlannerLab``; ``sweep`` calls ``run`` for every job, in this process or in
others, and ``planner_repairs`` uses the same laboratory. Scenes are synthetic: scores say nothing of NAVSIM's.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import frpt
from frpt import zoo
from frpt.driving import DrivingData, Scene, score
from frpt.errors import OptionError
from frpt.zoo.planner import WIDTH, ViT
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT, PostTrainingJob, seed_of
from frpt_paper.runs.lab import EXAMPLES, layer_of, unchanged
from frpt_paper.runs.pretraining import Recipe
from frpt_paper.runs.runs_table import Row, RunsTable, decided
from frpt_paper.runs.starting_models import load_weights, save_weights, write_file

TRAIN, TEST, FRESH = 0, 1, 2
"""Seeds of the sets of scenes: to train on, to score on, to look for failures in."""
SCORES = ("NC", "DAC", "EP", "TTC", "C", "DDC", "PDMS")
_KEPT = (*SCORES[:-1], "ADE")
"""Per scene in the table of runs; PDMS follows from them."""
WEIGHT_DECAY = 1e-2
"""Of AdamW in post-training: the paper's code."""
ADAM_STEPS = 5
"""Of composite blocks in the paper's code for the planners, where its text (B.1.2) has 20."""
RECIPE = Recipe(batch_size=32, lr=1e-3, weight_decay=1e-4)
"""Base training. The paper's has batches of 128, rate 1e-4 and 1e-5 in the backbone, which is pretrained there; here
all weights are random at first, and a set of a thousand scenes has few batches."""
REFERENCE_SAMPLES = 512
REFERENCE = "reference"
"""Name of the preset "default" with a reference."""

Values = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class PlannerJob(PostTrainingJob):
    """A post-training run on the first ``train`` scenes, scored on ``test`` others; images (height, width)."""

    train: int = 256
    test: int = 320
    height: int = 32
    width: int = 128


def _small() -> zoo.Planner:
    """The ResNet planner with one block in each stage instead of 3, 4, 6, 3: a fifth of the work."""
    model = zoo.planner("resnet34")
    model.backbone = zoo.ResNet((1, 1, 1, 1), "imagenet", 1000)
    return model


def _small_vit() -> zoo.Planner:
    """The ViT planner with 4 blocks of width 192 instead of 12 of 768, for images of 32×128.

    Patches of 8 pixels make 4 × 16 tokens, each with its own patch; those of 16 would leave 2 × 8. Everything else is
    the paper's.
    """
    options = zoo.PlannerOptions(grid=(4, 16))
    layers = {
        "ViT encoder layer 2 output": "backbone.blocks.2",  # counted from zero: the last but one, as the paper's
        "ViT final CLS token": "backbone.token",
        "image embedding": "project",
    }
    backbone = ViT(options.grid, width=192, heads=3, depth=4, dropout=options.dropout, patch=8)
    return zoo.Planner(backbone, nn.Linear(192, WIDTH), options, layers)


OWN_LAYERS = {"vit4": {"ViT encoder layer 10 output": "ViT encoder layer 2 output"}}
"""A smaller planner → the paper's name of a layer → the planner's own, of the layer at the same place."""
PLANNERS: dict[str, Callable[[], zoo.Planner]] = {
    "resnet10": _small,
    "vit4": _small_vit,
    "resnet34": partial(zoo.planner, "resnet34"),
    "vit_b16": partial(zoo.planner, "vit_b16"),
}
"""Names of models in experiments → an untrained planner."""


@dataclass(frozen=True)
class PlannerLab:
    """Where runs read and write, and how large they are. Frozen and hashable: it goes to other processes.

    train: scenes of pretraining; part: the first of these, for post-training; test, fresh: scenes of the other sets.
    """

    out: Path
    model: str
    train: int
    part: int
    test: int
    fresh: int
    size: tuple[int, int]
    epochs: int

    def __post_init__(self) -> None:
        if self.model not in PLANNERS:
            raise OptionError(f"unknown model {self.model!r}: there are {', '.join(PLANNERS)}")

    @property
    def table(self) -> RunsTable:
        return RunsTable(self.out / "driving" / "runs.csv")

    def data(self, seed: int, count: int) -> DrivingData:
        """The first scenes of a set, made once and kept on disk."""
        return _data(self.out / "scenes", seed, count, self.size)

    def pretrained(self, progress: bool = True) -> str:
        """Name of the planner's checkpoint; it is trained first if it is not there, and goes on if it was stopped."""
        settings: dict[str, Any] = {"model": self.model, "train": self.train, "size": self.size, "test": self.test}
        settings |= {"epochs": self.epochs, "recipe": asdict(replace(RECIPE, epochs=self.epochs)), "seed": 0}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        folder = self.out / "checkpoints"
        index = folder / f"driving-{self.model}-{digest}.json"
        if index.is_file():
            return str(json.loads(index.read_text())["name"])
        folder.mkdir(parents=True, exist_ok=True)
        begun = folder / f"driving-{self.model}-{digest}-partial"
        result = frpt.post_train(
            _fresh_planner(self.model), self.data(TRAIN, self.train), "out", c_rec=0, val=self.data(TEST, self.test),
            partial=begun, progress=progress, epochs=self.epochs, batch_size=RECIPE.batch_size, task_loss=F.l1_loss,
            metric="ade", optimizer=_base_optimizer, schedule=_cosine, batch_norm="train",
        )  # fmt: skip
        history = [row.metric for row in result.history]
        name = save_weights(folder, "driving", self.model, result.model, float(history[-1] or 0.0))
        write_file(index, json.dumps({**settings, "name": name, "ade": history}, indent=1).encode())
        shutil.rmtree(begun)
        return name

    def planner(self, checkpoint: str) -> nn.Module:
        """The pretrained planner, in eval mode."""
        path = self.out / "checkpoints" / f"{checkpoint}.safetensors"
        return load_weights(path, _fresh_planner(self.model), f"the planner {self.model}")

    def reverser(self, job: PostTrainingJob) -> frpt.Reverser:
        """On the planner a job starts from; made once per process for all its layers, strengths and seeds."""
        kind = ANCHOR if job.arm == ANCHOR else "paper" if job.preset == "paper" else "default"
        return _reverser(self, job.checkpoint, kind)

    def store(self, job: PostTrainingJob) -> Path:
        """Where a job's targets are; strengths and seeds share them."""
        kind = "anchor" if job.arm == ANCHOR else job.preset
        return self.out / "targets" / job.checkpoint / f"{job.l_r.replace(' ', '-')}-{kind}-{self.part}"

    def write_stores(self, jobs: Iterable[PostTrainingJob], progress: bool = True) -> None:
        """Write the targets that the jobs read, each once; a store that was begun is completed."""
        for path, job in {self.store(job): job for job in jobs if job.arm in (ANCHOR, FRPT)}.items():
            rev = self.reverser(job)
            reference = self.reference(rev, job) if job.preset == REFERENCE else None
            frpt.write_targets(
                rev, self.data(TRAIN, self.part), layer_of(rev.model, job), path, mode="dense", reference=reference,
                progress=progress,
            )  # fmt: skip

    def reference(self, rev: frpt.Reverser, job: PostTrainingJob) -> frpt.Reference:
        """How the layer's features vary over training scenes."""
        data = self.data(TRAIN, self.train)
        layer = layer_of(rev.model, job)
        return frpt.Reference.fit(rev, data, [layer], samples=REFERENCE_SAMPLES, seed=0, progress=False)

    def scored(self, model: nn.Module, seed: int, count: int) -> Values:
        """Scores of the model's plans and their average displacement in metres, for each scene of a set."""
        data = self.data(seed, count)
        plans = _plans(model, data)
        scenes = _scenes(self.out / "scenes", seed, count, self.size)
        rows = [score(scene, plan[None]) for scene, plan in zip(scenes, plans.double().numpy(), strict=True)]
        values: Values = {name: np.concatenate([row[name] for row in rows]) for name in SCORES}
        away = torch.linalg.vector_norm((plans - data.trajectories)[..., :2].double(), dim=-1)
        return {**values, "ADE": away.mean(1).numpy()}

    def before(self, checkpoint: str, seed: int, count: int) -> Values:
        """Scores of the pretrained planner."""
        return _before(self, checkpoint, seed, count)


def run(lab: PlannerLab, job: PlannerJob) -> list[Row]:
    """Post-train once; one row: mean scores on the test scenes, those of every scene, and what training measured.

    wall: of the whole run in seconds; 0 where another run has every number of this one (``decided``).
    """
    rows = decided(job, lab.table.frame())
    if rows:
        return rows
    begun = time.perf_counter()
    rev = lab.reverser(job)
    result = frpt.post_train(
        rev, lab.data(TRAIN, job.train), layer_of(rev.model, job), c_rec=job.c_rec, seed=job.seed,
        targets=None if job.arm == BACKPROP else lab.store(job), epochs=job.epochs, batch_size=job.batch_size,
        lr=job.lr, weight_decay=WEIGHT_DECAY, progress=False, batch_norm="train",
    )  # fmt: skip
    values = lab.scored(result.model, TEST, job.test)
    last = result.last
    weights = [epoch.weight for epoch in result.history]
    return [
        {
            **means(values), "task_loss": last.task_loss, "rec_loss": last.rec_loss,
            "weight": sum(weights) / len(weights), "deviation": last.distance,
            "seconds": round(sum(epoch.seconds for epoch in result.history), 3),
            "wall": round(time.perf_counter() - begun, 3), "scenes": as_text(values),
        }
    ]  # fmt: skip


def as_text(values: Values) -> str:
    """The scores of every scene in one cell of a table: scenes apart by ";", scores by a space."""
    columns = [[f"{v:.4g}" for v in values[name]] for name in _KEPT]
    return ";".join(" ".join(scene) for scene in zip(*columns, strict=True))


def from_text(text: str) -> Values:
    """The inverse of ``as_text``, with PDMS by its definition."""
    rows = np.array([[float(v) for v in scene.split()] for scene in text.split(";")])
    values = {name: rows[:, i] for i, name in enumerate(_KEPT)}
    gated = values["NC"] * values["DAC"]
    return values | {"PDMS": gated * (5 * values["EP"] + 5 * values["TTC"] + 2 * values["C"]) / 12}


def target_quality(lab: PlannerLab, job: PostTrainingJob, count: int = 128) -> dict[str, float]:
    """Of a job's targets on the first scenes: how much of the plan's residual they close, how far they are.

    closed: 1 − ‖label − output of the target‖/‖label − output‖, mean and median. deviation: ‖target − anchor‖/‖anchor‖,
    median.
    """
    rev, data = lab.reverser(job), lab.data(TRAIN, lab.part)
    rows = range(min(count, len(data)))
    x, y = data.__getbatch__(rows)
    layer = layer_of(rev.model, job)
    target = frpt.TargetStore(lab.store(job)).read(layer, rows)[0]
    features, output = rev.values(x, [layer])
    reached = rev.run(x, layer, target)
    closed = 1 - _norm(y - reached) / _norm(y - output)
    deviation = _norm(target - features[layer]) / _norm(features[layer])
    return {
        "closed": float(closed.mean()), "closed_median": float(closed.median()), "deviation": float(deviation.median()),
    }  # fmt: skip


def seconds_of_a_run(lab: PlannerLab, job: PlannerJob) -> float:
    """About how long a post-training run takes here: one step of training and one batch of tests, timed."""
    model = lab.planner(job.checkpoint)
    x, y = lab.data(TRAIN, job.train).__getbatch__(range(min(job.batch_size, job.train)))
    times = []
    for _ in range(2):  # the first is slower
        begun = time.perf_counter()
        F.mse_loss(model.train()(*x), y).backward()
        step = time.perf_counter()
        _plans(model, x)
        times.append((step - begun, time.perf_counter() - step))
    training, testing = (t / len(y) for t in times[-1])
    scene = _scenes(lab.out / "scenes", TEST, job.test, lab.size)[0]
    begun = time.perf_counter()
    score(scene, y[:1].double().numpy())
    return job.epochs * job.train * training + job.test * (testing + time.perf_counter() - begun)


def means(values: Values) -> dict[str, float]:
    """Of every score over the scenes."""
    return {name: float(value.mean()) for name, value in values.items()}


def _norm(value: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(value.flatten(1).double(), dim=1)
    return norm


@torch.no_grad()
def _plans(model: nn.Module, data: DrivingData | Any, batch: int = 64) -> Tensor:
    """(n, 8, 3) the model's plans. data: a set of scenes, or images and status."""
    model.eval()
    if not isinstance(data, DrivingData):
        plans: Tensor = model(*data)
        return plans
    parts = torch.arange(len(data)).split(batch)
    return torch.cat([model(*data.__getbatch__(rows.tolist())[0]) for rows in parts])


def _base_optimizer(parameters: Iterable[nn.Parameter]) -> AdamW:
    return AdamW(parameters, lr=RECIPE.lr, weight_decay=RECIPE.weight_decay)


def _cosine(optimizer: Optimizer, steps: int) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: RECIPE.rate(step, steps))


def _fresh_planner(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(0))
        return PLANNERS[name]().eval()


@lru_cache(maxsize=8)
def _data(folder: Path, seed: int, count: int, size: tuple[int, int]) -> DrivingData:
    return DrivingData(count, seed, size, folder=folder)


@lru_cache(maxsize=2)
def _scenes(folder: Path, seed: int, count: int, size: tuple[int, int]) -> list[Scene]:
    data = _data(folder, seed, count, size)
    return [data.scene(i) for i in range(count)]


@lru_cache(maxsize=4)
def _before(lab: PlannerLab, checkpoint: str, seed: int, count: int) -> Values:
    return lab.scored(lab.planner(checkpoint), seed, count)


@lru_cache(maxsize=4)
def _reverser(lab: PlannerLab, checkpoint: str, kind: str) -> frpt.Reverser:
    """kind: a preset, or anchor-only."""
    x = lab.data(TRAIN, lab.part).__getbatch__(range(min(EXAMPLES, lab.part)))[0]
    model = lab.planner(checkpoint)
    if kind == ANCHOR:
        return frpt.Reverser(model, x, embed=unchanged)
    rev = frpt.Reverser(model, x, preset=kind)
    if kind != "paper":
        return rev
    blocks = replace(rev.preset.composite, method="adam", limits=frpt.Limits(iterations=ADAM_STEPS))
    return frpt.Reverser(model, x, preset=replace(rev.preset, composite=blocks))
