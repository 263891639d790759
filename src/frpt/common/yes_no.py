"""Labels of yes and no: one for each output, which wins on the right side of a threshold.

    y = 1:  s > τ        y = 0:  s < τ        τ = 0 for logits, 1/2 where the network ends in a sigmoid

One logit for two classes, labels (b,) for an output (b,) or (b, 1); or several labels a sample, shaped like the output.
For solvers that know classes only, ``opposed`` writes them as a contest of classes. Called by ``frpt.embed``, and by
all that counts or trains with such labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from frpt.errors import LabelError


def are_yes_no(shape: Sequence[int], labels: Tensor) -> bool:
    """Whether integers or booleans say yes or no to each entry of an output of that shape.

    They do if they have its shape, the same flat behind the batch, or its shape without a class axis (the last, or axis
    1) of a single entry.
    """
    if labels.is_floating_point():
        return False
    shape = tuple(shape)
    alone = [shape[:d] + shape[d + 1 :] for d in {len(shape) - 1, 1} if 0 < d < len(shape) and shape[d] == 1]
    return tuple(labels.shape) in (shape, (*shape[:1], math.prod(shape[1:])), *alone)


def misshapen(shape: Sequence[int], labels: Tensor) -> LabelError:
    """Floating-point labels of another shape than the output's. The size of the batch is b where it is the same."""
    shape, given = tuple(shape), tuple(labels.shape)
    known = shape[:1] == given[:1]
    reason = (
        f"floating-point labels must have the output's shape {_written(shape, known)}, got {_written(given, known)}."
    )
    if known and labels.numel() == math.prod(shape):
        if are_yes_no(shape, labels.long()):
            reason += " If they say yes or no, pass whole numbers or booleans: y.long()."
        reason += f" For a regression pass y.reshape({', '.join(map(str, (-1, *shape[1:])))})."
    return LabelError(reason)


def _written(shape: tuple[int, ...], known: bool) -> str:
    sizes = ["b", *map(str, shape[1:])] if known else [str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def signs(output: Tensor, labels: Tensor, ignored: int = -100) -> Tensor:
    """+1 for yes, −1 for no, 0 where a label is ignored: like the output."""
    y = labels.to(output.device).reshape(output.shape).long()
    wrong = (y != 0) & (y != 1) & (y != ignored)
    if bool(wrong.any()):
        raise LabelError(
            f"labels {y[wrong].unique().tolist()[:5]} are out of range: integers shaped like the output "
            f"{tuple(output.shape)} say yes or no to each entry, 1 or 0 ({ignored} is ignored). For a regression pass "
            "them as floating-point numbers; for class ids the output needs a score for each class."
        )
    return torch.where(y == ignored, 0, 2 * y - 1).to(output.dtype)


def lead(output: Tensor, labels: Tensor, threshold: float = 0.0, ignored: int = -100) -> Tensor:
    """How far each entry is on its label's side: like the output, in double; infinite where the label is ignored."""
    sign = signs(output, labels, ignored).double()
    return torch.where(sign == 0, torch.inf, sign * (output.double() - threshold))


def moved(output: Tensor, labels: Tensor, margin: float | Tensor, threshold: float, ignored: int = -100) -> Tensor:
    """The nearest output, in double, in which every entry is on its label's side by the margin, a number or (b,)."""
    if isinstance(margin, Tensor):
        margin = margin.reshape(-1, *[1] * (output.dim() - 1)).double()
    sign = signs(output, labels, ignored).double()
    short = (sign != 0) & (sign * (output.double() - threshold) < margin)
    return torch.where(short, threshold + sign * margin, output.double())


def opposed(output: Tensor, labels: Tensor, threshold: float, ignored: int = -100) -> tuple[Tensor, Tensor]:
    """(scores, class ids) of a contest that is won where all labels are: (b, classes), (b,).

    One entry s: the classes "no" and "yes" with the scores τ and s. Several: the label is class 0 with the score 0, and
    every entry a rival with the score −sign · (s − τ).
    """
    flat = output.reshape(len(output), -1)
    if flat.shape[1] == 1:
        return torch.cat([torch.full_like(flat, threshold), flat], 1), labels.reshape(-1).long()
    sign = signs(output, labels, ignored).reshape(flat.shape)
    rivals = torch.where(sign == 0, -torch.inf, -sign * (flat - threshold))
    return torch.cat([torch.zeros_like(flat[:, :1]), rivals], 1), labels.new_zeros(len(labels), dtype=torch.long)
