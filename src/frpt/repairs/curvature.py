"""Curvature: the Fisher metric on one weight matrix, in its Kronecker form with corrected eigenvalues (EKFAC).

    ‖D‖²_F = Σ S ⊙ (U_Gᵀ D U_A)²

U_A, U_G: eigenbases of the second moments of the matrix's inputs and of the slopes at its outputs; S: the mean squared
gradient along each pair of directions. Of wide matrices only the leading columns of U_A are kept; beyond them S is one
number for each output. Made by ``frpt.repairs.memory``; ``frpt.repairs.nearest_weights`` measures by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Curvature:
    """The metric on one weight matrix, one for each group.

    left: (groups, outputs, outputs), U_G. right: (groups, inputs, r), the leading r columns of U_A. power: (groups,
    outputs, r), S. rest: (groups, outputs, 1), S beyond them; without entries if r = inputs.
    left_values, right_values: the eigenvalues of G and A, to combine memories with; the last of A is the mean beyond r.
    """

    left: Tensor
    right: Tensor
    power: Tensor
    rest: Tensor
    left_values: Tensor
    right_values: Tensor

    @property
    def whole(self) -> bool:
        """Whether every direction of the inputs is kept."""
        return self.right.shape[1] == self.right.shape[2]

    def to(self, like: Tensor) -> Curvature:
        """In the precision and on the device of a tensor."""
        return Curvature(*(getattr(self, name).to(like) for name in self.__dataclass_fields__))

    def stored(self) -> Curvature:
        """As files hold it: in single precision; of cut matrices, which are the large ones, most in two bytes."""
        c = self.to(torch.empty(0))
        if self.whole:
            return c
        return Curvature(c.left.half(), c.right.half(), c.power.bfloat16(), c.rest, c.left_values, c.right_values)

    def rotated(self, D: Tensor) -> Tensor:
        """U_Gᵀ D: (…, outputs, inputs), in which a change of the weights is split into kept directions and the rest."""
        return self.left.mT @ D

    def energy(self, D: Tensor) -> Tensor:
        """‖D‖²_F of a change (groups, outputs, inputs) of the weights."""
        turned = self.rotated(D)
        kept = turned @ self.right
        total = (self.power * kept.square()).sum()
        if not self.whole:
            beyond = (turned.square().sum(-1, keepdim=True) - kept.square().sum(-1, keepdim=True)).clamp_min(0)
            total = total + (self.rest * beyond).sum()
        return total

    @property
    def mean(self) -> float:
        """Of S over all directions."""
        inputs, kept = self.right.shape[1:]
        return float((self.power.sum() + (inputs - kept) * self.rest.sum()) / (self.power[..., 0].numel() * inputs))

    def raised(self, floor: float) -> Curvature:
        """S + floor: no direction is free, however little the old inputs say of it."""
        return Curvature(
            self.left, self.right, self.power + floor, self.rest + floor, self.left_values, self.right_values
        )

    def scaled(self, factor: float) -> Curvature:
        """The metric times a number."""
        return Curvature(
            self.left, self.right, factor * self.power, factor * self.rest, self.left_values, self.right_values
        )  # fmt: skip

    def solve(self, gradient: Tensor) -> Tensor:
        """F⁻¹ times a gradient (groups, outputs, inputs)."""
        turned = self.rotated(gradient)
        kept = turned @ self.right
        if self.whole:
            return self.left @ ((kept / self.power) @ self.right.mT)
        return self.left @ (turned / self.rest + (kept / self.power - kept / self.rest) @ self.right.mT)


def on_eigenbases(A: Tensor, G: Tensor, kept: int) -> Curvature:
    """The eigenbases of A and G, the leading ``kept`` directions of A; S is not known yet."""
    left_values, left = eigh(G)
    right_values, right = leading(A, kept)
    inputs = A.shape[-1]
    nothing = left.new_zeros(*left.shape[:2], kept)
    rest = left.new_zeros(*left.shape[:2], int(kept < inputs))
    if kept < inputs:
        beyond = A.diagonal(dim1=1, dim2=2).sum(1, keepdim=True) - right_values.sum(1, keepdim=True)
        right_values = torch.cat([right_values, beyond.clamp_min(0) / (inputs - kept)], 1)
    return Curvature(left, right.contiguous(), nothing, rest, left_values, right_values)


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """``torch.linalg.eigh``; in double where single precision does not converge.

    That happened with matrices of few old inputs, whose eigenvalues are mostly zero (2,304 rows of rank 64).
    """
    try:
        values, vectors = torch.linalg.eigh(A)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        if A.dtype == torch.float64:
            raise
        values, vectors = (t.to(A) for t in torch.linalg.eigh(A.double()))
    return values, vectors


def leading(A: Tensor, kept: int, spare: int = 64, rounds: int = 2) -> tuple[Tensor, Tensor]:
    """(the largest eigenvalues, ascending, their eigenvectors) of matrices (groups, n, n).

    Of few among many by subspace iteration (Halko, Martinsson and Tropp 2011) with ``spare`` more directions: 4,608
    take a tenth of the time of all eigenvectors. S is measured on the basis that comes out, whatever it is.
    """
    n = A.shape[-1]
    if 2 * (kept + spare) > n:
        values, vectors = eigh(A)
        return values[:, -kept:], vectors[..., -kept:]
    start = torch.randn(n, kept + spare, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = A @ start.to(A)
    for _ in range(rounds):
        basis = A @ torch.linalg.qr(basis)[0]
    basis = torch.linalg.qr(basis)[0]
    values, turn = eigh(basis.mT @ A @ basis)
    return values[:, -kept:], basis @ turn[..., -kept:]


def rotated(c: Curvature, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor | None]:
    """(U_GᵀJU_A, U_GᵀJ where U_A is not whole) of the per-sample gradients J = Σ_p g kᵀ: (b, groups, outputs, ·)."""
    kept: Tensor | None = None
    full: Tensor | None = None
    for k, g in pairs:
        slopes = (g @ c.left).mT
        if k.shape[2] <= g.shape[3]:  # few positions: it is cheaper to turn the inputs
            part = slopes @ (k @ c.right)
            more = part if c.whole else slopes @ k
        else:
            more = slopes @ k
            part = more @ c.right
        kept = part if kept is None else kept + part
        if not c.whole:
            full = more if full is None else full + more
    assert kept is not None
    return kept, full


def joined(a: Curvature, b: Curvature, weight_a: float, weight_b: float) -> Curvature:
    """The metric  weight_a F_a + weight_b F_b  on the eigenbases of the summed A and G."""
    parts = [(c.to(torch.empty(0, dtype=torch.float64)), w) for c, w in ((a, weight_a), (b, weight_b))]
    G = _sum(w * (c.left * c.left_values[:, None]) @ c.left.mT for c, w in parts)
    A = _sum(w * _inputs_of(c) for c, w in parts)
    inputs, kept = a.right.shape[1:]
    base = on_eigenbases(A, G, kept)
    power = _sum(w * _projected(c, base) for c, w in parts)
    rest = base.rest
    if rest.shape[2]:
        totals = _sum(w * (c.power.sum(-1, keepdim=True) + c.rest * (inputs - kept)) for c, w in parts)
        rest = ((totals - power.sum(-1, keepdim=True)) / (inputs - kept)).clamp_min(0)
    return Curvature(base.left, base.right, power, rest, base.left_values, base.right_values).stored()


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


def _inputs_of(c: Curvature) -> Tensor:
    """A itself, from its eigenvectors and what is known beyond them."""
    kept = c.right.shape[2]
    mean = c.right_values[:, kept:].sum(1)[:, None, None]  # zero if nothing is beyond
    eye = torch.eye(c.right.shape[1], dtype=c.right.dtype, device=c.right.device)
    return (c.right * (c.right_values[:, None, :kept] - mean)) @ c.right.mT + mean * eye


def _projected(c: Curvature, base: Curvature) -> Tensor:
    """The diagonal of a metric on another basis: Σ (U_cᵀu)²(V_cᵀv)² S."""
    left, right = (c.left.mT @ base.left).square(), (c.right.mT @ base.right).square()
    power = left.mT @ c.power @ right
    if not c.whole:
        beyond = (1 - right.sum(1, keepdim=True)).clamp_min(0)
        power = power + (left.mT @ c.rest) * beyond
    return power
