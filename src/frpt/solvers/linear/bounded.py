"""Linear solves that stay in the range of the op before: a ReLU's output is never asked to be negative.

    min ‖a − â‖²  subject to  A (a − â) = r,  low ≤ a ≤ high

Called by ``gate.anchored`` after the nominal solve, or instead of it where A⁺ is not at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Range, norm, per_system
from frpt.solvers.linear.cgls import cgls
from frpt.solvers.linear.linear_map import LinearMap


@dataclass(frozen=True)
class Bounded:
    """Dual ascent where A⁺ is cheap, and projected conjugate gradients where the range has no solution.

    Numbers in brackets: the residual that is left with half and with double the value, relative to what it leaves
    (``benchmarks/halves.py``). [1, 1]: chosen by hand and not critical, as far as the problems there come to it.

    Raises:
        OptionError: a number is not positive.

    Example:
        >>> from dataclasses import replace
        >>> import frpt
        >>> from frpt.options import PRESETS
        >>> replace(PRESETS["default"], bounded=frpt.Bounded(iterations=400)).bounded.inner
        8
    """

    iterations: int = 100
    """Most steps for a system: more get nearer where many entries sit on a bound, and take longer. [41, 0.12]"""
    inner: int = 8
    """Conjugate-gradient steps between two looks at which entries sit on a bound. [1, 1]"""
    good: float = 1e-3
    """Relative error under which the dual ascent has found the solution; above it, projected descent tries too.
    [1, 1]"""
    grace: int = 10
    """Dual steps that are free [1, 1]; after them the error has to fall"""
    rate: float = 0.9
    """by this factor a step. [5.2, 1]"""
    gain: float = 0.99
    """A projected step that leaves more than this share of the residual is the last. [1, 1]"""
    lengths: tuple[float, ...] = (1.0, 0.5, 0.2)
    """Lengths of a projected step that are tried."""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def inside(
        self, A: LinearMap, anchor: Tensor, residual: Tensor, nominal: Tensor, within: Range
    ) -> tuple[Tensor, Tensor]:
        """(value, iterations): ``nominal`` where it is in the range, else the nearest solution that is.

        Where the range holds no solution (or none near), the least residual that projected descent reaches from the
        anchor.
        """
        iterations = torch.zeros(len(anchor), dtype=torch.long, device=anchor.device)
        if not within.bounded:
            return nominal, iterations
        value = within.clamp(nominal, anchor)
        outside = (value != nominal).flatten(1).any(1).nonzero().squeeze(1)
        if len(outside) == 0:
            return value, iterations
        part = A.rows(outside)
        near, r = anchor[outside], residual[outside]
        best, error, steps = self.dual(part, near, r, nominal[outside], within)
        left = (error > self.good).nonzero().squeeze(1)
        if len(left):
            part = part.rows(left)
            descended, more = self.projected(part, near[left], r[left], within)
            steps[left] += more
            better = _error(part, near[left], r[left], descended) < _error(part, near[left], r[left], best[left])
            best[left] = torch.where(per_system(better, descended), descended, best[left])
        iterations[outside] = steps
        return value.index_copy(0, outside, best), iterations

    def dual(
        self, A: LinearMap, anchor: Tensor, residual: Tensor, start: Tensor, within: Range
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Dual ascent preconditioned with A⁺: ``z ← z + A⁺(r − A(P(z) − â)), a = P(z)``, P the clamp.

        The fixed point is the constrained solution. Returns the best iterate, its error relative to the attainable part
        of the residual, and steps, per system; a system stops when it is there, or stops gaining.
        """
        count = len(anchor)
        steps = torch.zeros(count, dtype=torch.long, device=anchor.device)
        value, least = anchor.clone(), torch.ones(count, dtype=anchor.dtype, device=anchor.device)
        tolerance = 1e-8 if anchor.dtype == torch.float64 else 1e-5  # the square root of the precision, about
        active = torch.arange(count, device=anchor.device)
        a, r, z = anchor, residual, start
        scale = norm(A.apply(A.solve(r))).clamp_min(torch.finfo(a.dtype).tiny)
        for step in range(1, self.iterations + 1):
            point = within.clamp(z, a)
            correction = A.solve(r - A.apply(point - a))
            error = norm(A.apply(correction)) / scale
            better = error < least[active]
            value[active[better]], least[active[better]] = point[better], error[better]
            steps[active] = step
            going = (error > tolerance) & (error < 2 * least[active]) & torch.isfinite(error)
            going &= (step < self.grace) | (error < self.rate ** (step - self.grace))
            z = z + correction
            if not bool(going.all()):
                A = A.rows(going.nonzero().squeeze(1))
                active, a, r, z, scale = (v[going] for v in (active, a, r, z, scale))
                if len(active) == 0:
                    break
        return value, least, steps

    def projected(self, A: LinearMap, anchor: Tensor, residual: Tensor, within: Range) -> tuple[Tensor, Tensor]:
        """Descent on ‖r − A(a − â)‖ inside the range: conjugate gradients on the entries that are free, clamped.

        Started at the anchor and stopped early, it moves little in directions that A hardly sees.
        """
        steps = torch.zeros(len(anchor), dtype=torch.long, device=anchor.device)
        value = anchor.clone()
        active = torch.arange(len(anchor), device=anchor.device)
        a, x, r = anchor, anchor, residual
        first = norm(residual).clamp_min(torch.finfo(a.dtype).tiny)
        tolerance = 1e-7 if a.dtype == torch.float64 else 1e-5
        for _ in range(max(self.iterations // self.inner, 1)):
            low, high = a.clamp(max=within.low), a.clamp(min=within.high)
            pull = A.adjoint(r)
            free = ~(((x <= low) & (pull < 0)) | ((x >= high) & (pull > 0)))
            direction = self._free_direction(A, r, pull, free)
            following, after = self._along(A, x, direction, r, within, a)
            gain = norm(after) / norm(r).clamp_min(torch.finfo(a.dtype).tiny)
            steps[active] += self.inner
            value[active] = following
            going = (gain < self.gain) & (norm(after) > tolerance * first)
            A = A.rows(going.nonzero().squeeze(1))
            active, a, x, r, first = active[going], a[going], following[going], after[going], first[going]
            if len(active) == 0:
                break
        return value, steps

    def _free_direction(self, A: LinearMap, residual: Tensor, pull: Tensor, free: Tensor) -> Tensor:
        """A few CGLS steps for A δ = r with δ = 0 outside ``free``. pull: Aᵀr."""

        def adjoint(y: Tensor) -> Tensor:
            return torch.where(free, A.adjoint(y), 0.0)

        return cgls(A.apply, adjoint, residual, self.inner, start=torch.where(free, pull, 0.0))

    def _along(
        self, A: LinearMap, x: Tensor, direction: Tensor, r: Tensor, within: Range, anchor: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best of a few points on the clamped ray; x itself if none gains."""
        best, least = x, r
        for length in self.lengths:
            point = within.clamp(x + length * direction, anchor)
            after = r - A.apply(point - x)
            better = norm(after) < norm(least)
            best = torch.where(per_system(better, best), point, best)
            least = torch.where(per_system(better, least), after, least)
            if bool(better.all()):
                break
        return best, least


def _error(A: LinearMap, anchor: Tensor, residual: Tensor, value: Tensor) -> Tensor:
    return norm(residual - A.apply(value - anchor))
