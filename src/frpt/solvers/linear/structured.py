"""Linear maps whose pseudo-inverse is written down, made by the rules of elementwise ops, windows and pooling.

Diagonal    y = s ∘ x                  A⁺ = 1/s, 0 where s is 0
Blocks      y_g = A_g x_g              one small pseudo-inverse for each group
Separable   y = (A₁ ⊗ … ⊗ A_d) x      A⁺ = A₁⁺ ⊗ … ⊗ A_d⁺
"""

from __future__ import annotations

from functools import cached_property, reduce

import torch
from torch import Tensor

from frpt.solvers.base import norm, per_system
from frpt.solvers.linear.svd import Factors, damped_gains, gains, lost, pseudo_inverse, svd


class Diagonal:
    """y = s ∘ x, the scale s: (s, *in) or broadcastable, summed over ``over`` where x was broadcast.

    A⁺ r = Σ s r / Σ s², and zero where the scale is zero: that entry keeps its anchor.
    """

    direct = True
    reduces = True
    deficient = False

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale

    @cached_property
    def frobenius(self) -> Tensor:
        return norm(self.scale)

    @cached_property
    def sigma_max(self) -> Tensor:
        return self.scale.flatten(1).abs().amax(1)

    def rows(self, index: Tensor) -> Diagonal:
        return self if len(self.scale) == 1 else Diagonal(self.scale[index])

    def apply(self, x: Tensor) -> Tensor:
        return self.scale * x

    adjoint = apply

    def solve(self, residual: Tensor) -> Tensor:
        zero = self.scale == 0
        return torch.where(zero, 0.0, residual / torch.where(zero, 1.0, self.scale))

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        return self.scale * residual / (self.scale**2 + per_system(alpha, self.scale))


class Blocks:
    """A matrix of its own for every group. A: (g, m, n), x: (s, g, n), y: (s, g, m)."""

    direct = True

    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices
        self.reduces = matrices.shape[-2] <= matrices.shape[-1]
        self._u, self._s, self._vh = svd(matrices)
        self._gain = gains(self._s, *matrices.shape[-2:])
        self.deficient = bool((self._gain == 0).any())
        self.frobenius = float(torch.linalg.vector_norm(matrices))
        self.sigma_max = float(self._s.max())

    def rows(self, index: Tensor) -> Blocks:
        return self

    def apply(self, x: Tensor) -> Tensor:
        return torch.einsum("gmn,sgn->sgm", self.matrices, x)

    def adjoint(self, y: Tensor) -> Tensor:
        return torch.einsum("gmn,sgm->sgn", self.matrices, y)

    def solve(self, residual: Tensor) -> Tensor:
        return self._filtered(residual, self._gain)

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        return self._filtered(residual, damped_gains(self._s, alpha[:, None, None]))

    def _filtered(self, residual: Tensor, gain: Tensor) -> Tensor:
        inner = torch.einsum("gmk,sgm->sgk", self._u, residual) * gain
        return torch.einsum("gkn,sgk->sgn", self._vh, inner)


class Separable:
    """A = A₁ ⊗ … ⊗ A_d over the d trailing axes. x: (s, n₁, …, n_d), y: (s, m₁, …, m_d).

    Pooling and interpolation are of this kind; A⁺ is the product of the small pseudo-inverses.
    """

    direct = True

    def __init__(self, factors: list[Tensor]) -> None:
        self.factors = factors
        self.reduces = all(f.shape[0] <= f.shape[1] for f in factors)

    @cached_property
    def _svd(self) -> list[Factors]:
        return [svd(f) for f in self.factors]

    @cached_property
    def _inverse(self) -> list[Tensor]:
        return [pseudo_inverse(f) for f in self._svd]

    @cached_property
    def deficient(self) -> bool:
        """Windows that share inputs are no fault; a factor without a decomposition is."""
        return any(bool(lost(s)) for _, s, _ in self._svd)

    @cached_property
    def frobenius(self) -> float:
        return float(torch.stack([torch.linalg.matrix_norm(f) for f in self.factors]).prod())

    @cached_property
    def sigma_max(self) -> float:
        return float(torch.stack([s[0] for _, s, _ in self._svd]).prod())

    def rows(self, index: Tensor) -> Separable:
        return self

    def apply(self, x: Tensor) -> Tensor:
        return _along_axes(x, self.factors)

    def adjoint(self, y: Tensor) -> Tensor:
        return _along_axes(y, [f.mT for f in self.factors])

    def solve(self, residual: Tensor) -> Tensor:
        return _along_axes(residual, self._inverse)

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        spectrum = reduce(torch.multiply, [s.reshape(-1, *[1] * k) for k, (_, s, _) in self._from_last()])
        inner = _along_axes(residual, [u.mT for u, _, _ in self._svd])
        inner = inner * damped_gains(spectrum, per_system(alpha, inner))
        return _along_axes(inner, [vh.mT for _, _, vh in self._svd])

    def _from_last(self) -> list[tuple[int, Factors]]:
        return list(enumerate(reversed(self._svd)))


def _along_axes(x: Tensor, factors: list[Tensor]) -> Tensor:
    """Multiply axis −d … −1 of x by the d matrices."""
    for axis, factor in zip(range(-len(factors), 0), factors, strict=True):
        x = (x.movedim(axis, -1) @ factor.mT).movedim(-1, axis)
    return x
