"""Inverse of a function that falls to one minimum and rises after it (GELU, SiLU, Mish), by bracketed Newton steps.

f(z) = t,   z ← z − (f(z) − t)/f′(z), or half way where that leaves the bracket.   Used by ``activation``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]


def invert_valley(target: Tensor, f: Function, log_left: Function, bottom: float) -> tuple[Tensor, Tensor]:
    """(left, right) roots of f(z) = target, with f minimal at ``bottom``, f(0) = 0, f(z) ~ z above and f < 0 left of 0.

    The left branch is solved for log(−f), given as ``log_left``: smooth and far from underflow however flat f is, so no
    truncation is needed. Targets below the minimum give the bottom itself; left roots are meaningless where target ≥ 0.
    """
    low = f(torch.full_like(target[..., :0], bottom)) if target.numel() == 0 else f(target.new_tensor(bottom))
    t = target.clamp_min(float(low)) if target.numel() else target
    right = monotone_root(f, t, torch.full_like(t, bottom), t.clamp_min(0) + 1.0, start=t.clamp_min(0.0) + 0.05)
    tiny = torch.finfo(t.dtype).tiny
    depth = torch.log((-t).clamp_min(tiny))
    far = float(torch.log(t.new_tensor(tiny))) * 1.13  # log(−f(z)) ≤ log(−z) + z + 1: no target has its root beyond
    start = (depth - 1.0).clamp(far, bottom - 1e-3)
    left = monotone_root(log_left, depth, torch.full_like(t, far), torch.full_like(t, bottom), start=start)
    flat = t <= float(low) if t.numel() else t.bool()
    return torch.where(flat, bottom, left), torch.where(flat, bottom, right)


def monotone_root(f: Function, target: Tensor, low: Tensor, high: Tensor, start: Tensor) -> Tensor:
    """z in [low, high] with f(z) = target, f increasing there: Newton steps, bisection where they leave the bracket.

    Entries that have converged leave the iteration.
    """
    answer = start.clone().flatten()
    index = torch.arange(answer.numel(), device=answer.device)
    t, a, b, z = (v.flatten() for v in (target, low, high, start))
    z = torch.minimum(torch.maximum(z, a), b)
    resolution = 4 * torch.finfo(target.dtype).eps
    for _ in range(80):
        if len(index) == 0:
            break
        with torch.enable_grad():
            point = z.detach().requires_grad_(True)
            value = f(point)
            (slope,) = torch.autograd.grad(value.sum(), point)
        error = value.detach() - t
        a, b = torch.where(error <= 0, z, a), torch.where(error >= 0, z, b)
        newton = z - error / slope
        inside = (newton > a) & (newton < b) & torch.isfinite(newton)
        following = torch.where(inside, newton, (a + b) / 2)
        near = resolution * (1 + z.abs())
        done = (error == 0) | ((following - z).abs() <= near) | (b - a <= near)
        answer[index[done]] = torch.where(error == 0, z, following)[done]
        index, t, a, b, z = (v[~done] for v in (index, t, a, b, following))
    answer[index] = z
    return answer.reshape(target.shape)
