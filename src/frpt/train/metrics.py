"""Task losses and metrics, one value per sample; which of two is better; samples fixed and broken.

``Metric`` is public; the loop measures the validation set with it, and ``prepare`` picks both by the labels' kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from frpt import embed
from frpt.common.asked import scores
from frpt.common.yes_no import are_yes_no, lead, misshapen, signs
from frpt.errors import LabelError, NonFiniteError, OptionError

TaskLoss = Callable[[Tensor, Tensor], Tensor]
IGNORED = -100
"""Labels that do not count: the default of torch's cross-entropy."""


@dataclass(frozen=True)
class Metric:
    """Something to measure on the validation set.

    Args:
        name: as tables show it.
        fn: (outputs, labels) -> (b,), one value per sample, or one number for the whole batch. Only with values per
            sample can samples be counted as fixed and broken.
        higher: whether more is better.
        changed: a sample counts as fixed or broken where its value moved by more than this share of what it was. 1 %
            is a choice, not measured: accuracies are 0 or 1, and distances should not count where they wobble.

    Example:
        >>> miss = frpt.Metric("miss", lambda outputs, labels: (outputs.argmax(1) != labels).double(), higher=False)
        >>> miss.better(0.1, 0.2)
        True
    """

    name: str
    fn: Callable[[Tensor, Tensor], Tensor | float]
    higher: bool = True
    changed: float = 0.01

    def values(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, bool]:
        """Values as (b,) in float64, and whether they are the samples' own (else the batch's, repeated)."""
        made = self.fn(outputs, labels)
        try:
            values = torch.as_tensor(made).detach().double()
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"the metric {self.name!r} returned a {type(made).__name__}; return one number, or one per sample"
            ) from error
        if bool(values.isnan().any()):
            raise NonFiniteError(
                f"the metric {self.name!r} is NaN for {int(values.isnan().sum())} of {values.numel()} values: no run "
                "could be compared by it. Give samples that it is not defined for a number, or look for infinite "
                "outputs of the model."
            )
        if values.shape == (len(outputs),):
            return values, True
        if values.numel() != 1:
            raise OptionError(
                f"the metric {self.name!r} returned the shape {tuple(values.shape)} for {len(outputs)} samples; return "
                "one number, or one per sample"
            )
        return values.reshape(1).expand(len(outputs)), False

    def better(self, a: float, b: float) -> bool:
        """Whether a is better than b."""
        return a > b if self.higher else a < b

    def flips(self, start: Tensor, now: Tensor) -> tuple[int, int]:
        """(fixed, broken): samples that became better and worse than they were at the start. start, now: (n,)."""
        gain = now - start if self.higher else start - now
        moved = gain.abs() > self.changed * start.abs()
        return int((moved & (gain > 0)).sum()), int((moved & (gain < 0)).sum())


def accuracy(outputs: Tensor, labels: Tensor, k: int = 1, threshold: float = 0.0) -> Tensor:
    """Share of each sample's labels among its k best scores: (b,); where there is one label a sample, 0 or 1.

    For k = 1 the label has to win, strictly as everywhere: where another class ties with it, it is not right. Of yes
    and no: the share on the right side of the threshold.
    """
    if are_yes_no(outputs.shape, labels):
        right = lead(outputs, labels, threshold).reshape(len(outputs), -1)
        looked = torch.isfinite(right)
        return ((right > 0) & looked).sum(1).double() / looked.sum(1).clamp_min(1)
    axis, counts = embed.class_dim(outputs, labels), labels != IGNORED
    if k == 1:
        hit = embed.lead(outputs, labels, axis, IGNORED) > 0
    else:
        scores = outputs.movedim(axis, -1)
        hit = (scores.topk(min(k, scores.shape[-1]), -1).indices == labels.unsqueeze(-1)).any(-1)
    hit, counts = (hit & counts).flatten(1) if hit.dim() > 1 else hit.unsqueeze(1), counts.reshape(len(counts), -1)
    return hit.sum(1).double() / counts.sum(1).clamp_min(1)


def mse(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error of each sample: (b,)."""
    return (outputs.double() - labels.double()).square().flatten(1).mean(1)


def displacement(outputs: Tensor, labels: Tensor) -> Tensor:
    """Distance in the plane at each time: (b, t) from trajectories (b, t, ≥2) whose first coordinates are x and y."""
    if outputs.dim() != 3 or outputs.shape[-1] < 2 or outputs.shape != labels.shape:
        raise LabelError(
            f"ADE and FDE need outputs and labels of one shape (b, t, 2 or more), got {tuple(outputs.shape)} and "
            f"{tuple(labels.shape)}"
        )
    away: Tensor = torch.linalg.vector_norm(outputs[..., :2].double() - labels[..., :2].double(), dim=-1)
    return away


def metric_of(
    choice: str | Metric | Callable[[Tensor, Tensor], Tensor | float] | None, labels: Tensor, threshold: float = 0.0
) -> Metric:
    """The metric of that name ("accuracy", "top5", "mse", "ade", "fde"), a function, or by the labels' kind.

    threshold: where yes and no meet.
    """
    if isinstance(choice, Metric):
        return choice
    if choice is None:
        choice = "mse" if labels.is_floating_point() else "accuracy"
    if not isinstance(choice, str):
        return Metric(getattr(choice, "__name__", "metric"), choice)
    if top := re.fullmatch(r"top([1-9]\d*)", choice):
        k = int(top[1])
        return Metric(choice, lambda outputs, labels: accuracy(outputs, labels, k))
    known = {
        "accuracy": Metric("accuracy", partial(accuracy, threshold=threshold)),
        "mse": Metric("mse", mse, higher=False),
        "ade": Metric("ade", lambda outputs, labels: displacement(outputs, labels).mean(1), higher=False),
        "fde": Metric("fde", lambda outputs, labels: displacement(outputs, labels)[:, -1], higher=False),
    }
    if choice not in known:
        raise OptionError(f"unknown metric {choice!r}: there are {', '.join(known)}, top<k>, or a function")
    return known[choice]


def task_loss(outputs: Tensor, labels: Tensor, ends: str = "") -> Tensor:
    """Cross-entropy for class ids (-100 is ignored), mean squared error for floating-point labels.

    The binary cross-entropy for labels of yes and no. ends: "softmax" or "sigmoid" where the network ends in one, so
    that its outputs are probabilities.
    """
    if labels.is_floating_point():
        if labels.shape != outputs.shape:
            raise misshapen(outputs.shape, labels)
        return F.mse_loss(outputs, labels.to(outputs.dtype))
    if are_yes_no(outputs.shape, labels):
        sign = signs(outputs, labels)
        wanted, counts = (sign > 0).to(outputs.dtype), (sign != 0).to(outputs.dtype)
        each = F.binary_cross_entropy if ends == "sigmoid" else F.binary_cross_entropy_with_logits
        return each(outputs, wanted, counts, reduction="sum") / counts.sum().clamp_min(1)
    axis = embed.class_dim(outputs, labels)
    z = scores(outputs, "classification", ends)
    return F.cross_entropy(z if axis == 1 else z.movedim(axis, 1), labels)


def checked_loss(made: object) -> Tensor:
    """A task loss as a tensor of one number, which gradients come from."""
    if isinstance(made, Tensor) and made.numel() == 1 and (made.requires_grad or not torch.is_grad_enabled()):
        return made.reshape(())
    shown = f"a {type(made).__name__}"
    if isinstance(made, Tensor):
        shown = f"the shape {tuple(made.shape)}" if made.numel() != 1 else "a number without a gradient"
    raise OptionError(
        f"task_loss= returned {shown}: return the mean over the batch as a tensor of one number, computed by torch "
        "from the outputs"
    )


def check_labels(labels: Tensor, outputs: Tensor, what: str) -> None:
    """Refuse class ids that the output has no score for, and others than 0 and 1 for one logit.

    labels: on the CPU, without the output's class axis.
    """
    if labels.is_floating_point() or labels.numel() == 0 or labels.shape == outputs.shape:
        return
    if are_yes_no(outputs.shape, labels):
        signs(outputs, labels)
        return
    classes = outputs.shape[embed.class_dim(outputs, labels)]
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= classes))
    if bool(wrong.any()):
        raise LabelError(
            f"{what} has the labels {labels[wrong].unique().tolist()[:5]}, but the model has {classes} outputs, 0 to "
            f"{classes - 1}: it was made for other classes. Map the labels to the model's classes first."
        )
