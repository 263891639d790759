"""Adapting a network to a few labelled samples of a new kind, up to one layer, with losses that are put together.

    cross-entropy(new) + pull · F(new) + hold · H

F is the distance of the layer's features to targets, H what keeps the old behaviour: EWC's diagonal metric on the
weights, or distillation on old images. ``experiments.feature_loss`` builds the jobs; all of them take the same samples
in the same order, the same steps of Adam and the same parameters. Instead of the loop, ``frpt.repair`` may answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

import frpt
from frpt.data import Images
from frpt.errors import OptionError
from frpt_paper.experiments.corruptions import corrupted
from frpt_paper.runs.jobs import Job, seed_of
from frpt_paper.runs.lab import EXAMPLES, Lab
from frpt_paper.runs.runs_table import Row
from frpt_paper.runs.starting_models import load_model

OLD = 1000
"""Old images: of the training split, the same for replay, EWC, the reference and the memory of a repair."""
BATCH = 32
"""New images in a step, and as many old ones of replay."""
PARTS = {"choice": (0.0, 0.15, 0.4), "report": (0.4, 0.6, 0.85)}
"""Shares of the test split: labelled samples are drawn before the second, and measured is between it and the third."""
NONE, NEAREST, LIKELIEST, MEANS, ANCHORS = "none", "nearest", "likeliest", "class means", "anchors"
EWC, REPLAY, REPAIR = "EWC", "replay", "repair"


@dataclass(frozen=True)
class AdaptingJob(Job):
    """One network adapted to ``size`` samples of a corruption, drawn by the seed from a part of the test split.

    targets, keep: what F and H are; pull, hold: their strengths; rate: of Adam, falling to zero. measure: of F,
    "relative" to the size of a sample's own feature, or the "reference"'s metric. rest: weight of the samples that are
    right already, beside 1 for those that are corrected, each group as a mean.
    """

    dataset: str
    model: str
    l_r: str
    checkpoint: str
    part: str
    corruption: str
    strength: int
    size: int
    seed: int
    arm: str
    targets: str
    keep: str
    pull: float
    hold: float
    rate: float
    measure: str
    rest: float
    steps: int

    @property
    def place(self) -> Place:
        """What is the same for all jobs of a starting model."""
        return Place(self.dataset, self.model, self.l_r, self.checkpoint)


@dataclass(frozen=True)
class Place:
    """A starting model and a layer of it."""

    dataset: str
    model: str
    l_r: str
    checkpoint: str


@dataclass(frozen=True, eq=False)
class Start:
    """What is known of a starting model before anything new comes: its capture, old images, statistics on these."""

    rev: frpt.Reverser
    at: str
    old: Tensor
    taught: Tensor
    reference: frpt.Reference
    memory: frpt.Memory
    fisher: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Aim:
    """Targets for the layer's features. target, anchor: (n, …); corrected: (n,) bool, whose label did not win."""

    target: Tensor
    anchor: Tensor
    corrected: Tensor


def run(lab: Lab, job: AdaptingJob) -> list[Row]:
    """One job, one row: accuracies in [0, 1] on the measured part, new and old, before and after, and on the samples.

    seconds: of the training or the repair alone; wall: of the whole job.
    """
    begun = time.perf_counter()
    start = start_of(lab, job.place)
    x, y = samples(lab, job)
    clock = time.perf_counter()
    model = repaired(start, job, x, y) if job.keep == REPAIR else trained(start, job, x, y, aim_of(lab, job))
    seconds = time.perf_counter() - clock
    row: dict[str, float | int | str | None] = {"given": float(right(model, x, y).double().mean())}
    for name, kind in (("new", job.corruption), ("old", "")):
        data = measured(lab, job.dataset, job.part, kind, job.strength)
        before, after = _before(lab, job.place, job.part, kind, job.strength), right(model, *data)
        row |= {f"{name}_start": float(before.double().mean()), name: float(after.double().mean())}
        row |= {f"{name}_fixed": int((after & ~before).sum()), f"{name}_broken": int((before & ~after).sum())}
    wall = time.perf_counter() - begun
    return [{**row, "tested": len(before), "seconds": round(seconds, 3), "wall": round(wall, 3)}]


def trained(start: Start, job: AdaptingJob, x: Tensor, y: Tensor, aim: Aim | None) -> nn.Module:
    """A copy of the starting model, trained before the layer for the job's steps."""
    model: nn.Module = deepcopy(start.rev.model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pull = None if aim is None else distance(aim, job.measure, job.rest, start.reference, start.at)
    order, old_order = (
        _batches(n, min(BATCH, n), job.steps, seed_of(job.seed, i)) for i, n in ((1, len(x)), (2, len(start.old)))
    )
    with frpt.freeze(model, start.rev, start.at, batch_norm="train") as frozen, frpt.FeatureTap(model, start.at) as tap:
        optimizer = Adam(frozen.trainable(), lr=job.rate)
        schedule = LambdaLR(optimizer, lambda step: 1 - step / job.steps)
        for rows, old_rows in zip(order, old_order, strict=True):
            optimizer.zero_grad()
            inputs = torch.cat([x[rows], start.old[old_rows]]) if job.keep == REPLAY else x[rows]
            out = model(inputs)
            new = out[: len(rows)]
            loss = F.cross_entropy(new, y[rows])
            if pull is not None and job.pull:
                loss = loss + job.pull * pull(tap.value[: len(rows)], rows)
            if job.keep == REPLAY:
                loss = loss + job.hold * kl(start.taught[old_rows], out[len(rows) :])
            if job.keep == EWC:
                loss = loss + job.hold * moved(start, frozen.parameters)
            loss.backward()
            optimizer.step()
            schedule.step()
        frozen.check()
    return model.eval()


def repaired(start: Start, job: AdaptingJob, x: Tensor, y: Tensor) -> nn.Module:
    """The nearest weights: those before the layer at a strength, by the cross-entropy; or (hold 0) the call as users
    make it, in which all weights may move and a strength is chosen."""
    if not job.hold:
        return frpt.repair(start.rev, x, y, start.memory).model
    modules = sorted({name.rpartition(".")[0] for name in start.rev.upstream(start.at)})
    fix = frpt.repair(start.rev, x, y, start.memory, modules=modules, loss="logistic", strength=job.hold)
    return fix.model


def distance(
    aim: Aim, measure: str, rest: float, reference: frpt.Reference, at: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """F as a function of features (k, …) and which samples they are (k,): Σ_i w_i d_i / k.

    d_i is ‖a − a*‖²/‖â‖², or in the reference's metric the mean square in standard deviations. w_i makes the corrected
    samples count 1 together and the others ``rest``. Where some are corrected, d is divided by their mean at the start,
    so that F begins at 1 whatever the layer and the targets: no bound is needed, and strengths are comparable.
    """
    if measure not in ("relative", "reference"):
        raise OptionError(f"unknown measure {measure!r}: there are relative, reference")
    variation = reference.layers[at]
    size = aim.anchor.flatten(1).square().sum(1)
    size = size.clamp_min(1e-3 * float(size.mean()))

    def squares(feature: Tensor, rows: Tensor) -> Tensor:
        gap = (feature - aim.target[rows]).flatten(1)
        if measure == "reference":
            return variation.whiten(gap).square().mean(1)
        return gap.square().sum(1) / size[rows]

    share = float(aim.corrected.double().mean())
    weight = torch.where(aim.corrected, 1 / max(share, 1e-9), rest / max(1 - share, 1e-9))
    if share > 0:
        everyone = torch.arange(len(aim.target))
        at_start = float(squares(aim.anchor, everyone)[aim.corrected].mean())
        weight = weight / max(at_start, 1e-12)
    return lambda feature, rows: (weight[rows] * squares(feature, rows)).mean()


def kl(taught: Tensor, out: Tensor) -> Tensor:
    """Mean KL of what the outputs are from what they were. taught: (k, c), logarithms of probabilities."""
    return F.kl_div(out.log_softmax(1), taught, reduction="batchmean", log_target=True)


def moved(start: Start, parameters: dict[str, nn.Parameter]) -> Tensor:
    """½ Σ F_jj (W − W₀)_j²."""
    was = dict(start.rev.model.named_parameters())
    terms = [(start.fisher[name] * (p - was[name].detach()).square()).sum() for name, p in parameters.items()]
    return torch.stack(terms).sum() / 2


@lru_cache(maxsize=2)
def start_of(lab: Lab, place: Place) -> Start:
    """Made once per process."""
    model = load_model(lab.checkpoints / f"{place.checkpoint}.safetensors", place.model, place.dataset)
    train = lab.split(place.dataset, "train")
    old = train.select(torch.arange(min(OLD, len(train))))
    x = old.tensors[0].contiguous(memory_format=torch.channels_last)
    rev = frpt.Reverser(model, x[: min(EXAMPLES, len(x))])
    layers: dict[str, str] = model.layers  # type: ignore[assignment]
    if place.l_r not in layers:
        raise OptionError(f"{place.model} has no l_R {place.l_r!r}: there are {', '.join(layers)}")
    at = layers[place.l_r]
    reference = frpt.Reference.fit(rev, old, at, samples=len(old), progress=False)
    memory = frpt.remember(rev, x, samples=len(old), progress=False)
    with torch.no_grad():
        taught = torch.cat([model(part) for part in x.split(500)]).log_softmax(1)
    return Start(rev, at, x, taught, reference, memory, fisher(model, x, taught, rev.upstream(at)))


def fisher(model: nn.Module, x: Tensor, taught: Tensor, names: list[str]) -> dict[str, Tensor]:
    """The diagonal F_jj: mean square of single samples' gradients of −log p(y|x), y drawn from the model itself."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    own = {name: weights[name] for name in names if name in weights}
    drawn = torch.multinomial(taught.exp(), 1, generator=torch.Generator().manual_seed(0))[:, 0]

    def loss(some: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        out = functional_call(model, {**weights, **some}, (image[None],))
        return F.cross_entropy(out, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    sums = {name: torch.zeros_like(p) for name, p in own.items()}
    for images, labels in zip(x.contiguous().split(100), drawn.split(100), strict=True):
        for name, g in each(own, images, labels).items():
            sums[name] += g.square().sum(0)
    return {name: s / len(x) for name, s in sums.items()}


def samples(lab: Lab, job: AdaptingJob) -> tuple[Tensor, Tensor]:
    """The labelled samples of the new kind."""
    x, y = _pool(lab, job.dataset, job.part, job.corruption, job.strength)
    if job.size > len(x):
        raise OptionError(f"{job.size} samples of the new kind are more than the {len(x)} that this part has")
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed_of(job.seed, 0)))[: job.size]
    return x[rows], y[rows]


@lru_cache(maxsize=4)
def _pool(lab: Lab, dataset: str, part: str, kind: str, strength: int) -> tuple[Tensor, Tensor]:
    return _changed(_between(lab, dataset, *PARTS[part][:2]), kind, strength)


@lru_cache(maxsize=4)
def measured(lab: Lab, dataset: str, part: str, kind: str, strength: int) -> tuple[Tensor, Tensor]:
    """What a part is measured on, corrupted or (kind "") as it is."""
    return _changed(_between(lab, dataset, *PARTS[part][1:]), kind, strength)


def _between(lab: Lab, dataset: str, low: float, high: float) -> Images:
    images = lab.split(dataset, "test")
    return images.select(torch.arange(round(low * len(images)), round(high * len(images))))


def _changed(images: Images, kind: str, strength: int) -> tuple[Tensor, Tensor]:
    x, y = corrupted(images, kind, strength) if kind else images.tensors
    return x.contiguous(memory_format=torch.channels_last), y


@lru_cache(maxsize=8)
def _before(lab: Lab, place: Place, part: str, kind: str, strength: int) -> Tensor:
    """Which of the measured samples the starting model classifies correctly."""
    return right(start_of(lab, place).rev.model, *measured(lab, place.dataset, part, kind, strength))


def aim_of(lab: Lab, job: AdaptingJob) -> Aim | None:
    """The targets of a job's samples; None where it has none."""
    if job.targets == NONE:
        return None
    return _aimed(lab, replace(job, arm="", keep=NONE, pull=0.0, hold=0.0, rate=0.0, measure="", rest=0.0, steps=0))


@lru_cache(maxsize=8)
def _aimed(lab: Lab, job: AdaptingJob) -> Aim:
    """Made once for all strengths: the job has only what decides the samples and their targets."""
    start, (x, y) = start_of(lab, job.place), samples(lab, job)
    rev = start.rev.measured_by(start.reference) if job.targets == LIKELIEST else start.rev
    rec = rev.reconstruct(x, y, at=start.at)
    target, corrected = rec.target, rec.corrected
    if job.targets == ANCHORS:
        target, corrected = rec.anchor, torch.zeros_like(rec.corrected)
    if job.targets == MEANS:
        known, means = start.reference.layers[start.at].class_means(y)
        rows = known.nonzero()[:, 0]
        target = rec.anchor.index_copy(0, rows, means.reshape(target.shape)[rows])
    return Aim(target.detach(), rec.anchor.detach(), corrected)


def _batches(count: int, size: int, steps: int, seed: int) -> list[Tensor]:
    """So many batches: permutations one after the other, each cut into batches, what is left over left out."""
    generator, found = torch.Generator().manual_seed(seed), list[Tensor]()
    while len(found) < steps:
        found += [part for part in torch.randperm(count, generator=generator).split(size) if len(part) == size]
    return found[:steps]


@torch.no_grad()
def right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(n,) bool: which samples are classified correctly."""
    return torch.cat([model(part).argmax(1) for part in x.split(500)]) == y
