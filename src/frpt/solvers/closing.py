"""The last correction of a walk: the whole path as one block, until the output is what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from frpt.solvers import few_outputs, secant
from frpt.solvers.composite import FEW, Answer, Problem, row_norm

_ASTRAY = 0.5
"""A walk that leaves more than this share of the residual is not continued."""
_STALLED = 0.1
"""Samples left with more than this share aim, where several outputs will do, at the one nearest to what they reach."""
_ROUNDS = 3

Project = Callable[[Tensor, Tensor], Tensor]
"""(out, rows) -> the acceptable output nearest to ``out``, for the samples ``rows: (k,)``."""


def close(
    problem: Problem, walked: tuple[Tensor, Tensor], project: Project | None = None, exact: bool = True
) -> tuple[Answer, Tensor]:
    """Correct what the walk ended with (a, Φ(a)) for the samples whose output is not yet what was asked for.

    Returns also Φ of the answer.

    exact: every step of the walk was the nearest solution by formula, so that a walk that closed is left alone; after
    iterative steps it is only one candidate.

    Two candidates: secant steps from the anchor, and from the end of the walk. Computation consistency decides first,
    minimum deviation between two that close. Many outputs may be as good as the target (any in which the label wins):
    where it is not reached, ``project`` gives the acceptable output nearest to the one that is, to go on towards.
    """
    with problem.clock:
        answer, reached = _closed(problem, walked, project, exact)
    late = problem.clock.stopped & (row_norm(problem.target - reached) > problem.enough)
    return replace(answer, fallback=answer.fallback | late), reached


def _closed(
    problem: Problem, walked: tuple[Tensor, Tensor], project: Project | None, exact: bool
) -> tuple[Answer, Tensor]:
    before, after = row_norm(problem.target - problem.output), row_norm(problem.target - walked[1])
    none = torch.zeros_like(after, dtype=torch.long)
    best = _Best(walked[0].clone(), walked[1].clone(), none, none.bool())
    todo = ((after > problem.enough) | torch.full_like(none, not exact, dtype=torch.bool)).nonzero().squeeze(1)
    astray = after >= _ASTRAY * before
    _try(problem, best, todo, (problem.anchor[todo], problem.output[todo]), instead=astray[todo])
    useful = todo[(after > problem.enough)[todo] & ~astray[todo]]
    _try(problem, best, useful, (walked[0][useful], walked[1][useful]))
    for _ in range(_ROUNDS if project is not None and len(todo) else 0):
        assert project is not None
        aims = project(best.reached[todo], todo)
        far = row_norm(best.reached[todo] - aims) > _STALLED * before[todo]
        if not bool(far.any()):
            break
        aim = replace(problem, target=problem.target.index_copy(0, todo[far], aims[far]))
        _go_on(aim, best, todo[far], project)
    return Answer(best.value, best.iterations, best.fallback), best.reached


@dataclass
class _Best:
    """The best so far, for all samples: value, the output it reaches, passes spent, fallback."""

    value: Tensor
    reached: Tensor
    iterations: Tensor
    fallback: Tensor

    def take(self, rows: Tensor, won: Tensor, answer: Answer, reached: Tensor) -> None:
        self.iterations[rows] += answer.iterations
        self.value[rows[won]] = answer.value[won]
        self.reached[rows[won]] = reached[won]
        self.fallback[rows[won]] = answer.fallback[won]


def _try(
    problem: Problem, best: _Best, rows: Tensor, start: tuple[Tensor, Tensor], instead: Tensor | None = None
) -> None:
    """A candidate for the samples ``rows``, kept where it closes more, or closes too and is nearer to the anchor.

    instead: (k,) bool, samples whose best so far is not worth comparing with.
    """
    if len(rows) == 0:
        return
    part = replace(problem.part(rows), start=start)
    answer, reached = _solved(part)
    new, old = row_norm(part.target - reached), row_norm(part.target - best.reached[rows])
    nearer = row_norm(answer.value - part.anchor) < row_norm(best.value[rows] - part.anchor)
    enough = 2 * part.enough
    better = torch.where((new <= enough) & (old <= enough), nearer, new < old)
    best.take(rows, better if instead is None else better | instead, answer, reached)


def _go_on(aim: Problem, best: _Best, rows: Tensor, project: Project) -> None:
    """Further steps towards another acceptable output, kept where they get nearer to any."""
    part = replace(aim.part(rows), start=(best.value[rows], best.reached[rows]))
    answer, reached = _solved(part)
    better = row_norm(_off(project, rows, reached)) < row_norm(_off(project, rows, best.reached[rows]))
    best.take(rows, better, answer, reached)


def _off(project: Project, rows: Tensor, out: Tensor) -> Tensor:
    return out - project(out, rows)


def _solved(problem: Problem) -> tuple[Answer, Tensor]:
    """By the explicit Jacobian where outputs are few, and by secant steps where there are many or that stalls.

    Returns also Φ of the answer.
    """
    if problem.outputs > FEW:
        answer = secant.solve(problem)
        return answer, _run(problem, answer.value)
    answer = few_outputs.solve(problem)
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
