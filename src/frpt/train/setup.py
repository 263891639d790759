"""From what the user passed to a run that is ready: model copied and split, targets found or written, all checked."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from frpt.datasets.source import spread
from frpt.errors import InputError, OptionError, TapError
from frpt.graph.inputs import Inputs, pick
from frpt.reverser import Reverser
from frpt.solvers.blocks.mean_jacobian import MeanJacobian
from frpt.targets import TargetDataset, TargetStore, write_targets
from frpt.train.balance import LossBalance
from frpt.train.data import MapStyle, as_taken, check_dataset, fetch, on_device
from frpt.train.devices import make_fabric
from frpt.train.freeze import Frozen, freeze
from frpt.train.metrics import Metric, check_labels, metric_of, task_loss
from frpt.train.objective import Objective, Supervision
from frpt.train.settings import Places, Settings
from frpt.train.sources import Anchor, Online, Source, Stored
from frpt.train.tap import FeatureTap

ONLINE, ANCHOR = "online", "anchor"
_LOOKS = 64
"""Validation samples whose labels are looked at before any work."""
Targets = str | Path | TargetStore | None


@dataclass(frozen=True)
class Job:
    """What was asked for. rev: a Reverser on the starting model that is there already."""

    model: nn.Module
    dataset: MapStyle
    at: str
    settings: Settings
    targets: Targets = None
    val: MapStyle | None = None
    store: str | Path | None = None
    places: Places = field(default_factory=Places)
    fabric: Fabric | None = None
    rev: Reverser | None = None

    @property
    def kind(self) -> str:
        """Where targets come from, in a word."""
        if self.settings.c_rec == 0:
            return "none"
        return str(self.targets) if self.targets in (ONLINE, ANCHOR) else "offline"


@dataclass(frozen=True)
class Ready:
    """Everything a run needs. model: the copy that is trained; stored: the targets on disk that batches bring along."""

    job: Job
    fabric: Fabric
    model: nn.Module
    frozen: Frozen
    objective: Objective
    metric: Metric
    stored: TargetStore | None


def prepare(job: Job, stack: ExitStack) -> Ready:
    """Check everything, copy the model, split it and find its targets. What must be cleaned up goes on the stack."""
    s = job.settings
    check_dataset(job.dataset, "data set")
    if s.c_rec and job.targets is not None:
        _check_targets(job.targets)
    fabric = make_fabric(job.fabric, s, job.model)
    model = fabric.to_device(deepcopy(job.model).eval())
    inputs, labels = fetch(job.dataset, range(min(MeanJacobian.samples, len(job.dataset))))
    metric = metric_of(s.metric, labels)
    example = on_device(Inputs.of(inputs), fabric.device)
    with torch.no_grad():
        out = pick(model(*example.args, **example.kwargs), s.output)
    check_labels(labels, out, "the data set")
    if job.val is not None:
        check_dataset(job.val, "validation set")
        _, labels = fetch(job.val, spread(len(job.val), _LOOKS))
        check_labels(labels, out[:1].expand(len(labels), *out.shape[1:]), "the validation set")
    rev = job.rev or make_reverser(model, example, s, job.targets)
    if next(rev.model.parameters()).device != fabric.device:
        rev = rev.on(model)
    _check_tap(model, rev, job.at, example, out)
    frozen = freeze(model, rev, job.at)
    stack.callback(frozen.restore)
    stored = _store(job, rev, fabric, stack)
    objective = Objective(fabric, s.task_loss or task_loss, s.output, _supervision(job, model, rev, stored, stack))
    return Ready(job, fabric, model, frozen, objective, metric, stored)


def shared_targets(job: Job, stack: ExitStack) -> tuple[Fabric, Reverser, TargetStore | None]:
    """The devices, a Reverser on a copy of the starting model and the targets, for many runs from the same start."""
    check_dataset(job.dataset, "data set")
    fabric = make_fabric(job.fabric, job.settings, job.model)
    model = fabric.to_device(deepcopy(job.model).eval())
    inputs, _ = fetch(job.dataset, range(min(MeanJacobian.samples, len(job.dataset))))
    rev = make_reverser(model, on_device(Inputs.of(inputs), fabric.device), job.settings, job.targets)
    freeze(model, rev, job.at).restore()
    return fabric, rev, _store(job, rev, fabric, stack)


def make_reverser(model: nn.Module, example: Inputs, s: Settings, targets: Targets) -> Reverser:
    """A Reverser with the options of a run."""
    preset = s.preset or (ONLINE if targets == ONLINE else "default")
    return Reverser(
        model, as_taken(example), output=s.output, preset=preset, embed=s.embed, margin=s.margin, reference=s.reference
    )


def _check_tap(model: nn.Module, rev: Reverser, at: str, example: Inputs, out: Tensor) -> None:
    """Refuse a layer whose value in the graph is not what its module returns: the rest, run on from it, must agree."""
    rev.shape(at)
    with FeatureTap(model, at) as tap, torch.no_grad():
        model(*example.args, **example.kwargs)
        try:
            again = rev.run(as_taken(example), at, tap.value)
        except InputError as error:
            raise TapError(f"the module {at!r} returns something else than the layer of that name: {error}") from error
    if not torch.allclose(again, out, rtol=1e-3, atol=1e-3 * float(out.abs().max())):
        raise TapError(
            f"running on from what the module {at!r} returns does not give the model's output, so its value cannot be "
            "supervised there. Choose a module around it or after it."
        )


def _store(job: Job, rev: Reverser, fabric: Fabric, stack: ExitStack) -> TargetStore | None:
    """The store named, or one written now; None where targets do not come from disk."""
    if job.settings.c_rec == 0 or job.targets in (ONLINE, ANCHOR):
        return None
    if job.targets is not None:
        store = job.targets if isinstance(job.targets, TargetStore) else TargetStore(job.targets)
    else:
        store = _write(job, rev, fabric, stack)
    store.check(rev, dataset_length=len(job.dataset), at=job.at)
    TargetDataset(job.dataset, store, job.at)
    return store


def _check_targets(targets: str | Path | TargetStore) -> None:
    if targets not in (ONLINE, ANCHOR) and not isinstance(targets, TargetStore) and not Path(targets).exists():
        raise OptionError(
            f"targets={str(targets)!r} is no target store; pass the directory of one (frpt.write_targets), "
            f'"{ONLINE}", "{ANCHOR}", or None to have targets written first'
        )


def _write(job: Job, rev: Reverser, fabric: Fabric, stack: ExitStack) -> TargetStore:
    """Write the targets, each process its share, into ``store`` or a directory that goes when the run ends."""
    path: Any = job.store
    if path is None:
        if getattr(fabric.strategy, "num_nodes", 1) > 1:
            raise OptionError("several hosts need a directory that all of them see: pass store=")
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="frpt-")) if fabric.is_global_zero else ""
        path = fabric.broadcast(made)
        stack.push(lambda kind, error, trace: fabric.barrier() if kind is None else None)
    written = write_targets(
        rev, job.dataset, job.at, path, workers=job.settings.workers,
        rank=fabric.global_rank, world=fabric.world_size, progress=job.settings.progress,
    )  # fmt: skip
    fabric.barrier()
    return written


def _supervision(
    job: Job, model: nn.Module, rev: Reverser, stored: TargetStore | None, stack: ExitStack
) -> Supervision | None:
    s = job.settings
    if s.c_rec == 0:
        return None
    samples = rev.batch_axis(job.at)
    source: Source
    if job.targets == ONLINE:
        source = Online(rev if rev.model is model else rev.on(model), job.at, samples)
        source.rev.plan(job.at)
    elif job.targets == ANCHOR:
        source = Anchor(model, job.at, samples)
    else:
        assert stored is not None
        source = Stored(Anchor(model, job.at, samples) if stored.mode == "delta" else None)
    tap = stack.enter_context(FeatureTap(model, job.at))
    return Supervision(tap, samples, source, LossBalance(s.c_rec), s.every if job.targets == ONLINE else 1)
