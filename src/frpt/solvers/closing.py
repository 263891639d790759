"""The last correction of a walk: the whole path as one block, until the output is what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from frpt.solvers import secant
from frpt.solvers.composite import Answer, Problem, row_norm, spread

_ASTRAY = 0.5
"""A walk that leaves more than this share of the residual is not continued: that sample begins at its anchor."""
_STALLED = 0.25
"""Samples left with more than this share, though begun where the walk ended, try once more from their anchor;
then, where any of several outputs will do, aim at the one nearest to what is reached."""


_ROUNDS = 3

Project = Callable[[Tensor, Tensor], Tensor]
"""(out, rows) -> the acceptable output nearest to ``out``, for the samples ``rows: (k,)``."""


def close(problem: Problem, walked: tuple[Tensor, Tensor], project: Project | None = None) -> Answer:
    """Secant steps from where the walk ended (a, Φ(a)), or from the anchor where that is the better start.

    Many outputs may be as good as the target (any in which the label wins). Where the target itself is not reached,
    ``project`` gives the acceptable output nearest to the one that is, and the steps go on towards that.
    """
    before = row_norm(problem.target - problem.output)
    useful = row_norm(problem.target - walked[1]) < _ASTRAY * before
    start = (_choose(useful, walked[0], problem.anchor), _choose(useful, walked[1], problem.output))
    answer = secant.solve(replace(problem, start=start))
    reached = _run(problem, answer.value)
    rows = (useful & (row_norm(problem.target - reached) > _STALLED * before)).nonzero().squeeze(1)
    if len(rows):
        second = secant.solve(_part(problem, rows, (problem.anchor[rows], problem.output[rows])))
        answer, reached = _better(problem, answer, reached, second, rows, lambda out: problem.target[rows] - out)
    for _ in range(_ROUNDS):
        rows = torch.arange(0)
        if project is not None:
            aims = project(reached, torch.arange(len(reached), device=reached.device))
            rows = (row_norm(reached - aims) > _STALLED * before).nonzero().squeeze(1)
        if project is None or len(rows) == 0:
            break
        aim = replace(problem, target=problem.target.index_copy(0, rows, aims[rows]))
        more = secant.solve(_part(aim, rows, (answer.value[rows], reached[rows])))
        answer, reached = _better(problem, answer, reached, more, rows, partial(_off, project, rows))
    return answer


def _better(
    problem: Problem,
    answer: Answer,
    reached: Tensor,
    other: Answer,
    rows: Tensor,
    error: Callable[[Tensor], Tensor],
) -> tuple[Answer, Tensor]:
    """The answer with the samples ``rows`` replaced where the other's error is smaller, and the outputs it reaches."""
    with torch.no_grad():
        out = problem.fn(other.value, rows)
    better = row_norm(error(out)) < row_norm(error(reached[rows]))
    won = rows[better]
    improved = Answer(
        answer.value.index_copy(0, won, other.value[better]),
        answer.iterations.index_add(0, rows, other.iterations),
        answer.fallback.index_copy(0, won, other.fallback[better]),
    )
    return improved, reached.index_copy(0, won, out[better])


def _off(project: Project, rows: Tensor, out: Tensor) -> Tensor:
    return out - project(out, rows)


def _part(problem: Problem, rows: Tensor, start: tuple[Tensor, Tensor]) -> Problem:
    """The problem of the samples ``rows``, begun at (a, Φ(a))."""
    return replace(
        problem,
        fn=lambda a, index: problem.fn(a, rows[index]),
        anchor=problem.anchor[rows],
        target=problem.target[rows],
        output=problem.output[rows],
        start=start,
    )


def _run(problem: Problem, value: Tensor) -> Tensor:
    with torch.no_grad():
        return problem.fn(value, torch.arange(len(value), device=value.device))


def _choose(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(spread(mask, a), a, b)
