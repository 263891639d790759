"""The last correction of a walk: the whole path as one block, until the output is what was asked for."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from frpt.solvers import secant
from frpt.solvers.composite import Answer, Problem, row_norm, spread

_ASTRAY = 0.5
"""A walk that leaves more than this share of the residual is not continued: that sample begins at its anchor."""
_STALLED = 0.25
"""Samples left with more than this share, though begun where the walk ended, try once more from their anchor."""


def close(problem: Problem, walked: tuple[Tensor, Tensor]) -> Answer:
    """Secant steps from where the walk ended (a, Φ(a)), or from the anchor where that is the better start."""
    before = row_norm(problem.target - problem.output)
    useful = row_norm(problem.target - walked[1]) < _ASTRAY * before
    start = (_choose(useful, walked[0], problem.anchor), _choose(useful, walked[1], problem.output))
    first = secant.solve(replace(problem, start=start))
    everyone = torch.arange(len(before), device=before.device)
    again = useful & (_left(problem, first.value, everyone) > _STALLED * before)
    if not bool(again.any()):
        return first
    rows = again.nonzero().squeeze(1)
    second = secant.solve(_part(problem, rows))
    better = _left(problem, second.value, rows) < _left(problem, first.value[rows], rows)
    won = rows[better]
    return Answer(
        first.value.index_copy(0, won, second.value[better]),
        first.iterations.index_add(0, rows, second.iterations),
        first.fallback.index_copy(0, won, second.fallback[better]),
    )


def _part(problem: Problem, rows: Tensor) -> Problem:
    """The problem of some samples, from their anchors."""
    return replace(
        problem,
        fn=lambda a, index: problem.fn(a, rows[index]),
        anchor=problem.anchor[rows],
        target=problem.target[rows],
        output=problem.output[rows],
        start=(problem.anchor[rows], problem.output[rows]),
    )


def _left(problem: Problem, value: Tensor, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return row_norm(problem.target[rows] - problem.fn(value, rows))


def _choose(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(spread(mask, a), a, b)
