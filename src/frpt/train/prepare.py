"""From what the user asked for to a run that is ready: everything checked, the model copied and split, targets at hand.

Called by ``post`` for each run and by ``comparison`` once for what its runs share. What can be refused is refused here,
before the first step.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from frpt.common.checks import check_whole
from frpt.common.imports import without_a_trace
from frpt.common.text import percent
from frpt.datasets.labelled import spread
from frpt.datasets.pairs import fetch
from frpt.errors import BatchNormWarning, FrptError, InputError, OptionError, ProcessError, TapError
from frpt.graph.inputs import Inputs, Picker
from frpt.graph.names import OUTPUT
from frpt.graph.refused import check_copyable, check_kind
from frpt.reverser import Reverser, ReverserOptions, make_reverser
from frpt.solvers.blocks.mean_jacobian import MeanJacobian
from frpt.solvers.variation import check_known
from frpt.targets import TargetStore, write_targets
from frpt.train.batches import MapStyle, as_taken, on_device
from frpt.train.frozen import Frozen, freeze, moved_by_statistics
from frpt.train.metrics import Metric, TaskLoss, check_labels, metric_of, task_loss
from frpt.train.objective import (
    AnchorSupply,
    LossBalance,
    Objective,
    OnlineSupply,
    StoredSupply,
    Supervision,
    TargetSupply,
    check_c_rec,
)
from frpt.train.rehearsal import (
    check_last_batch,
    check_places,
    optimizer_for,
    output_of,
    try_loss,
    try_validation,
)
from frpt.train.resume import Partial
from frpt.train.tap import FeatureTap
from frpt.train.training import Training

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ONLINE, ANCHOR = "online", "anchor"
_AGREE = 1e-3  # of the largest output: another order of sums in single precision stays below, another value does not
_MOVED = 0.05  # share of a feature's norm from which a move by batch statistics is told: a choice
_PRECISIONS = {torch.float64: "64-true", torch.bfloat16: "bf16-true", torch.float16: "16-true"}
_OF_OTHERS = re.compile(
    r"timed? ?out|connection (closed|reset|refused|was)|broken pipe|gloo|nccl|socket", re.IGNORECASE
)
"""In errors of torch.distributed, which are plain RuntimeErrors, that come of another process."""
Targets = str | Path | TargetStore | None


@dataclass(frozen=True)
class Places:
    """Where a run writes.

    store: targets that are written now. log_dir: CSV and TensorBoard logs. partial: what a stopped run continues from.
    """

    store: Path | None = None
    log_dir: Path | None = None
    partial: Path | None = None

    @staticmethod
    def of(store: str | Path | None, log_dir: str | Path | None, partial: str | Path | None) -> Places:
        """Paths from what the user wrote."""
        return Places(*(None if path is None else Path(path) for path in (store, log_dir, partial)))


@dataclass(frozen=True)
class Request:
    """One run as it was asked for. reverser: one on this model or on a copy of it; options: for making one."""

    model: nn.Module
    dataset: MapStyle
    at: str
    c_rec: float = 0.3
    seed: int = 0
    training: Training = field(default_factory=Training)
    targets: Targets = None
    val: MapStyle | None = None
    places: Places = field(default_factory=Places)
    fabric: Fabric | None = None
    reverser: Reverser | None = None
    options: ReverserOptions = field(default_factory=lambda: ReverserOptions())
    progress: bool = True

    def __post_init__(self) -> None:
        check_c_rec(self.c_rec)
        check_whole("seed", self.seed, 0)
        reference = self.options.get("reference")
        if reference is not None:
            if self.targets is not None and self.targets != ONLINE:
                raise OptionError(
                    "reference= belongs to targets made now (targets=None or 'online'), not to those passed"
                )
            check_known(reference, [self.at])

    @property
    def kind(self) -> str:
        """Where targets come from, in a word."""
        if self.c_rec == 0:
            return "none"
        return str(self.targets) if self.targets in (ONLINE, ANCHOR) else "offline"

    @property
    def output(self) -> Picker:
        """Which tensor of the model's output is meant."""
        return self.options.get("output") if self.reverser is None else self.reverser.output

    def reverser_on(self, model: nn.Module, example: Inputs) -> Reverser:
        """The Reverser given, or one on the model with the options given. Online targets: by default the quick preset.

        A Reverser on another device than the model is made again on the model.
        """
        if self.reverser is not None:
            there, here = (next(m.parameters()).device for m in (self.reverser.model, model))
            return self.reverser if there == here else self.reverser.on(model)
        options = self.options.copy()
        if options.get("preset") is None:
            options["preset"] = ONLINE if self.targets == ONLINE else "default"
        return make_reverser(model, as_taken(example), options)


@dataclass(frozen=True)
class Ready:
    """Everything a run needs. model: the copy that is trained; stored: the targets on disk that batches bring along."""

    request: Request
    fabric: Fabric
    model: nn.Module
    reverser: Reverser
    frozen: Frozen
    objective: Objective
    metric: Metric
    stored: TargetStore | None
    optimizer: Optimizer


def prepare(request: Request, stack: ExitStack) -> Ready:
    """Check everything, copy the model, split it and find its targets. What must be cleaned up goes on the stack."""
    t, at, output = request.training, request.at, request.output
    fabric, model, example, labels = _start(request)
    if request.places.partial is not None and fabric.is_global_zero:
        stack.enter_context(Partial(request.places.partial).locked())
    example.check_finite()
    out = output_of(model, example, output)
    check_labels(labels, out, "the data set")
    rev = request.reverser_on(model, example)
    loss, metric = _measures(request, model, rev, out, labels, fabric)
    _check_tap(model, rev, at, example, out)
    frozen = freeze(model, rev, at, whole_train=t.whole_train, batch_norm=t.batch_norm)
    stack.callback(frozen.restore)
    _check_half(fabric, t, frozen)
    optimizer = optimizer_for(t, frozen.trainable())
    check_last_batch(t, model, request.dataset, fabric.world_size, fabric.device)
    _warn_of_statistics(request, model, fabric)
    stored = _store(request, rev, fabric, stack)
    supervision = _supervision(request, model, rev, stored, stack)
    objective = Objective(fabric, loss, output, supervision)
    return Ready(request, fabric, model, rev, frozen, objective, metric, stored, optimizer)


def _measures(
    request: Request, model: nn.Module, rev: Reverser, out: Tensor, labels: Tensor, fabric: Fabric
) -> tuple[TaskLoss, Metric]:
    """The task loss, tried on the first samples where targets are written before its first step; and the metric."""
    t = request.training
    loss = t.task_loss or partial(task_loss, ends=rev.node(OUTPUT)[0].activation()[0])
    metric = metric_of(t.metric, labels, rev.embedder.threshold)
    if request.c_rec and request.targets is None:
        try_loss(loss, out, labels)
    if request.val is not None:
        try_validation(request.val, model, request.output, metric, fabric.device)
    return loss, metric


def shared_targets(request: Request, stack: ExitStack) -> tuple[Fabric, Reverser, TargetStore | None]:
    """The devices, a Reverser on a copy of the starting model and the targets, for many runs from the same start."""
    t = request.training
    fabric, model, example, labels = _start(request)
    example.check_finite()
    out = output_of(model, example, request.output)
    check_labels(labels, out, "the data set")
    rev = request.reverser_on(model, example)
    _measures(request, model, rev, out, labels, fabric)
    with freeze(model, rev, request.at, whole_train=t.whole_train, batch_norm=t.batch_norm) as frozen:
        _check_half(fabric, t, frozen)
        optimizer_for(t, frozen.trainable())
        check_last_batch(t, model, request.dataset, fabric.world_size, fabric.device)
    return fabric, rev, _store(request, rev, fabric, stack)


def _start(request: Request) -> tuple[Fabric, nn.Module, Inputs, Tensor]:
    """(the devices, a copy of the model on them, some inputs there, their labels)."""
    if request.c_rec and request.targets is not None:
        _check_targets(request.targets)
    check_places(request.places.store, request.places.log_dir, request.places.partial)
    check_kind(request.model)
    check_copyable(request.model)
    fabric = make_fabric(request.fabric, request.training, request.model)
    model = fabric.to_device(deepcopy(request.model).eval())
    inputs, labels = fetch(request.dataset, range(min(MeanJacobian.samples, len(request.dataset))))
    return fabric, model, on_device(Inputs.of(inputs), fabric.device), labels


def _check_half(fabric: Fabric, training: Training, frozen: Frozen) -> None:
    """Refuse AdamW, the optimizer by default, on weights in float16."""
    half = fabric.strategy.precision.precision == "16-true"
    half = half or any(p.dtype == torch.float16 for p in frozen.trainable())
    if half and training.optimizer is None:
        raise OptionError(
            "the weights to train are float16, in which AdamW divides by zero: its eps of 1e-8 and squares of small "
            'gradients are 0 there. Train model.float(), on a GPU with precision="16-mixed", or model.bfloat16(); or '
            "pass an optimizer= that float16 is enough for."
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
    if not torch.allclose(again, out, rtol=_AGREE, atol=_AGREE * float(out.abs().max())):
        raise TapError(
            f"running on from what the module {at!r} returns does not give the model's output, so its value cannot be "
            "supervised there. Choose a module around it or after it."
        )


def _warn_of_statistics(request: Request, model: nn.Module, fabric: Fabric) -> None:
    """Say how far features move in train mode, where they are compared with targets that were made in eval mode."""
    if request.c_rec == 0 or request.training.batch_norm == "eval":
        return
    count = min(request.training.batch_size, len(request.dataset))
    batch = on_device(Inputs.of(fetch(request.dataset, spread(len(request.dataset), count))[0]), fabric.device)
    share = moved_by_statistics(model, request.at, batch)
    if share > _MOVED:
        warnings.warn(
            f"batch norm before {request.at!r} in train mode moves its features by {percent(share)} of their norm, "
            'and targets are made in eval mode: pass batch_norm="eval" to train with the statistics that targets were '
            "made with",
            BatchNormWarning,
            stacklevel=2,
        )


def _store(request: Request, rev: Reverser, fabric: Fabric, stack: ExitStack) -> TargetStore | None:
    """The store named, or one written now; None where targets do not come from disk."""
    if request.c_rec == 0 or request.targets in (ONLINE, ANCHOR):
        return None
    if request.targets is not None:
        store = request.targets if isinstance(request.targets, TargetStore) else TargetStore(request.targets)
    else:
        store = _write(request, rev, fabric, stack)
    store.check(rev, dataset=request.dataset, at=request.at)
    store.check_shards(request.progress and fabric.is_global_zero)
    return store


def _check_targets(targets: str | Path | TargetStore) -> None:
    if isinstance(targets, TargetStore) or targets in (ONLINE, ANCHOR):
        return
    if not isinstance(targets, str | Path) or not Path(targets).exists():
        raise OptionError(
            f"targets={str(targets)!r} is no target store; pass the directory of one (frpt.write_targets), "
            f'"{ONLINE}", "{ANCHOR}", or None to have targets written first'
        )


def _write(request: Request, rev: Reverser, fabric: Fabric, stack: ExitStack) -> TargetStore:
    """Write the targets, each process its share, into ``store`` or a directory that goes when the run ends."""
    path: Any = request.places.store
    if path is None:
        if getattr(fabric.strategy, "num_nodes", 1) > 1:
            raise OptionError("several hosts need a directory that all of them see: pass store=")
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="frpt-")) if fabric.is_global_zero else ""
        path = fabric.broadcast(made)
        stack.push(lambda kind, error, trace: fabric.barrier() if kind is None else None)
    written = write_targets(
        rev, request.dataset, request.at, path, workers=request.training.workers,
        rank=fabric.global_rank, world=fabric.world_size, progress=request.progress,
    )  # fmt: skip
    fabric.barrier()
    return written


def _supervision(
    request: Request, model: nn.Module, rev: Reverser, stored: TargetStore | None, stack: ExitStack
) -> Supervision | None:
    if request.c_rec == 0:
        return None
    axis = rev.batch_axis(request.at)
    supply: TargetSupply
    if request.targets == ONLINE:
        supply = OnlineSupply(rev if rev.model is model else rev.on(model), request.at, axis)
        supply.rev.plan(request.at)
    elif request.targets == ANCHOR:
        supply = AnchorSupply(model, request.at, axis)
    else:
        assert stored is not None
        supply = StoredSupply(AnchorSupply(model, request.at, axis) if stored.mode == "delta" else None)
    tap = stack.enter_context(FeatureTap(model, request.at))
    every = request.training.every if request.targets == ONLINE else 1
    return Supervision(tap, axis, supply, LossBalance(request.c_rec), every)


@contextmanager
def other_processes(training: Training) -> Iterator[None]:
    """Says of what torch says of other processes, that have stopped or gone, what that means and what to do."""
    try:
        yield
    except RuntimeError as error:
        there = torch.distributed.is_available()
        together = there and torch.distributed.is_initialized()
        certain = there and isinstance(error, torch.distributed.DistError)  # e.g. one that never came
        if isinstance(error, FrptError) or not (certain or (together and _OF_OTHERS.search(str(error)))):
            raise
        rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "several")
        if together:
            rank, world = str(torch.distributed.get_rank()), str(torch.distributed.get_world_size())
        wait = 1800 if training.timeout is None else training.timeout
        raise ProcessError(
            f"process {rank} of {world} has lost another one, which has not answered for {wait:g} s (timeout=), or has "
            "ended: look at what that one says, whether it was stopped, and at the network between them. With partial= "
            f"the same call goes on from the last state saved. ({error})"
        ) from error


def make_fabric(given: Fabric | None, training: Training, model: nn.Module) -> Fabric:
    """The fabric given, or one as the training says; under torchrun with a process for each of its ranks. Launched."""
    with without_a_trace():  # takes seconds to load: when training begins, and no earlier
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

    fabric = given
    if fabric is None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        world = int(os.environ.get("WORLD_SIZE", local))
        devices = local if training.devices is None else training.devices
        nodes = max(world // max(local, 1), 1)
        several = devices * nodes > 1
        wait = None if training.timeout is None else timedelta(seconds=training.timeout)
        strategy = "auto" if not several else "ddp" if wait is None else DDPStrategy(timeout=wait)
        precision: Any = _precision(training, model)
        try:
            fabric = Fabric(
                accelerator=training.accelerator, devices=devices, num_nodes=nodes, strategy=strategy,
                precision=precision,
            )  # fmt: skip
        except (ValueError, TypeError, RuntimeError) as error:
            raise OptionError(
                f"lightning-fabric refuses accelerator={training.accelerator!r}, devices={devices!r}, "
                f"precision={precision!r}: {error} The default of accelerator= takes what there is."
            ) from error
    if not fabric._launched:
        fabric.launch()
    return fabric


def _precision(training: Training, model: nn.Module) -> str:
    """The precision asked for; without one the model's own."""
    if training.precision is not None:
        return training.precision
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    return "32-true" if first is None else _PRECISIONS.get(first.dtype, "32-true")
