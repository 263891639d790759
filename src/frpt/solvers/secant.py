"""Per-sample multi-secant minimisation of ‖t − Φ(a)‖ (Anderson type II), anchored by starting at â.

Each sample keeps a base (its best point) and up to m pairs (Δa, ΔΦ). A step solves the small least squares
``γ = argmin ‖r − Yγ‖² + ridge`` and goes to  a + Sγ + β p  with a fresh direction p for what the pairs don't explain,
``r′ = r − Yγ``:  p = r′ (forward passes only, for blocks near the identity), or p = Jᵀr′ (one backward pass more).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.solvers.composite import Answer, Problem, row_norm, spread

_RIDGE = 1e-6
_PATIENCE = 6
"""Steps without a 2 % gain after which a sample has stalled."""


@dataclass
class _State:
    """The samples still at work. a, r: base and its residual; s, y: (k, m, n) pairs; the rest per sample."""

    index: Tensor
    a: Tensor
    phi: Tensor
    r: Tensor
    s: Tensor
    y: Tensor
    beta: Tensor
    mark: Tensor
    idle: Tensor

    def keep(self, mask: Tensor) -> None:
        for name in ("index", "a", "phi", "r", "s", "y", "beta", "mark", "idle"):
            setattr(self, name, getattr(self, name)[mask])


def solve(problem: Problem) -> Answer:
    """Residual directions where shapes allow; samples that stall with them start again at the anchor with Jᵀr."""
    count = len(problem.anchor)
    passes = torch.zeros(count, dtype=torch.long, device=problem.anchor.device)
    value, reached = problem.start or (problem.anchor, problem.output)
    value, error = value.clone(), row_norm(problem.target - reached)
    rest = (error > problem.enough).nonzero().squeeze(1)
    if problem.anchor.shape == problem.target.shape and problem.start is None and len(rest):
        _iterate(problem, rest, value, error, passes, gradient=False)
        rest = (error > problem.enough).nonzero().squeeze(1)
    if len(rest):
        _iterate(problem, rest, value, error, passes, gradient=True)
    before = row_norm(problem.target - problem.output)
    return Answer(value, passes, (error >= before) & (before > 0))


def _iterate(problem: Problem, rest: Tensor, value: Tensor, error: Tensor, passes: Tensor, gradient: bool) -> None:
    """Steps from the anchor for the samples ``rest``; improvements are written to value and error."""
    state = _start(problem, rest)
    enough = problem.enough
    p, gamma = _first_direction(problem, state, gradient)
    for step in range(problem.options.iterations):
        move = _combine(state.s, gamma).reshape_as(state.a) + spread(state.beta, p).to(p.dtype) * p
        point = problem.inside(state.a + move, state.index)
        passes[state.index] += 1
        with torch.set_grad_enabled(gradient):
            point = point.detach().requires_grad_(gradient)
            out = problem.fn(point, state.index)
        phi = out.detach()
        old = row_norm(state.r)
        residual = problem.target[state.index] - phi
        new = row_norm(residual)
        good = torch.isfinite(new) & (new < old)
        _remember(state, point.detach() - state.a, phi - state.phi, gamma, step)
        _accept(state, good, point.detach(), phi, residual)
        _store(state, value, error, row_norm(state.r))
        going = _judge(state, step, enough[state.index], gradient)
        gamma = _least_squares(state)
        rest_r = state.r - _combine(state.y, gamma).reshape_as(state.r)
        if gradient:
            pull = torch.where(spread(going, rest_r), rest_r, 0.0).to(out.dtype)
            (p,) = torch.autograd.grad(out, point, pull)
            p = torch.where(torch.isfinite(p), p, 0.0)
        else:
            p = rest_r.to(point.dtype)
        state.keep(going)
        p, gamma = p[going], gamma[going]
        if len(state.index) == 0:
            return


def _start(problem: Problem, rest: Tensor) -> _State:
    a, phi = (v[rest] for v in problem.start or (problem.anchor, problem.output))
    r = problem.target[rest] - phi
    k, m = len(rest), problem.options.memory
    norm = row_norm(r)
    return _State(
        rest,
        a,
        phi,
        r,
        a.new_zeros(k, m, a[:1].numel()),
        phi.new_zeros(k, m, phi[:1].numel()),
        norm.new_ones(k),
        norm,
        torch.zeros(k, dtype=torch.long, device=a.device),
    )


def _first_direction(problem: Problem, state: _State, gradient: bool) -> tuple[Tensor, Tensor]:
    """p at the anchor, and β₀ = ‖r‖²/(2‖Jᵀr‖²) for gradients."""
    gamma = state.s.new_zeros(state.s.shape[:2], dtype=torch.float64)
    if not gradient:
        return state.r.to(state.a.dtype), gamma
    with torch.enable_grad():
        point = state.a.detach().requires_grad_(True)
        out = problem.fn(point, state.index)
    (p,) = torch.autograd.grad(out, point, state.r.to(out.dtype))
    p = torch.where(torch.isfinite(p), p, 0.0)
    pull = row_norm(p)
    state.beta = torch.where(pull > 0, 0.5 * (row_norm(state.r) / pull.clamp_min(1e-30)) ** 2, 0.0)
    return p, gamma


def _combine(pairs: Tensor, gamma: Tensor) -> Tensor:
    """Σ_m γ_m pairs_m: (k, n)."""
    return torch.einsum("kmn,km->kn", pairs, gamma.to(pairs.dtype))


def _least_squares(state: _State) -> Tensor:
    """γ: (k, m), in double, with a ridge relative to the largest pair."""
    y = state.y.double()
    gram = y @ y.mT
    right = (y @ state.r.flatten(1).double()[..., None]).squeeze(-1)
    peak = gram.diagonal(dim1=1, dim2=2).amax(1).clamp_min(1e-300)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    # unused pairs are zero rows: the ridge alone keeps them at γ = 0
    norm = gram.diagonal(dim1=1, dim2=2).clamp_min(1e-12 * peak[:, None]).rsqrt()
    scaled = gram * norm[:, :, None] * norm[:, None, :] + _RIDGE * eye
    return torch.linalg.solve(scaled, (right * norm)[..., None]).squeeze(-1) * norm


def _remember(state: _State, da: Tensor, dphi: Tensor, gamma: Tensor, step: int) -> None:
    """Store the pair (non-finite ones as zero) and rescale β from what the fresh direction did."""
    flat = dphi.flatten(1)
    finite = torch.isfinite(flat).all(1)
    flat = torch.where(finite[:, None], flat, 0.0)
    fresh = flat - _combine(state.y, gamma)
    left = state.r.flatten(1) - _combine(state.y, gamma)
    power = fresh.double().square().sum(1)
    wanted = (left.double() * fresh.double()).sum(1) / power.clamp_min(1e-300)
    ratio = torch.where(power > 0, wanted, 0.25).clamp(0.25, 4.0)
    state.beta = state.beta * torch.where(finite, ratio, torch.full_like(ratio, 0.25))
    slot = step % state.s.shape[1]
    state.s[:, slot] = torch.where(finite[:, None], da.flatten(1), 0.0)
    state.y[:, slot] = flat


def _accept(state: _State, good: Tensor, point: Tensor, phi: Tensor, residual: Tensor) -> None:
    state.a = torch.where(spread(good, point), point, state.a)
    state.phi = torch.where(spread(good, phi), phi, state.phi)
    state.r = torch.where(spread(good, residual), residual, state.r)


def _store(state: _State, value: Tensor, error: Tensor, reached: Tensor) -> None:
    """The base, where it beats what the sample already had."""
    better = reached < error[state.index]
    won = state.index[better]
    value[won] = state.a[better]
    error[won] = reached[better]


def _judge(state: _State, step: int, enough: Tensor, gradient: bool) -> Tensor:
    """Which samples go on: not converged, and still gaining. Residual directions must contract, 0.7 then 0.85 a step."""
    now = row_norm(state.r)
    going = now > enough
    if not gradient:
        if step == 2:
            return going & (now <= 0.7**3 * state.mark)
        if step > 2 and step % 3 == 2:
            going = going & (now <= 0.85**3 * state.mark)
        if step % 3 == 2:
            state.mark = now
        return going
    gained = now < 0.98 * state.mark
    state.mark = torch.where(gained, now, state.mark)
    state.idle = torch.where(gained, 0, state.idle + 1)
    return going & (state.idle < _PATIENCE)
