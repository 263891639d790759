"""Anchored linear solves: nominal correction, range of the op before, reliability gate, Tikhonov fallback.

    a = â + A⁺ r,  r = t − Φ(â)                 nominal (paper III-A, A.1, both cases)
    a = argmin ‖A a − y‖² + α ‖a − â‖²         fallback of systems that fail the gate (A.2)

Called by the rules of linear ops (``Site.linear``); the gate's bounds also by the block solvers and ``nearest``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from frpt.common.checks import require_one_of, require_positive
from frpt.solvers.base import UNBOUNDED, Range, Solution, norm, per_system
from frpt.solvers.linear.bounded import Bounded
from frpt.solvers.linear.linear_map import LinearMap


@dataclass(frozen=True)
class Gate:
    """Reliability gate and Tikhonov fallback (paper, Supplement A.2); all numbers are the paper's (B.1.2).

    A solution passes if it is finite, ``‖x‖∞ ≤ magnitude`` (M_∞; an anchor beyond it raises the bound to twice its
    own), ``‖x − x̂‖ / ‖x̂‖ ≤ deviation`` (M_dev), and it is consistent: ``ρ₁ ≤ residual`` (M₁) where the map reduces
    width, ``ρ₂ ≤ optimality`` (M₂) where it expands it. One that does not pass is solved again with damping.

    Args:
        enabled: False lets every solution pass.
        magnitude: M_∞, the largest entry of a solution.
        deviation: M_dev, the largest deviation from the anchor, relative to the anchor's norm.
        residual: M₁; None takes it by precision, 1e-4 in float64 and ten times that in float32.
        optimality: M₂; None takes it by precision, 1e-3 in float64 and ten times that in float32.
        kappa: κ_eff: the fallback damps with α ≥ (σ_max / κ_eff)².
        floor: the reference norm of the deviation test is at least ``floor · √n``.
        coefficients: which Fourier coefficients the FFT solvers' bounds ``magnitude`` and ``floor`` are for: "unitary",
            of the unitary transform, so that they mean the same at every map size; or "raw", of the plain one,
            √(h · w) times as large, as in the paper's code.

    Raises:
        OptionError: a bound is not a positive number, or ``coefficients`` is another word.

    Example:
        >>> import frpt, torch
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1e-6]], dtype=torch.float64)
        >>> anchor, target = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
        >>> frpt.ops.linear(anchor, target, weight).fallback  # (1, 1e6) is refused and damped
        tensor([True])
        >>> frpt.ops.linear(anchor, target, weight, gate=frpt.Gate(enabled=False)).value
        tensor([[1.0000e+00, 1.0000e+06]], dtype=torch.float64)
    """

    enabled: bool = True
    magnitude: float = 1e3
    deviation: float = 1e2
    residual: float | None = None
    optimality: float | None = None
    kappa: float = 1e3
    floor: float = 1e-2
    coefficients: Literal["unitary", "raw"] = "unitary"

    def __post_init__(self) -> None:
        require_one_of(self, "coefficients", ("unitary", "raw"))
        require_positive(self, "magnitude", "deviation", "kappa", "floor")
        for name in ("residual", "optimality"):
            if getattr(self, name) is not None:
                require_positive(self, name)

    def thresholds(self, dtype: torch.dtype) -> tuple[float, float]:
        """(M₁, M₂) for solves carried out in ``dtype``."""
        scale = 1.0 if dtype in (torch.float64, torch.complex128) else 10.0
        residual = 1e-4 * scale if self.residual is None else self.residual
        optimality = 1e-3 * scale if self.optimality is None else self.optimality
        return residual, optimality


def anchored(
    A: LinearMap,
    anchor: Tensor,
    residual: Tensor,
    gate: Gate,
    within: Range = UNBOUNDED,
    bounded: Bounded = Bounded(),
) -> Solution:
    """The nearest a to the anchor with ``A (a − â) = r``. anchor: (s, *in), residual: (s, *out)."""
    moved = norm(residual) > 0  # a target that is met leaves the anchor, whatever the gate thinks of it
    if within.bounded and not A.direct:
        return _descend(A, anchor, residual, gate, within, bounded)
    value = anchor + A.solve(residual)
    failed = torch.zeros_like(moved)
    if gate.enabled:
        failed = moved & ~passes(A, anchor, value, residual, gate)
    if bool(failed.any()):
        rows = failed.nonzero().squeeze(1)
        near, r = anchor[rows], residual[rows]
        part = A.rows(rows)
        damped = near + part.damped(r, tikhonov(part, near, r, gate))
        value = value.index_copy(0, rows, admitted(damped, near, gate))
    value, iterations = bounded.inside(A, anchor, residual, value, within)
    return Solution(value, failed | (moved & A.deficient), iterations)


def _descend(A: LinearMap, anchor: Tensor, residual: Tensor, gate: Gate, within: Range, bounded: Bounded) -> Solution:
    """Where A⁺ is not at hand, the range is kept from the start instead of restored afterwards."""
    value, iterations = bounded.projected(A, anchor, residual, within)
    failed = torch.zeros(len(anchor), dtype=torch.bool, device=anchor.device)
    if gate.enabled:
        failed = ~admissible(value, anchor, gate)
        value = torch.where(per_system(failed, value), admitted(value, anchor, gate), value)
    return Solution(value, failed, iterations)


def passes(A: LinearMap, anchor: Tensor, value: Tensor, residual: Tensor, gate: Gate) -> Tensor:
    """Which systems pass the reliability gate: (s,) bool. Supplement A.2.1."""
    good = admissible(value, anchor, gate)
    m1, m2 = gate.thresholds(value.dtype)
    y = A.apply(anchor) + residual
    error = A.apply(value - anchor) - residual
    scale = A.frobenius * norm(value) + norm(y)
    good = good & torch.as_tensor(A.frobenius > 0, device=good.device)  # a map of zeros reaches nothing
    if A.reduces:
        return good & (norm(error) <= m1 * scale)
    return good & (norm(A.adjoint(error)) <= m2 * A.frobenius * scale)


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


def tikhonov(A: LinearMap, anchor: Tensor, residual: Tensor, gate: Gate) -> Tensor:
    """α = max{(σ_max/κ_eff)², ε max(σ_max², 1), (‖r‖ / 2 D_max)²}: (s,). Supplement A.2.3."""
    sigma = torch.as_tensor(A.sigma_max, dtype=anchor.dtype, device=anchor.device)
    spectral = torch.maximum((sigma / gate.kappa) ** 2, torch.finfo(anchor.dtype).eps * (sigma**2).clamp_min(1.0))
    room = gate.magnitude - anchor.flatten(1).abs().amax(1)
    magnitude = torch.where(room > 0, (norm(residual) / (2 * room.clamp_min(1e-30))) ** 2, 0.0)
    return torch.maximum(magnitude, spectral)
