"""Gauss–Newton for blocks of few outputs, a network's scores: the nearest point to â on the linearised target.

min ‖z‖²  subject to  J z = t − Φ(a) + J (a − c),  low ≤ c + z ≤ high;   a ← a + d (c + z − a)

The centre c is the anchor; once a has moved, a third of the way back to it; after a step that brought little, a.
The shorter the way, the fewer kinks it crosses; the nearer c is to the anchor, the less is moved in the end.
z = Jᵀw is found from a system of the size of the output; entries that would leave their range are put on its bound, and
the others solved for again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.solvers.base import Working
from frpt.solvers.blocks.problem import Answer, Problem, in_parts, row_norm

_STEPS = 10
_TOGETHER = 512
"""Samples times outputs up to which a pass costs mostly its calls."""
_COPIES = 3
"""Tensors of a Jacobian's size alive at one time: it, what its making and its products take."""
_LENGTHS = (1.0, 0.5, 0.2)
_ROUNDS = 2
"""Looks at which entries sit on a bound."""
_RIDGE = 1e-4
"""In units of the mean of JJᵀ's diagonal: smaller ones let float32 noise decide where J is nearly of lower rank."""
_BACK = 1 / 3
"""How far back to the anchor the centre lies once a has moved: ends about as near as with 1, in fewer steps."""
_NEAR_RIDGE = 1e-2
"""The least one of a step that starts at a, tenfold for the next: without it they wander where no step gets far."""
_COARSE = 0.1
"""Share of the residual that may be left from which steps start at the anchor only."""
_HARDER = 100.0
"""Factor on the ridge after a step that no length makes good."""
_SLOW = 0.7
"""A step that leaves more than this of the residual brings little; after some in a row, secant steps are cheaper."""


@dataclass
class _State(Working):
    """The samples still at work: index (k,), a, Φ(a), the residual's norm, the ridge, slow steps in a row."""

    index: Tensor
    a: Tensor
    phi: Tensor
    error: Tensor
    ridge: Tensor
    slow: Tensor


def solve(problem: Problem) -> Answer:
    """The rows of all Jacobians stay within the memory budget."""
    return in_parts(problem, _COPIES * problem.anchor.itemsize * problem.inputs * problem.outputs, _solve)


def _solve(problem: Problem) -> Answer:
    """Every sample from the anchor (or the problem's start) until it is done, or some steps in a row bring little."""
    value, reached = (v.clone() for v in problem.start or (problem.anchor, problem.output))
    halves = torch.zeros(len(value), dtype=torch.long, device=value.device)
    error = row_norm(problem.target - reached)
    everyone = torch.arange(len(value), device=value.device)
    state = _State(
        everyone, value.clone(), reached.clone(), error, torch.full_like(error, _RIDGE), torch.zeros_like(halves)
    )
    for _ in range(_STEPS):
        state.keep((state.error > problem.enough[state.index]) & (state.slow < (3 if _fine(problem) else 2)))
        if len(state.index) == 0 or problem.clock.over():
            break
        halves[state.index] += 1 + problem.outputs
        halves[state.index] += _advance(problem, state, _nearest(problem, state))
        value[state.index], reached[state.index] = state.a, state.phi
    before, after = row_norm(problem.target - problem.output), row_norm(problem.target - reached)
    return Answer(value, (halves + 1) // 2, (after >= before) & (before > problem.enough))


def _fine(problem: Problem) -> bool:
    """Whether more is asked for than steps about the anchor reach by themselves; they alone vary smoothly with it."""
    return problem.closed is None or problem.closed < _COARSE


def _rows(problem: Problem, state: _State) -> Tensor:
    """J: (k, m, n). Few samples are laid out once per output, which takes one pull; many are pulled once per output."""
    count, outputs = len(state.a), problem.outputs
    together = problem.repeats and count * outputs <= _TOGETHER
    a, index = (v.repeat_interleave(outputs, 0) if together else v for v in (state.a, state.index))
    with torch.enable_grad():
        point = a.detach().requires_grad_(True)
        out = problem.fn(point, index).flatten(1)
    units = torch.eye(outputs, dtype=out.dtype, device=out.device)
    if together:
        (pulled,) = torch.autograd.grad(out, point, units.repeat(count, 1))
        return pulled.reshape(count, outputs, -1).nan_to_num_(0.0, 0.0, 0.0)
    J = point.new_empty(count, outputs, problem.inputs)
    for i, u in enumerate(units):
        J[:, i] = torch.autograd.grad(out, point, u.expand_as(out), retain_graph=True)[0].flatten(1)
    return J.nan_to_num_(0.0, 0.0, 0.0)


def _nearest(problem: Problem, state: _State) -> Tensor:
    """c + z: (k, n)."""
    J, here = _rows(problem, state), state.a.flatten(1)
    anchor, fine = problem.anchor[state.index].flatten(1), _fine(problem)
    stuck, moved = (state.slow > 0) & fine, (here != anchor).any(1) & fine
    back = torch.where(stuck, 0.0, torch.where(moved, _BACK, 1.0))
    centre = torch.lerp(here, anchor, back[:, None].to(here.dtype))
    ridge = torch.where(stuck, torch.maximum(state.ridge, _NEAR_RIDGE * 10.0 ** (state.slow - 1)), state.ridge)
    left = (problem.target[state.index] - state.phi).flatten(1).double() + _times(J, here - centre)
    z, fixed = torch.zeros_like(centre), torch.zeros_like(centre, dtype=torch.bool)
    eye = torch.eye(problem.outputs, dtype=left.dtype, device=left.device)
    for rounds in range(1, _ROUNDS + 1):
        gram = (J @ J.mT).double()
        size = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-300)
        factor = torch.linalg.lu_factor(gram + (ridge * size)[:, None, None] * eye)
        w = torch.linalg.lu_solve(*factor, left[..., None])
        w = (w + torch.linalg.lu_solve(*factor, left[..., None] - gram @ w)).squeeze(-1)  # once more, less biased
        z = torch.where(fixed, z, (w.to(J.dtype)[:, None] @ J).squeeze(1))
        point = problem.within.clamp(centre + z, centre)
        outside = point != centre + z
        if rounds == _ROUNDS or not bool(outside.any()):
            break
        z, fixed = torch.where(outside, point - centre, z), fixed | outside
        left -= _times(J, torch.where(outside, z, 0.0))
        J.masked_fill_(outside[:, None], 0.0)  # what is on its bound moves no more
    return point


def _times(J: Tensor, v: Tensor) -> Tensor:
    """J v: (k, m), in double. J: (k, m, n), v: (k, n)."""
    return (v[:, None] @ J.mT).squeeze(1).double()


def _advance(problem: Problem, state: _State, aim: Tensor) -> Tensor:
    """Go towards the aim by the longest of a few lengths that lowers the residual; passes made, in halves: (k,)."""
    used, before = torch.zeros_like(state.slow), state.error.clone()
    waiting = torch.arange(len(aim), device=aim.device)
    for length in _LENGTHS:
        rows = state.index[waiting]
        here = state.a[waiting]
        point = problem.inside(here + length * (aim[waiting].reshape_as(here) - here), rows)
        with torch.no_grad():
            out = problem.fn(point, rows)
        used[waiting] += 1
        error = row_norm(problem.target[rows] - out)
        drop = error < state.error[waiting]
        done = waiting[drop]
        state.a[done], state.phi[done], state.error[done] = point[drop], out[drop], error[drop]
        waiting = waiting[~drop]
        if len(waiting) == 0:
            break
    state.slow = torch.where(state.error > _SLOW * before, state.slow + 1, 0)
    state.ridge[waiting] *= _HARDER
    return used
