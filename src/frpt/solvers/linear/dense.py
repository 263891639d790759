"""Explicit matrices as linear maps: one for all systems (``Dense``), or one for each (``Batched``).

    A⁺ r = Aᵀ(A Aᵀ)⁻¹ r in case I, (AᵀA)⁻¹Aᵀ r in case II

by Cholesky of the smaller Gram matrix; by QR of A where that would lose too many digits; by singular values where A is
of deficient rank, and in the damped fallback. Made by the rules of linear layers, products and small convolutions, and
by Gauss–Newton for its Jacobians.
"""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor

from frpt.solvers.base import norm
from frpt.solvers.linear.svd import damped_gains, gains, safe_cholesky, svd


class Dense:
    """A: (m, n) acting on the last axis. x: (s, n), y: (s, m)."""

    direct = True

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        m, n = matrix.shape
        self.reduces = m <= n
        self._prepare()

    def _prepare(self) -> None:
        A = self.matrix if self.reduces else self.matrix.mT
        self._tall = A.mT  # (long, short)
        factor, safe = safe_cholesky(A @ A.mT)
        self._kind, self.deficient = "cholesky", False
        if bool(safe):
            self._factor = factor
            return
        self._kind = "qr"
        self._q, self._r = torch.linalg.qr(self._tall)
        if _pivots(self._r) > torch.finfo(A.dtype).eps * max(A.shape):
            return
        self._kind, self.deficient = "svd", True

    @cached_property
    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """u: (m, k), s: (k,), vh: (k, n)."""
        return svd(self.matrix)

    @cached_property
    def frobenius(self) -> float:
        return float(torch.linalg.matrix_norm(self.matrix))

    @property
    def sigma_max(self) -> float:
        s = self.svd[1]
        return float(s[0]) if len(s) else 0.0

    def rows(self, index: Tensor) -> Dense:
        return self

    def apply(self, x: Tensor) -> Tensor:
        return x @ self.matrix.mT

    def adjoint(self, y: Tensor) -> Tensor:
        return y @ self.matrix

    def solve(self, residual: Tensor) -> Tensor:
        if self._kind == "svd":
            u, s, vh = self.svd
            return ((residual @ u) * gains(s, *self.matrix.shape)) @ vh
        if self._kind == "qr":  # A = (QR)ᵀ in case I, QR in case II
            delta: Tensor
            if self.reduces:
                delta = torch.linalg.solve_triangular(self._r.mT, residual.mT, upper=False).mT @ self._q.mT
            else:
                delta = torch.linalg.solve_triangular(self._r, (residual @ self._q).mT, upper=True).mT
            return delta
        if self.reduces:
            return self.adjoint(torch.cholesky_solve(residual.mT, self._factor).mT)
        return torch.cholesky_solve(self.adjoint(residual).mT, self._factor).mT

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        u, s, vh = self.svd
        return ((residual @ u) * damped_gains(s, alpha[:, None])) @ vh


class Batched:
    """A different matrix for every system. A: (s, m, n), x: (s, n, k), y: (s, m, k)."""

    direct = True

    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices
        self.reduces = matrices.shape[-2] <= matrices.shape[-1]
        self.u, self.s, self.vh = svd(matrices)
        self._gain = gains(self.s, *matrices.shape[-2:])
        self.deficient = (self._gain == 0).any(-1)

    def rows(self, index: Tensor) -> Batched:
        part = copy.copy(self)
        for name in ("matrices", "u", "s", "vh", "_gain", "deficient"):
            setattr(part, name, getattr(self, name)[index])
        return part

    @property
    def frobenius(self) -> Tensor:
        return norm(self.matrices)

    @property
    def sigma_max(self) -> Tensor:
        return self.s.amax(-1)

    def apply(self, x: Tensor) -> Tensor:
        return self.matrices @ x

    def adjoint(self, y: Tensor) -> Tensor:
        return self.matrices.mT @ y

    def solve(self, residual: Tensor) -> Tensor:
        return self.vh.mT @ (self._gain[..., None] * (self.u.mT @ residual))

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        gain = damped_gains(self.s, alpha[:, None])
        return self.vh.mT @ (gain[..., None] * (self.u.mT @ residual))


def _pivots(triangular: Tensor) -> float:
    """Smallest over largest diagonal entry: a cheap stand-in for the inverse condition number."""
    d = triangular.diagonal().abs()
    return float(d.min() / d.max()) if len(d) and float(d.max()) > 0 else 0.0
