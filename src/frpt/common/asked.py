"""What is asked of the outputs of samples, as rows s that shall be large (labels) or zero (output targets).

    one class id y a sample         s = z_y − log Σ_{j≠y} exp z_j          right where z_y is the largest
    yes or no to m entries          s = ±z, m rows                         right where all z are on their side of 0
    an output target of m entries   s = target − z, m rows                 right where ‖s‖ is small

z are the outputs; where the network ends in a softmax or a sigmoid, the scores that its probabilities are of.
Called by ``frpt.repairs``: ``nearest_weights``, ``controls``, ``memory`` and ``repair``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from frpt.common.yes_no import are_yes_no, misshapen, signs
from frpt.errors import LabelError, NonFiniteError

Task = Literal["classification", "binary", "regression"]
TASKS: tuple[Task, ...] = ("classification", "binary", "regression")
_LOGIT = 1e-6
"""A probability nearer to 0 or 1 counts as this near: its logit is 14, and no float32 has a useful gradient there."""


def task_of(labels: Tensor) -> Task:
    """What labels that fit the outputs ask for: (N,) class ids, (N, m) yes and no, floating-point output targets."""
    if labels.is_floating_point():
        return "regression"
    return "classification" if labels.dim() == 1 else "binary"


def fitting(labels: Tensor, shape: Sequence[int], dtype: torch.dtype, what: str = "") -> Tensor:
    """Labels as ``Asked`` has them: class ids (N,), yes and no (N, m), output targets (N, ...).

    Args:
        labels: as many as there are samples.
        shape: of the outputs, (N, ...).
        dtype: of the outputs, in which output targets have to be finite.
        what: begins the errors.

    Raises:
        LabelError: where they do not fit the outputs.
    """
    shape = tuple(shape)
    if are_yes_no(shape, labels):
        answers = labels.reshape(len(labels), -1).long()
        signs(torch.zeros(answers.shape), answers)
        return answers
    if labels.dtype == torch.bool:
        raise LabelError(f"{what}class ids must be integers, got bool: pass y.long()")
    if labels.is_floating_point():
        return _fitting_targets(labels, shape, dtype, what)
    if len(shape) != 2 or labels.dim() != 1:
        raise LabelError(
            f"{what}a repair takes one class id for each sample of an output (N, classes), yes or no to each output, "
            "or output targets, floating-point numbers shaped like the output; the output is "
            f"{shape}, the labels {tuple(labels.shape)}"
        )
    wrong = (labels < 0) | (labels >= shape[1])
    if bool(wrong.any()):
        bad = labels[wrong].unique().tolist()[:5]
        raise LabelError(f"{what}labels {bad} are out of range: the output has {shape[1]} classes")
    return labels


def _fitting_targets(labels: Tensor, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Tensor:
    if labels.dim() == 1 and len(shape) == 2 and shape[1] > 1:
        raise LabelError(f"{what}class ids must be integers, got {labels.dtype}: pass y.long()")
    if labels.shape != shape:
        raise LabelError(f"{what}{misshapen(shape, labels)}")
    if not bool(torch.isfinite(labels).all()):
        raise LabelError(f"{what}the output targets hold NaN or infinity; clean the labels first")
    if not bool(torch.isfinite(labels.to(dtype)).all()):
        raise LabelError(
            f"{what}an output target is larger than the model's {str(dtype).removeprefix('torch.')} can hold "
            f"({torch.finfo(dtype).max:.4g}); scale the labels, or use the model in float32"
        )
    return labels


@dataclass(frozen=True)
class Asked:
    """The labels of some samples. labels: (N,) class ids, (N, m) of yes and no, or output targets (N, ...).

    ends: "softmax" or "sigmoid" where the network ends in one.
    """

    labels: Tensor
    ends: str = ""

    @property
    def task(self) -> Task:
        return task_of(self.labels)

    def part(self, rows: Tensor | slice) -> Asked:
        """Some of the samples."""
        return Asked(self.labels[rows], self.ends)

    def rows(self, outputs: Tensor) -> list[Tensor]:
        """s: for each row (N,), the samples together."""
        if self.task == "regression":
            return list(self.missing(outputs).T)
        z = scores(outputs, self.task, self.ends)
        if self.task == "classification":
            return [lead(z, self.labels)]
        z = z.flatten(1) if z.dim() > 1 else z[:, None]
        return list((signs(z, self.labels) * z).T)

    def win(self, outputs: Tensor) -> Tensor:
        """(N,) bool: the labels win, strictly; not for output targets."""
        if self.task == "binary":
            return torch.stack([s > 0 for s in self.rows(outputs)]).all(0)
        others = outputs.scatter(1, self.labels[:, None], -torch.inf).amax(1)
        return outputs.gather(1, self.labels[:, None]).squeeze(1) > others

    def missing(self, outputs: Tensor) -> Tensor:
        """target − output: (N, m)."""
        return (self.labels.to(outputs) - outputs).flatten(1)


def lead(outputs: Tensor, labels: Tensor) -> Tensor:
    """s = z_y − logsumexp of the other scores: (N,). outputs: (N, classes)."""
    own = labels[:, None]
    return outputs.gather(1, own).squeeze(1) - outputs.scatter(1, own, -torch.inf).logsumexp(1)


def scores(outputs: Tensor, task: Task, ends: str) -> Tensor:
    """The outputs themselves, or the scores whose softmax or sigmoid they are; of a softmax log p, up to a constant."""
    if task == "regression" or not ends:
        return outputs
    if ends == "softmax" and task == "classification":
        return outputs.clamp_min(torch.finfo(outputs.dtype).tiny).log()
    return torch.logit(outputs, eps=_LOGIT)


def drawn(output: Tensor, task: Task, ends: str, generator: torch.Generator) -> Tensor:
    """Σ_n −log p(y_n|x_n) of labels drawn from the network's own output, differentiable by it."""
    if not bool(torch.isfinite(output).all()):
        raise NonFiniteError("the network's output is NaN or infinite for some of the old inputs")
    if task == "regression":
        return (torch.randn(output.shape, generator=generator).to(output) * output).sum()
    z = scores(output, task, ends)
    if task == "binary":
        yes = torch.bernoulli(z.detach().double().sigmoid().cpu(), generator=generator).to(z)
        return F.binary_cross_entropy_with_logits(z, yes, reduction="sum")
    chances = z.movedim(1, -1).flatten(0, -2).log_softmax(-1)
    labels = torch.multinomial(chances.detach().double().exp().cpu(), 1, generator=generator).to(output.device)
    return -chances.gather(1, labels).sum()


def divergence(before: Tensor, after: Tensor, task: Task, ends: str = "") -> Tensor:
    """KL(p_before ‖ p_after) of each sample: (N,). Of regression: of normal distributions of the outputs' variance."""
    if task == "regression":
        variance = before.double().var(0, unbiased=False).mean()
        return (after - before).double().square().reshape(len(before), -1).sum(1) / (2 * variance)
    was, now = (scores(v, task, ends) for v in (before, after))
    if task == "binary":
        was, now = (v.reshape(len(v), -1) for v in (was, now))
        p = was.sigmoid()
        each = p * (F.logsigmoid(was) - F.logsigmoid(now)) + (1 - p) * (F.logsigmoid(-was) - F.logsigmoid(-now))
        return each.sum(1)
    was, now = was.log_softmax(1), now.log_softmax(1)
    return (was.exp() * (was - now)).reshape(len(before), -1).sum(1)
