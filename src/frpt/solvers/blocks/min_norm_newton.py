"""Gauss–Newton for blocks of few outputs, regularised less and less: the nearest point to â that reaches the target.

    z = argmin ‖J z − (t − Φ(a))‖² + α ‖a + z − â‖² + μ ‖z‖²,   low ≤ a + z ≤ high;   a ← a + z

The iteratively regularised Gauss–Newton method (Bakushinskii 1992). α falls from step to step, so that the points
follow the path of the regularised solutions. It begins at the anchor and ends at the nearest point that reaches the
target. The more Φ bends on the way the slower α falls; μ is
raised after steps that are refused (Levenberg–Marquardt). A step that makes matters worse is taken if it goes on in the
direction of the last (Transtrum and Sethna 2012: where Φ bends, the way is a narrow canyon, and who never climbs its
wall creeps); the best point seen is the answer. z comes from a system of the size of the output; entries that would
leave their range are put on its bound, and the others solved for again. Taken by ``reach`` for whole paths to a few
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Solution, Working, per_system, row_norm
from frpt.solvers.blocks.problem import Problem


@dataclass(frozen=True)
class MinNormNewton:
    """Gauss–Newton on explicit rows of the Jacobian, along the path of regularised solutions.

    Numbers in brackets: the residual that is left with half and with double the value, relative to what it leaves
    (``benchmarks/halves.py``). [1, 1]: chosen by hand and not critical, as far as the problems there come to it.
    """

    most_outputs: int = 32
    """Outputs up to which explicit rows of the Jacobian cost less than iterations without: a step takes so many
    backward passes, and secant steps take 20 to 40 passes in all."""
    steps: int = 25
    """Most Jacobians; ``heavy_ball`` goes on where they do not do. [5.4, 0.32]"""
    together: int = 512
    """Samples times outputs up to which a pass costs mostly its calls, so that all rows are pulled in one. [1, 1]"""
    begin: float = 0.1
    """First α, in units of the largest eigenvalue of JJᵀ at the anchor: the first step leaves a tenth of what is
    easiest to move. [0.85, 1.27]"""
    fastest: float = 0.01
    slowest: float = 0.5
    """Factors on α after a step, the first where Φ is straight [1, 1], the second where it bends [0.31, 4.3],
    in 0.54 and 1.02 times the passes."""
    bends: float = 2.0
    """The factor in between is so many times the bend ‖Φ(a + z) − Φ(a) − Jz‖/‖Jz‖. [0.32, 1.37], in 0.74 and 1.02 times
    the passes."""
    trusted: float = 0.25
    """Share of the gain that the linear model promised, from which a step lets α fall. [0.96, 1.10]"""
    raised: float = 2.0
    eased: float = 1 / 3
    """Factors on μ after a step that is refused [12, 0.23], and after one that is taken [0.99, 0.28].
    Doubled, they take half of the passes."""
    refused: int = 8
    """Steps in a row that do not help, after which a sample is left as it is. [1, 1]"""
    rounds: int = 6
    """Looks, in a step, at which entries sit on a bound. [1, 1]"""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def sample_bytes(self, problem: Problem) -> int:
        """Of a sample: its Jacobian, the new one while it is made, and a copy in double."""
        return (2 * problem.anchor.itemsize + 8) * problem.inputs * problem.outputs

    def solve(self, problem: Problem) -> Solution:
        """The rows of all Jacobians stay within the memory budget."""
        return problem.in_parts(self.sample_bytes(problem), lambda part: _solve(part, self))


@dataclass
class _State(Working):
    """The samples still at work: index (k,), a, Φ(a), the last step, the rows J: (k, m, n), α, μ.

    least: of ‖t − Φ‖² + α ‖a − â‖² so far. refused: steps in a row.
    """

    index: Tensor
    a: Tensor
    phi: Tensor
    step: Tensor
    rows: Tensor
    alpha: Tensor
    mu: Tensor
    least: Tensor
    refused: Tensor
    halves: Tensor


def _solve(problem: Problem, options: MinNormNewton) -> Solution:
    """Every sample from the anchor (or the problem's start) to the end of its path."""
    value, reached = (v.clone() for v in problem.start or (problem.anchor, problem.output))
    halves = torch.zeros(len(value), dtype=torch.long, device=value.device)
    before = row_norm(problem.target - problem.output)
    todo = (row_norm(problem.target - reached) > problem.enough).nonzero().squeeze(1)
    if len(todo):
        state = _begun(problem, options, todo, value[todo], reached[todo])
        while len(state.index) and not problem.clock.over():
            going = _advance(problem, options, state)
            halves[state.index] = state.halves
            target = problem.target[state.index]
            better = row_norm(target - state.phi) < row_norm(target - reached[state.index])
            value[state.index[better]], reached[state.index[better]] = state.a[better], state.phi[better]
            state.keep(going)
    after = row_norm(problem.target - reached)
    return Solution(value, (after >= before) & (before > problem.enough), (halves + 1) // 2)


def _begun(problem: Problem, options: MinNormNewton, index: Tensor, a: Tensor, phi: Tensor) -> _State:
    J = jacobian_rows(problem, a, index, options.together)
    gram = J.double() @ J.double().mT
    largest = torch.linalg.eigvalsh(gram)[:, -1]
    alpha, none = options.begin * largest, torch.zeros_like(index)
    least = row_norm(problem.target[index] - phi) ** 2 + alpha * row_norm(a - problem.anchor[index]) ** 2
    mu = torch.zeros_like(alpha)
    return _State(index, a, phi, torch.zeros_like(a), J, alpha, mu, least, none, none + 1 + problem.outputs)


def jacobian_rows(problem: Problem, a: Tensor, index: Tensor, together: int) -> Tensor:
    """J: (k, m, n). Few samples are laid out once per output, which takes one pull; many are pulled once per output.

    together: samples times outputs that count as few.
    """
    count, outputs = len(a), problem.outputs
    few = problem.repeats and count * outputs <= together
    if few:
        a, index = (v.repeat_interleave(outputs, 0) for v in (a, index))
    with torch.enable_grad():
        point = a.detach().requires_grad_(True)
        out = problem.fn(point, index).flatten(1)
    units = torch.eye(outputs, dtype=out.dtype, device=out.device)
    if few:
        (pulled,) = torch.autograd.grad(out, point, units.repeat(count, 1))
        return pulled.reshape(count, outputs, -1).nan_to_num_(0.0, 0.0, 0.0)
    J = point.new_empty(count, outputs, problem.inputs)
    for i, u in enumerate(units):
        J[:, i] = torch.autograd.grad(out, point, u.expand_as(out), retain_graph=True)[0].flatten(1)
    return J.nan_to_num_(0.0, 0.0, 0.0)


def _advance(problem: Problem, options: MinNormNewton, state: _State) -> Tensor:
    """One step, taken where it lowers ‖t − Φ‖² + α ‖a − â‖² or goes on as the last; which samples go on: (k,) bool."""
    anchor, target = problem.anchor[state.index], problem.target[state.index]
    trial = problem.inside(_proposal(problem, options, state).reshape_as(state.a), state.index)
    with torch.no_grad():
        phi = problem.fn(trial, state.index)
    state.halves = state.halves + 1

    far, farther = (state.alpha * row_norm(v - anchor) ** 2 for v in (state.a, trial))
    left, step = (target - state.phi).flatten(1).double(), trial - state.a
    linear = _times(state.rows, step.flatten(1))
    before, after = row_norm(left) ** 2 + far, row_norm(target - phi) ** 2 + farther
    good = (after < before) | ((1 - cosine(step, state.step)) * after <= state.least)  # not where it is NaN
    state.least = state.least.fmin(after)
    promised = (before - row_norm(left - linear) ** 2 - farther).clamp_min(1e-300)
    trusted = before - after > options.trusted * promised
    bent = (phi - state.phi).flatten(1).double() - linear
    bend = (row_norm(bent) / row_norm(linear).clamp_min(1e-300)).nan_to_num(torch.inf)

    factor = (options.bends * bend).clamp(options.fastest, options.slowest)
    state.alpha = torch.where(trusted, factor * state.alpha, state.alpha)
    state.mu = torch.where(good, options.eased * state.mu, options.raised * state.mu.maximum(state.alpha))
    state.refused = torch.where(good, 0, state.refused + 1)
    state.step = torch.where(per_system(good, step), step, state.step)
    state.a = torch.where(per_system(good, trial), trial, state.a)
    state.phi = torch.where(per_system(good, phi), phi, state.phi)
    going = row_norm(target - state.phi) > problem.enough[state.index]
    going &= (state.refused < options.refused) & (state.halves < options.steps * (2 + problem.outputs))
    moved = (good & going).nonzero().squeeze(1)
    if len(moved):
        state.rows[moved] = jacobian_rows(problem, state.a[moved], state.index[moved], options.together)
        state.halves[moved] += 1 + problem.outputs
    return going


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Of the angle between two steps, at least 0: (k,), in double."""
    dot = (u.double() * v.double()).flatten(1).sum(1)
    return (dot / (row_norm(u) * row_norm(v)).clamp_min(1e-300)).clamp_min(0.0)


def _proposal(problem: Problem, options: MinNormNewton, state: _State) -> Tensor:
    """a + z: (k, n)."""
    J, here = state.rows.double(), state.a.flatten(1).double()
    anchor = problem.anchor[state.index].flatten(1)
    damping = (state.alpha + state.mu).clamp_min(1e-300)
    pull = (state.alpha / damping)[:, None] * (anchor.double() - here)  # z without the residual
    left = (problem.target[state.index] - state.phi).flatten(1).double()
    ridge = damping[:, None, None] * torch.eye(problem.outputs, dtype=J.dtype, device=J.device)
    free = J
    for rounds in range(1, options.rounds + 1):
        w = torch.linalg.solve(free @ free.mT + ridge, left - _times(J, pull))
        point = here + pull + (w[:, None] @ free).squeeze(1)
        inside = problem.within.clamp(point, anchor.double())
        outside = inside != point
        if rounds == options.rounds or not bool(outside.any()):
            break
        pull = torch.where(outside, inside - here, pull)
        free = free.masked_fill(outside[:, None], 0.0)  # what is on its bound moves no more
    return inside.to(state.a.dtype)


def _times(J: Tensor, v: Tensor) -> Tensor:
    """J v: (k, m), in double. J: (k, m, n), v: (k, n)."""
    return (v.to(J.dtype)[:, None] @ J.mT).squeeze(1).double()
