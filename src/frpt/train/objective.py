"""What a training step minimises: task loss + λ · MSE(target, feature), losses averaged over all processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from frpt.common.batch import BatchAxis, relative
from frpt.graph.inputs import Inputs, Picker, pick
from frpt.train.balance import LossBalance
from frpt.train.data import Batch
from frpt.train.metrics import TaskLoss, check_labels
from frpt.train.sources import Source
from frpt.train.tap import FeatureTap


@dataclass(frozen=True)
class Losses:
    """One step over all processes. rec, deviation: None where no target was asked for. closed: of this process."""

    task: float
    rec: float | None
    weight: float
    deviation: float | None
    closed: float | None = None


class Supervision:
    """The feature term: where the layer's value is read, and where its target comes from."""

    def __init__(self, tap: FeatureTap, samples: BatchAxis, source: Source, balance: LossBalance, every: int) -> None:
        self.tap, self.samples, self.source, self.balance, self.every = tap, samples, source, balance, every

    def loss(self, call: Inputs, batch: Batch, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(MSE(a*, â), mean relative deviation ‖â − a*‖/‖a*‖) of a batch whose forward pass was just made."""
        value = self.tap.value
        feature = self.samples.front(value if value.dtype.itemsize >= 4 else value.float())
        target = self.source.target(call, labels, feature, batch.target, batch.present).to(feature.dtype)
        with torch.no_grad():
            norms = [torch.linalg.vector_norm(v.flatten(1), dim=1) for v in (feature - target, target)]
            deviation = relative(*norms).mean()
        return F.mse_loss(feature, target), deviation


class Objective:
    """Runs a batch through the model and says what to minimise."""

    def __init__(self, fabric: Fabric, task_loss: TaskLoss, output: Picker, supervision: Supervision | None) -> None:
        self.fabric, self.task_loss, self.output, self.supervision = fabric, task_loss, output, supervision

    def __call__(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Losses]:
        """(the loss to go down, the step's losses)."""
        call = batch.call(self.fabric.device)
        labels = batch.labels.to(self.fabric.device)
        out = pick(model(*call.args, **call.kwargs), self.output)
        check_labels(batch.labels, out, "the data set")
        task = self.task_loss(out, labels)
        s = self.supervision
        if s is None or step % s.every:
            (mean,) = self._means(batch, task)
            return self._scaled(task, batch), Losses(mean, None, 0.0, None)
        rec, deviation = s.loss(call, batch, labels)
        task_mean, rec_mean, deviation_mean = self._means(batch, task, rec, deviation)
        weight = s.balance.update(task_mean, rec_mean)
        return self._scaled(task + weight * rec, batch), Losses(
            task_mean, rec_mean, weight, deviation_mean, s.source.closed
        )

    def _scaled(self, loss: Tensor, batch: Batch) -> Tensor:
        """Gradients are averaged over processes: a share of fewer samples has to count for less."""
        return loss if self.fabric.world_size == 1 else loss * batch.weight

    def _means(self, batch: Batch, *values: Tensor) -> list[float]:
        together = torch.stack([v.detach().double() for v in values])
        if self.fabric.world_size > 1:
            together = self.fabric.all_reduce(together * batch.weight, reduce_op="mean")  # type: ignore[assignment]
        found: list[float] = together.tolist()
        return found
