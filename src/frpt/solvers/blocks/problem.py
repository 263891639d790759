"""A block solved as a whole: find a near â with Φ(a) = t for any differentiable Φ. Every sample is its own problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from frpt.common.clock import Clock
from frpt.options import Gate, SolverOptions
from frpt.solvers.base import UNBOUNDED, Range
from frpt.solvers.linear.gate import admissible, admitted

if TYPE_CHECKING:
    from frpt.solvers.blocks.mean_jacobian import Stationary

FEW = 32
"""Outputs up to which explicit rows of the Jacobian cost less than iterations without."""
BlockFunction = Callable[[Tensor, Tensor], Tensor]
"""(a, index) -> Φ(a): a holds the samples ``index: (k,)`` of the batch, first axis; the result likewise."""


@dataclass(frozen=True)
class Problem:
    """fn, the anchors and targets of all samples, the recorded Φ(â), and the range the solution has to stay in.

    anchor: (b, *in), in the precision Φ is evaluated in; target, output: (b, *out).
    """

    fn: BlockFunction
    anchor: Tensor
    target: Tensor
    output: Tensor
    gate: Gate
    options: SolverOptions
    within: Range = UNBOUNDED
    start: tuple[Tensor, Tensor] | None = None
    """Where to begin, if not at the anchor: (a, Φ(a))."""
    stationary: Stationary | None = None
    """The block's average derivative, where it is known (``solvers.stationary.learn``)."""
    repeats: bool = True
    """Whether fn takes one sample several times at once; a graph of fixed batch size does not."""
    closed: float | None = None
    """Stop at this share of the residual at the anchor, instead of ``options.tolerance`` of the target."""
    batch: int | None = None
    """Samples of the batch these were taken from (those that need no correction are left out); None: these are all."""
    clock: Clock = field(default_factory=Clock)
    """Runs out when the unit has taken ``options.seconds``: iterations then stop with the best so far."""

    @property
    def enough(self) -> Tensor:
        """The residual norm at which a sample is done: (b,)."""
        if self.closed is not None:
            return self.closed * row_norm(self.target - self.output)
        return self.options.tolerance * self.scale()

    @property
    def inputs(self) -> int:
        return self.anchor[:1].numel()

    @property
    def outputs(self) -> int:
        return self.target[:1].numel()

    def scale(self) -> Tensor:
        """‖t‖ per sample, 1 where the target is zero."""
        norm = row_norm(self.target)
        return torch.where(norm > 0, norm, 1.0)

    def part(self, rows: Tensor) -> Problem:
        """The same for the samples ``rows: (k,)`` only."""
        whole = len(rows) == len(self.anchor)
        return (
            self
            if whole
            else replace(
                self,
                fn=lambda a, index: self.fn(a, rows[index]),
                anchor=self.anchor[rows],
                target=self.target[rows],
                output=self.output[rows],
                start=None if self.start is None else (self.start[0][rows], self.start[1][rows]),
            )
        )

    def inside(self, a: Tensor, index: Tensor) -> Tensor:
        """a where the range and the gate's bounds hold it."""
        anchor = self.anchor[index]
        a = self.within.clamp(a, anchor)
        if not self.gate.enabled:
            return a
        bad = ~admissible(a, anchor, self.gate)
        if not bool(bad.any()):
            return a
        return torch.where(spread(bad, a), admitted(a, anchor, self.gate), a)


@dataclass(frozen=True)
class Answer:
    """value: (b, *in); iterations: passes used, fallback: bounds were hit or nothing beat the anchor."""

    value: Tensor
    iterations: Tensor
    fallback: Tensor


def chosen(problem: Problem, name: str) -> str:
    """What ``auto`` stands for: Gauss–Newton where the Jacobian is small, else ``options.large``.

    ``min_norm_newton`` is for few outputs: where there are more, the same is done by secant steps.
    """
    if name != "auto":
        return "secant" if name == "min_norm_newton" and problem.outputs > FEW else name
    options, count = problem.options, 1
    if options.jacobian_counts == "batch":
        count = len(problem.anchor) if problem.batch is None else problem.batch
    entries = (count * problem.inputs) * (count * problem.outputs)
    return "gauss_newton" if entries <= options.jacobian_entries else options.large


def solve(problem: Problem, name: str = "auto") -> Answer:
    """Solve by the named method, for the samples whose target is not met yet."""
    from frpt.solvers.blocks import adam, gauss_newton, min_norm_newton, newton_krylov, secant

    methods = {
        "gauss_newton": gauss_newton, "secant": secant, "newton_krylov": newton_krylov,
        "min_norm_newton": min_norm_newton, "adam": adam,
    }  # fmt: skip
    value, reached = problem.start or (problem.anchor, problem.output)
    left = row_norm(problem.target - reached) > problem.enough
    rows, none = left.nonzero().squeeze(1), torch.zeros_like(left, dtype=torch.long)
    if len(rows) == 0:
        return Answer(value.clone(), none, none.bool())
    part = problem.part(rows)
    with problem.clock:
        answer: Answer = methods[chosen(problem, name)].solve(part)
    fallback = answer.fallback | _held(part, answer.value) | unfinished(part, answer.value)
    return Answer(
        value.index_copy(0, rows, answer.value),
        none.index_copy(0, rows, answer.iterations),
        none.bool().index_copy(0, rows, fallback),
    )


def in_parts(problem: Problem, sample_bytes: int, solve: Callable[[Problem], Answer]) -> Answer:
    """Solve for as many samples at a time as the memory budget holds; samples are independent."""
    most = max(1, problem.options.budget // sample_bytes)
    everyone = torch.arange(len(problem.anchor), device=problem.anchor.device)
    answers = [solve(problem.part(rows)) for rows in everyone.split(most)]
    return Answer(*(torch.cat([getattr(a, f.name) for a in answers]) for f in fields(Answer)))


def unfinished(problem: Problem, value: Tensor) -> Tensor:
    """Samples that are not done where the clock has stopped the solver: (b,) bool."""
    if not problem.clock.stopped:
        return torch.zeros(len(value), dtype=torch.bool, device=value.device)
    with torch.no_grad():
        reached = problem.fn(value, torch.arange(len(value), device=value.device))
    return row_norm(problem.target - reached) > problem.enough


def _held(problem: Problem, value: Tensor) -> Tensor:
    """Samples that the gate's bounds held: a hair farther from the anchor and they would not pass. (b,) bool."""
    if not problem.gate.enabled:
        return torch.zeros(len(value), dtype=torch.bool, device=value.device)
    farther = problem.anchor + (1 + 1e-4) * (value - problem.anchor)
    moved = (value != problem.anchor).flatten(1).any(1)
    return moved & ~admissible(farther, problem.anchor, problem.gate)


def row_norm(t: Tensor) -> Tensor:
    """Euclidean norm of every sample: (b,), in double."""
    norm: Tensor = torch.linalg.vector_norm(t.flatten(1), dim=1, dtype=torch.float64)
    return norm


def spread(v: Tensor, like: Tensor) -> Tensor:
    return v.reshape(-1, *[1] * (like.dim() - 1))
