"""Linear solves that stay in the range of the op before: a ReLU's output is never asked to be negative.

min ‖a − â‖²  subject to  A (a − â) = r,  low ≤ a ≤ high
"""

from __future__ import annotations

import torch
from torch import Tensor

from frpt.solvers.base import Prepared, Range, norm, per_system

_INNER = 8
"""Conjugate-gradient steps between two looks at which entries sit on a bound."""
_GOOD = 1e-3
"""Relative error under which the dual iteration counts as having found the solution."""


def inside(
    prepared: Prepared,
    anchor: Tensor,
    residual: Tensor,
    start: Tensor,
    within: Range,
    limit: int,
) -> tuple[Tensor, Tensor]:
    """(value, iterations): ``start`` where it is in the range, else the nearest solution that is.

    Where the range holds no solution (or none near), the least residual that projected descent finds from the anchor.
    """
    iterations = torch.zeros(len(anchor), dtype=torch.long, device=anchor.device)
    if not within.bounded:
        return start, iterations
    value = within.clamp(start, anchor)
    outside = (value != start).flatten(1).any(1).nonzero().squeeze(1)
    if len(outside) == 0:
        return value, iterations
    part = prepared.rows(outside)
    near, r = anchor[outside], residual[outside]
    found, error, steps = dual(part, near, r, start[outside], within, limit)
    left = (error > _GOOD).nonzero().squeeze(1)
    if len(left):
        part = part.rows(left)
        descended, more = projected(part, near[left], r[left], near[left], within, limit)
        steps[left] += more
        better = _error(part, near[left], r[left], descended) < _error(part, near[left], r[left], found[left])
        found[left] = torch.where(per_system(better, descended), descended, found[left])
    iterations[outside] = steps
    return value.index_copy(0, outside, found), iterations


def dual(
    prepared: Prepared, anchor: Tensor, residual: Tensor, start: Tensor, within: Range, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Dual ascent preconditioned with A⁺: ``z ← z + A⁺(r − A(P(z) − â)), a = P(z)``, P the clamp.

    The fixed point is the constrained solution. Returns the best iterate, its error relative to the attainable part of
    the residual, and steps, per system; a system stops when it is there, or stops gaining.
    """
    count = len(anchor)
    steps = torch.zeros(count, dtype=torch.long, device=anchor.device)
    value, found = anchor.clone(), torch.ones(count, dtype=anchor.dtype, device=anchor.device)
    tolerance = 1e-8 if anchor.dtype == torch.float64 else 1e-5
    active = torch.arange(count, device=anchor.device)
    a, r, z = anchor, residual, start
    scale = norm(prepared.apply(prepared.solve(r))).clamp_min(torch.finfo(a.dtype).tiny)
    for step in range(1, limit + 1):
        point = within.clamp(z, a)
        correction = prepared.solve(r - prepared.apply(point - a))
        error = norm(prepared.apply(correction)) / scale
        better = error < found[active]
        value[active[better]], found[active[better]] = point[better], error[better]
        steps[active] = step
        going = (error > tolerance) & (error < 2 * found[active]) & torch.isfinite(error)
        going &= (step < 10) | (error < 0.9 ** (step - 10))
        z = z + correction
        if not bool(going.all()):
            prepared = prepared.rows(going.nonzero().squeeze(1))
            active, a, r, z, scale = (v[going] for v in (active, a, r, z, scale))
            if len(active) == 0:
                break
    return value, found, steps


def projected(
    prepared: Prepared, anchor: Tensor, residual: Tensor, start: Tensor, within: Range, limit: int
) -> tuple[Tensor, Tensor]:
    """Descent on ‖r − A(a − â)‖ inside the range: conjugate gradients on the entries that are free to move, clamped.

    Started at the anchor and stopped early, it moves little in directions that A hardly sees.
    """
    steps = torch.zeros(len(anchor), dtype=torch.long, device=anchor.device)
    value = start.clone()
    active = torch.arange(len(anchor), device=anchor.device)
    a, x = anchor, start
    r = residual - prepared.apply(x - a)
    first = norm(residual).clamp_min(torch.finfo(a.dtype).tiny)
    tolerance = 1e-7 if a.dtype == torch.float64 else 1e-5
    for _ in range(max(limit // _INNER, 1)):
        low, high = a.clamp(max=within.low), a.clamp(min=within.high)
        pull = prepared.adjoint(r)
        free = ~(((x <= low) & (pull < 0)) | ((x >= high) & (pull > 0)))
        direction = _free_direction(prepared, r, free)
        following, after = _along(prepared, x, direction, r, within, a)
        gain = norm(after) / norm(r).clamp_min(torch.finfo(a.dtype).tiny)
        steps[active] += _INNER
        value[active] = following
        going = (gain < 0.99) & (norm(after) > tolerance * first)
        prepared = prepared.rows(going.nonzero().squeeze(1))
        active, a, x, r, first = active[going], a[going], following[going], after[going], first[going]
        if len(active) == 0:
            break
    return value, steps


def _free_direction(prepared: Prepared, residual: Tensor, free: Tensor) -> Tensor:
    """A few CGLS steps for A δ = r with δ = 0 outside ``free``."""
    r = residual
    s = torch.where(free, prepared.adjoint(r), 0.0)
    x, p, gamma = torch.zeros_like(s), s, norm(s) ** 2
    tiny = torch.finfo(s.dtype).tiny
    for _ in range(_INNER):
        q = prepared.apply(p)
        step = gamma / (norm(q) ** 2).clamp_min(tiny)
        x = x + per_system(step, p) * p
        r = r - per_system(step, q) * q
        s = torch.where(free, prepared.adjoint(r), 0.0)
        following = norm(s) ** 2
        p = s + per_system(following / gamma.clamp_min(tiny), p) * p
        gamma = following
    return x


def _along(
    prepared: Prepared, x: Tensor, direction: Tensor, r: Tensor, within: Range, anchor: Tensor
) -> tuple[Tensor, Tensor]:
    """The best of a few points on the clamped ray; x itself if none gains."""
    best, least = x, r
    for length in (1.0, 0.5, 0.2):
        point = within.clamp(x + length * direction, anchor)
        after = r - prepared.apply(point - x)
        better = norm(after) < norm(least)
        best = torch.where(per_system(better, best), point, best)
        least = torch.where(per_system(better, least), after, least)
        if bool(better.all()):
            break
    return best, least


def _error(prepared: Prepared, anchor: Tensor, residual: Tensor, value: Tensor) -> Tensor:
    return norm(residual - prepared.apply(value - anchor))
