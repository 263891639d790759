"""Matrix-free Gauss–Newton: inner CGLS on J and Jᵀ, damped about the anchor. The fallback where secant steps stall.

    δ = argmin ‖J δ − (t − Φ(a))‖² + λ ‖a + δ − â‖²,   a ← a + d·δ

Jᵀ is one pull through the graph at a; J p a finite difference, since attention has no forward derivative and a
convolution's costs more than two passes. λ follows Levenberg and Marquardt, sample by sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Solution, Working, row_norm
from frpt.solvers.blocks.problem import Problem
from frpt.solvers.linear.cgls import cgls


@dataclass
class _State(Working):
    """The samples still at work: index (k,), a, Φ(a), λ relative to the curvature, passes left, steps without gain."""

    index: Tensor
    a: Tensor
    phi: Tensor
    damping: Tensor
    left: Tensor
    idle: Tensor


@dataclass(frozen=True)
class NewtonKrylov:
    """Levenberg–Marquardt steps whose linear system is solved by a few CGLS steps.

    Numbers in brackets: the residual that is left with half and with double the value, relative to what it leaves
    (``benchmarks/halves.py``). [1, 1]: chosen by hand and not critical, as far as the problems there come to it.
    """

    inner: int = 8
    """CGLS steps of one Gauss–Newton step; each is one forward and one backward pass. [1.30, 0.98], in 1.2
    times the passes either way."""
    lengths: tuple[float, ...] = (1.0, 0.4, 0.1)
    """Lengths of a step that are tried."""
    patience: int = 3
    """Steps in a row after which a sample has stalled, each with less gone of its residual than a [1, 1]"""
    gain: float = 0.02
    """share of it. [1, 1]"""
    damping: float = 1e-4
    """First λ, in units of the curvature along the gradient, ‖Jᵀr‖² / ‖r‖². [1, 1]"""
    least: float = 1e-10
    """Least λ [1, 1],"""
    most: float = 1e2
    """and most. [1, 1]"""
    halves: float = 0.1
    """Factor on λ after a step that halves the residual [1, 1],"""
    drops: float = 0.5
    """that lowers it [1, 1],"""
    fails: float = 16.0
    """and that no length makes good. [1, 1]"""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def solve(self, problem: Problem) -> Solution:
        """Every sample from the anchor (or the problem's start), with all the passes that are allowed."""
        count = len(problem.anchor)
        value, reached = (v.clone() for v in problem.start or (problem.anchor, problem.output))
        passes = torch.zeros(count, dtype=torch.long, device=value.device)
        error = row_norm(problem.target - reached)
        rest = (error > problem.enough).nonzero().squeeze(1)
        self.descend(problem, rest, value, reached, passes)
        before = row_norm(problem.target - problem.output)
        worse = row_norm(problem.target - reached) >= before
        return Solution(value, worse & (before > problem.enough), passes)

    def descend(self, problem: Problem, rest: Tensor, value: Tensor, reached: Tensor, passes: Tensor) -> None:
        """Improve the samples ``rest`` in place: value, Φ(value) and passes used, of which there is a limit in all."""
        limit = problem.limits.iterations
        damping = torch.full((len(rest),), self.damping, dtype=torch.float64, device=value.device)
        left = limit - passes[rest]
        state = _State(rest, value[rest], reached[rest], damping, left, torch.zeros_like(left))
        around = 1 + len(self.lengths)  # passes of a step beside its inner ones
        inner = max(1, min(self.inner, limit - around))
        while True:
            going = (state.left >= inner + around) & (state.idle < self.patience)
            state.keep(going & (_error(problem, state) > problem.enough[state.index]))
            if len(state.index) == 0 or problem.clock.over():
                return
            step = _step(problem, state, inner)
            before = _error(problem, state)
            used = inner + 1 + _advance(problem, state, step, self.lengths)
            after = _error(problem, state)
            value[state.index], reached[state.index] = state.a, state.phi
            passes[state.index] += used
            state.left = state.left - used
            state.idle = torch.where(after < (1 - self.gain) * before, 0, state.idle + 1)
            lower = torch.where(after < before, self.drops, self.fails)
            factor = torch.where(after < 0.5 * before, self.halves, lower)
            state.damping = (state.damping * factor).clamp(self.least, self.most)


def _error(problem: Problem, state: _State) -> Tensor:
    return row_norm(problem.target[state.index] - state.phi)


def _step(problem: Problem, state: _State, inner: int) -> Tensor:
    """δ: (k, n) by CGLS from zero, in double but for what Φ sees."""
    with torch.enable_grad():
        point = state.a.detach().requires_grad_(True)
        out = problem.fn(point, state.index)
    base = out.detach()

    def pull(r: Tensor) -> Tensor:
        size = row_norm(r).clamp_min(1e-300)[:, None]  # at unit size: tiny residuals must not underflow on the way
        (g,) = torch.autograd.grad(out, point, (r / size).reshape_as(out).to(out.dtype), retain_graph=True)
        g = torch.where(torch.isfinite(g), g, 0.0).flatten(1).double()
        return torch.where(_blocked(problem, state, g), 0.0, g) * size

    def push(p: Tensor) -> Tensor:
        share = 3 * torch.finfo(state.a.dtype).eps ** 0.5
        length = (share * row_norm(state.a).clamp_min(1e-6) / row_norm(p).clamp_min(1e-300))[:, None]
        with torch.no_grad():
            moved = problem.fn(state.a + (length * p).reshape_as(state.a).to(state.a.dtype), state.index)
        change = (moved.double() - base.double()).flatten(1) / length
        return torch.where(torch.isfinite(change), change, 0.0)

    r = (problem.target[state.index] - base).double().flatten(1)
    off = (state.a - problem.anchor[state.index]).double().flatten(1)
    pulled = pull(r)
    weight = state.damping * row_norm(pulled) ** 2 / (row_norm(r) ** 2).clamp_min(1e-300)
    return cgls(push, pull, r, inner, weight, off, start=pulled)


def _blocked(problem: Problem, state: _State, g: Tensor) -> Tensor:
    """Entries on a bound of their range that the gradient would push beyond it."""
    a = state.a.flatten(1)
    return ((a <= problem.within.low) & (g < 0)) | ((a >= problem.within.high) & (g > 0))


def _advance(problem: Problem, state: _State, step: Tensor, lengths: tuple[float, ...]) -> Tensor:
    """Take the longest of a few lengths that lowers the residual; passes used: (k,)."""

    def point(length: float, rows: Tensor) -> Tensor:
        move = (length * step[rows]).reshape(len(rows), *state.a.shape[1:]).to(state.a.dtype)
        return state.a[rows] + torch.where(torch.isfinite(move), move, 0.0)

    return problem.line_search(state.index, state.a, state.phi, point, lengths)[0]
