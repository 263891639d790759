"""post_train: the training loop, its measurements, and going on where a run was stopped."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from frpt.errors import NonFiniteError, OptionError
from frpt.graph.inputs import pick
from frpt.train import checkpoint
from frpt.train.data import Batch, Batches, order, own_random, seed_all
from frpt.train.freeze import fingerprint
from frpt.train.metrics import check_labels
from frpt.train.objective import Losses
from frpt.train.report import Report
from frpt.train.result import Epoch, Result
from frpt.train.setup import Job, Ready, prepare

_VAL = 2**32
"""Stands for the epoch in the random stream of the validation set."""


@dataclass
class Tally:
    """Sums over the steps of an epoch so far."""

    steps: int = 0
    supervised: int = 0
    task: float = 0.0
    rec: float = 0.0
    weight: float = 0.0
    deviation: float = 0.0
    corrected: int = 0
    closed: float = 0.0
    seconds: float = 0.0

    def add(self, losses: Losses) -> None:
        self.steps += 1
        self.task += losses.task
        if losses.rec is not None and losses.deviation is not None:
            self.supervised += 1
            self.rec += losses.rec
            self.weight += losses.weight
            self.deviation += losses.deviation
        if losses.closed is not None:
            self.corrected += 1
            self.closed += losses.closed

    def row(self, epoch: int, samples: int, metric: float | None, flips: tuple[int, int] | None) -> Epoch:
        """The finished epoch. samples: how many it had."""
        n = self.supervised
        fixed, broken = flips or (None, None)
        rec, deviation = (self.rec / n, self.deviation / n) if n else (None, None)
        closed = self.closed / self.corrected if self.corrected else None
        return Epoch(
            epoch, metric, self.task / self.steps, rec, self.weight / n if n else 0.0, deviation, closed,
            fixed, broken, self.seconds, samples / max(self.seconds, 1e-9),
        )  # fmt: skip


@dataclass
class Progressed:
    """How far a run is: epochs done, steps done inside the next one and in all, and what was measured."""

    epoch: int = 0
    number: int = 0
    step: int = 0
    tally: Tally = field(default_factory=Tally)
    history: list[Epoch] = field(default_factory=list)


def run(job: Job) -> Result:
    """Train a copy of the job's model; the model itself, the random state and the files of others stay as they are."""
    with ExitStack() as stack:
        stack.enter_context(own_random())
        seed_all(job.settings.seed)
        ready = prepare(job, stack)
        loop = Loop(ready, stack)
        history, start = loop.run()
        ready.frozen.check()
    device = next(job.model.parameters()).device
    model = ready.model.to(device)
    for mine, theirs in zip(model.modules(), job.model.modules(), strict=True):
        mine.training = theirs.training
    metric = ready.metric
    return Result(
        model, job.at, job.settings.c_rec, job.settings.seed, job.kind, metric.name, metric.higher, start, history
    )


class Loop:
    """One run: the wrapped model and optimizer, and how far they are."""

    def __init__(self, ready: Ready, stack: ExitStack) -> None:
        self.ready, self.fabric, self.settings = ready, ready.fabric, ready.job.settings
        self.count = len(ready.job.dataset)
        self.per_epoch = -(-self.count // self.settings.batch_size)
        self._start_digest = fingerprint(ready.model)
        optimizer = self._make_optimizer()
        schedule = self.settings.schedule
        self.schedule = None if schedule is None else schedule(optimizer, self.per_epoch * self.settings.epochs)
        self.raw = optimizer
        self.model, self.optimizer = self.fabric.setup(ready.model, optimizer)
        self.at = Progressed()
        main = self.fabric.is_global_zero
        title = {"none": "back-propagation"}.get(ready.job.kind, f"{ready.job.kind} targets")
        self.report = stack.enter_context(
            Report(title, self.settings.epochs, self.count, ready.job.places.log_dir, self.settings.progress, main)
        )

    def run(self) -> tuple[list[Epoch], float | None]:
        """(a row per epoch, the metric at the start)."""
        start, own = self.evaluate()
        begun = None if start is None else float(start.mean())
        self._resume()
        self.report.begin(self.at.epoch, self.at.number * self.settings.batch_size, self.at.step, self.at.history)
        while self.at.epoch < self.settings.epochs:
            self._train_epoch()
            now, _ = self.evaluate()
            metric = None if now is None else float(now.mean())
            flips = None if now is None or start is None or not own else self.ready.metric.flips(start, now)
            self.at.history.append(self.at.tally.row(self.at.epoch + 1, self.count, metric, flips))
            self.at.epoch, self.at.number, self.at.tally = self.at.epoch + 1, 0, Tally()
            self.report.epoch(self.at.history)
            self._save()
        return self.at.history, begun

    def batches(self) -> Batches:
        """The batches of the epoch that is next."""
        s, epoch, fabric = self.settings, self.at.epoch, self.fabric
        stored = None if self.ready.stored is None else (self.ready.stored, self.ready.job.at)
        rows = order(self.count, s.seed, epoch)
        rank, world = fabric.global_rank, fabric.world_size
        return Batches(self.ready.job.dataset, rows, s.batch_size, (s.seed, epoch), rank, world, stored)

    def step(self, batch: Batch) -> Losses:
        """One step of the optimizer, and of the schedule."""
        s, at = self.settings, self.at
        seed_all(s.seed, at.epoch, at.number, self.fabric.global_rank, 1)
        loss, losses = self.ready.objective(self.model, batch, at.step)
        if not math.isfinite(losses.task):
            raise NonFiniteError(
                f"the task loss is {losses.task} in epoch {at.epoch + 1}, step {at.number + 1}: training has diverged. "
                "Lower the learning rate, or look for NaN in the data."
            )
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        at.tally.add(losses)
        at.number, at.step = at.number + 1, at.step + 1
        return losses

    def _train_epoch(self) -> None:
        s, at = self.settings, self.at
        self.model.train()
        clock = time.perf_counter()
        for batch in self.batches().loader(at.number, s.workers):
            losses = self.step(batch)
            now = time.perf_counter()
            at.tally.seconds, clock = at.tally.seconds + now - clock, now
            samples = min(s.batch_size, self.count - (at.number - 1) * s.batch_size)
            self.report.step(at.epoch, at.step, samples, losses)
            if s.checkpoint_steps and at.step % s.checkpoint_steps == 0 and at.number < self.per_epoch:
                self._save()

    def evaluate(self) -> tuple[Tensor | None, bool]:
        """(the metric of every validation sample (n,), whether it is the sample's own); None without ``val``."""
        val, fabric, s = self.ready.job.val, self.fabric, self.settings
        if val is None:
            return None, False
        rows, own = range(len(val)), True
        values = torch.zeros(len(val), dtype=torch.float64, device=fabric.device)
        batches = Batches(val, rows, s.batch_size, (s.seed, _VAL), fabric.global_rank, fabric.world_size)
        self.model.eval()
        for number, batch in enumerate(batches.loader(0, s.workers)):
            mine = rows[number * s.batch_size : (number + 1) * s.batch_size][fabric.global_rank :: fabric.world_size]
            call = batch.call(fabric.device)
            with torch.no_grad():
                out = pick(self.model(*call.args, **call.kwargs), s.output)
            check_labels(batch.labels, out, "the validation set")
            found, own = self.ready.metric.values(out, batch.labels.to(fabric.device))
            if batch.weight:
                values[list(mine)] = found.to(values.device)
        if fabric.world_size > 1:
            values = fabric.all_reduce(values, reduce_op="sum")  # type: ignore[assignment]
        return values.cpu(), own

    def _make_optimizer(self) -> Optimizer:
        s, parameters = self.settings, self.ready.frozen.trainable()
        if s.optimizer is None:
            return AdamW(parameters, lr=s.lr, weight_decay=s.weight_decay)
        made = s.optimizer(parameters)
        if not isinstance(made, Optimizer):
            raise OptionError(f"optimizer= returned a {type(made).__name__}, not a torch.optim.Optimizer")
        own = {id(p) for p in parameters}
        strange = [p for group in made.param_groups for p in group["params"] if id(p) not in own]
        if strange:
            raise OptionError(
                f"optimizer= made an optimizer with {len(strange)} parameters that are frozen; use the ones it is given"
            )
        return made

    def _identity(self) -> dict[str, Any]:
        job = self.ready.job
        return {
            **self.settings.lasting(),
            "at": job.at,
            "targets": job.kind,
            "samples": self.count,
            "optimizer": type(self.raw).__name__,
            "starting model": self._start_digest,
        }

    def _save(self) -> None:
        folder, at = self.ready.job.places.checkpoint, self.at
        if folder is None:
            return
        if self.fabric.is_global_zero:
            s = self.ready.objective.supervision
            state = {
                "run": self._identity(),
                "at": {"epoch": at.epoch, "number": at.number, "step": at.step},
                "tally": asdict(at.tally),
                "history": [asdict(row) for row in at.history],
                "balance": None if s is None else s.balance.state_dict(),
                "model": dict(self.ready.frozen.moving()),
                "optimizer": self.raw.state_dict(),
                "schedule": None if self.schedule is None else self.schedule.state_dict(),
                "precision": self.fabric.strategy.precision.state_dict(),
            }
            checkpoint.save(folder, at.step, state)
        self.fabric.barrier()

    def _resume(self) -> None:
        folder = self.ready.job.places.checkpoint
        path = None if folder is None else checkpoint.latest(folder)
        if path is None:
            return
        state = checkpoint.load(path)
        checkpoint.check_same(path, state["run"], self._identity())
        moving = self.ready.frozen.moving()
        with torch.no_grad():
            for name, value in state["model"].items():
                moving[name].copy_(value)
        self.raw.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        if (s := self.ready.objective.supervision) is not None:
            s.balance.load_state_dict(state["balance"])
        rows = [Epoch(**row) for row in state["history"]]
        self.at = Progressed(**state["at"], tally=Tally(**state["tally"]), history=rows)
