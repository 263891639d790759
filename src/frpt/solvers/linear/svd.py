"""Factorisations that every solver takes from here: singular values by the first driver that converges, safe Cholesky.

    A = U diag(s) Vᴴ,   A⁺ = V diag(gains) Uᴴ,   (AᴴA + αI)⁻¹Aᴴ = V diag(damped_gains) Uᴴ

LAPACK's divide and conquer (gesdd, torch's on the CPU) is the fastest and, now and then, does not
converge on a matrix that plain QR iterations (gesvd) decompose. Where no driver does, all factors are zero: so are
A⁺ and every damped inverse made of them, and the systems of this matrix keep their anchor; see ``lost``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg
import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

Factors = tuple[Tensor, Tensor, Tensor]


def svd(matrices: Tensor) -> Factors:
    """u: (..., m, k), s: (..., k), vh: (..., k, n), k = min(m, n); zero for matrices that no driver decomposes."""
    try:
        return _first(matrices)
    except LinAlgError:
        single = [_any_driver(a) for a in matrices.reshape(-1, *matrices.shape[-2:])]
        u, s, vh = (
            torch.stack(parts).reshape(*matrices.shape[:-2], *parts[0].shape) for parts in zip(*single, strict=True)
        )
        return u, s, vh


def singular_values(matrices: Tensor) -> Tensor:
    """s: (..., k), largest first."""
    try:
        values: Tensor = torch.linalg.svdvals(matrices)
    except LinAlgError:
        values = svd(matrices)[1]
    return values


def truncation(s: Tensor, m: int, n: int) -> Tensor:
    """The singular value at or below which one of an (m, n) matrix is numerically zero: ε max(m, n) σ_max. (..., 1)"""
    return torch.finfo(s.dtype).eps * max(m, n) * s.amax(-1, keepdim=True)


def gains(s: Tensor, m: int, n: int) -> Tensor:
    """The singular values of A⁺: 1/s, and zero for those that are numerically zero."""
    return torch.where(s > truncation(s, m, n), 1 / s.clamp_min(torch.finfo(s.dtype).tiny), 0.0)


def damped_gains(s: Tensor, alpha: Tensor) -> Tensor:
    """The singular values of (AᴴA + αI)⁻¹Aᴴ. alpha: broadcastable to s."""
    return s / (s**2 + alpha)


def pseudo_inverse(factors: Factors) -> Tensor:
    """A⁺: (..., n, m)."""
    u, s, vh = factors
    inverse: Tensor = vh.mH @ (gains(s, u.shape[-2], vh.shape[-1])[..., None] * u.mH)
    return inverse


def lost(s: Tensor) -> Tensor:
    """Matrices that are zero, or that no driver decomposed: (...,) bool."""
    return (s == 0).all(-1)


def safe_cholesky(grams: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factors L of A Aᴴ, (..., k, k), and which of them may be used to solve: (...,) bool.

    The squared ratio of the smallest to the largest pivot stands for the inverse condition number of A Aᴴ. Under 1e-10
    a float64 solve by it has lost about two thirds of its 16 digits, and A is decomposed itself.
    """
    factor, info = torch.linalg.cholesky_ex(grams)
    if grams.shape[-1] == 0:
        return factor, torch.zeros_like(info, dtype=torch.bool)
    pivots = factor.diagonal(dim1=-2, dim2=-1).abs()
    return factor, (info == 0) & (pivots.amin(-1) ** 2 > 1e-10 * pivots.amax(-1) ** 2)


def _any_driver(matrix: Tensor) -> Factors:
    """One matrix by the first driver that converges."""
    for driver in _drivers(matrix):
        try:
            u, s, vh = driver(matrix)
        except (LinAlgError, np.linalg.LinAlgError, ValueError):  # ValueError: scipy found NaN or infinity
            continue
        return u.to(matrix), s.to(matrix.device, matrix.real.dtype), vh.to(matrix)
    k = min(matrix.shape)
    return matrix.new_zeros(len(matrix), k), matrix.real.new_zeros(k), matrix.new_zeros(k, matrix.shape[1])


def _drivers(matrix: Tensor) -> Iterator[Callable[[Tensor], Factors]]:
    yield _first
    if matrix.is_cuda:
        yield _cuda_gesvd
    yield _double
    yield _gesvd


def _first(matrices: Tensor) -> Factors:
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    return u, s, vh


def _cuda_gesvd(matrix: Tensor) -> Factors:
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False, driver="gesvd")
    return u, s, vh


def _double(matrix: Tensor) -> Factors:
    return _first(_wide(matrix))


def _gesvd(matrix: Tensor) -> Factors:
    u, s, vh = scipy.linalg.svd(_wide(matrix).numpy(), full_matrices=False, lapack_driver="gesvd")
    return torch.from_numpy(u), torch.from_numpy(s), torch.from_numpy(vh)


def _wide(matrix: Tensor) -> Tensor:
    """On the CPU, in double precision."""
    return matrix.detach().cpu().to(torch.complex128 if matrix.is_complex() else torch.float64)
