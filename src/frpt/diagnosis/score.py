"""How well the network does, sample by sample, and whether its labels are class ids."""

from __future__ import annotations

from torch import Tensor

from frpt.embed import class_dim
from frpt.reverser import Reverser


def scored(rev: Reverser, out: Tensor, y: Tensor) -> tuple[str, Tensor]:
    """(b,): the share of each sample's labels that are met, NaN where all are ignored; its mean squared error where
    labels are no class ids."""
    y = y.to(out.device)
    if y.is_floating_point() or y.shape == out.shape:
        return "mse", (out.double() - y.double()).square().flatten(1).mean(1)
    axis = class_dim(out, y) if rev.embedder.class_dim is None else rev.embedder.class_dim
    counts = (y != rev.embedder.ignore_index).reshape(len(y), -1)
    hit = (out.argmax(axis) == y).reshape(len(y), -1) & counts
    return "accuracy", hit.sum(1).double() / counts.sum(1)


def class_ids(out: Tensor, y: Tensor) -> Tensor | None:
    """The labels, if there is one class id for each sample of an output (b, c)."""
    ids = y.dim() == 1 and not y.is_floating_point() and out.dim() == 2 and y.shape[0] == out.shape[0]
    return y.long() if ids else None
