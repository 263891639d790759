"""Matrix-free linear solves: conjugate gradients on the normal equations (CGLS), every system stopping on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from frpt.solvers.base import per_system


class CGLS:
    """A given by ``apply`` and ``adjoint``; started at zero, CGLS converges to A⁺ r. x: (s, *in), y: (s, *out)."""

    closed = False
    deficient = False

    def __init__(
        self,
        apply: Callable[[Tensor], Tensor],
        adjoint: Callable[[Tensor], Tensor],
        example: Tensor,
        iterations: int = 200,
        tolerance: float = 1e-8,
        frobenius: float | None = None,
    ) -> None:
        self.apply = apply
        self.adjoint = adjoint
        self.iterations = iterations
        self.tolerance = tolerance
        self._frobenius = frobenius
        self._unit = torch.ones_like(example[:1])
        self.reduces = apply(self._unit).numel() <= self._unit.numel()

    def rows(self, index: Tensor) -> CGLS:
        return self

    @cached_property
    def sigma_max(self) -> float:
        """Ten power iterations, as the paper's Iterative-CG does (B.1.2)."""
        generator = torch.Generator(device="cpu").manual_seed(0)
        x = torch.randn(self._unit.shape, generator=generator, dtype=torch.float64).to(self._unit)
        norm = torch.zeros((), dtype=x.dtype)
        for _ in range(10):
            x = self.adjoint(self.apply(x / torch.linalg.vector_norm(x).clamp_min(torch.finfo(x.dtype).tiny)))
            norm = torch.linalg.vector_norm(x)
        return math.sqrt(float(norm))

    @property
    def frobenius(self) -> float:
        """σ_max where it is not known, a lower estimate: the gate is stricter with it, never laxer."""
        return self.sigma_max if self._frobenius is None else self._frobenius

    def solve(self, residual: Tensor) -> Tensor:
        return self.damped(residual, torch.zeros(len(residual), dtype=residual.dtype, device=residual.device))

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        """CGLS on [A; √α I] δ = [r; 0]; finished systems leave the batch."""
        answer = torch.zeros(len(residual), *self._unit.shape[1:], dtype=residual.dtype, device=residual.device)
        alpha = per_system(alpha, answer)
        going = torch.arange(len(residual), device=residual.device)
        r, x = residual, answer
        s = self.adjoint(r)
        p, gamma = s, _square(s)
        start = gamma
        for _ in range(self.iterations):
            keep = gamma.flatten() > self.tolerance**2 * start.flatten()
            if not bool(keep.all()):
                answer = answer.index_copy(0, going, x)
                going, r, x, p, gamma, start, alpha = (v[keep] for v in (going, r, x, p, gamma, start, alpha))
                if len(going) == 0:
                    return answer
            q = self.apply(p)
            curvature = _square(q).reshape_as(gamma) + alpha.reshape_as(gamma) * _square(p)
            step = gamma / curvature.clamp_min(torch.finfo(gamma.dtype).tiny)
            x = x + step * p
            r = r - per_system(step, r) * q
            s = self.adjoint(r) - alpha * x
            following = _square(s)
            p = s + (following / gamma.clamp_min(torch.finfo(gamma.dtype).tiny)) * p
            gamma = following
        return answer.index_copy(0, going, x)


def _square(t: Tensor) -> Tensor:
    return per_system(t.flatten(1).square().sum(1), t)
