"""A feature near the anchor from which the path reaches an output target, the whole path one block: Φ(a) = t.

For regression, for output targets of one's own, and for many labels at once (pixels, tokens), where any output will do
in which they win: then the target moves, to the acceptable output nearest to the one that is reached.
Called by ``frpt.reverse.whole_path``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from frpt.solvers.base import UNBOUNDED
from frpt.solvers.blocks import min_norm_newton, secant
from frpt.solvers.blocks.problem import FEW, Answer, Problem, row_norm, spread
from frpt.solvers.linear.gate import admissible
from frpt.solvers.variation import Variation

_ROUNDS = 4
"""Most times the target moves; each go stops by itself."""

Aim = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(out, rows) -> an acceptable output near ``out`` for the samples ``rows: (k,)``, and how far off ``out`` is: (k,)."""


def reach(problem: Problem, aim: Aim | None = None) -> tuple[Answer, Tensor]:
    """The answer, and Φ of it; the anchor for samples that get no nearer to their target. aim: targets that move."""
    with problem.clock:
        answer, reached = _solved(problem)
        if aim is not None:
            answer, reached = _go_on(problem, aim, answer, reached)
    late = problem.clock.stopped & (row_norm(problem.target - reached) > problem.enough)
    everyone = torch.arange(len(reached), device=reached.device)
    before, after = row_norm(problem.target - problem.output), row_norm(problem.target - reached)
    if aim is not None:
        before, after = aim(problem.output, everyone)[1], aim(reached, everyone)[1]
    worse = after >= before
    value = torch.where(spread(worse, answer.value), problem.anchor, answer.value)
    reached = torch.where(spread(worse, reached), problem.output, reached)
    return Answer(value, answer.iterations, answer.fallback | worse | late), reached


def reach_within(problem: Problem, variation: Variation, aim: Aim | None = None) -> tuple[Answer, Tensor]:
    """The same, nearest in the metric Σ⁻¹: in the coordinates z = Σ^(-½)(a − â), in which it is Euclidean."""
    shape = problem.anchor.shape

    def coloured(z: Tensor, rows: Tensor) -> Tensor:
        near = problem.anchor[rows].flatten(1)
        return problem.within.clamp(near + variation.colour(z.flatten(1)), near).reshape(len(z), *shape[1:])

    inner = replace(
        problem, fn=lambda z, rows: problem.fn(coloured(z, rows), rows), anchor=torch.zeros_like(problem.anchor),
        gate=replace(problem.gate, enabled=False), within=UNBOUNDED,
    )  # fmt: skip
    answer, reached = reach(inner, aim)
    value = coloured(answer.value, torch.arange(len(answer.value), device=reached.device))
    far = ~admissible(value, problem.anchor, problem.gate)
    value = torch.where(spread(far, value), problem.anchor, value)
    reached = torch.where(spread(far, reached), problem.output, reached)
    rest = (row_norm(problem.target - reached) > problem.enough).nonzero().squeeze(1)
    if len(rest) == 0:
        return replace(answer, value=value), reached
    part = replace(problem.part(rest), start=(value[rest], reached[rest]))  # where the range held it: plain steps
    more, there = reach(part, None if aim is None else lambda out, rows: aim(out, rest[rows]))
    better = row_norm(part.target - there) < row_norm(part.target - reached[rest])
    won = rest[better]
    value[won], reached[won] = more.value[better], there[better]
    return Answer(value, answer.iterations.index_add(0, rest, more.iterations), answer.fallback), reached


def _go_on(problem: Problem, aim: Aim, answer: Answer, reached: Tensor) -> tuple[Answer, Tensor]:
    """Further steps towards acceptable outputs near what is reached, kept where they get nearer to any."""
    aims, off = aim(reached, torch.arange(len(reached), device=reached.device))
    for _ in range(_ROUNDS):
        rows = (off > 0).nonzero().squeeze(1)
        if len(rows) == 0:
            break
        part = replace(problem.part(rows), target=aims[rows], start=(answer.value[rows], reached[rows]))
        more, there = _solved(part)
        answer.iterations[rows] += more.iterations
        there_aims, there_off = aim(there, rows)
        better = there_off < off[rows]
        won = rows[better]
        if len(won) == 0:
            break
        answer.value[won], reached[won], answer.fallback[won] = more.value[better], there[better], more.fallback[better]
        aims[won], off[won] = there_aims[better], there_off[better]
    return answer, reached


def _solved(problem: Problem) -> tuple[Answer, Tensor]:
    """By the explicit Jacobian where outputs are few, and by secant steps where there are many or that stalls.

    Returns also Φ of the answer.
    """
    if problem.outputs > FEW:
        answer = secant.solve(problem)
        return answer, _run(problem, answer.value)
    answer = min_norm_newton.solve(problem)
    reached = _run(problem, answer.value)
    rest = (row_norm(problem.target - reached) > problem.enough).nonzero().squeeze(1)
    if len(rest) == 0:
        return answer, reached
    part = replace(problem.part(rest), start=(answer.value[rest], reached[rest]))
    more = secant.solve(part)
    together = Answer(
        answer.value.index_copy(0, rest, more.value),
        answer.iterations.index_add(0, rest, more.iterations),
        answer.fallback.index_copy(0, rest, more.fallback),
    )
    return together, reached.index_copy(0, rest, _run(part, more.value))


def _run(problem: Problem, value: Tensor) -> Tensor:
    with torch.no_grad():
        return problem.fn(value, torch.arange(len(value), device=value.device))
