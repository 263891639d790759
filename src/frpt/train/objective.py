"""What a training step minimises: task loss + λ · MSE(target, feature), averaged over all processes.

λ = clip(c_rec · m_task / (m_rec + eps)) follows moving averages of both losses (paper III-A, supplement B.1.2). The
targets come from a store, from the starting model, or from a reconstruction in the step itself (``TargetSupply``).
``LossBalance`` is public, for loops of one's own; the rest is put together by ``prepare`` and called by the loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frpt.common.batch_axis import BatchAxis, relative
from frpt.errors import NonFiniteError, OptionError
from frpt.graph.inputs import Inputs, Picker, pick
from frpt.reverser import Reverser
from frpt.train.batches import TrainingBatch, as_taken, rows_of
from frpt.train.metrics import TaskLoss, check_labels, checked_loss
from frpt.train.tap import FeatureTap

if TYPE_CHECKING:
    from lightning_fabric import Fabric

BOUNDS = (1e-5, 10.0)
"""Of λ: the paper's (III-A)."""


def check_c_rec(c_rec: float) -> float:
    """c_rec as a float in [0, 1]."""
    if isinstance(c_rec, bool) or not isinstance(c_rec, int | float) or not 0 <= c_rec <= 1:
        raise OptionError(f"c_rec must be a number in [0, 1] (0: plain back-propagation), got {c_rec!r}")
    return float(c_rec)


class LossBalance:
    """Weighs the distance to the targets against the task loss: task + λ · rec.

    λ = clip(c_rec · m_task / (m_rec + eps)) and λ = 0 where c_rec = 0, with the moving averages
    m ← beta · m + (1 − beta) · loss, started at the first loss. No gradient passes through λ.

    Args:
        c_rec: strength of the feature supervision, 0 to 1; 0 leaves the task loss as it is.
        beta: of the moving averages; the paper's (supplement B.1.2).
        eps: keeps λ finite where targets are met; the paper's (III-A).
        clip: smallest and largest λ; the paper's (III-A).

    Raises:
        OptionError: for an option out of its range.
        NonFiniteError: from ``update`` and a call, for a loss that is NaN or infinite.

    Example:
        >>> balance = frpt.LossBalance(c_rec=0.5)
        >>> task, rec = torch.tensor(2.0), torch.tensor(4.0)
        >>> balance(task, rec)  # 2 + 0.25 * 4
        tensor(3.)
        >>> round(balance.weight, 6)
        0.25
    """

    def __init__(
        self, c_rec: float = 0.3, beta: float = 0.9, eps: float = 1e-8, clip: tuple[float, float] = BOUNDS
    ) -> None:
        if not 0 <= beta < 1:
            raise OptionError(f"beta must be in [0, 1), got {beta}")
        if not eps > 0:
            raise OptionError(f"eps must be positive, got {eps}")
        if len(clip) != 2 or not 0 <= clip[0] <= clip[1]:
            raise OptionError(f"clip must be a pair 0 <= low <= high, got {clip}")
        self.c_rec = check_c_rec(c_rec)
        self.beta, self.eps, self.clip = beta, eps, (float(clip[0]), float(clip[1]))
        self.task: float | None = None
        self.rec: float | None = None

    @property
    def weight(self) -> float:
        """λ as the moving averages stand now; 0 before the first update."""
        if self.c_rec == 0 or self.task is None or self.rec is None:
            return 0.0
        low, high = self.clip
        return min(max(self.c_rec * self.task / (self.rec + self.eps), low), high)

    def update(self, task: float | Tensor, rec: float | Tensor) -> float:
        """Take in the losses of one step and return λ; across processes pass the averages over all of them."""
        losses = []
        for name, value, mean in (("task", task, self.task), ("reconstruction", rec, self.rec)):
            loss = float(value.detach()) if isinstance(value, Tensor) else float(value)
            if not math.isfinite(loss):
                raise NonFiniteError(
                    f"the {name} loss is {loss}: training has diverged. Lower the learning rate, or look for NaN in "
                    "the data or the targets."
                )
            losses.append(loss if mean is None else self.beta * mean + (1 - self.beta) * loss)
        self.task, self.rec = losses
        return self.weight

    def __call__(self, task: Tensor, rec: Tensor) -> Tensor:
        """The loss to minimise, after an update; the task loss itself where c_rec = 0."""
        if self.c_rec == 0:
            return task
        return task + self.update(task, rec) * rec

    def state_dict(self) -> dict[str, float | None]:
        """The two moving averages."""
        return {"task": self.task, "rec": self.rec}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Continue from moving averages that ``state_dict`` returned."""
        missing = {"task", "rec"} - set(state)
        if missing:
            raise OptionError(f"a LossBalance state holds 'task' and 'rec'; {', '.join(sorted(missing))} is missing")
        self.task, self.rec = state["task"], state["rec"]


class TargetSupply(Protocol):
    """Says what the layer should produce for a batch. All features: samples first, (k, ...).

    closed: of the last batch's corrected samples, the share of the output's residual their targets close.
    """

    closed: float | None

    def target(
        self, call: Inputs, labels: Tensor, feature: Tensor, stored: Tensor | None, present: Tensor | None
    ) -> Tensor: ...


class AnchorSupply:
    """The starting model's own feature, without any label: plain self-distillation."""

    closed: float | None = None

    def __init__(self, start: nn.Module, at: str, axis: BatchAxis) -> None:
        self.start = deepcopy(start).eval().requires_grad_(False)
        self.tap = FeatureTap(self.start, at)
        self.axis = axis

    def feature(self, call: Inputs) -> Tensor:
        """â of the starting model: (k, ...); the forward pass ends at the layer."""
        with torch.no_grad():
            return self.axis.front(self.tap.run_to(self.start, *call.args, **call.kwargs))

    def target(
        self, call: Inputs, labels: Tensor, feature: Tensor, stored: Tensor | None, present: Tensor | None
    ) -> Tensor:
        return self.feature(call)


class StoredSupply:
    """Targets from a store; rows that a delta store does not hold are the starting model's features."""

    closed: float | None = None

    def __init__(self, anchor: AnchorSupply | None) -> None:
        self.anchor = anchor

    def target(
        self, call: Inputs, labels: Tensor, feature: Tensor, stored: Tensor | None, present: Tensor | None
    ) -> Tensor:
        assert stored is not None
        assert present is not None
        target = stored.to(feature.device, feature.dtype)
        if self.anchor is None or bool(present.all()):
            return target
        rows = (~present).nonzero().squeeze(1).to(feature.device)
        return target.index_copy(0, rows, self.anchor.feature(rows_of(call, rows)).to(target.dtype))


class OnlineSupply:
    """Reconstructed from the feature of this very step, through the frozen part with its prepared factors."""

    def __init__(self, rev: Reverser, at: str, axis: BatchAxis) -> None:
        self.rev, self.at, self.axis = rev, at, axis
        self.closed: float | None = None

    def target(
        self, call: Inputs, labels: Tensor, feature: Tensor, stored: Tensor | None, present: Tensor | None
    ) -> Tensor:
        value = self.axis.back(feature.detach())
        rec = self.rev.reconstruct_from(as_taken(call), labels, self.at, value)
        self.closed = float(rec.closed[rec.corrected].mean()) if bool(rec.corrected.any()) else None
        return self.axis.front(rec.target)


@dataclass(frozen=True)
class Losses:
    """One step over all processes. rec, distance: None where no target was asked for. closed: of this process."""

    task: float
    rec: float | None
    weight: float
    distance: float | None
    closed: float | None = None


class Supervision:
    """The feature term: where the layer's value is read, and where its target comes from."""

    def __init__(
        self, tap: FeatureTap, axis: BatchAxis, supply: TargetSupply, balance: LossBalance, every: int
    ) -> None:
        self.tap, self.axis, self.supply, self.balance, self.every = tap, axis, supply, balance, every

    def loss(self, call: Inputs, batch: TrainingBatch, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(MSE(a*, â), mean relative distance ‖â − a*‖/‖a*‖) of a batch whose forward pass was just made."""
        value = self.tap.value  # in half precision under mixed precision, where squares overflow and targets are coarse
        feature = self.axis.front(value if value.dtype.itemsize >= 4 else value.float())
        target = self.supply.target(call, labels, feature, batch.target, batch.present).to(feature.dtype)
        with torch.no_grad():
            norms = [torch.linalg.vector_norm(v.flatten(1), dim=1) for v in (feature - target, target)]
            distance = relative(*norms).mean()
        return F.mse_loss(feature, target), distance


def blame_data(call: Inputs, labels: Tensor, what: str) -> None:
    """Refuse NaN and infinity in the data, before anything that comes of them is blamed. what: whose they are."""
    call.check_finite(f"{what}: ")
    if labels.is_floating_point() and not bool(torch.isfinite(labels).all()):
        raise NonFiniteError(f"the labels of {what} hold NaN or infinity; clean the data first")


def _blame_half(model: nn.Module) -> None:
    """Refuse to go on where weights in float16 are trained, and name them as the likeliest cause."""
    if any(p.requires_grad and p.dtype == torch.float16 for p in model.parameters()):
        raise NonFiniteError(
            "the task loss is NaN or infinite: training has diverged. The weights that are trained are float16, in "
            "which small steps vanish and squares overflow: train model.float() or model.bfloat16()."
        )


class Objective:
    """Runs a batch through the model and says what to minimise."""

    def __init__(self, fabric: Fabric, task_loss: TaskLoss, output: Picker, supervision: Supervision | None) -> None:
        self.fabric, self.task_loss, self.output, self.supervision = fabric, task_loss, output, supervision

    def __call__(self, model: nn.Module, batch: TrainingBatch, step: int) -> tuple[Tensor, Losses]:
        """(the loss to go down, the step's losses)."""
        call = batch.call(self.fabric.device)
        labels = batch.labels.to(self.fabric.device)
        out = pick(model(*call.args, **call.kwargs), self.output)
        check_labels(batch.labels, out, "the data set")
        task = checked_loss(self.task_loss(out, labels))
        if not bool(torch.isfinite(task)):
            blame_data(call, labels, "the data set")
            _blame_half(model)
        s = self.supervision
        if s is None or step % s.every:
            (mean,) = self._means(batch, task)
            return self._scaled(task, batch), Losses(mean, None, 0.0, None)
        rec, distance = s.loss(call, batch, labels)
        task_mean, rec_mean, distance_mean = self._means(batch, task, rec, distance)
        weight = s.balance.update(task_mean, rec_mean)
        return self._scaled(task + weight * rec, batch), Losses(
            task_mean, rec_mean, weight, distance_mean, s.supply.closed
        )

    def _scaled(self, loss: Tensor, batch: TrainingBatch) -> Tensor:
        """Gradients are averaged over processes: a share of fewer samples has to count for less."""
        return loss if self.fabric.world_size == 1 else loss * batch.weight

    def _means(self, batch: TrainingBatch, *values: Tensor) -> list[float]:
        together = torch.stack([v.detach().double() for v in values])
        if self.fabric.world_size > 1:
            together = self.fabric.all_reduce(together * batch.weight, reduce_op="mean")  # type: ignore[assignment]
        means: list[float] = together.tolist()
        return means
