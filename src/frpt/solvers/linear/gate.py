"""Anchored linear solves: nominal correction, range of the op before, reliability gate, Tikhonov fallback.

a = â + A⁺ r,  r = t − Φ(â)                                       nominal (paper III-A, A.1, both cases)
a = argmin ‖A a − y‖² + α ‖a − â‖²                               fallback of systems that fail the gate (A.2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from frpt.options import Gate
from frpt.solvers.base import UNBOUNDED, Prepared, Range, norm, per_system
from frpt.solvers.linear.bounded import inside, projected


@dataclass(frozen=True)
class Systems:
    """Solved systems. value: (s, *in); fallback: (s,) bool; iterations: (s,)."""

    value: Tensor
    fallback: Tensor
    iterations: Tensor

    @staticmethod
    def joined(parts: Sequence[Systems]) -> Systems:
        """Systems solved in several goes as one."""
        if len(parts) == 1:
            return parts[0]
        return Systems(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Systems)))


def anchored(
    prepared: Prepared,
    anchor: Tensor,
    residual: Tensor,
    gate: Gate,
    within: Range = UNBOUNDED,
    limit: int = 100,
) -> Systems:
    """The nearest a to the anchor with ``A (a − â) = r``. anchor: (s, *in), residual: (s, *out)."""
    moved = norm(residual) > 0  # a target that is met leaves the anchor, whatever the gate thinks of it
    if within.bounded and not prepared.closed:
        return _descend(prepared, anchor, residual, gate, within, limit)
    value = anchor + prepared.solve(residual)
    failed = torch.zeros_like(moved)
    if gate.enabled:
        failed = moved & ~passes(prepared, anchor, value, residual, gate)
    if bool(failed.any()):
        rows = failed.nonzero().squeeze(1)
        near, r = anchor[rows], residual[rows]
        part = prepared.rows(rows)
        damped = near + part.damped(r, tikhonov(part, near, r, gate))
        value = value.index_copy(0, rows, admitted(damped, near, gate))
    value, iterations = inside(prepared, anchor, residual, value, within, limit)
    return Systems(value, failed | (moved & prepared.deficient), iterations)


def _descend(prepared: Prepared, anchor: Tensor, residual: Tensor, gate: Gate, within: Range, limit: int) -> Systems:
    """Without a closed A⁺, a range is kept from the start instead of restored afterwards."""
    value, iterations = projected(prepared, anchor, residual, anchor, within, limit)
    failed = torch.zeros(len(anchor), dtype=torch.bool, device=anchor.device)
    if gate.enabled:
        failed = ~admissible(value, anchor, gate)
        value = torch.where(per_system(failed, value), admitted(value, anchor, gate), value)
    return Systems(value, failed, iterations)


def passes(prepared: Prepared, anchor: Tensor, value: Tensor, residual: Tensor, gate: Gate) -> Tensor:
    """Which systems pass the reliability gate: (s,) bool. Supplement A.2.1."""
    good = admissible(value, anchor, gate)
    m1, m2 = gate.thresholds(value.dtype)
    y = prepared.apply(anchor) + residual
    error = prepared.apply(value - anchor) - residual
    scale = prepared.frobenius * norm(value) + norm(y)
    good = good & torch.as_tensor(prepared.frobenius > 0, device=good.device)  # a map of zeros reaches nothing
    if prepared.reduces:
        return good & (norm(error) <= m1 * scale)
    return good & (norm(prepared.adjoint(error)) <= m2 * prepared.frobenius * scale)


def admissible(value: Tensor, anchor: Tensor, gate: Gate) -> Tensor:
    """Finite, within M_∞ and within M_dev of the anchor: (s,) bool."""
    v, a = value.flatten(1), anchor.flatten(1)
    bound = _bound(a, gate)
    reference = norm(anchor).clamp_min(gate.floor * a.shape[1] ** 0.5)
    largest: Tensor = torch.linalg.vector_norm(v, ord=torch.inf, dim=1)  # NaN if any entry is
    good: Tensor = (largest <= bound) & (norm(value - anchor) <= gate.deviation * reference)
    return good


def admitted(value: Tensor, anchor: Tensor, gate: Gate) -> Tensor:
    """The farthest admissible point on the way from the anchor to the value; the anchor if value isn't finite."""
    step = torch.where(per_system(torch.isfinite(value.flatten(1)).all(1), value), value - anchor, 0.0)
    a, d = anchor.flatten(1), step.flatten(1)
    bound = _bound(a, gate)
    room = torch.where(d > 0, bound[:, None] - a, bound[:, None] + a)
    share = torch.where(d != 0, room / d.abs().clamp_min(torch.finfo(d.dtype).tiny), torch.inf).amin(1)
    reference = norm(anchor).clamp_min(gate.floor * a.shape[1] ** 0.5)
    length = norm(step).clamp_min(torch.finfo(d.dtype).tiny)
    share = torch.minimum(share, gate.deviation * reference / length).clamp(0.0, 1.0)
    return anchor + per_system(share, step) * step


def _bound(anchor: Tensor, gate: Gate) -> Tensor:
    """M_∞, or twice the anchor's own magnitude where the anchor is beyond it: (s,)."""
    own = anchor.abs().amax(1)
    return torch.where(own > gate.magnitude, 2 * own, gate.magnitude)


def tikhonov(prepared: Prepared, anchor: Tensor, residual: Tensor, gate: Gate) -> Tensor:
    """α = max{(σ_max/κ_eff)², ε max(σ_max², 1), (‖r‖ / 2 D_max)²}: (s,). Supplement A.2.3."""
    sigma = torch.as_tensor(prepared.sigma_max, dtype=anchor.dtype, device=anchor.device)
    spectral = torch.maximum((sigma / gate.kappa) ** 2, torch.finfo(anchor.dtype).eps * (sigma**2).clamp_min(1.0))
    room = gate.magnitude - anchor.flatten(1).abs().amax(1)
    magnitude = torch.where(room > 0, (norm(residual) / (2 * room.clamp_min(1e-30))) ** 2, 0.0)
    return torch.maximum(magnitude, spectral)
