"""The minimum-norm least-squares solution of a large convolution, to a tolerance: Krylov steps on a torus.

Called by ``frpt.rules.conv`` for the ways ``seam`` (capacitance system) and ``circulant`` (without it).

With B = A where it is wide, and Aᵀ where it is tall, the solution needs (B Bᵀ)⁻¹. On the torus B = S C E (see
``torus``); E⊥ and S⊥ pick what E leaves empty and S drops, and G = C Cᵀ is block-diagonal over frequencies:

    B Bᵀ = S (G − C E⊥ᵀE⊥ Cᵀ) Sᵀ
    (B Bᵀ)⁻¹ r = S λ,  λ = G⁻¹(Sᵀr + S⊥ᵀw + C E⊥ᵀμ),   S⊥ λ = 0,   E⊥ Cᵀλ = μ

The two conditions are a small system for (w, μ), the values on the seam of the torus: the capacitance system, made of
the entries of [G⁻¹, G⁻¹C; CᵀG⁻¹, CᵀG⁻¹C − I] there. Factorised once, it makes the FFT solve exact (Woodbury); where
it is too large, G⁻¹ alone preconditions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Working, norm, per_system
from frpt.solvers.conv.operator import Convolution
from frpt.solvers.conv.torus import Side, Torus
from frpt.solvers.linear.cgls import CGLS, ConjugateGradients


@dataclass(frozen=True)
class Woodbury:
    """Conjugate gradients on (B Bᵀ + α) λ = r, preconditioned on a torus; exact in a step or two with the seam."""

    tolerance: float = 1e-6
    """Relative error of the answer: the bar of ``benchmarks/conv.py`` for conditions below 300 (docs/benchmarks.md)."""
    iterations: int = 1000
    """Most preconditioned steps. Out of reach of normal work: without the seam some 100 are taken (docs/benchmarks.md,
    "What a solve costs")."""
    floor: float = 1e-10
    """Added to G, relative to its largest eigenvalue, with the seam: a frequency may vanish on the torus and not on the
    map. The error is proportional to it (benchmarks/halves.py); smaller ones meet the rounding of float64."""
    floor_alone: float = 1e-5
    """The same without the seam, where G only preconditions. Half or double changes the error by 6 %
    (benchmarks/halves.py)."""
    hopeless: float = 1e6
    """Condition number from which no number of plain conjugate-gradient steps finds A⁺ r, so that at most"""
    hopeless_iterations: int = 100
    """are made and the gate damps (benchmarks/conv.py, the figure against the condition number)."""
    patience: int = 30
    """Steps without a tenth of progress after which a system counts as stalled. Half or double changes nothing in
    benchmarks/halves.py."""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def prepare(self, conv: Convolution, torus: Torus, seam: bool) -> Exact:
        """A⁺ of a convolution. seam: whether to factorise the capacitance system."""
        return Exact(conv, torus, seam, self)


class Exact:
    """A⁺ of a convolution. x: (s, *inputs), y: (s, *outputs)."""

    deficient = False

    def __init__(self, conv: Convolution, torus: Torus, seam: bool, options: Woodbury = Woodbury()) -> None:
        self.conv = conv
        self.apply = conv.apply
        self.adjoint = conv.adjoint
        self.reduces = conv.reduces
        reads, makes = conv.reached
        self._wide = int(makes.sum()) <= int(reads.sum())  # B = A, else Aᵀ
        self._makes = makes
        self.direct = seam
        self.options = options
        self.frobenius = conv.frobenius
        self._gram = Gram(torus, seam, self._wide, options)
        self._damped: tuple[int, Gram] | None = None

    @property
    def sigma_max(self) -> float:
        """Of the circulant map, which A is a part of: a tight upper bound."""
        return self._gram.torus.sigma_max

    def rows(self, index: Tensor) -> Exact:
        return self

    def solve(self, residual: Tensor) -> Tensor:
        """A⁺ r; where B Bᵀ turns out singular (targets that no input reaches), by plain conjugate gradients."""
        o, limit = self.options, self.options.iterations
        if not self._gram.torus.condition < o.hopeless:
            limit = min(limit, o.hopeless_iterations)
        return self._finished(residual, residual.new_zeros(len(residual)), self._gram, limit)

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        """Preconditioned with about the least damping of the batch, rounded so that the next batch shares it."""
        top = max(self.sigma_max**2, torch.finfo(alpha.dtype).tiny)
        power = round(math.log(float(alpha.min()) / top, 4))
        if self._damped is None or self._damped[0] != power:
            self._damped = None  # the old factor goes before the new one is made
            self._damped = (power, self._gram.damped(top * 4.0**power))
        return self._finished(residual, alpha, self._damped[1], self.options.iterations)

    def _finished(self, residual: Tensor, alpha: Tensor, gram: Gram, limit: int) -> Tensor:
        """The preconditioned answer; for systems it did not reach, ``limit`` steps of plain conjugate gradients."""
        correction, arrived = self._krylov(residual, alpha, gram)
        lost = (~arrived).nonzero().squeeze(1)
        if len(lost) == 0:
            return correction
        plain = conjugate_gradients(self.conv, ConjugateGradients(limit, 1e-5 * self.options.tolerance))
        return correction.index_copy(0, lost, plain.damped(residual[lost], alpha[lost]))

    def _krylov(self, residual: Tensor, alpha: Tensor, gram: Gram) -> tuple[Tensor, Tensor]:
        """(δ, which systems arrived). Flexible conjugate gradients on (B Bᵀ + α) λ = r; δ = Bᵀλ in case I.

        Every system stops on its own: by the error of δ, of which √(rᵀ(B Bᵀ)⁻¹r) is the norm in case I; in case II by
        the preconditioned residual, which is the error as far as the preconditioner is the inverse. Not ``cgls``: that
        steps on BᵀB without a preconditioner. Flexible: rounding makes the preconditioner a slightly different one at
        every step, which the plain update of the direction does not forgive.
        """
        answer = residual.new_zeros(len(residual), *self.conv.inputs)
        arrived = torch.zeros(len(residual), dtype=torch.bool, device=residual.device)
        r = residual * self._makes if self._wide else self.adjoint(residual)
        s = _State.begin(r, answer, alpha, self.options.patience)
        aim = self.options.tolerance * (
            0.1 if self.direct else 1e-3
        )  # the torus alone may be better conditioned than A
        enough, likely = gram.enough(aim)
        for step in range(self.options.iterations):
            there = norm(s.r) <= enough * s.start
            if step and bool(there.all()):
                break
            s.z = gram.inverse(s.r)
            following = _dot(s.r, s.z)
            error = following.clamp_min(0).sqrt() if self._wide else norm(s.z)
            there |= (error <= aim * norm(s.x)) & (norm(s.r) <= likely * s.start)
            keep = ~there & (following > 0) & torch.isfinite(following) & (s.idle < s.patience)
            if not bool(keep.all()):
                answer, arrived = answer.index_copy(0, s.index, s.x), arrived.index_copy(0, s.index, there)
                s.keep(keep)
                following = following[keep]
                if len(s.index) == 0:
                    return answer, arrived
            s.p = s.z + per_system((following - _dot(s.before, s.z)) / s.gamma, s.z) * s.p
            s.gamma, s.before = following, s.r
            u = self.adjoint(s.p) if self._wide else self.apply(s.p)
            q = (self.apply(u) if self._wide else self.adjoint(u)) + per_system(s.alpha, s.p) * s.p
            length = _dot(s.p, s.r) / _dot(s.p, q).clamp_min(torch.finfo(q.dtype).tiny)
            s.x = s.x + per_system(length, s.x) * (u if self._wide else s.p)
            s.r = s.r - per_system(length, s.r) * q
            s.idle = torch.where(norm(s.r) < 0.9 * s.least, 0.0, s.idle + 1)
            s.least = torch.minimum(s.least, norm(s.r))
        arrived = arrived.index_copy(0, s.index, norm(s.r) <= enough * s.start)
        return answer.index_copy(0, s.index, s.x), arrived


@dataclass
class _State(Working):
    """Systems at work: their index (k,), residual r and the one before, answer x, direction p, preconditioned residual
    z, and per system α, rᵀz, the first and the least ‖r‖, steps without gain and how many are borne."""

    index: Tensor
    r: Tensor
    before: Tensor
    x: Tensor
    p: Tensor
    z: Tensor
    alpha: Tensor
    gamma: Tensor
    start: Tensor
    least: Tensor
    idle: Tensor
    patience: Tensor

    @staticmethod
    def begin(r: Tensor, x: Tensor, alpha: Tensor, patience: int) -> _State:
        """At x = 0; a damped system is never singular, and may take its time."""
        none, start = torch.zeros_like(r), norm(r)
        index = torch.arange(len(r), device=r.device)
        bearing = torch.where(alpha > 0, torch.inf, patience)
        ones, zeros = torch.ones_like(start), torch.zeros_like(start)
        return _State(index, r, none, x, none, none, alpha, ones, start, start, zeros, bearing)


class Gram:
    """(B Bᵀ + α)⁻¹ on a torus; exact up to rounding with the seam, else up to what is wrong there."""

    def __init__(
        self, torus: Torus, seam: bool, wide: bool, options: Woodbury = Woodbury(), alpha: float = 0.0
    ) -> None:
        self.torus, self.wide, self.options, self.alpha = torus, wide, options, alpha
        self.near: Side = "outputs" if wide else "inputs"  # the side of B Bᵀ
        self.far: Side = "inputs" if wide else "outputs"
        symbol = torus.symbol()
        self._b = (symbol if wide else symbol.mH).contiguous()  # (f, g, near, far)
        self._floor = options.floor if seam else options.floor_alone
        self._seam = Seam(self) if seam else None

    def damped(self, alpha: float) -> Gram:
        return Gram(self.torus, self._seam is not None, self.wide, self.options, alpha)

    def enough(self, tolerance: float) -> tuple[float, float]:
        """Relative residuals that imply the tolerance, and that it implies, if A is conditioned like its circulant."""
        spread = self.torus.condition ** (1 if self.wide else 2)
        eps = torch.finfo(self.torus.conv.weight.dtype).eps
        return max(tolerance / spread, 10 * eps), min(100 * tolerance * spread, 1e-2)

    @cached_property
    def inner(self) -> Tensor:
        """G⁻¹: (f, g, near, near)."""
        info = torch.finfo(self._b.dtype)
        extra = self.alpha + max(self._floor, 10 * info.eps) * max(self.torus.sigma_max**2, info.tiny)
        eye = torch.eye(self._b.shape[-2], dtype=self._b.dtype, device=self._b.device)
        inverse: Tensor = torch.cholesky_inverse(torch.linalg.cholesky(self._b @ self._b.mH + extra * eye))
        return inverse

    @property
    def full(self) -> Tensor:
        """[G⁻¹, G⁻¹C; CᵀG⁻¹, CᵀG⁻¹C − I]: (f, g, near + far, near + far)."""
        gained = self.inner @ self._b
        low = self._b.mH @ gained - torch.eye(self._b.shape[-1], dtype=self._b.dtype, device=self._b.device)
        return torch.cat([torch.cat([self.inner, gained], -1), torch.cat([gained.mH, low], -1)], -2)

    def inverse(self, r: Tensor) -> Tensor:
        """(B Bᵀ + α)⁻¹ r. r: (s, *near)."""
        torus = self.torus
        first = self.inner @ torus.spectrum(torus.grid(self.near, r))
        if self._seam is not None:
            empty, dropped = torus.inverse(self._b.mH @ first), torus.inverse(first)
            w, mu = self._seam.values(dropped, empty)
            first = first + self.inner @ (torus.spectrum(w) + self._b @ torus.spectrum(mu))
        return torus.maps(self.near, torus.inverse(first))


class Seam:
    """The capacitance system: where S drops outputs and E leaves inputs empty. n unknowns per group."""

    def __init__(self, gram: Gram) -> None:
        torus = gram.torus
        self._near, self._far = torus.gap(gram.near), torus.gap(gram.far)
        full = gram.full  # (f, g, near + far, near + far)
        table = torus.inverse(full.flatten(2).unsqueeze(-1))[0] / math.sqrt(math.prod(torus.size))
        table = table.unflatten(1, full.shape[2:]).flatten(3)  # the kernel of each pair of channels
        first = torus.channels(gram.near)
        ends = [(slice(None, first), self._near), (slice(first, None), self._far)]
        rows = [torch.cat([_entries(table[:, c, d], i, j, torus.size) for d, j in ends], -1) for c, i in ends if len(i)]
        self._factor = torch.linalg.lu_factor(torch.cat(rows, -2)) if rows else None

    def values(self, dropped: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
        """(w, μ) as grids, from the circulant answer: λ where outputs are dropped, x where inputs are empty."""
        w, mu = dropped.new_zeros(dropped.shape), empty.new_zeros(empty.shape)
        if self._factor is not None:
            known = torch.cat([dropped.flatten(2)[..., self._near], empty.flatten(2)[..., self._far]], -1)
            both = torch.linalg.lu_solve(*self._factor, -known.permute(1, 2, 0)).permute(2, 0, 1)
            w.flatten(2)[..., self._near] = both[..., : len(self._near)]
            mu.flatten(2)[..., self._far] = both[..., len(self._near) :]
        return w, mu


def _entries(table: Tensor, i: Tensor, j: Tensor, size: tuple[int, ...]) -> Tensor:
    """M[i, j] = table[channel_i, channel_j, place_i − place_j]: (g, |i|, |j|). table: (g, c, d, places)."""
    total = math.prod(size)
    (here, row), (there, column) = ((index % total).unique(return_inverse=True) for index in (i, j))
    start, end = (torch.stack(torch.unravel_index(places, size), -1) for places in (here, there))
    offset = torch.zeros(len(here), len(there), dtype=torch.long, device=table.device)
    for axis, length in enumerate(size):
        offset = offset * length + (start[:, None, axis] - end[None, :, axis]) % length
    every = table[..., offset].transpose(2, 3).flatten(3, 4).flatten(1, 2)  # (g, c·here, d·there)
    row, column = row + i // total * len(here), column + j // total * len(there)
    if len(row) < every.shape[1]:
        every = every[:, row]
    return every if len(column) == every.shape[2] else every[:, :, column]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def conjugate_gradients(conv: Convolution, options: ConjugateGradients) -> CGLS:
    """Conjugate gradients without a preconditioner, which also take maps of deficient rank."""
    return options.prepare(conv.apply, conv.adjoint, conv.weight.new_zeros(1, *conv.inputs), conv.frobenius)
