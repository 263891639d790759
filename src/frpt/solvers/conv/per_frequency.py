"""Convolutions solved on a torus, one small system per frequency: FFT-Padded and FFT-Boundary (III-B, Supplement A.3).

    δ(f) = A(f)⁺ d(f),  a = â + δ       residual form: d is t − Φ(â), and zero where the map has no output
                                        zero-filled form: the target itself is filled up with zeros, d = t − C E â

On the padded grid nothing keeps the padding at zero, on the map's own grid nothing keeps windows from wrapping around:
the answer is the exact one of a slightly different map. For the true one see ``woodbury``. Called by
``frpt.rules.conv``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from frpt.solvers.base import Solution, norm
from frpt.solvers.conv.torus import Torus
from frpt.solvers.linear.gate import Gate, admissible
from frpt.solvers.linear.svd import damped_gains, lost, pseudo_inverse, safe_cholesky, svd


class Spectral:
    """A⁺ on a torus, frequency by frequency; kept where it fits into half the budget, else made anew in chunks."""

    def __init__(self, torus: Torus, budget: int, zero_filled: bool = False) -> None:
        self.torus = torus
        self.zero_filled = zero_filled
        self.budget = budget
        self._blocks = [self._prepare(part) for part in self._parts()] if self.fits(torus, budget) else None

    @staticmethod
    def fits(torus: Torus, budget: int) -> bool:
        """Whether A and A⁺ at all frequencies take less than half the budget."""
        return 4 * torus.symbol_bytes <= budget

    def solve(self, anchor: Tensor, residual: Tensor, gate: Gate) -> Solution:
        """Anchored correction of every sample; pairs of frequency and sample that fail the gate are damped, alone."""
        torus, gate = self.torus, self._scaled(gate)
        width = torus.channels("inputs")
        start = _Lazy(lambda: torus.spectrum(torus.grid("inputs", anchor)))
        d = torus.spectrum(torus.grid("outputs", self._filled(anchor, residual)))
        delta = d.new_empty(torus.frequencies, torus.groups, width, len(anchor))
        failed = torch.zeros(len(anchor), dtype=torch.bool, device=anchor.device)
        for block in self._blocks or map(self._prepare, self._parts()):
            part = d[block.part] - block.symbol @ start()[block.part] if self.zero_filled else d[block.part]
            correction = torch.matmul(block.inverse, part, out=delta[block.part])
            if gate.enabled:
                failed |= block.damp(correction, part, start, norm(anchor), gate)
            if block.lost:
                failed |= (part != 0).flatten(0, 2).any(0)
        change = torus.maps("inputs", torus.inverse(delta))
        return Solution(anchor + change, failed, torch.zeros(len(anchor), dtype=torch.long, device=anchor.device))

    def _scaled(self, gate: Gate) -> Gate:
        """The gate for unitary coefficients: raw ones are √places times as large, and so are the bounds for them."""
        if gate.coefficients == "unitary":
            return gate
        size = math.prod(self.torus.size) ** 0.5
        return replace(gate, magnitude=gate.magnitude / size, floor=gate.floor / size, coefficients="unitary")

    def _filled(self, anchor: Tensor, residual: Tensor) -> Tensor:
        return residual + self.torus.conv.apply(anchor) if self.zero_filled else residual

    def _parts(self) -> list[slice]:
        each = 6 * self.torus.symbol_bytes // self.torus.frequencies
        return list(self.torus.chunks(each, self.budget // 4))

    def _prepare(self, part: slice) -> Block:
        return Block(part, self.torus.symbol(part))


class Block:
    """The systems of some frequencies. symbol: (f, g, o, i), inverse: (f, g, i, o); unsure: (f,) need a test."""

    def __init__(self, part: slice, symbol: Tensor) -> None:
        self.part = part
        self.symbol = symbol
        outputs, inputs = symbol.shape[-2:]
        self.reduces = outputs <= inputs
        wide = symbol if self.reduces else symbol.mH
        factor, safe = safe_cholesky(wide @ wide.mH)
        self.unsure = ~safe.all(1)
        self.lost = False  # whether a frequency could not be decomposed: it keeps its anchor
        factor = torch.where(safe[..., None, None], factor, torch.eye(min(outputs, inputs)).to(factor))
        gained = torch.cholesky_solve(wide, factor)  # (wide wideᴴ)⁻¹ wide
        self.inverse = (gained.mH if self.reduces else gained).contiguous()
        if bool(self.unsure.any()):
            factors = svd(symbol[self.unsure])
            self.inverse[self.unsure] = pseudo_inverse(factors)
            self.lost = bool((lost(factors[1]) & (symbol[self.unsure] != 0).flatten(2).any(2)).any())

    @cached_property
    def frobenius(self) -> Tensor:
        """‖A(f)‖_F: (f, g, 1)."""
        norms: Tensor = torch.linalg.matrix_norm(self.symbol)[..., None]
        return norms

    def damp(self, delta: Tensor, d: Tensor, start: _Lazy, anchors: Tensor, gate: Gate) -> Tensor:
        """Replace corrections that fail the gate by damped ones, in place; which samples had any: (s,).

        Frequencies whose bounds hold whatever the anchor's spectrum is (no entry of it exceeds the anchor's norm), and
        whose matrix is well conditioned, pass unseen: only the others are tested. anchors: (s,), the anchors' norms.
        """
        channels = delta.shape[-2]
        size = _norms(delta)
        near = (size + anchors <= gate.magnitude) & (size <= gate.deviation * gate.floor * channels**0.5)
        suspect = (self.unsure | ~near.flatten(1).all(1)).nonzero().squeeze(1)
        if len(suspect) == 0:
            return torch.zeros_like(anchors, dtype=torch.bool)
        A, nominal, right = self.symbol[suspect], delta[suspect], d[suspect]
        anchor = start()[self.part][suspect]
        failed = ~self._passes(suspect, A, nominal, right, anchor, gate) & (_norms(right) > 0)  # (f, g, s)
        rows = failed.flatten(1).any(1).nonzero().squeeze(1)
        if len(rows):
            damped = _tikhonov(A[rows], right[rows], anchor[rows], gate)
            delta[suspect[rows]] = torch.where(failed[rows].unsqueeze(-2), damped, nominal[rows])
        return failed.flatten(0, 1).any(0)

    def _passes(self, index: Tensor, A: Tensor, delta: Tensor, d: Tensor, anchor: Tensor, gate: Gate) -> Tensor:
        """The reliability gate of every pair: (f, g, s). Supplement A.2.1."""
        good = admissible(_pairs(anchor + delta), _pairs(anchor), gate).reshape(_norms(delta).shape)
        m1, m2 = gate.thresholds(delta.dtype)
        error, scale = A @ delta - d, self.frobenius[index]
        good = good & (scale > 0)  # a frequency that vanishes reaches nothing
        size = scale * _norms(anchor + delta) + _norms(A @ anchor + d)
        if self.reduces:
            return good & (_norms(error) <= m1 * size)
        return good & (_norms(A.mH @ error) <= m2 * scale * size)


class _Lazy:
    """A spectrum made when first asked for."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self._make = make
        self._value: Tensor | None = None

    def __call__(self) -> Tensor:
        if self._value is None:
            self._value = self._make()
        return self._value


def _norms(spectrum: Tensor) -> Tensor:
    """Norm over channels: (f, g, s)."""
    length: Tensor = torch.linalg.vector_norm(spectrum, dim=-2)
    return length


def _pairs(spectrum: Tensor) -> Tensor:
    """(f, g, c, s) -> (f·g·s, c)."""
    return spectrum.mT.reshape(-1, spectrum.shape[-2])


def _tikhonov(A: Tensor, d: Tensor, anchor: Tensor, gate: Gate) -> Tensor:
    """(AᴴA + αI)⁻¹ Aᴴ d with the α of every pair, from one singular value decomposition per frequency. A.2.3."""
    u, s, vh = svd(A)
    top = s.amax(-1)[..., None]  # (f, g, 1)
    alpha = torch.maximum((top / gate.kappa) ** 2, torch.finfo(s.dtype).eps * (top**2).clamp_min(1.0))
    room = gate.magnitude - anchor.abs().amax(-2)
    alpha = torch.maximum(alpha, torch.where(room > 0, (_norms(d) / (2 * room.clamp_min(1e-30))) ** 2, 0.0))
    gain = damped_gains(s[..., None], alpha.unsqueeze(-2))
    damped: Tensor = vh.mH @ (gain * (u.mH @ d))
    return damped
