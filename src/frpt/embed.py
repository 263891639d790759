"""From labels to an output target: the output nearest to the model's own in which the label wins (paper III-E).

``Embedder`` is what a ``Reverser`` asks; the functions can be used on their own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common import yes_no
from frpt.errors import LabelError, LabelWarning, OptionError

__all__ = ["Embedder", "class_dim", "lead", "max_assign", "nearest", "one_hot", "regression"]

Embed = Callable[[Tensor, Tensor], Tensor]
_TELLING = 8
"""Samples from which on a single label each is no chance. A choice."""


def nearest(
    output: Tensor, labels: Tensor, dim: int = -1, margin: float | Tensor = 0.0, ignore_index: int = -100
) -> Tensor:
    """The Euclidean projection onto {a : a_y ≥ a_i + margin for all i ≠ y} (Algorithm 1, A.6).

    With v_1 ≥ v_2 ≥ … the scores above the label's and θ_k = (a_y + v_1 + … + v_k)/(k + 1), the label and the k*
    largest go to θ at the largest k with v_k ≥ θ_k.

    Args:
        output: scores (…, c, …), the classes on axis ``dim``.
        labels: class ids, shaped like the output without its class axis.
        dim: the class axis.
        margin: by how much the label's score shall be the largest: a number, or one for each sample (b,).
        ignore_index: labels with this id leave their scores alone.

    Returns:
        The projected scores, like the output; the output itself, bit for bit, where the label wins already.

    Raises:
        LabelError: for labels that do not fit the output.

    Example:
        >>> frpt.embed.nearest(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([1]))
        tensor([[2., 2., 0.]])
    """
    _check_margin(margin)
    scores, own, picked = _prepare(output, labels, dim, ignore_index)
    if isinstance(margin, Tensor):
        margin = margin.reshape(-1, *[1] * (scores.dim() - 1)).to(scores)
    mine = scores.gather(-1, own) - margin
    others = scores.scatter(-1, own, -torch.inf)
    v = others.sort(-1, descending=True).values
    k = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    theta = (mine + v.cumsum(-1)) / (k + 1)
    active = (v > mine) & (v >= theta)
    size = active.sum(-1, keepdim=True)
    level = theta.gather(-1, (size - 1).clamp_min(0))
    level = torch.where(size > 0, level, mine)
    raised = torch.where(others > level, level, others).scatter(-1, own, level + margin)
    changed = picked & (size > 0)
    return _finish(output, torch.where(changed, raised, scores), changed, dim)


def max_assign(output: Tensor, labels: Tensor, dim: int = -1, margin: float = 0.0, ignore_index: int = -100) -> Tensor:
    """The nearest in L1: the label's score becomes the largest one (plus the margin), the others stay.

    Args:
        output: scores (…, c, …), the classes on axis ``dim``.
        labels: class ids, shaped like the output without its class axis.
        dim: the class axis.
        margin: by how much the label's score shall exceed the largest other.
        ignore_index: labels with this id leave their scores alone.

    Returns:
        The scores, like the output.

    Example:
        >>> frpt.embed.max_assign(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([1]))
        tensor([[3., 3., 0.]])
    """
    _check_margin(margin)
    scores, own, picked = _prepare(output, labels, dim, ignore_index)
    top = scores.scatter(-1, own, -torch.inf).amax(-1, keepdim=True) + margin
    changed = picked & (scores.gather(-1, own) < top)
    return _finish(output, torch.where(changed, scores.scatter(-1, own, top), scores), changed, dim)


def one_hot(output: Tensor, labels: Tensor, dim: int = -1, margin: float = 1.0, ignore_index: int = -100) -> Tensor:
    """1 (or ``margin``) at the label, 0 elsewhere, whatever the model said.

    Args:
        output: scores (…, c, …), the classes on axis ``dim``.
        labels: class ids, shaped like the output without its class axis.
        dim: the class axis.
        margin: the label's score.
        ignore_index: labels with this id leave their scores alone.

    Returns:
        The scores, like the output.

    Example:
        >>> frpt.embed.one_hot(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([1]))
        tensor([[0., 1., 0.]])
    """
    _check_margin(margin)
    scores, own, picked = _prepare(output, labels, dim, ignore_index)
    target = torch.zeros_like(scores).scatter(-1, own, margin)
    return _finish(output, torch.where(picked, target, scores), picked.expand_as(scores), dim)


def regression(output: Tensor, target: Tensor) -> Tensor:
    """The target itself, in the output's dtype and on its device.

    Args:
        output: the model's output.
        target: finite, of the same shape.

    Returns:
        The target.

    Raises:
        LabelError: for another shape, or for NaN or infinity.
    """
    if target.shape != output.shape:
        raise yes_no.misshapen(output.shape, target)
    if target.is_complex():
        raise LabelError("the regression target holds complex numbers")
    if not bool(torch.isfinite(target).all()):
        raise LabelError("the regression target holds NaN or infinity; clean the labels first")
    return _fitting(target.to(output))


def lead(output: Tensor, labels: Tensor, dim: int = -1, ignore_index: int = -100) -> Tensor:
    """By how much the label's score exceeds the largest other one.

    Args:
        output: scores (…, c, …), the classes on axis ``dim``.
        labels: class ids, shaped like the output without its class axis.
        dim: the class axis.
        ignore_index: labels with this id are not looked at.

    Returns:
        The lead in double, shaped like the labels: positive where the label wins, infinite where it is ignored.

    Example:
        >>> frpt.embed.lead(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([1]))
        tensor([-2.], dtype=torch.float64)
    """
    scores, own, picked = _prepare(output, labels, dim, ignore_index)
    others = scores.scatter(-1, own, -torch.inf).amax(-1)
    return torch.where(picked.squeeze(-1), scores.gather(-1, own).squeeze(-1) - others, torch.inf)


def class_dim(output: Tensor, labels: Tensor) -> int:
    """The axis of the output that the labels leave out: the last, or the one after the batch.

    Args:
        output: scores.
        labels: class ids.

    Returns:
        The class axis.

    Raises:
        LabelError: if no axis fits, or both do.
    """
    shape = tuple(output.shape)
    fits = [d for d in (len(shape) - 1, 1) if 0 < d < len(shape) and shape[:d] + shape[d + 1 :] == tuple(labels.shape)]
    if not fits:
        raise LabelError(
            f"labels of shape {tuple(labels.shape)} do not fit an output of shape {shape}: they must have its shape "
            "without the class axis (the last one, or axis 1), or its whole shape (yes or no to each entry, or a "
            "floating-point output target)"
        )
    if len(set(fits)) > 1:
        raise LabelError(
            f"an output of shape {shape} may have its classes on axis 1 or on the last; say which with class_dim="
        )
    return fits[0]


EMBEDDINGS: dict[str, Callable[..., Tensor]] = {"nearest": nearest, "max_assign": max_assign, "one_hot": one_hot}


@dataclass(frozen=True)
class Embedder:
    """How labels become output targets. how: a name or a function (output, y); the rest as ``Reverser`` takes it."""

    how: str | Embed
    class_dim: int | None = None
    margin: float | None = None
    ignore_index: int = -100
    threshold: float = 0.0
    """Where yes and no meet: 0 for logits, 1/2 for the probabilities of a final sigmoid."""

    def __post_init__(self) -> None:
        m = self.margin
        if m is not None and (isinstance(m, bool) or not isinstance(m, int | float) or not 0 <= m < math.inf):
            raise OptionError(f"margin must be a finite number of at least 0, got {m!r}")
        if isinstance(self.how, str) and self.how not in (*EMBEDDINGS, "regression"):
            names = "nearest, max_assign, one_hot, regression, or a function"
            raise OptionError(f"unknown embedding {self.how!r}: {names}")

    def picks(self, y: Tensor) -> bool:
        """Whether any output will do in which the labels win, rather than one output target."""
        return self.how == "nearest" and not y.is_floating_point()

    def yes_no(self, output: Tensor, y: Tensor) -> bool:
        """Whether labels say yes or no to each entry of the output (``common.yes_no``), rather than name classes."""
        named = isinstance(self.how, str) and self.how != "regression"
        return named and self.class_dim is None and yes_no.are_yes_no(output.shape, y)

    def opposed(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of yes and no as (scores, class ids): (b, classes), (b,)."""
        return yes_no.opposed(output, y.to(output.device), self.threshold, self.ignore_index)

    def leads(self, output: Tensor, y: Tensor) -> Tensor:
        """By how much each label wins over the next class, or the threshold: (b, ...), infinite where it is ignored."""
        if self.yes_no(output, y):
            return yes_no.lead(output, y, self.threshold, self.ignore_index)
        return lead(output, y, self._axis(output, y), self.ignore_index)

    def single_leads(self, output: Tensor, y: Tensor) -> Tensor | None:
        """The leads where each sample of an output (b, classes) or of one logit has one label: (b,); None otherwise."""
        if self.yes_no(output, y):
            return self.leads(output, y).reshape(len(y), -1)[:, 0] if output[0].numel() == 1 else None
        single = not y.is_floating_point() and y.dim() == 1 and output.dim() == 2 and self.class_dim in (None, 1, -1)
        return self.leads(output, y.to(output.device)) if single else None

    def margins(self, scores: Tensor, binary: bool = False) -> Tensor:
        """By how much labels shall win, (b,). scores: (b, ...), the samples' own. binary: labels say yes and no.

        Without ``margin`` a hundred-thousandth of the spread of a sample's scores (of yes and no, around the
        threshold), which hardly moves the answer, and at least four units in the last place of its largest score, so
        that rounding does not turn it.
        """
        flat = scores.reshape(len(scores), -1)
        if self.margin is not None:
            return torch.full((len(flat),), float(self.margin), dtype=torch.float64, device=flat.device)
        away = (flat.double() - self.threshold).abs().amax(1)
        spread = away if binary else flat.double().std(1, correction=0)
        largest = flat.abs().amax(1).double().clamp_min(self.threshold)
        return torch.maximum(1e-5 * spread, 4 * torch.finfo(scores.dtype).eps * largest)

    def nearest(self, output: Tensor, y: Tensor, margin: Tensor) -> Tensor:
        """The nearest output in which the labels win by ``margin: (b,)``."""
        if self.yes_no(output, y):
            return self._sided(output, y, margin)
        return nearest(output, y, self._axis(output, y), margin, self.ignore_index)

    def share(self, output: Tensor, y: Tensor) -> Tensor | None:
        """The share of each sample's labels that win, strictly: (b,); None where labels are no class ids."""
        if y.is_floating_point() or self.how == "regression":
            return None
        if not isinstance(self.how, str) and y.shape == output.shape:
            return None
        wins = (self.leads(output, y) > 0).reshape(len(y), -1)
        counts = (y != self.ignore_index).reshape(len(y), -1)
        return torch.where(counts.any(1), (wins & counts).sum(1) / counts.sum(1).clamp_min(1), 1.0)

    def margin_met(self, output: Tensor, y: Tensor) -> Tensor | None:
        """Whether every label of a sample wins by ``margin``, all but a hundredth: (b,); None where none was asked for.

        The hundredth is for rounding, and for presets whose answers come near and no nearer.
        """
        if not self.margin or self.how not in ("nearest", "max_assign") or y.is_floating_point():
            return None
        return (self.leads(output, y).reshape(len(y), -1) >= 0.99 * self.margin).all(1)

    def _sided(self, output: Tensor, y: Tensor, margin: float | Tensor) -> Tensor:
        """The nearest output with every entry on its label's side of the threshold."""
        target = yes_no.moved(output, y, margin, self.threshold, self.ignore_index)
        changed = target != output.double()
        return torch.where(changed, _fitting(torch.where(changed, target, 0.0).to(output.dtype)), output)

    def _axis(self, output: Tensor, y: Tensor) -> int:
        return class_dim(output, y) if self.class_dim is None else self.class_dim

    def ask(self, output: Tensor, y: Tensor) -> None:
        """Warn of labels that can be read in two ways."""
        if self.how == "regression" or not isinstance(self.how, str):
            return
        if y.is_floating_point():
            _warn_of_floats(output, y)
        elif self.yes_no(output, y):
            _warn_of_one_hot(y)

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """The output target for labels ``y``: class ids, or a floating-point tensor shaped like the output."""
        if not isinstance(self.how, str):
            target = self.how(output, y)
            if not isinstance(target, Tensor) or target.shape != output.shape:
                raise LabelError(f"the embedding returned the shape {_shape(target)}, the output has {_shape(output)}")
            return regression(output, target)
        if y.is_floating_point() or self.how == "regression":
            return regression(output, y)
        if self.yes_no(output, y):
            if self.how == "one_hot":
                sign = yes_no.signs(output, y, self.ignore_index)
                far = sign * (max(self.threshold, 0.5) * 2 - self.threshold if self.margin is None else self.margin)
                return torch.where(sign == 0, output, self.threshold + far)
            return self._sided(output, y, self.margin or 0.0)
        axis = self._axis(output, y)
        more = {} if self.margin is None else {"margin": self.margin}
        return EMBEDDINGS[self.how](output, y, dim=axis, ignore_index=self.ignore_index, **more)


def as_labels(y: object) -> Tensor:
    """Labels as a tensor: class ids as int64; floating-point ones, and booleans (yes and no), as they are."""
    try:
        labels = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabelError(f"labels must be class ids or a floating-point tensor, got {type(y).__name__}") from error
    if labels.is_complex():
        raise LabelError("labels must be class ids or a floating-point tensor, got complex numbers")
    return labels if labels.is_floating_point() or labels.dtype == torch.bool else labels.long()


def _warn_of_floats(output: Tensor, y: Tensor) -> None:
    """Labels of 0.0 and 1.0 only: a regression by their type, classes or yes and no by the look of them."""
    if y.shape != output.shape or len(y) < 2 or not bool(((y == 0) | (y == 1)).all()):
        return
    if bool((y == y.flatten()[0]).all()):
        return
    alone = y[0].numel() == 1
    warnings.warn(
        "the labels are floats of 0.0 and 1.0, and are taken as a regression onto 0 and 1. If they say yes or no to "
        f"{'the one output' if alone else 'each output'}, pass whole numbers or booleans (y.long())"
        f"{'' if alone else '; if they are one-hot classes, class ids (y.argmax(1))'}; for the regression pass "
        'embed="regression", and nothing is said.',
        LabelWarning,
        stacklevel=2,
    )


def _warn_of_one_hot(y: Tensor) -> None:
    """Whole numbers with a single 1 in every row: yes and no by their shape, classes by the look of them."""
    rows = y.reshape(len(y), -1)
    if y.dtype == torch.bool or len(rows) < _TELLING or rows.shape[1] <= 2 or not bool(((y == 0) | (y == 1)).all()):
        return
    if bool((rows.sum(1) == 1).all()):
        warnings.warn(
            f"every one of {len(rows)} samples has a single label of 1 among {rows.shape[1]}, and labels are taken as "
            "yes or no to each output. If they are one-hot classes, pass class ids (y.argmax(1)); for yes and no pass "
            "booleans (y.bool()), and nothing is said.",
            LabelWarning,
            stacklevel=2,
        )


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _prepare(output: Tensor, labels: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores in double with the classes last, the label index and whether it counts, both (…, 1)."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise LabelError(f"class labels must be integers, got {labels.dtype}")
    if not -output.dim() <= dim < output.dim():
        raise LabelError(f"the output has {output.dim()} axes, there is no class axis {dim}")
    scores = output.movedim(dim, -1).double()
    labels = labels.to(output.device).long()
    if labels.shape != scores.shape[:-1]:
        raise LabelError(
            f"labels of shape {tuple(labels.shape)} do not fit an output of {tuple(output.shape)} with classes on "
            f"axis {dim}: expected {tuple(scores.shape[:-1])}"
        )
    counts = labels != ignore_index
    wrong = counts & ((labels < 0) | (labels >= scores.shape[-1]))
    if bool(wrong.any()):
        bad = labels[wrong].unique().tolist()[:5]
        raise LabelError(
            f"labels {bad} are out of range: the output has {scores.shape[-1]} classes, 0 to {scores.shape[-1] - 1} "
            f"({ignore_index} is ignored)"
        )
    return scores, torch.where(counts, labels, 0).unsqueeze(-1), counts.unsqueeze(-1)


def _finish(output: Tensor, target: Tensor, changed: Tensor, dim: int) -> Tensor:
    """Back in the output's shape and dtype; what did not change is the output itself."""
    cast = _fitting(torch.where(changed, target, 0.0).to(output.dtype))
    return torch.where(changed.expand_as(target).movedim(-1, dim), cast.movedim(-1, dim), output)


def _fitting(target: Tensor) -> Tensor:
    """A target made of finite numbers; what has become infinite in the output's dtype is refused."""
    if bool(torch.isfinite(target).all()):
        return target
    kind = str(target.dtype).removeprefix("torch.")
    raise LabelError(
        f"the output target is larger than the model's {kind} can hold ({torch.finfo(target.dtype).max:.4g}); scale "
        "the labels, lower the margin, or use the model in float32"
    )


def _check_margin(margin: float | Tensor) -> None:
    if not bool(torch.isfinite(torch.as_tensor(margin)).all()):
        raise OptionError(f"margin must be finite, got {margin}")
