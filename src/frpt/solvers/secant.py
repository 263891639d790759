"""Per-sample multi-secant minimisation of ‖t − Φ(a)‖ (Anderson type II), anchored by starting at â.

Each sample keeps a base (its best point) and up to m pairs (Δa, ΔΦ). A step solves the small least squares
``γ = argmin ‖r − Yγ‖² + ridge`` and goes to  a + Sγ + β p  with a fresh direction p for what the pairs don't explain,
``r′ = r − Yγ``:  p = r′ (forward passes only, for blocks near the identity), or p = Jᵀr′ (one backward pass more).
A sample that is refused twice forgets its pairs, and goes down its gradient at the base in ever smaller steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.solvers import newton_krylov
from frpt.solvers.base import Working
from frpt.solvers.composite import Answer, Problem, row_norm, spread

_RIDGE = 1e-6
_PATIENCE = 10
"""Passes without a 2 % gain after which a sample has stalled."""


@dataclass
class _State(Working):
    """The samples still at work: index (k,), base a, Φ(a), residual r, pairs s and y: (k, m, n), direction p, and
    per sample γ: (k, m), β, the residual last gained from, passes since then, and refusals in a row."""

    index: Tensor
    a: Tensor
    phi: Tensor
    r: Tensor
    s: Tensor
    y: Tensor
    p: Tensor
    gamma: Tensor
    beta: Tensor
    mark: Tensor
    idle: Tensor
    refused: Tensor


def solve(problem: Problem) -> Answer:
    """Residual directions where shapes allow; samples that stall with them start again at the anchor with Jᵀr."""
    count = len(problem.anchor)
    passes = torch.zeros(count, dtype=torch.long, device=problem.anchor.device)
    value, reached = problem.start or (problem.anchor, problem.output)
    value, error = value.clone(), row_norm(problem.target - reached)
    rest = (error > problem.enough).nonzero().squeeze(1)
    if problem.anchor.shape == problem.target.shape and problem.start is None and len(rest):
        _by_residuals(problem, rest, value, error, passes)
        rest = (error > problem.enough).nonzero().squeeze(1)
    if len(rest):
        _by_gradients(problem, rest, value, error, passes)
        _rescued(problem, value, error, passes)
    before = row_norm(problem.target - problem.output)
    return Answer(value, passes, (error >= before) & (before > 0))


def _rescued(problem: Problem, value: Tensor, error: Tensor, passes: Tensor) -> None:
    """Samples that stalled with passes left go on by Gauss–Newton steps, which see more than the pairs at hand."""
    left = problem.options.iterations - passes
    rest = ((error > problem.enough) & (left > newton_krylov.INNER)).nonzero().squeeze(1)
    if len(rest) == 0:
        return
    with torch.no_grad():
        reached = problem.output.clone()
        reached[rest] = problem.fn(value[rest], rest)
    newton_krylov.descend(problem, rest, value, reached, passes)
    error[rest] = row_norm(problem.target[rest] - reached[rest])


def _by_residuals(problem: Problem, rest: Tensor, value: Tensor, error: Tensor, passes: Tensor) -> None:
    """p = r′: safeguarded Anderson acceleration. A sample that contracts by less than 0.7, later 0.85, leaves."""
    state = _begin(problem, rest)
    state.p = state.r.to(state.a.dtype)
    for step in range(problem.options.iterations):
        point = _proposal(problem, state)
        passes[state.index] += 1
        with torch.no_grad():
            phi = problem.fn(point, state.index)
        _judge(problem, state, point, phi, step)
        _store(state, value, error)
        now = row_norm(state.r)
        going = now > problem.enough[state.index]
        if step % 3 == 2:
            going &= now <= (0.7 if step == 2 else 0.85) ** 3 * state.mark
            state.mark = now
        state.gamma = _least_squares(state)
        state.p = (state.r - _combine(state.y, state.gamma).reshape_as(state.r)).to(point.dtype)
        state.keep(going)
        if len(state.index) == 0:
            return


def _by_gradients(problem: Problem, rest: Tensor, value: Tensor, error: Tensor, passes: Tensor) -> None:
    """p = Jᵀr′ at the newest point: one forward and one backward pass a step."""
    state = _begin(problem, rest)
    state.refused += 2  # nothing known yet: the first pass only looks at the gradient
    for step in range(problem.options.iterations):
        looking = state.refused == 2
        point = torch.where(spread(looking, state.a), state.a, _proposal(problem, state))
        passes[state.index] += 1
        with torch.enable_grad():
            point = point.detach().requires_grad_(True)
            out = problem.fn(point, state.index)
        if step or problem.start is not None:
            _judge(problem, state, point.detach(), out.detach(), step)
        _store(state, value, error)
        now = row_norm(state.r)
        gained = now < 0.98 * state.mark
        state.mark = torch.where(gained, now, state.mark)
        state.idle = torch.where(gained, 0, state.idle + 1)
        going = (now > problem.enough[state.index]) & (state.idle < _PATIENCE)
        _turn(problem, state, point, out, looking, going)
        state.keep(going)
        if len(state.index) == 0:
            return


def _turn(problem: Problem, state: _State, point: Tensor, out: Tensor, looking: Tensor, going: Tensor) -> None:
    """The next direction: from pairs and the newest gradient; after two refusals, the base's gradient alone."""
    plain = looking | (state.refused > 2)
    forget = state.refused == 2
    state.y = torch.where((forget | plain)[:, None, None], 0.0, state.y)
    state.gamma = _least_squares(state)
    left = state.r - _combine(state.y, state.gamma).reshape_as(state.r)
    size = row_norm(left).clamp_min(1e-300)  # pulled at unit size: tiny residuals must not underflow on the way
    wanted = torch.where(spread(going, left), left / spread(size, left).to(left.dtype), 0.0).to(out.dtype)
    (p,) = torch.autograd.grad(out, point, wanted)
    p = torch.where(torch.isfinite(p), p, 0.0) * spread(size, p).to(p.dtype)
    low, high = problem.within.low, problem.within.high
    p = torch.where(((state.a <= low) & (p < 0)) | ((state.a >= high) & (p > 0)), 0.0, p)
    state.p = torch.where(spread(plain & ~looking, p), state.p, p)
    pull = row_norm(p)
    cauchy = torch.where(pull > 0, 0.5 * (size / pull.clamp_min(1e-300)) ** 2, 0.0)
    state.beta = torch.where(looking, cauchy, state.beta)
    state.refused = torch.where(looking, 3, state.refused)


def _begin(problem: Problem, rest: Tensor) -> _State:
    a, phi = (v[rest] for v in problem.start or (problem.anchor, problem.output))
    r = problem.target[rest] - phi
    k, m = len(rest), problem.options.memory
    norm = row_norm(r)
    none = torch.zeros(k, dtype=torch.long, device=a.device)
    return _State(
        index=rest,
        a=a,
        phi=phi,
        r=r,
        s=a.new_zeros(k, m, a[:1].numel()),
        y=phi.new_zeros(k, m, phi[:1].numel()),
        p=torch.zeros_like(a),
        gamma=norm.new_zeros(k, m),
        beta=torch.ones_like(norm),
        mark=norm,
        idle=none,
        refused=none.clone(),
    )


def _proposal(problem: Problem, state: _State) -> Tensor:
    move = _combine(state.s, state.gamma).reshape_as(state.a) + spread(state.beta, state.p).to(state.p.dtype) * state.p
    return problem.inside(state.a + move, state.index)


def _judge(problem: Problem, state: _State, point: Tensor, phi: Tensor, step: int) -> None:
    """Take the point as the new base where the residual drops; learn from it either way."""
    residual = problem.target[state.index] - phi
    new = row_norm(residual)
    good = torch.isfinite(new) & (new < row_norm(state.r))
    tried = state.refused != 2
    _remember(state, point - state.a, phi - state.phi, step, tried, good)
    state.a = torch.where(spread(good, point), point, state.a)
    state.phi = torch.where(spread(good, phi), phi, state.phi)
    state.r = torch.where(spread(good, residual), residual, state.r)
    state.refused = torch.where(good, 0, state.refused + tried.long())


def _combine(pairs: Tensor, gamma: Tensor) -> Tensor:
    """Σ_m γ_m pairs_m: (k, n)."""
    return torch.einsum("kmn,km->kn", pairs, gamma.to(pairs.dtype))


def _least_squares(state: _State) -> Tensor:
    """γ: (k, m), in double, every pair scaled to one, with a small ridge; empty pairs get γ = 0."""
    y = state.y.double()
    gram = y @ y.mT
    right = (y @ state.r.flatten(1).double()[..., None]).squeeze(-1)
    power = gram.diagonal(dim1=1, dim2=2)
    norm = torch.where(power > 0, power.clamp_min(1e-300).rsqrt(), 0.0)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    scaled = gram * norm[:, :, None] * norm[:, None, :] + _RIDGE * eye
    gamma: Tensor = torch.linalg.solve(scaled, (right * norm)[..., None]).squeeze(-1) * norm
    return gamma


def _remember(state: _State, da: Tensor, dphi: Tensor, step: int, tried: Tensor, good: Tensor) -> None:
    """Store the pair (non-finite ones as zero), and rescale β by what the fresh direction turned out to do."""
    flat = dphi.flatten(1)
    finite = torch.isfinite(flat).all(1)
    flat = torch.where(finite[:, None], flat, 0.0)
    known = _combine(state.y, state.gamma)
    fresh, left = (flat - known).double(), (state.r.flatten(1) - known).double()
    power = fresh.square().sum(1)
    ratio = torch.where(power > 0, (left * fresh).sum(1) / power.clamp_min(1e-300), 0.0)
    ratio = torch.where(finite, ratio, 0.0)
    plain = (state.refused > 2) & ~good  # a pure gradient step that overshot: shorten it at least by half
    ratio = torch.where(plain, ratio.clamp(0.01, 0.5), ratio.clamp(0.25, 4.0))
    state.beta = torch.where(tried, state.beta * ratio, state.beta)
    slot = step % state.s.shape[1]
    state.s[:, slot] = torch.where(finite[:, None], da.flatten(1), 0.0)
    state.y[:, slot] = flat


def _store(state: _State, value: Tensor, error: Tensor) -> None:
    """Write the base out where it beats what the sample already had."""
    reached = row_norm(state.r)
    better = reached < error[state.index]
    won = state.index[better]
    value[won] = state.a[better]
    error[won] = reached[better]
