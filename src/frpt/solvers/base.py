"""What all solvers share: the result they return, the range a result has to stay in, and norms sample by sample.

    Solution   a reconstructed input a, whether the nominal solve was refused, and how many steps it took
    Measured   the same with its consistency ‖Φ(a) − t‖/‖t‖ (CCP) and its deviation ‖a − â‖/‖â‖ (MDP)

Solvers of linear maps make one entry per system, block solvers one per sample; ``frpt.rules`` turns systems into
samples, ``frpt.reverse`` and ``frpt.ops`` measure what a whole unit achieved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from frpt.common.batch_axis import BatchAxis, relative
from frpt.errors import NonFiniteError


@dataclass(frozen=True)
class Range:
    """The interval ``[low, high]`` of values that the op before can produce."""

    low: float = float("-inf")
    high: float = float("inf")

    @property
    def bounded(self) -> bool:
        return self.low > float("-inf") or self.high < float("inf")

    def clamp(self, x: Tensor, anchor: Tensor) -> Tensor:
        """x inside the interval, which is stretched where rounding put the anchor outside."""
        if self.low > float("-inf"):
            x = torch.maximum(x, anchor.clamp(max=self.low))
        if self.high < float("inf"):
            x = torch.minimum(x, anchor.clamp(min=self.high))
        return x

    def around(self, anchors: Tensor) -> Range:
        """The same interval, quicker to clamp to where it contains all anchors, so that none stretches it."""
        contains = self.bounded and bool(((anchors >= self.low) & (anchors <= self.high)).all())
        return _Plain(self.low, self.high) if contains else self


@dataclass(frozen=True)
class _Plain(Range):
    """An interval that no anchor stretches."""

    def clamp(self, x: Tensor, anchor: Tensor) -> Tensor:
        return x.clamp(self.low, self.high) if self.high < float("inf") else x.clamp_min(self.low)


UNBOUNDED = Range()


@dataclass(frozen=True)
class UnitAxes:
    """Where the samples are in a unit's input and output."""

    input: BatchAxis = BatchAxis()
    output: BatchAxis = BatchAxis()


@dataclass(frozen=True)
class Solution:
    """What a solver returns for s systems or samples.

    Attributes:
        value: (s, *in), the reconstructed inputs; a rule's solution has the shape of its anchor.
        fallback: (s,) bool, where the nominal solution was refused (by the gate, or since nothing beat the anchor).
        iterations: (s,), steps of an iterative solver, 0 for a formula.
    """

    value: Tensor
    fallback: Tensor
    iterations: Tensor

    @classmethod
    def of(
        cls, value: Tensor, count: int, fallback: Tensor | None = None, iterations: Tensor | None = None
    ) -> Solution:
        """A solution of ``count`` samples; what is not given is False, or 0."""
        none = torch.zeros(count, dtype=torch.long, device=value.device)
        return Solution(
            value,
            none.bool() if fallback is None else fallback,
            none if iterations is None else iterations,
        )

    @staticmethod
    def joined(parts: Sequence[Solution]) -> Solution:
        """Systems that were solved in several parts, one after the other, as one solution."""
        if len(parts) == 1:
            return parts[0]
        return Solution(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Solution)))

    def put(self, rows: Tensor, part: Self) -> Self:
        """The samples ``rows: (k,)`` replaced by those of ``part``, which went on with them; iterations add up."""
        added = [f.name for f in fields(self) if f.name not in ("value", "fallback")]
        return replace(
            self,
            value=self.value.index_copy(0, rows, part.value),
            fallback=self.fallback.index_copy(0, rows, part.fallback),
            **{name: getattr(self, name).index_add(0, rows, getattr(part, name)) for name in added},
        )

    def checked(self, where: str) -> Self:
        """The same, or an error if NaN or infinity is about to leave."""
        if not bool(torch.isfinite(self.value).all()):
            raise NonFiniteError(f"{where}: the reverse step produced NaN or infinity. Check this layer's weights.")
        return self

    def measured(self, anchor: Tensor, before: Tensor, after: Tensor, target: Tensor, axes: UnitAxes) -> Measured:
        """The same with CCP and deviation. before, after: Φ(â) and Φ(a)."""
        scale = axes.output.norm(target)
        return Measured(
            self.value,
            self.fallback,
            self.iterations,
            ccp=relative(axes.output.norm(after.double() - target.double()), scale),
            ccp_before=relative(axes.output.norm(before.double() - target.double()), scale),
            deviation=relative(axes.input.norm(self.value.double() - anchor.double()), axes.input.norm(anchor)),
        )


@dataclass(frozen=True)
class Measured(Solution):
    """A solution of b samples and how good it is, as ``frpt.ops`` returns it.

    Attributes:
        value: like the anchor, the reconstructed input.
        fallback: (b,) bool, where the nominal solution was refused.
        iterations: (b,), steps of an iterative solver, 0 for a formula.
        ccp: (b,), ‖Φ(a) − t‖ / ‖t‖.
        ccp_before: (b,), the same at the anchor.
        deviation: (b,), ‖a − â‖ / ‖â‖.
    """

    ccp: Tensor
    ccp_before: Tensor
    deviation: Tensor


@dataclass
class Working:
    """The state of an iteration over many systems: the first axis of every field runs over those still at work."""

    def keep(self, mask: Tensor) -> None:
        """Go on with some of them only. mask: (k,) bool."""
        if not bool(mask.all()):
            for f in fields(self):
                if (value := getattr(self, f.name)) is not None:
                    setattr(self, f.name, value[mask])


def norm(t: Tensor) -> Tensor:
    """Euclidean norm of every system, in its own precision: (s,)."""
    length: Tensor = torch.linalg.vector_norm(t.flatten(1), dim=1)
    return length


def row_norm(t: Tensor) -> Tensor:
    """Euclidean norm of every sample, in double: (b,)."""
    length: Tensor = torch.linalg.vector_norm(t.flatten(1), dim=1, dtype=torch.float64)
    return length


def per_system(v: Tensor, like: Tensor) -> Tensor:
    """v: (s,), shaped to broadcast over ``like``: (s, ...)."""
    return v.reshape(-1, *[1] * (like.dim() - 1))
