"""Matrix-free linear solves: conjugate gradients on the normal equations (CGLS), every system stopping on its own.

    min ‖A x − r‖² + α ‖x + off‖²

Started at zero and without damping, CGLS converges to A⁺ r. ``cgls`` is the one loop: of ``CGLS`` (a map of which only
the two products are known), of ``bounded`` (a few steps on the entries that are free to move) and of
``blocks.newton_krylov`` (J by differences, Jᵀ by backward passes). ``conv.woodbury`` has a loop of its own, since it
steps on the other normal equations with a preconditioner.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import per_system

Product = Callable[[Tensor], Tensor]


def cgls(
    apply: Product,
    adjoint: Product,
    residual: Tensor,
    iterations: int,
    alpha: Tensor | None = None,
    off: Tensor | None = None,
    start: Tensor | None = None,
    tolerance: float | None = None,
) -> Tensor:
    """x after some steps from zero. residual: (s, *out); alpha: (s,), 0 without; off: (s, *in), 0 without.

    start: Aᵀr where it is known already. tolerance: systems whose ‖Aᵀr‖ has fallen by that factor leave, for which the
    products have to take any number of systems; None: all systems take all steps.
    """
    s = adjoint(residual) if start is None else start
    tiny = torch.finfo(s.dtype).tiny
    alpha = s.new_zeros(len(s)) if alpha is None else alpha
    alpha = per_system(alpha, s)
    if off is not None:
        s = s - alpha * off
    answer = x = torch.zeros_like(s)
    going = torch.arange(len(s), device=s.device)
    r, p, gamma = residual, s, _square(s)
    first = gamma
    for _ in range(iterations):
        if tolerance is not None:
            keep = gamma.flatten() > tolerance**2 * first.flatten()
            if not bool(keep.all()):
                answer = answer.index_copy(0, going, x)
                going, r, x, p, gamma, first, alpha = (v[keep] for v in (going, r, x, p, gamma, first, alpha))
                off = None if off is None else off[keep]
                if len(going) == 0:
                    return answer
        q = apply(p)
        curvature = _square(q).reshape_as(gamma) + alpha * _square(p)
        step = gamma / curvature.clamp_min(tiny)
        x = x + step * p
        r = r - per_system(step, r) * q
        s = adjoint(r) - alpha * (x if off is None else off + x)
        following = _square(s)
        p = s + (following / gamma.clamp_min(tiny)) * p
        gamma = following
    return answer.index_copy(0, going, x)


def _square(t: Tensor) -> Tensor:
    return per_system(t.flatten(1).square().sum(1), t)


@dataclass(frozen=True)
class ConjugateGradients:
    """Plain conjugate gradients, the paper's Iterative-CG (B.1.2)."""

    iterations: int = 100
    """Most steps; the paper's (B.1.2)."""
    tolerance: float = 1e-9
    """‖Aᵀr‖ relative to its first at which a system stops; the paper's (B.1.2)."""
    power_iterations: int = 10
    """Power iterations for σ_max, which the fallback's damping needs; the paper's (B.1.2)."""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def prepare(self, apply: Product, adjoint: Product, example: Tensor, frobenius: float | None = None) -> CGLS:
        """The map given by its products. example: (1, *in) of the right dtype and device."""
        return CGLS(apply, adjoint, example, self, frobenius)


class CGLS:
    """A linear map given by ``apply`` and ``adjoint``. x: (s, *in), y: (s, *out)."""

    direct = False
    deficient = False

    def __init__(
        self,
        apply: Product,
        adjoint: Product,
        example: Tensor,
        options: ConjugateGradients = ConjugateGradients(),
        frobenius: float | None = None,
    ) -> None:
        self.apply = apply
        self.adjoint = adjoint
        self.options = options
        self._frobenius = frobenius
        self._unit = torch.ones_like(example[:1])
        self.reduces = apply(self._unit).numel() <= self._unit.numel()

    def rows(self, index: Tensor) -> CGLS:
        return self

    @cached_property
    def sigma_max(self) -> float:
        """By power iterations on AᵀA, from a fixed random vector."""
        generator = torch.Generator(device="cpu").manual_seed(0)
        x = torch.randn(self._unit.shape, generator=generator, dtype=torch.float64).to(self._unit)
        norm = torch.zeros((), dtype=x.dtype)
        for _ in range(self.options.power_iterations):
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
        return cgls(
            self.apply, self.adjoint, residual, self.options.iterations, alpha, tolerance=self.options.tolerance
        )
