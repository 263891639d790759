"""A feature near the anchor from which the path reaches an output target, the whole path one block.

    Φ(a) = t,  or any t in which all labels win

For regression, for output targets of one's own, and for many labels at once (pixels, tokens), where any output will do
in which they win: then the target moves, to the acceptable output nearest to the one that is reached.
Called by ``frpt.reverse.whole_path``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.errors import OptionError
from frpt.solvers.base import UNBOUNDED, Solution, per_system, row_norm
from frpt.solvers.blocks.heavy_ball import HeavyBall
from frpt.solvers.blocks.min_norm_newton import MinNormNewton
from frpt.solvers.blocks.problem import Problem
from frpt.solvers.blocks.secant import Secant
from frpt.solvers.linear.gate import admissible
from frpt.solvers.variation import Variation

Aim = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(out, rows) -> an acceptable output near ``out`` for the samples ``rows: (k,)``, and how far off ``out`` is: (k,)."""


@dataclass(frozen=True)
class Reach:
    """By explicit rows of the Jacobian where outputs are few, and by secant steps where there are many.

    Args:
        iterations: most passes over the whole path, for each start and aim. Half or double changes nothing in
            ``benchmarks/halves.py``: paths to few scores take fewer.
        stop_at: share of the output's residual that may be left; less costs more passes (a tenth more for half of it).
        spare: share of the residual that may be left where an output target takes more than the anchor's own norm to
            reach: a feature that leaves no more is the answer then, if it saves twice that share of the way. The last
            of the residual can cost most of the way (behind a ViT's last norm 2.0 norms for all and 0.6 for nine
            tenths, benchmarks/driving_targets.py), and ``repair`` counts an output as met with so much.
        rounds: most times the target moves; each of them stops by itself. Chosen by hand.
        newton: the solver for few outputs.
        heavy_ball: takes on what ``newton`` leaves, at about a tenth of the passes of further steps of its.
        secant: the solver for many.

    Raises:
        OptionError: a number is not positive, or ``spare`` is no share.

    Example:
        >>> import frpt
        >>> frpt.Reach(stop_at=0.2).iterations
        40
    """

    iterations: int = 40
    stop_at: float = 1e-3
    spare: float = 0.1
    rounds: int = 4
    newton: MinNormNewton = field(default_factory=MinNormNewton)
    heavy_ball: HeavyBall = field(default_factory=HeavyBall)
    secant: Secant = field(default_factory=Secant)

    def __post_init__(self) -> None:
        require_numbers_positive(self, "spare")
        if not 0 <= self.spare < 1:
            raise OptionError(f"Reach.spare must be a share, from 0 to less than 1, got {self.spare!r}")

    def solve(self, problem: Problem, aim: Aim | None = None) -> tuple[Solution, Tensor]:
        """The solution, and Φ of it; the anchor for samples that get no nearer to their target.

        aim: targets that move. The problem comes with this solver's ``iterations`` and ``stop_at``.
        """
        with problem.clock:
            solution, reached = self._by_steps(problem)
            if aim is None:
                solution, reached = self._nearer(problem, solution, reached)
            else:
                solution, reached = self._go_on(problem, aim, solution, reached)
        late = problem.clock.stopped & (row_norm(problem.target - reached) > problem.enough)
        everyone = torch.arange(len(reached), device=reached.device)
        before, after = row_norm(problem.target - problem.output), row_norm(problem.target - reached)
        if aim is not None:
            before, after = aim(problem.output, everyone)[1], aim(reached, everyone)[1]
        worse = after >= before
        value = torch.where(per_system(worse, solution.value), problem.anchor, solution.value)
        reached = torch.where(per_system(worse, reached), problem.output, reached)
        return Solution(value, solution.fallback | worse | late, solution.iterations), reached

    def solve_within(self, problem: Problem, variation: Variation, aim: Aim | None = None) -> tuple[Solution, Tensor]:
        """The same, nearest in the metric Σ⁻¹: in the coordinates z = Σ^(-½)(a − â), in which it is Euclidean."""
        shape = problem.anchor.shape

        def coloured(z: Tensor, rows: Tensor) -> Tensor:
            near = problem.anchor[rows].flatten(1)
            return problem.within.clamp(near + variation.colour(z.flatten(1)), near).reshape(len(z), *shape[1:])

        inner = replace(
            problem, fn=lambda z, rows: problem.fn(coloured(z, rows), rows), anchor=torch.zeros_like(problem.anchor),
            gate=replace(problem.gate, enabled=False), within=UNBOUNDED, unit=problem.inputs**0.5,
        )  # fmt: skip
        solution, reached = self.solve(inner, aim)
        value = coloured(solution.value, torch.arange(len(solution.value), device=reached.device))
        far = ~admissible(value, problem.anchor, problem.gate)
        value = torch.where(per_system(far, value), problem.anchor, value)
        reached = torch.where(per_system(far, reached), problem.output, reached)
        left = row_norm(problem.target - reached) > problem.enough
        given_up = self._spared(problem, reached) & (row_norm(solution.value) > inner.length)
        rest = (left if aim is not None else left & ~given_up).nonzero().squeeze(1)
        if len(rest) == 0:
            return replace(solution, value=value), reached
        part = replace(
            problem.part(rest), start=(value[rest], reached[rest])
        )  # where the range stopped it: plain steps
        more, there = self.solve(part, None if aim is None else lambda out, rows: aim(out, rest[rows]))
        better = row_norm(part.target - there) < row_norm(part.target - reached[rest])
        won = rest[better]
        value[won], reached[won] = more.value[better], there[better]
        return Solution(value, solution.fallback, solution.iterations.index_add(0, rest, more.iterations)), reached

    def _nearer(self, problem: Problem, solution: Solution, reached: Tensor) -> tuple[Solution, Tensor]:
        """Features that are far from the anchor, given up for nearer ones that leave a little of the residual.

        They have to save twice the share of the way that may be left of the residual: a target that is as far for the
        most part stays met.
        """
        if self.spare <= self.stop_at:
            return solution, reached
        far = row_norm(solution.value - problem.anchor) > problem.length
        rows = (far & self._spared(problem, reached)).nonzero().squeeze(1)
        if len(rows) == 0:
            return solution, reached
        part = replace(problem.part(rows), stop_at=self.spare, start=None)
        nearer, there = self._by_steps(part)
        way, before = (row_norm(v - part.anchor) for v in (nearer.value, solution.value[rows]))
        better = self._spared(part, there) & (way <= (1 - 2 * self.spare) * before)
        passes = solution.iterations.index_add(0, rows, nearer.iterations)
        value, reached = solution.value.clone(), reached.clone()
        value[rows[better]], reached[rows[better]] = nearer.value[better], there[better]
        return Solution(value, solution.fallback, passes), reached

    def _spared(self, problem: Problem, reached: Tensor) -> Tensor:
        """Whether so little of the residual is left that it may stay: (b,) bool."""
        return row_norm(problem.target - reached) <= self.spare * row_norm(problem.target - problem.output)

    def _go_on(self, problem: Problem, aim: Aim, solution: Solution, reached: Tensor) -> tuple[Solution, Tensor]:
        """Further steps towards acceptable outputs near what is reached, kept where they get nearer to any."""
        aims, off = aim(reached, torch.arange(len(reached), device=reached.device))
        for _ in range(self.rounds):
            rows = (off > 0).nonzero().squeeze(1)
            if len(rows) == 0:
                break
            part = replace(problem.part(rows), target=aims[rows], start=(solution.value[rows], reached[rows]))
            more, there = self._by_steps(part)
            solution.iterations[rows] += more.iterations
            there_aims, there_off = aim(there, rows)
            better = there_off < off[rows]
            won = rows[better]
            if len(won) == 0:
                break
            solution.value[won], reached[won] = more.value[better], there[better]
            solution.fallback[won] = more.fallback[better]
            aims[won], off[won] = there_aims[better], there_off[better]
        return solution, reached

    def _by_steps(self, problem: Problem) -> tuple[Solution, Tensor]:
        """The solution of one target, and Φ of it."""
        if problem.outputs > self.newton.most_outputs:
            solution = self.secant.solve(problem)
            return solution, problem.run(solution.value)
        solution = self.newton.solve(problem)
        reached = problem.run(solution.value)
        rest = (row_norm(problem.target - reached) > problem.enough).nonzero().squeeze(1)
        if len(rest) == 0:
            return solution, reached
        more = self.heavy_ball.solve(replace(problem.part(rest), start=(solution.value[rest], reached[rest])))
        value = solution.value.index_copy(0, rest, more.value)
        fallback = solution.fallback.index_copy(0, rest, more.fallback)
        passes = solution.iterations.index_add(0, rest, more.iterations)
        return Solution(value, fallback, passes), problem.run(value)
