"""Gauss–Newton for blocks of few outputs, a network's scores: the nearest point to â on the linearised target.

    min ‖z‖²  subject to  J z = t − Φ(a) + J (a − c),  low ≤ c + z ≤ high;   a ← a + d (c + z − a)

The centre c is the anchor; once a has moved, a third of the way back to it; after a step that brought little, a.
The shorter the way, the fewer kinks it crosses; the nearer c is to the anchor, the less is moved in the end.
z = Jᵀw comes from a system of the size of the output; entries that would leave their range are put on its bound, and
the others solved for again. Taken by ``reach`` for whole paths to a few scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Solution, Working, row_norm
from frpt.solvers.blocks.problem import Problem


@dataclass(frozen=True)
class MinNormNewton:
    """Gauss–Newton on explicit rows of the Jacobian, each step to the nearest point about a centre.

    Numbers in brackets: the residual that is left with half and with double the value, relative to what it leaves
    (``benchmarks/halves.py``). [1, 1]: chosen by hand and not critical, as far as the problems there come to it.
    """

    most_outputs: int = 32
    """Outputs up to which explicit rows of the Jacobian cost less than iterations without: a step takes so many
    backward passes, and secant steps take 20 to 40 passes in all."""
    steps: int = 10
    """Most steps. [2.3, 1]"""
    together: int = 512
    """Samples times outputs up to which a pass costs mostly its calls, so that all rows are pulled in one. [1, 1]"""
    lengths: tuple[float, ...] = (1.0, 0.5, 0.2)
    """Lengths of a step that are tried."""
    rounds: int = 2
    """Looks, in a step, at which entries sit on a bound. [100, 1.2]"""
    ridge: float = 1e-4
    """In units of the mean of JJᵀ's diagonal: smaller ones let float32 noise decide where J is nearly of lower rank.
    [1.01, 1.08]"""
    back: float = 1 / 3
    """How far back to the anchor the centre lies once a has moved: ends about as near as with 1, in fewer steps.
    [0.2, 0.3], in 1.01 and 1.09 times the passes."""
    near_ridge: float = 1e-2
    """The least ridge of a step that starts at a, tenfold for the next: without it they wander where no step gets
    far. [1, 1.13]"""
    coarse: float = 0.1
    """Share of the residual that may be left from which steps start at the anchor only: those alone vary smoothly.
    [1, 1]"""
    harder: float = 100.0
    """Factor on the ridge after a step that no length makes good. [1, 1.08]"""
    slow: float = 0.7
    """A step that leaves more than this share of the residual brings little; after some in a row, secant steps are
    cheaper [1.6, 96 in 2.2 times the passes]:"""
    slow_steps: int = 3
    """so many [1, 1],"""
    slow_steps_coarse: int = 2
    """or these where the goal is coarse. [1, 1]"""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def sample_bytes(self, problem: Problem) -> int:
        """Of a sample: three tensors of a Jacobian's size at one time, it, what its making and its products take."""
        return 3 * problem.anchor.itemsize * problem.inputs * problem.outputs

    def solve(self, problem: Problem) -> Solution:
        """The rows of all Jacobians stay within the memory budget."""
        return problem.in_parts(self.sample_bytes(problem), lambda part: _solve(part, self))


@dataclass
class _State(Working):
    """The samples still at work: index (k,), a, Φ(a), the residual's norm, the ridge, slow steps in a row."""

    index: Tensor
    a: Tensor
    phi: Tensor
    error: Tensor
    ridge: Tensor
    slow: Tensor


def _solve(problem: Problem, options: MinNormNewton) -> Solution:
    """Every sample from the anchor (or the problem's start) until it is done, or some steps in a row bring little."""
    value, reached = (v.clone() for v in problem.start or (problem.anchor, problem.output))
    halves = torch.zeros(len(value), dtype=torch.long, device=value.device)
    error = row_norm(problem.target - reached)
    everyone = torch.arange(len(value), device=value.device)
    state = _State(
        everyone, value.clone(), reached.clone(), error, torch.full_like(error, options.ridge), torch.zeros_like(halves)
    )
    patience = options.slow_steps if _fine(problem, options) else options.slow_steps_coarse
    for _ in range(options.steps):
        state.keep((state.error > problem.enough[state.index]) & (state.slow < patience))
        if len(state.index) == 0 or problem.clock.over():
            break
        halves[state.index] += 1 + problem.outputs
        halves[state.index] += _advance(problem, options, state, _nearest(problem, options, state))
        value[state.index], reached[state.index] = state.a, state.phi
    before, after = row_norm(problem.target - problem.output), row_norm(problem.target - reached)
    return Solution(value, (after >= before) & (before > problem.enough), (halves + 1) // 2)


def _fine(problem: Problem, options: MinNormNewton) -> bool:
    """Whether more is asked for than steps about the anchor reach by themselves; they alone vary smoothly with it."""
    return problem.stop_at is None or problem.stop_at < options.coarse


def _rows(problem: Problem, options: MinNormNewton, state: _State) -> Tensor:
    """J: (k, m, n). Few samples are laid out once per output, which takes one pull; many are pulled once per output."""
    count, outputs = len(state.a), problem.outputs
    together = problem.repeats and count * outputs <= options.together
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


def _nearest(problem: Problem, options: MinNormNewton, state: _State) -> Tensor:
    """c + z: (k, n)."""
    J, here = _rows(problem, options, state), state.a.flatten(1)
    anchor, fine = problem.anchor[state.index].flatten(1), _fine(problem, options)
    stuck, moved = (state.slow > 0) & fine, (here != anchor).any(1) & fine
    back = torch.where(stuck, 0.0, torch.where(moved, options.back, 1.0))
    centre = torch.lerp(here, anchor, back[:, None].to(here.dtype))
    damped = torch.maximum(state.ridge, options.near_ridge * 10.0 ** (state.slow - 1))
    ridge = torch.where(stuck, damped, state.ridge)
    left = (problem.target[state.index] - state.phi).flatten(1).double() + _times(J, here - centre)
    z, fixed = torch.zeros_like(centre), torch.zeros_like(centre, dtype=torch.bool)
    eye = torch.eye(problem.outputs, dtype=left.dtype, device=left.device)
    for rounds in range(1, options.rounds + 1):
        gram = (J @ J.mT).double()
        size = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-300)
        factor = torch.linalg.lu_factor(gram + (ridge * size)[:, None, None] * eye)
        w = torch.linalg.lu_solve(*factor, left[..., None])
        w = (w + torch.linalg.lu_solve(*factor, left[..., None] - gram @ w)).squeeze(-1)  # once more, less biased
        z = torch.where(fixed, z, (w.to(J.dtype)[:, None] @ J).squeeze(1))
        point = problem.within.clamp(centre + z, centre)
        outside = point != centre + z
        if rounds == options.rounds or not bool(outside.any()):
            break
        z, fixed = torch.where(outside, point - centre, z), fixed | outside
        left -= _times(J, torch.where(outside, z, 0.0))
        J.masked_fill_(outside[:, None], 0.0)  # what is on its bound moves no more
    return point


def _times(J: Tensor, v: Tensor) -> Tensor:
    """J v: (k, m), in double. J: (k, m, n), v: (k, n)."""
    return (v[:, None] @ J.mT).squeeze(1).double()


def _advance(problem: Problem, options: MinNormNewton, state: _State, aim: Tensor) -> Tensor:
    """Go towards the aim by the longest of a few lengths that lowers the residual; passes made, in halves: (k,)."""

    def point(length: float, rows: Tensor) -> Tensor:
        here = state.a[rows]
        return here + length * (aim[rows].reshape_as(here) - here)

    used, stuck = problem.line_search(state.index, state.a, state.phi, point, options.lengths)
    before = state.error
    state.error = row_norm(problem.target[state.index] - state.phi)
    state.slow = torch.where(state.error > options.slow * before, state.slow + 1, 0)
    state.ridge[stuck] *= options.harder
    return used
