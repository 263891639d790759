"""Per-sample multi-secant minimisation of ‖t − Φ(a)‖ (Anderson type II), anchored by starting at â.

Each sample keeps a base (its best point) and up to m pairs (Δa, ΔΦ), the columns of S and Y:

    γ = argmin ‖r − Yγ‖² + ridge,   a ← a + Sγ + β p

p is a fresh direction for what the pairs don't explain, r′ = r − Yγ.

First, by forward passes only:  p = r′ for blocks near the identity, or p = Kᴴ(KKᴴ + μ)⁻¹ r′ where the
block's average derivative K is known (``stationary``) and tells most of it. Where that stalls, by one backward pass
more:  p = Jᵀr′; or where K is known, (G + ν)⁻¹Jᵀr′ and Kᴴ(KKᴴ + μ)⁻¹ r′ in turn. A sample that is refused twice forgets
its pairs, and goes down its gradient at the base in ever smaller steps. Taken by ``composite`` for large blocks and by
``reach`` for paths to many outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Solution, Working, per_system, row_norm
from frpt.solvers.blocks.newton_krylov import NewtonKrylov
from frpt.solvers.blocks.problem import Problem


@dataclass(frozen=True)
class Secant:
    """Multi-secant steps, then Gauss–Newton ones for the samples that stall.

    Numbers in brackets: the residual that is left with half and with double the value, relative to what it leaves
    (``benchmarks/halves.py``). [1, 1]: chosen by hand and not critical, as far as the problems there come to it.
    """

    memory: int = 10
    """Pairs that are kept for each sample; they take memory. [1.15, 0.94]"""
    ridge: float = 1e-6
    """Of the small least squares, whose pairs are scaled to one. [1, 1]"""
    patience: int = 10
    """Passes in a row after which a sample has stalled, each with less gone of its residual than a [1, 1]"""
    gain: float = 0.02
    """share of it. [1, 1]"""
    forward: float = 0.6
    """Share of a response that K has to tell for forward steps alone to be tried first. [1.13, 1.16]"""
    window: int = 3
    """Forward steps after which their contraction is judged [1.02, 1.04]:"""
    contraction: float = 0.7
    """a sample goes over to gradients at this factor a step in the first window [1.20, 1.04],"""
    contraction_later: float = 0.85
    """and at this one later. [1.18, 1.19]"""
    rescue: NewtonKrylov = field(default_factory=NewtonKrylov)
    """What samples that stall with passes left go on by."""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def sample_bytes(self, problem: Problem) -> int:
        """Of a sample: its pairs, twice, since those of the others are copied when samples leave."""
        return 2 * problem.anchor.itemsize * self.memory * (problem.inputs + problem.outputs)

    def solve(self, problem: Problem) -> Solution:
        """The pairs of all samples stay within the memory budget."""
        return problem.in_parts(self.sample_bytes(problem), lambda part: _solve(part, self))


@dataclass
class _Best:
    """The best so far, of all samples: value, Φ(value), the residual's norm; cost in halves of a pass."""

    value: Tensor
    reached: Tensor
    error: Tensor
    halves: Tensor

    @staticmethod
    def of(problem: Problem) -> _Best:
        value, reached = (v.clone() for v in problem.start or (problem.anchor, problem.output))
        none = torch.zeros(len(value), dtype=torch.long, device=value.device)
        return _Best(value, reached, row_norm(problem.target - reached), none)

    @property
    def passes(self) -> Tensor:
        return (self.halves + 1) // 2

    def unfinished(self, problem: Problem) -> Tensor:
        return (self.error > problem.enough).nonzero().squeeze(1)

    def store(self, state: _State) -> None:
        better = (state.error < self.error[state.index]).nonzero().squeeze(1)
        won = state.index[better]
        self.value[won], self.reached[won] = state.a[better], state.phi[better]
        self.error[won] = state.error[better]


@dataclass
class _State(Working):
    """The samples still at work: index (k,), base a, Φ(a), residual r and its norm, pairs s and y: (k, m, n), y's
    products with itself and with r (in double), direction p, γ: (k, m) and what it explains, Yγ: (k, n); and per sample
    whether p was made without a gradient, β of the two kinds (k, 2), the residual last gained from, steps since then,
    refusals in a row."""

    index: Tensor
    a: Tensor
    phi: Tensor
    r: Tensor
    error: Tensor
    s: Tensor
    y: Tensor
    gram: Tensor
    right: Tensor
    p: Tensor
    gamma: Tensor
    known: Tensor
    free: Tensor
    beta: Tensor
    mark: Tensor
    idle: Tensor
    refused: Tensor


def _solve(problem: Problem, options: Secant) -> Solution:
    """Forward steps where the block allows them; samples that stall go on by gradients, then by Gauss–Newton.

    After steps along the residual itself, which know nothing of the block, gradients start again at the anchor.
    """
    best = _Best.of(problem)
    rest = best.unfinished(problem)
    begin = problem.start or (problem.anchor, problem.output)
    known = problem.stationary if problem.start is None else None
    square = problem.anchor.shape == problem.target.shape
    if len(rest) and problem.start is None and (square if known is None else known.explained >= options.forward):
        _by_forward_steps(problem, options, best, rest)
        rest = best.unfinished(problem)
        begin = begin if known is None else (best.value, best.reached)
    if len(rest):
        _by_gradients(problem, options, best, _begin(problem, options.memory, rest, *begin))
        _rescue(problem, options.rescue, best)
    before = row_norm(problem.target - problem.output)
    return Solution(best.value, (best.error >= before) & (before > problem.enough), best.passes)


def _rescue(problem: Problem, newton: NewtonKrylov, best: _Best) -> None:
    """Samples that stalled with passes left go on by Gauss–Newton steps, which see more than the pairs at hand."""
    passes = best.passes
    rest = best.unfinished(problem)
    rest = rest[problem.limits.iterations - passes[rest] > newton.inner]
    if len(rest):
        newton.descend(problem, rest, best.value, best.reached, passes)
        best.halves[rest] = 2 * passes[rest]
        best.error[rest] = row_norm(problem.target[rest] - best.reached[rest])


def _by_forward_steps(problem: Problem, options: Secant, best: _Best, rest: Tensor) -> None:
    """p from r′ alone: safeguarded Anderson acceleration. A sample that no longer contracts leaves."""
    state = _begin(problem, options.memory, rest, problem.anchor, problem.output)
    state.p = _forward(problem, state.r)
    for step in range(2 * problem.limits.iterations):
        if problem.clock.over():
            return
        point = _proposal(problem, state)
        best.halves[state.index] += 1
        with torch.no_grad():
            phi = problem.fn(point, state.index)
        _judge(problem, state, point, phi, step)
        best.store(state)
        now = state.error
        going = now > problem.enough[state.index]
        if step % options.window == options.window - 1:
            rate = options.contraction if step < options.window else options.contraction_later
            going &= now <= rate**options.window * state.mark
            state.mark = now
        state.keep(going)
        if len(state.index) == 0:
            return
        _least_squares(state, options.ridge)
        state.p = _forward(problem, _unexplained(state))


def _forward(problem: Problem, left: Tensor) -> Tensor:
    return left if problem.stationary is None else problem.stationary.step(left)


def _by_gradients(problem: Problem, options: Secant, best: _Best, state: _State) -> None:
    """p from Jᵀr′ at the newest point, one forward and one backward pass a step; in turn with K's p, where known."""
    if problem.stationary is None:
        state.refused += 2  # nothing known yet: the first pass only looks at the gradient
    else:
        state.p, state.free = problem.stationary.step(state.r), ~state.free
    step, limit = -1, 2 * problem.limits.iterations
    state.keep(best.halves[state.index] < limit)
    while len(state.index) and not problem.clock.over():
        step += 1
        looking = state.refused == 2
        point = state.a if bool(looking.all()) else _proposal(problem, state)
        point = _where(looking, state.a, point)
        with torch.enable_grad():
            point = point.detach().requires_grad_(True)
            out = problem.fn(point, state.index)
        if step or problem.start is not None or problem.stationary is not None:
            _judge(problem, state, point.detach(), out.detach(), step)
        best.store(state)
        now = state.error
        gained = now < (1 - options.gain) * state.mark
        state.mark = torch.where(gained, now, state.mark)
        state.idle = torch.where(gained, 0, state.idle + 1)
        going = (now > problem.enough[state.index]) & (state.idle < options.patience)
        state.free = _free(problem, state, looking)
        spent = best.halves[state.index] + torch.where(state.free, 1, 2)
        going &= spent < limit  # the next look takes a half again
        best.halves[state.index] = torch.where(going, spent, best.halves[state.index] + 1)
        _turn(problem, options, state, point, out, looking, going)
        state.keep(going)


def _free(problem: Problem, state: _State, looking: Tensor) -> Tensor:
    """Samples whose next direction comes from K alone: where it is known, after a gradient that was not refused."""
    if problem.stationary is None:
        return torch.zeros_like(looking)
    return ~state.free & ~looking & (state.refused == 0)


def _turn(
    problem: Problem, options: Secant, state: _State, point: Tensor, out: Tensor, looking: Tensor, going: Tensor
) -> None:
    """The next direction: from pairs and the newest gradient; after two refusals, the base's gradient alone."""
    plain = looking | (state.refused > 2)
    forget = ((state.refused == 2) | plain).nonzero().squeeze(1)
    if len(forget):
        state.y[forget], state.gram[forget], state.right[forget] = 0.0, 0.0, 0.0
    _least_squares(state, options.ridge)
    left = _unexplained(state)
    p, length = _gradient(problem, state, point, out, left, going & ~state.free)
    if problem.stationary is not None and bool(state.free.any()):
        p = _where(state.free, problem.stationary.step(left), p)
    state.p = _where(plain & ~looking, state.p, p)
    state.beta[:, 0] = torch.where(looking, length, state.beta[:, 0])
    state.refused = torch.where(looking, 3, state.refused)


def _gradient(
    problem: Problem, state: _State, point: Tensor, out: Tensor, left: Tensor, asked: Tensor
) -> tuple[Tensor, Tensor]:
    """(Jᵀr′ in the metric that is known, a length to begin with: (k,)), zero for samples that are not asked: (k,)."""
    if not bool(asked.any()):
        return torch.zeros_like(state.a), torch.ones_like(state.error)
    size = row_norm(left).clamp_min(1e-300)  # pulled at unit size: tiny residuals must not underflow on the way
    pulled = per_system(torch.where(asked, 1 / size, 0.0), left).to(out.dtype) * left
    (p,) = torch.autograd.grad(out, point, pulled)
    p = torch.where(torch.isfinite(p), p, 0.0)
    low, high = problem.within.low, problem.within.high
    p = torch.where(((state.a <= low) & (p < 0)) | ((state.a >= high) & (p > 0)), 0.0, p)
    pull = row_norm(p)
    length = torch.where(pull > 0, 0.5 / pull.clamp_min(1e-300) ** 2, 0.0)
    if problem.stationary is not None:
        p, length = problem.stationary.scaled(p), torch.ones_like(length)
    return p * per_system(size, p).to(p.dtype), length


def _begin(problem: Problem, m: int, rest: Tensor, start: Tensor, reached: Tensor) -> _State:
    a, phi = start[rest], reached[rest]
    r = problem.target[rest] - phi
    k = len(rest)
    norm = row_norm(r)
    none = torch.zeros(k, dtype=torch.long, device=a.device)
    return _State(
        index=rest,
        a=a,
        phi=phi,
        r=r,
        error=norm,
        s=a.new_zeros(k, m, a[:1].numel()),
        y=phi.new_zeros(k, m, phi[:1].numel()),
        gram=norm.new_zeros(k, m, m),
        right=norm.new_zeros(k, m),
        p=torch.zeros_like(a),
        gamma=norm.new_zeros(k, m),
        known=phi.new_zeros(k, phi[:1].numel()),
        free=torch.zeros_like(none, dtype=torch.bool),
        beta=norm.new_ones(k, 2),
        mark=norm,
        idle=none,
        refused=none.clone(),
    )


def _proposal(problem: Problem, state: _State) -> Tensor:
    beta = per_system(torch.where(state.free, state.beta[:, 1], state.beta[:, 0]), state.p).to(state.p.dtype)
    return problem.inside(state.a + _combine(state.s, state.gamma).reshape_as(state.a) + beta * state.p, state.index)


def _judge(problem: Problem, state: _State, point: Tensor, phi: Tensor, step: int) -> None:
    """Take the point as the new base where the residual drops; learn from it either way."""
    residual = problem.target[state.index] - phi
    new = row_norm(residual)
    good = new < state.error  # not so where it is NaN
    tried = state.refused != 2
    _remember(state, point - state.a, phi - state.phi, step, tried, good)
    state.a = _where(good, point, state.a)
    state.phi = _where(good, phi, state.phi)
    state.r = _where(good, residual, state.r)
    state.error = torch.where(good, new, state.error)
    state.refused = torch.where(good, 0, state.refused + tried.long())


def _where(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Per sample, without a copy where all agree. mask: (k,)."""
    if bool(mask.all()):
        return yes
    return torch.where(per_system(mask, yes), yes, no) if bool(mask.any()) else no


def _combine(pairs: Tensor, gamma: Tensor) -> Tensor:
    """Σ_m γ_m pairs_m: (k, n)."""
    return (gamma.to(pairs.dtype)[:, None] @ pairs).squeeze(1)


def _unexplained(state: _State) -> Tensor:
    """r′ = r − Yγ, like r."""
    return state.r - state.known.reshape_as(state.r)


def _least_squares(state: _State, ridge: float) -> None:
    """γ: (k, m), in double, every pair scaled to one, with a small ridge; empty pairs get γ = 0."""
    power = state.gram.diagonal(dim1=1, dim2=2)
    norm = torch.where(power > 0, power.clamp_min(1e-300).rsqrt(), 0.0)
    eye = torch.eye(power.shape[1], dtype=power.dtype, device=power.device)
    scaled = state.gram * norm[:, :, None] * norm[:, None, :] + ridge * eye
    state.gamma = torch.linalg.solve(scaled, (state.right * norm)[..., None]).squeeze(-1) * norm
    state.known = _combine(state.y, state.gamma)


def _remember(state: _State, da: Tensor, dphi: Tensor, step: int, tried: Tensor, good: Tensor) -> None:
    """Store the pair (non-finite ones as zero), and rescale β by what the fresh direction turned out to do."""
    flat = dphi.flatten(1)
    power = row_norm(flat) ** 2
    finite = torch.isfinite(power)
    flat, power = _where(finite, flat, torch.zeros_like(flat)), torch.where(finite, power, 0.0)
    row = _products(state.y, flat)
    onto = _products(state.r.flatten(1)[:, None], flat).squeeze(1)
    # ‖f‖² and ⟨f, r′⟩ of f = Δφ − Yγ, the share of the fresh direction, from the products at hand
    cross, inner = (state.gamma * row).sum(1), (state.gamma * (state.gram @ state.gamma[..., None]).squeeze(-1)).sum(1)
    fresh = power - 2 * cross + inner
    gain = onto - cross - (state.gamma * state.right).sum(1) + inner
    ratio = torch.where(finite & (fresh > 0), gain / fresh.clamp_min(1e-300), 0.0)
    plain = (state.refused > 2) & ~good  # a pure gradient step that overshot: shorten it at least by half
    ratio = torch.where(plain, ratio.clamp(0.01, 0.5), ratio.clamp(0.25, 4.0))
    kind = torch.stack([tried & ~state.free, tried & state.free], 1)
    state.beta = torch.where(kind, state.beta * ratio[:, None], state.beta)
    slot = step % state.s.shape[1]
    state.s[:, slot] = _where(finite, da.flatten(1), torch.zeros_like(da).flatten(1))
    state.y[:, slot] = flat
    row[:, slot], state.right[:, slot] = power, onto
    state.gram[:, slot], state.gram[:, :, slot] = row, row
    state.right = state.right - good.to(row.dtype)[:, None] * row  # an accepted step leaves r − Δφ


def _products(pairs: Tensor, v: Tensor) -> Tensor:
    """⟨pairs_m, v⟩: (k, m), in double. (A row times a matrix is ten times as fast here as a matrix times a column.)"""
    return (v[:, None] @ pairs.mT).squeeze(1).double()
