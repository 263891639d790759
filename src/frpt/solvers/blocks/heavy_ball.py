"""Gradient steps with momentum for blocks of few outputs: on from where Gauss–Newton creeps.

    min ‖t − Φ(a)‖² + price/2 · ‖t − Φ(â)‖² · (‖a − â‖/‖â‖)⁴,   low ≤ a ≤ high
    z = Jᵀ(GGᵀ + μ)⁻¹(t − Φ(a)) − ν/(μ + ν) (a − â) + β z_last,   a ← a + z,   ν the price's slope

A deep path is straight from one kink to the next only, so that Gauss–Newton steps on it are short, and each of them
costs a whole Jacobian. Here G, an earlier Jacobian, only says how easily each output moves: it is taken anew now and
then, while Jᵀ is that of the point, for one pass. Momentum (Polyak 1964) averages over the kinks. A step that makes
matters worse is taken if it goes on as the last, as in ``min_norm_newton``; the best point seen is the answer, never
one that leaves more of the residual than the start.
Taken by ``reach`` for the samples that Gauss–Newton leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Solution, Working, per_system, row_norm
from frpt.solvers.blocks.min_norm_newton import cosine, jacobian_rows
from frpt.solvers.blocks.problem import Problem


@dataclass(frozen=True)
class HeavyBall:
    """Steps of one pass each, with momentum.

    Set by hand at z_3 of a planner, on scenes that ``benchmarks/driving_targets.py`` is not reported on. Numbers in
    brackets: the residual that is left with half and with double the value, relative to what it leaves
    (``benchmarks/halves.py``, from the anchor).
    """

    period: int = 30
    """Steps with one G. [2.49, 0.09], in 0.71 and 1.84 times the passes."""
    periods: int = 10
    """Most of them. [1, 1]"""
    gain: float = 0.01
    """Share of the residual that a period has to take away for another one to follow. [1, 1]"""
    momentum: float = 0.9
    """β: about so far back as 1/(1 − β) steps go kinks are averaged over. [0.13, 35]. By hand at a planner's z_3,
    where kinks are dense, half of it closes 0.02 less."""
    begin: float = 0.01
    """First μ, in units of the largest eigenvalue of GGᵀ. [0.61, 0.95]"""
    raised: float = 1.5
    eased: float = 0.9
    """Factors on μ after a step that is refused, and after one that is taken: of five steps one is refused.
    [4.5, 0.72] and [0.33, 16.7]."""
    price: float = 0.01
    """Of deviation, where a target is too far to be met: the first norm of it costs as much as 7 % of the residual.
    [0.48, 0.48]"""
    together: int = 512
    """Samples times outputs up to which all rows of G are pulled in one pass, as in ``min_norm_newton``."""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def sample_bytes(self, problem: Problem) -> int:
        """Of a sample: G and its copy in double."""
        return (problem.anchor.itemsize + 8) * problem.inputs * problem.outputs

    def solve(self, problem: Problem) -> Solution:
        """On from the problem's start. The Jacobians stay within the memory budget."""
        return problem.in_parts(self.sample_bytes(problem), lambda part: _solve(part, self))


@dataclass
class _State(Working):
    """The samples still at work: index (k,), a, its cost, the direction, the last step, its share, μ.

    modes, squares: eigenvectors (k, m, m) and eigenvalues (k, m) of GGᵀ. best, least, left: the point of the least cost
    so far, that cost, and ‖t − Φ‖ there, which is at most that of the start, most. begun: the least cost when the
    period began. halves: passes taken, times two.
    """

    index: Tensor
    a: Tensor
    cost: Tensor
    pulled: Tensor
    step: Tensor
    share: Tensor
    mu: Tensor
    modes: Tensor
    squares: Tensor
    best: Tensor
    least: Tensor
    left: Tensor
    most: Tensor
    begun: Tensor
    halves: Tensor


def _solve(problem: Problem, options: HeavyBall) -> Solution:
    value, reached = (v.clone() for v in problem.start or (problem.anchor, problem.output))
    before = row_norm(problem.target - problem.output)
    left = row_norm(problem.target - reached)
    halves = torch.zeros(len(value), dtype=torch.long, device=value.device)
    todo = (left > problem.enough).nonzero().squeeze(1)
    if len(todo):
        state = _begun(problem, options, value[todo], left[todo], todo)
        for _ in range(options.periods):
            _measure(problem, options, state)
            for _ in range(options.period):
                if len(state.index) == 0 or problem.clock.over():
                    break
                _advance(problem, options, state)
                value[state.index], left[state.index] = state.best, state.left
                halves[state.index] = state.halves
                state.keep(state.left > problem.enough[state.index])
            state.keep(state.least < (1 - options.gain) * state.begun)
            if len(state.index) == 0 or problem.clock.over():
                break
    return Solution(value, (left >= before) & (before > problem.enough), (halves + 1) // 2)


def _begun(problem: Problem, options: HeavyBall, a: Tensor, left: Tensor, index: Tensor) -> _State:
    m, none = problem.outputs, torch.zeros_like(a)
    modes, unknown = left.new_zeros(len(a), m, m), left.new_zeros(len(a))
    cost = _cost(problem, options, a, left, index)
    return _State(
        index, a, cost, none, none, unknown + 1, unknown, modes, modes[:, 0], a.clone(), cost, left, left, cost,
        unknown.long(),
    )  # fmt: skip


def _price(problem: Problem, options: HeavyBall, index: Tensor) -> Tensor:
    """price · ‖t − Φ(â)‖² / ‖â‖⁴: (k,)."""
    missing = row_norm(problem.target[index] - problem.output[index])
    return options.price * missing**2 / problem.length[index] ** 4


def _cost(problem: Problem, options: HeavyBall, a: Tensor, left: Tensor, index: Tensor) -> Tensor:
    """The root of ‖t − Φ‖² + price/2 · ‖t − Φ(â)‖² · deviation⁴: (k,)."""
    far = row_norm(a - problem.anchor[index])
    return (left**2 + 0.5 * _price(problem, options, index) * far**4).sqrt()


def _measure(problem: Problem, options: HeavyBall, state: _State) -> None:
    """G at the points reached, and the directions there."""
    G = jacobian_rows(problem, state.a, state.index, options.together).double()
    state.squares, state.modes = torch.linalg.eigh(G @ G.mT)
    state.mu = torch.where(state.mu > 0, state.mu, options.begin * state.squares[:, -1]).clamp_min(1e-300)
    state.begun = state.least
    with torch.enable_grad():
        point = state.a.detach().requires_grad_(True)
        out = problem.fn(point, state.index)
    state.pulled = _pull(problem, options, state, point, out)
    state.halves = state.halves + 1 + problem.outputs + 2


def _pull(problem: Problem, options: HeavyBall, state: _State, point: Tensor, out: Tensor) -> Tensor:
    """Jᵀ(GGᵀ + μ)⁻¹(t − Φ) − ν/(μ + ν) (a − â),  ν = price · ‖t − Φ(â)‖² · deviation²/‖â‖²: (k, *in)."""
    left = (problem.target[state.index] - out.detach()).flatten(1).double()
    weighed = (state.modes.mT @ left[..., None])[..., 0] / (state.squares.clamp_min(0.0) + state.mu[:, None])
    weights = (state.modes @ weighed[..., None])[..., 0].to(out.dtype).reshape_as(out)
    (pulled,) = torch.autograd.grad(out, point, weights)
    away = point.detach() - problem.anchor[state.index]
    nu = _price(problem, options, state.index) * row_norm(away) ** 2
    back = per_system(nu / (state.mu + nu), away).to(away.dtype) * away
    return pulled.nan_to_num(0.0, 0.0, 0.0) - back


def _advance(problem: Problem, options: HeavyBall, state: _State) -> None:
    """One step, taken where the cost falls or the step goes on as the last; else half of it is tried next."""
    whole = state.pulled + options.momentum * state.step
    trial = problem.inside(state.a + per_system(state.share, whole).to(whole.dtype) * whole, state.index)
    with torch.enable_grad():
        point = trial.detach().requires_grad_(True)
        out = problem.fn(point, state.index)
    left, step = row_norm(problem.target[state.index] - out.detach()), trial - state.a
    cost = _cost(problem, options, trial, left, state.index)
    good = (cost < state.cost) | ((1 - cosine(step, state.step)) * cost**2 <= state.least**2)  # not where it is NaN
    state.mu = state.mu * torch.where(good, options.eased, options.raised)
    state.share = torch.where(good, 1.0, 0.5 * state.share)
    taken = per_system(good, step)
    state.a, state.cost = torch.where(taken, trial, state.a), torch.where(good, cost, state.cost)
    state.step = torch.where(taken, step, state.step)
    state.pulled = torch.where(taken, _pull(problem, options, state, point, out), state.pulled)
    better = good & (cost < state.least) & (left < state.most)
    state.best = torch.where(per_system(better, step), trial, state.best)
    state.least, state.left = torch.where(better, cost, state.least), torch.where(better, left, state.left)
    state.halves = state.halves + 1 + good
