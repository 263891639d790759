"""The paper's matrix-free route (III-C 2, B.1.2): a few Adam steps on the squared relative CCP residual.

    a ← project(clip(Adam step on mean_b ‖Φ(a) − t‖²/‖t‖²)),   best iterate kept

The loss is a mean over the batch, so a sample's answer depends a little on the others: faithful to the paper, and why
only its preset takes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Solution, per_system, row_norm
from frpt.solvers.blocks.problem import Problem
from frpt.solvers.linear.gate import admissible


@dataclass(frozen=True)
class Adam:
    """Adam on the feature itself."""

    rate: float = 1e-2
    """Learning rate; the paper's (B.1.2)."""
    longest_step: float = math.inf
    """Norm that a sample's step is cut to; 10 in the paper (B.1.2)."""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def solve(self, problem: Problem) -> Solution:
        """Steps clipped, projected onto a ball about the anchor, best iterate kept."""
        index = torch.arange(len(problem.anchor), device=problem.anchor.device)
        anchor, limits = problem.anchor, problem.limits
        point = anchor.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([point], lr=self.rate)
        best, scale = anchor.clone(), problem.scale()
        least = row_norm(problem.target - problem.output) / scale
        start = least.clone()
        steps = 0
        for _ in range(limits.iterations):
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
                point.copy_(_project(problem, _clipped(before, point.detach(), self.longest_step), anchor))
                error = row_norm(problem.fn(point, index) - problem.target) / scale
                better = torch.isfinite(error) & (error < least)
                best = torch.where(per_system(better, best), point.detach(), best)
                least = torch.where(better, error, least)
            if bool((least <= limits.tolerance).all()):
                break
        good = admissible(best, anchor, problem.gate)
        value = torch.where(per_system(good, best), best, anchor)
        return Solution(value, ~good | ((least >= start) & (start > 0)), torch.full_like(index, steps))


def _square(t: Tensor) -> Tensor:
    return t.flatten(1).square().sum(1)


def _clipped(before: Tensor, after: Tensor, longest: float) -> Tensor:
    step = after - before
    share = (longest / row_norm(step).clamp_min(1e-300)).clamp_max(1.0)
    return before + step * per_system(share.to(step.dtype), step)


def _project(problem: Problem, a: Tensor, anchor: Tensor) -> Tensor:
    """Onto ‖a − â‖ ≤ ρ max(‖â‖, 1e-4 √n); the paper's ball (III-C 2)."""
    radius = problem.gate.deviation * row_norm(anchor).clamp_min(1e-4 * problem.inputs**0.5)
    step = a - anchor
    share = (radius / row_norm(step).clamp_min(1e-30)).clamp_max(1.0)
    return anchor + step * per_system(share.to(step.dtype), step)
