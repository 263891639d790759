"""The paper's matrix-free route (III-C 2, B.1.2): a few Adam steps on the squared relative CCP residual."""

from __future__ import annotations

import torch
from torch import Tensor

from frpt.solvers.blocks.problem import Answer, Problem, row_norm, spread
from frpt.solvers.linear.gate import admissible


def solve(problem: Problem) -> Answer:
    """Adam on the batch mean of ‖Φ(a) − t‖²/‖t‖²; steps clipped, projected onto a ball, best iterate kept."""
    index = torch.arange(len(problem.anchor), device=problem.anchor.device)
    anchor, options = problem.anchor, problem.options
    point = anchor.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([point], lr=options.adam_rate)
    best, scale = anchor.clone(), problem.scale()
    least = row_norm(problem.target - problem.output) / scale
    start = least.clone()
    steps = 0
    for _ in range(options.iterations):
        if problem.clock.over():
            break
        steps += 1
        with torch.enable_grad():
            relative = _square(problem.fn(point, index) - problem.target) / (_square(problem.target) + 1e-12)
            optimizer.zero_grad()
            relative.mean().backward()
        before = point.detach().clone()
        optimizer.step()
        with torch.no_grad():
            point.copy_(_project(problem, _clipped(before, point.detach(), options.longest_step), anchor))
            error = row_norm(problem.fn(point, index) - problem.target) / scale
            better = torch.isfinite(error) & (error < least)
            best = torch.where(spread(better, best), point.detach(), best)
            least = torch.where(better, error, least)
        if bool((least <= options.tolerance).all()):
            break
    good = admissible(best, anchor, problem.gate)
    value = torch.where(spread(good, best), best, anchor)
    return Answer(value, torch.full_like(index, steps), ~good | ((least >= start) & (start > 0)))


def _square(t: Tensor) -> Tensor:
    return t.flatten(1).square().sum(1)


def _clipped(before: Tensor, after: Tensor, longest: float) -> Tensor:
    step = after - before
    share = (longest / row_norm(step).clamp_min(1e-300)).clamp_max(1.0)
    return before + step * spread(share.to(step.dtype), step)


def _project(problem: Problem, a: Tensor, anchor: Tensor) -> Tensor:
    """Onto ‖a − â‖ ≤ ρ max(‖â‖, 1e-4 √n)."""
    radius = problem.gate.deviation * row_norm(anchor).clamp_min(1e-4 * problem.inputs**0.5)
    step = a - anchor
    share = (radius / row_norm(step).clamp_min(1e-30)).clamp_max(1.0)
    return anchor + step * spread(share.to(step.dtype), step)
