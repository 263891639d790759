"""Where the samples of a batch sit in a tensor, and how to look at, take and put them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BatchAxis:
    """Axis ``dim`` of a tensor has size ``outer · b · inner`` and runs over the b samples in the middle factor.

    The plain case is ``BatchAxis()``: the batch is axis 0. Window attention folds windows into it (``inner`` windows
    per sample); sequence-first models keep it on axis 1.
    """

    dim: int = 0
    outer: int = 1
    inner: int = 1

    def count(self, t: Tensor) -> int:
        return int(t.shape[self.dim]) // (self.outer * self.inner)

    def front(self, t: Tensor) -> Tensor:
        """t as (b, ...), samples first."""
        if self.dim == 0 and self.outer == 1 and self.inner == 1:
            return t
        shape = t.shape
        split = t.reshape(*shape[: self.dim], self.outer, self.count(t), self.inner, *shape[self.dim + 1 :])
        return split.movedim(self.dim + 1, 0)

    def back(self, front: Tensor) -> Tensor:
        """The inverse of ``front``, for any number of samples."""
        if self.dim == 0 and self.outer == 1 and self.inner == 1:
            return front
        split = front.movedim(0, self.dim + 1)
        shape = split.shape
        size = shape[self.dim] * shape[self.dim + 1] * shape[self.dim + 2]
        return split.reshape(*shape[: self.dim], size, *shape[self.dim + 3 :])

    def rows(self, t: Tensor) -> Tensor:
        """t: (b, n), one row per sample."""
        front = self.front(t)
        return front.reshape(front.shape[0], -1)

    def take(self, t: Tensor, index: Tensor) -> Tensor:
        """The samples ``index: (k,)`` of t."""
        return self.back(self.front(t).index_select(0, index))

    def first(self, t: Tensor, count: int) -> Tensor:
        """The first samples of t."""
        return t if self.count(t) == count else self.back(self.front(t)[:count])

    def extended(self, t: Tensor, count: int) -> Tensor:
        """t with its last sample repeated, up to ``count`` samples."""
        front = self.front(t)
        if (more := count - len(front)) == 0:
            return t
        return self.back(torch.cat([front, front[-1:].detach().expand(more, *front.shape[1:])]))

    def put(self, t: Tensor, index: Tensor, values: Tensor) -> Tensor:
        """A copy of t in which the samples ``index: (k,)`` are ``values``."""
        return self.back(self.front(t).index_copy(0, index, self.front(values).to(t.dtype)))

    def over(self, per_sample: Tensor, like: Tensor) -> Tensor:
        """per_sample: (b,), shaped so that it broadcasts over ``like``."""
        spread = per_sample.reshape(-1, *[1] * (self.front(like).dim() - 1)).expand_as(self.front(like))
        return self.back(spread)

    def norm(self, t: Tensor) -> Tensor:
        """Euclidean norm of each sample: (b,), in at least float64."""
        norm: Tensor = torch.linalg.vector_norm(self.rows(t), dim=1, dtype=torch.float64)
        return norm


def relative(difference: Tensor, reference: Tensor) -> Tensor:
    """``difference / reference`` of norms; zero over zero is zero, and a vanishing reference counts as itself: 1."""
    safe = torch.where(reference > 0, reference, torch.ones_like(reference))
    return difference / safe
