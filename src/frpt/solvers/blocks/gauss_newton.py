"""Explicit-Jacobian Gauss–Newton (paper III-C 1, B.1.2), per sample: never one Jacobian for the whole batch.

    a ← a + d δ,   δ = J⁺(t − Φ(a))                                   nominal
                   δ = argmin ‖J δ − (t − Φ(a))‖² + α ‖a + δ − â‖²   where the gate refuses it

d by backtracking. Taken by ``composite`` where the Jacobian is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Solution, row_norm
from frpt.solvers.blocks.problem import Problem
from frpt.solvers.linear.dense import Batched
from frpt.solvers.linear.gate import passes as reliable
from frpt.solvers.linear.gate import tikhonov
from frpt.solvers.linear.svd import lost


@dataclass(frozen=True)
class GaussNewton:
    """Damped Gauss–Newton with backtracking."""

    damping: float = 1.0
    """First step length; 1, a full step, reaches the target at once where the block is linear. 0.8 in the paper
    (B.1.2)."""
    longest_step: float = math.inf
    """Norm that a sample's step is cut to; 10 in the paper (B.1.2)."""
    shrink: float = 0.8
    """Backtracking: factor on the step's length; the paper's (B.1.2)."""
    trials: int = 8
    """Lengths that are tried; the paper's (B.1.2)."""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def sample_bytes(self, problem: Problem) -> int:
        """Of a sample: five tensors of a Jacobian's size at one time, rows as pulled, stack, its double, factors."""
        return 5 * 8 * problem.inputs * problem.outputs

    def solve(self, problem: Problem) -> Solution:
        """Jacobians, their factors and copies stay within the memory budget."""
        return problem.in_parts(self.sample_bytes(problem), lambda part: _solve(part, self))


def _solve(problem: Problem, options: GaussNewton) -> Solution:
    count = len(problem.anchor)
    value, phi = problem.anchor.clone(), problem.output.clone()
    passes = torch.zeros(count, dtype=torch.long, device=value.device)
    fallback = torch.zeros(count, dtype=torch.bool, device=value.device)
    enough = problem.enough
    index = (row_norm(problem.target - phi) > enough).nonzero().squeeze(1)
    for _ in range(problem.limits.iterations):
        if len(index) == 0 or problem.clock.over():
            break
        passes[index] += 1
        moved = _advance(problem, options, value, phi, fallback, index)
        left = row_norm(problem.target - phi)[index] > enough[index]
        index = index[moved & left]
    start = row_norm(problem.target - problem.output)
    worse = (row_norm(problem.target - phi) >= start) & (start > enough)
    return Solution(value, fallback | worse, passes)


def _advance(
    problem: Problem, options: GaussNewton, value: Tensor, phi: Tensor, fallback: Tensor, index: Tensor
) -> Tensor:
    """One step of the samples ``index``, written to value, phi and fallback; (k,) bool: which samples moved."""
    jacobian = jacobians(problem, value[index], index)
    if jacobian is None:
        return torch.zeros(len(index), dtype=torch.bool, device=index.device)
    residual = (problem.target[index] - phi[index]).double().flatten(1)
    step, damped = _step(problem, jacobian, value[index], residual, index)
    norm = torch.linalg.vector_norm(step, dim=1, keepdim=True)
    step = step * (options.longest_step / norm.clamp_min(1e-300)).clamp_max(1.0)
    fallback[index] |= damped
    a, reached = value[index], phi[index]
    lengths = [options.damping * options.shrink**k for k in range(options.trials)]

    def point(length: float, rows: Tensor) -> Tensor:
        here: Tensor = a[rows].double() + length * step[rows].reshape(a[rows].shape)
        return here.to(a.dtype)

    _, stuck = problem.line_search(index, a, reached, point, lengths)
    value[index], phi[index] = a, reached
    moved = torch.ones_like(index, dtype=torch.bool)
    moved[stuck] = False
    return moved


def jacobians(problem: Problem, a: Tensor, index: Tensor) -> Tensor | None:
    """J: (k, outputs, inputs) of every sample: samples are independent, so one pull per output serves all.

    None where time has run out meanwhile.
    """
    with torch.enable_grad():
        point = a.detach().requires_grad_(True)
        out = problem.fn(point, index).flatten(1)
    units = torch.eye(out.shape[1], dtype=out.dtype, device=out.device)
    rows = []
    for unit in units:
        (row,) = torch.autograd.grad(out, point, unit.expand_as(out), retain_graph=True)
        rows.append(row.flatten(1))
        if problem.clock.over():
            return None
    return torch.stack(rows, 1).double()


def _step(problem: Problem, jacobian: Tensor, a: Tensor, residual: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """δ: (k, n), and which samples took the Tikhonov form."""
    if not bool(torch.isfinite(jacobian).all()):
        jacobian = torch.where(torch.isfinite(jacobian), jacobian, 0.0)
    J = Batched(jacobian)
    right = residual[..., None]
    here = a.double().flatten(1)[..., None]
    step = J.solve(right)
    damped = torch.zeros(len(a), dtype=torch.bool, device=a.device)
    if problem.gate.enabled:
        damped = ~reliable(J, here, here + step, right, problem.gate)
    damped |= lost(J.s)  # of J nothing is known: towards the anchor, where that helps
    if bool(damped.any()):
        rows = damped.nonzero().squeeze(1)
        anchor = problem.anchor[index].double().flatten(1)[..., None][rows]
        part, off = J.rows(rows), here[rows] - anchor
        # min ‖Jδ − r‖² + α‖a + δ − â‖²: with η = a + δ − â, a Tikhonov problem for r + J(a − â)
        total = right[rows] + part.apply(off)
        alpha = tikhonov(part, anchor, total, problem.gate)
        step = step.index_copy(0, rows, part.damped(total, alpha) - off)
    return step.squeeze(-1), damped
