"""What a solver is: a map prepared once per weight, solved once per batch, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from frpt.common.batch import BatchAxis, relative
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
        """The same interval, quicker to clamp to where it holds all anchors, so that none stretches it."""
        held = self.bounded and bool(((anchors >= self.low) & (anchors <= self.high)).all())
        return _Plain(self.low, self.high) if held else self


@dataclass(frozen=True)
class _Plain(Range):
    """An interval that no anchor stretches."""

    def clamp(self, x: Tensor, anchor: Tensor) -> Tensor:
        return x.clamp(self.low, self.high) if self.high < float("inf") else x.clamp_min(self.low)


UNBOUNDED = Range()


@dataclass(frozen=True)
class Solution:
    """A reconstructed input, and per sample how good it is.

    value: like the anchor. ccp: ‖Φ(a) − t‖ / ‖t‖, and ccp_before the same at the anchor. deviation: ‖a − â‖ / ‖â‖.
    fallback: the gate refused the nominal solution. iterations: of an iterative solver. All but value: (b,).
    """

    value: Tensor
    fallback: Tensor
    iterations: Tensor
    ccp: Tensor
    ccp_before: Tensor
    deviation: Tensor

    @staticmethod
    def of(value: Tensor, count: int, fallback: Tensor | None = None, iterations: Tensor | None = None) -> Solution:
        """A solution not measured yet."""
        none = torch.zeros(count, dtype=torch.float64, device=value.device)
        return Solution(
            value,
            none.bool() if fallback is None else fallback,
            none.long() if iterations is None else iterations,
            none,
            none,
            none,
        )

    def measured(self, anchor: Tensor, before: Tensor, after: Tensor, target: Tensor, at: UnitAxes) -> Solution:
        """The same with CCP and deviation filled in; before, after: Φ(â) and Φ(a)."""
        scale = at.output.norm(target)
        return replace(
            self,
            ccp=relative(at.output.norm(after.double() - target.double()), scale),
            ccp_before=relative(at.output.norm(before.double() - target.double()), scale),
            deviation=relative(at.input.norm(self.value.double() - anchor.double()), at.input.norm(anchor)),
        )

    def checked(self, where: str) -> Solution:
        """The same, or an error if NaN or infinity is about to leave."""
        if not bool(torch.isfinite(self.value).all()):
            raise NonFiniteError(f"{where}: the reverse step produced NaN or infinity. Check this layer's weights.")
        return self


@dataclass(frozen=True)
class UnitAxes:
    """Where the samples are in a unit's input and output."""

    input: BatchAxis = BatchAxis()
    output: BatchAxis = BatchAxis()


class Prepared(Protocol):
    """A linear map A with whatever of its inverse depends on the weights only.

    Systems are rows: x: (s, *in), y: (s, *out), each of the s systems independent of the others.
    """

    reduces: bool
    """Case I (outputs ≤ inputs: consistency can be asked for) or case II."""
    closed: bool
    """A⁺ r costs about as much as A x: it may be applied again and again."""

    @property
    def deficient(self) -> bool | Tensor:
        """Numerically rank-deficient: A⁺ is truncated and every solution counts as a fallback."""
        ...

    @property
    def frobenius(self) -> float | Tensor:
        """‖A‖_F; it, σ_max and ``deficient`` are (s,) where every system has a matrix of its own."""
        ...

    @property
    def sigma_max(self) -> float | Tensor: ...
    def rows(self, index: Tensor) -> Prepared:
        """The map of the systems ``index: (k,)`` only; itself where all systems share one matrix."""
        ...

    def apply(self, x: Tensor) -> Tensor: ...
    def adjoint(self, y: Tensor) -> Tensor: ...
    def solve(self, residual: Tensor) -> Tensor:
        """A⁺ r, the minimum-norm least-squares correction."""
        ...

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        """(AᵀA + αI)⁻¹ Aᵀ r with alpha: (s,)."""
        ...


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
    """Euclidean norm of every system: (s,)."""
    length: Tensor = torch.linalg.vector_norm(t.flatten(1), dim=1)
    return length


def per_system(v: Tensor, like: Tensor) -> Tensor:
    """v: (s,), shaped to broadcast over ``like``: (s, ...)."""
    return v.reshape(-1, *[1] * (like.dim() - 1))
