"""``post_train``: one run, from a trained model to a copy whose part before a layer was trained further.

Users call ``post_train``; ``compare`` and the benchmarks call ``run`` and ``Loop``. The loop measures as it goes, and
continues where a run was stopped to the same numbers: nothing random depends on what came before (``datasets.seeds``).
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from frpt.datasets.labelled import digest_of_data
from frpt.datasets.pairs import CollateFn, pairs_of
from frpt.datasets.seeds import own_random, seed_all
from frpt.errors import NonFiniteError, OptionError
from frpt.files.digest import described, options_of, sha256_of_json, weights_of
from frpt.graph.inputs import pick
from frpt.reverser import Layer, Reverser, ReverserOptions, layer_name, network_of
from frpt.train.batches import Batches, TrainingBatch, order
from frpt.train.metrics import check_labels
from frpt.train.objective import Losses, blame_data
from frpt.train.prepare import ONLINE, Places, Ready, Request, Targets, other_processes, prepare
from frpt.train.result import Epoch, Result, RunLog, Tally
from frpt.train.resume import Partial, damaged
from frpt.train.training import ShortOptions, Training, sort_options

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_VAL = 2**32
"""Stands for the epoch in the random stream of the validation set; no run has so many."""


def post_train(
    model: nn.Module | Reverser,
    dataset: Any,
    at: Layer,
    *,
    targets: Targets = None,
    c_rec: float = 0.3,
    val: Any = None,
    seed: int = 0,
    training: Training | None = None,
    store: str | Path | None = None,
    log_dir: str | Path | None = None,
    partial: str | Path | None = None,
    collate_fn: CollateFn | None = None,
    fabric: Fabric | None = None,
    progress: bool = True,
    **options: Unpack[ShortOptions],
) -> Result:
    """Train a copy of a model before the layer ``at`` on task loss + λ · MSE(target, feature); the rest stays.

    λ follows moving averages of both losses (``LossBalance``). ``c_rec=0`` is the matched back-propagation run: the
    same seed, order of samples and trained parameters, and no targets.

    Args:
        model: the trained network, or a Reverser on it. It is not changed: a copy is trained.
        dataset: map-style, its items pairs (inputs, label) or dicts with a label; or a ``DataLoader`` of such a data
            set, whose collate_fn, batch size and workers are taken over, and not its order. No stream: samples are
            asked for again in every epoch.
        at: the layer, by name or as the module itself; the parameters its value depends on are trained.
        targets: where targets come from. A store or its directory (``write_targets``); None: reconstructed once before
            training; "online": reconstructed in each step from its feature; "anchor": the starting model's own
            features, without any label.
        c_rec: strength of the feature supervision, 0 to 1.
        val: a data set like ``dataset`` to measure the metric on, before training and after every epoch.
        seed: of the order of samples and of everything random.
        training: everything else about the training; see ``Training``.
        store: where to keep targets that are reconstructed now; by default they go when the run ends.
        log_dir: a directory for CSV and TensorBoard logs.
        partial: a directory for the half-done run. The same call goes on from there after an interruption, to the same
            numbers.
        collate_fn: makes a batch (inputs, labels), or a dict, of a list of items of ``dataset`` and of ``val``; by
            default torch's own, for items of equal shape.
        fabric: a lightning-fabric to run on, instead of one made as ``training`` says.
        progress: show a bar.
        **options: fields of ``Training`` by name, which replace those of ``training``; and, where ``model`` is no
            Reverser, options of ``Reverser``. The preset is by default "online" for online targets.

    Returns:
        The trained copy, and what every epoch measured.

    Raises:
        CaptureError: for a model that no graph can be made of, as ``Reverser`` raises it.
        OptionError: for an option that does not exist or is out of range, and for options of a Reverser beside one; for
            a model that cannot be copied; for float16 weights without an optimizer of one's own.
        InputError: for a data set that is not map-style, and for inputs that the model does not take.
        LabelError: for labels that the model has no output for.
        FreezeError: if the network cannot be split at the layer.
        StoreMismatchError: for targets of another model or data set.
        PartialError: for a half-done run that was started differently.
        NonFiniteError: if training diverges, and for NaN in either data set.
        ProcessError: if another process of the run has stopped or ended.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> data = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.arange(48) % 3)
        >>> result = frpt.post_train(model, data, at="1", c_rec=0.3, epochs=2, lr=1e-2, val=data, progress=False)
        >>> result.last.epoch, result.last.task_loss < result.history[0].task_loss
        (2, True)
        >>> torch.equal(result.model[2].weight, model[2].weight)  # after the layer: not trained
        True
    """
    how, given = sort_options(training, options, dataset)
    network = network_of(model, given, ReverserOptions.__annotations__)
    dataset, val = training_pairs(network, collate_fn, dataset, val)
    places = Places.of(store, log_dir, partial)
    reverser = model if isinstance(model, Reverser) else None
    layer = layer_name(network, at)
    return run(
        Request(network, dataset, layer, c_rec, seed, how, targets, val, places, fabric, reverser, given, progress)
    )


def training_pairs(network: nn.Module, collate_fn: CollateFn | None, dataset: Any, val: Any) -> tuple[Any, Any]:
    """The training and the validation set as pairs that can be asked for by number; ``val`` may be None."""
    trained = pairs_of(dataset, collate_fn=collate_fn, model=network)
    return trained, None if val is None else pairs_of(val, collate_fn=collate_fn, model=network, what="validation set")


@dataclass
class Position:
    """How far a run is: epochs done, steps done inside the next one and in all, and what was measured."""

    epoch: int = 0
    number: int = 0
    step: int = 0
    tally: Tally = field(default_factory=Tally)
    history: list[Epoch] = field(default_factory=list)


def run(request: Request) -> Result:
    """Train a copy of the model; the model itself, the random state and the files of others stay as they are."""
    with other_processes(request.training), ExitStack() as stack:
        stack.enter_context(own_random())
        seed_all(request.seed)
        ready = prepare(request, stack)
        loop = Loop(ready, stack)
        history, start = loop.run()
        ready.frozen.check()
    device = next(request.model.parameters()).device
    model = ready.model.to(device)
    for mine, theirs in zip(model.modules(), request.model.modules(), strict=True):
        mine.training = theirs.training
    metric = ready.metric
    return Result(
        model, request.at, request.c_rec, request.seed, request.kind, metric.name, metric.higher, start, history
    )


class Loop:
    """One run: the wrapped model and optimizer, and how far they are."""

    def __init__(self, ready: Ready, stack: ExitStack) -> None:
        self.ready, self.fabric, self.training = ready, ready.fabric, ready.request.training
        self.request = ready.request
        self.count = len(ready.request.dataset)
        self.per_epoch = -(-self.count // self.training.batch_size)
        self._start_digest = _digest_of(ready.model)
        optimizer = ready.optimizer
        self.schedule = self._make_schedule(optimizer)
        self.raw = optimizer  # as the user's schedule and a saved state know it; fabric wraps it for its own precision
        self.model, self.optimizer = self.fabric.setup(ready.model, optimizer)
        self.position = Position()
        folder = ready.request.places.partial
        self.partial = None if folder is None else Partial(folder)
        main = self.fabric.is_global_zero
        title = {"none": "back-propagation"}.get(ready.request.kind, f"{ready.request.kind} targets")
        self.log = stack.enter_context(
            RunLog(title, self.training.epochs, self.count, ready.request.places.log_dir, ready.request.progress, main)
        )

    def run(self) -> tuple[list[Epoch], float | None]:
        """(a row per epoch, the metric at the start)."""
        start, own = self.evaluate()
        begun = None if start is None else float(start.mean())
        self._resume()
        here = self.position
        self.log.begin(here.epoch, here.number * self.training.batch_size, here.step, here.history)
        while here.epoch < self.training.epochs:
            self._train_epoch()
            self._check_weights()
            now, _ = self.evaluate()
            metric = None if now is None else float(now.mean())
            flips = None if now is None or start is None or not own else self.ready.metric.flips(start, now)
            here.history.append(here.tally.row(here.epoch + 1, self.count, metric, flips))
            here.epoch, here.number, here.tally = here.epoch + 1, 0, Tally()
            self.log.epoch(here.history)
            self._save()
        return here.history, begun

    def batches(self) -> Batches:
        """The batches of the epoch that is next."""
        request, epoch, fabric = self.request, self.position.epoch, self.fabric
        stored = None if self.ready.stored is None else (self.ready.stored, request.at)
        rows = order(self.count, request.seed, epoch)
        key, rank, world = (request.seed, epoch), fabric.global_rank, fabric.world_size
        return Batches(request.dataset, rows, self.training.batch_size, key, rank, world, stored)

    def step(self, batch: TrainingBatch) -> Losses:
        """One step of the optimizer, and of the schedule."""
        here = self.position
        seed_all(self.request.seed, here.epoch, here.number, self.fabric.global_rank, 1)
        loss, losses = self.ready.objective(self.model, batch, here.step)
        if not math.isfinite(losses.task):
            raise NonFiniteError(
                f"the task loss is {losses.task} in epoch {here.epoch + 1}, step {here.number + 1}: training has "
                "diverged. Lower the learning rate, or look for NaN in the data."
            )
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        here.tally.add(losses)
        here.number, here.step = here.number + 1, here.step + 1
        return losses

    def _train_epoch(self) -> None:
        t, here = self.training, self.position
        self.model.train()
        clock = time.perf_counter()
        for batch in self.batches().loader(here.number, t.workers):
            losses = self.step(batch)
            now = time.perf_counter()
            here.tally.seconds, clock = here.tally.seconds + now - clock, now
            samples = min(t.batch_size, self.count - (here.number - 1) * t.batch_size)
            self.log.step(here.epoch, here.step, samples, losses)
            if t.partial_steps and here.step % t.partial_steps == 0 and here.number < self.per_epoch:
                self._check_weights()
                self._save()

    def _check_weights(self) -> None:
        """Refuse trained weights that the latest step made NaN or infinite: no loss has been computed with them yet."""
        here, parameters = self.position, self.ready.frozen.parameters
        bad = next((name for name, p in parameters.items() if not bool(torch.isfinite(p).all())), None)
        if bad is not None:
            raise NonFiniteError(
                f"{bad!r} holds NaN or infinity in epoch {here.epoch + 1}, after step {here.number}: training has "
                "diverged. Lower the learning rate, or look for gradients that are not finite (of a task_loss= or an "
                "optimizer= of your own)."
            )

    def evaluate(self) -> tuple[Tensor | None, bool]:
        """(the metric of every validation sample (n,), whether it is the sample's own); None without ``val``."""
        val, fabric, size = self.request.val, self.fabric, self.training.batch_size
        if val is None:
            return None, False
        rows, own = range(len(val)), True
        values = torch.zeros(len(val), dtype=torch.float64, device=fabric.device)
        batches = Batches(val, rows, size, (self.request.seed, _VAL), fabric.global_rank, fabric.world_size)
        self.model.eval()
        for number, batch in enumerate(batches.loader(0, self.training.workers)):
            mine = rows[number * size : (number + 1) * size][fabric.global_rank :: fabric.world_size]
            call = batch.call(fabric.device)
            blame_data(call, batch.labels, "the validation set (val=)")
            with torch.no_grad():
                out = pick(self.model(*call.args, **call.kwargs), self.request.output)
            check_labels(batch.labels, out, "the validation set")
            measured, own = self.ready.metric.values(out, batch.labels.to(fabric.device))
            if batch.weight:
                values[list(mine)] = measured.to(values.device)
        if fabric.world_size > 1:
            values = fabric.all_reduce(values, reduce_op="sum")  # type: ignore[assignment]
        return values.cpu(), own

    def _make_schedule(self, optimizer: Optimizer) -> Any:
        if self.training.schedule is None:
            return None
        made = self.training.schedule(optimizer, self.per_epoch * self.training.epochs)
        if not callable(getattr(made, "step", None)):
            raise OptionError(
                f"schedule= returned a {type(made).__name__}, which has no step(): return a learning-rate scheduler of "
                "torch, made of the optimizer it is called with"
            )
        return made

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """What a half-done run must share with this one."""
        request = self.request
        return {
            "c_rec": request.c_rec,
            "seed": request.seed,
            **self.training.lasting(),
            "at": request.at,
            "targets": request.kind,
            **self._made_with(),
            "samples": self.count,
            "data": digest_of_data(request.dataset),
            "validation data": None if request.val is None else digest_of_data(request.val),
            "metric": self.ready.metric.name,
            "optimizer": type(self.raw).__name__,
            "starting model": self._start_digest,
        }

    def _made_with(self) -> dict[str, Any]:
        """How targets come about: the store's settings and labels, or the options of their reconstruction."""
        rev, store = self.ready.reverser, self.ready.stored
        if store is not None:
            labels = [shard.labels for shard in store.manifest.shards]
            return {"store": sha256_of_json([store.manifest.settings_digest, labels])}
        if self.request.kind != ONLINE:
            return {}
        embedder = options_of(rev.embedder)
        return {
            "embed": embedder.pop("how"),
            **embedder,
            "preset": options_of(rev.preset),
            "blocks": described(rev.blocks),
            "reference": None if rev.reference is None else rev.reference.digest,
        }

    def _save(self) -> None:
        if self.partial is None:
            return
        if self.fabric.is_global_zero:
            here, supervision = self.position, self.ready.objective.supervision
            state = {
                "run": self._identity,
                "position": {"epoch": here.epoch, "number": here.number, "step": here.step},
                "tally": asdict(here.tally),
                "history": [asdict(row) for row in here.history],
                "balance": None if supervision is None else supervision.balance.state_dict(),
                "model": dict(self.ready.frozen.moving()),
                "optimizer": self.raw.state_dict(),
                "schedule": None if self.schedule is None else self.schedule.state_dict(),
                "precision": self.fabric.strategy.precision.state_dict(),
            }
            self.partial.save(here.step, state)
        self.fabric.barrier()

    def _resume(self) -> None:
        if self.partial is None or (state := self.partial.load(self._identity)) is None:
            return
        try:
            self._restore(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise damaged(self.partial.folder, f"{type(error).__name__}: {error}") from error

    def _restore(self, state: dict[str, Any]) -> None:
        moving = self.ready.frozen.moving()
        if moving.keys() != state["model"].keys():
            raise ValueError(f"it has the parameters {sorted(state['model'])[:4]}, not {sorted(moving)[:4]}")
        with torch.no_grad():
            for name, value in state["model"].items():
                moving[name].copy_(value)
        self.raw.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        if (supervision := self.ready.objective.supervision) is not None:
            supervision.balance.load_state_dict(state["balance"])
        rows = [Epoch(**row) for row in state["history"]]
        self.position = Position(**state["position"], tally=Tally(**state["tally"]), history=rows)


def _digest_of(model: nn.Module) -> str:
    """sha256 over all parameters and buffers, with their names."""
    return sha256_of_json(weights_of(model))
