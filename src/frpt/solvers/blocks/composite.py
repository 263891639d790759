"""Which solver a composite block gets, and the solve of the samples whose target is not met yet.

``Composite`` holds the options of a preset for the gaps of several ops between two cut points (paper III-C):

    find a near â with Φ(a) = t

Called by ``frpt.reverse`` and ``frpt.ops.composite``. The module above the solvers: they do not know each other, but
for the secant steps, which go on by Newton–Krylov ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive, require_one_of
from frpt.errors import OptionError
from frpt.solvers.base import Solution, row_norm
from frpt.solvers.blocks.adam import Adam
from frpt.solvers.blocks.gauss_newton import GaussNewton
from frpt.solvers.blocks.mean_jacobian import MeanJacobian
from frpt.solvers.blocks.min_norm_newton import MinNormNewton
from frpt.solvers.blocks.newton_krylov import NewtonKrylov
from frpt.solvers.blocks.problem import Limits, Problem
from frpt.solvers.blocks.secant import Secant
from frpt.solvers.linear.gate import admissible

CompositeSolver = Literal["auto", "gauss_newton", "secant", "newton_krylov", "min_norm_newton", "adam"]
COMPOSITE_SOLVERS: tuple[CompositeSolver, ...] = (
    "auto", "gauss_newton", "secant", "newton_krylov", "min_norm_newton", "adam",
)  # fmt: skip


class BlockSolver(Protocol):
    """A solver of this room: its options are its fields."""

    def solve(self, problem: Problem) -> Solution:
        """For all samples of the problem, none of which is met yet."""
        ...


@dataclass(frozen=True)
class Composite:
    """How composite blocks are solved.

    Args:
        method: a solver by name, or "auto": Gauss–Newton where the Jacobian is small, else ``large``.
        large: what ``auto`` takes where the Jacobian is larger than ``jacobian_entries``.
        jacobian_entries: largest Jacobian that ``auto`` materialises. 300 × 300: above that an explicit one costs more
            passes than any other solver takes (a prototype: 32 to 57 at 256 inputs, 830 at 1,024). The paper takes 5e7
            (B.1.2).
        jacobian_counts: whose entries are counted: "sample", of one sample, or "batch", the (b · inputs)(b · outputs)
            of one Jacobian for all. The paper's text (III-C, B.1.2) says "the estimated number of entries" and not of
            what; its code counts the batch, and the ``paper`` preset follows it. The solver of a block then depends on
            the batch size, and with it the target of a sample on the company it is in: which is why the other presets
            do not.
        limits: what a solver may use up, and when it is done.
        gauss_newton: the solver of that name.
        secant: the solver of that name.
        newton_krylov: the solver of that name.
        min_norm_newton: the solver of that name.
        adam: the solver of that name.
        mean_jacobian: how the average derivative is learnt that secant steps use on feature maps.

    Raises:
        OptionError: a number is not positive, or a word is not one of those above.

    Example:
        >>> import frpt
        >>> from dataclasses import replace
        >>> from frpt.options import PRESETS
        >>> blocks = frpt.Composite(method="adam", limits=frpt.Limits(iterations=5))
        >>> replace(PRESETS["paper"], name="planner", composite=blocks).composite.limits.iterations
        5
    """

    method: CompositeSolver = "auto"
    large: Literal["secant", "adam"] = "secant"
    jacobian_entries: int = 90_000
    jacobian_counts: Literal["sample", "batch"] = "sample"
    limits: Limits = field(default_factory=Limits)
    gauss_newton: GaussNewton = field(default_factory=GaussNewton)
    secant: Secant = field(default_factory=Secant)
    newton_krylov: NewtonKrylov = field(default_factory=NewtonKrylov)
    min_norm_newton: MinNormNewton = field(default_factory=MinNormNewton)
    adam: Adam = field(default_factory=Adam)
    mean_jacobian: MeanJacobian = field(default_factory=MeanJacobian)

    def __post_init__(self) -> None:
        if self.method not in COMPOSITE_SOLVERS:
            raise OptionError(f"unknown composite solver {self.method!r}: there are {', '.join(COMPOSITE_SOLVERS)}")
        require_one_of(self, "large", ("secant", "adam"))
        require_one_of(self, "jacobian_counts", ("sample", "batch"))
        require_numbers_positive(self)

    def chosen(self, problem: Problem) -> str:
        """The name of the solver that a problem gets.

        ``min_norm_newton`` is for few outputs: where there are more, the same is done by secant steps.
        """
        if self.method == "min_norm_newton" and problem.outputs > self.min_norm_newton.most_outputs:
            return "secant"
        if self.method != "auto":
            return self.method
        count = 1
        if self.jacobian_counts == "batch":
            count = len(problem.anchor) if problem.batch is None else problem.batch
        entries = (count * problem.inputs) * (count * problem.outputs)
        return "gauss_newton" if entries <= self.jacobian_entries else self.large

    def solve(self, problem: Problem) -> Solution:
        """Solve for the samples whose target is not met yet, within the problem's time."""
        value, reached = problem.start or (problem.anchor, problem.output)
        rows = (row_norm(problem.target - reached) > problem.enough).nonzero().squeeze(1)
        met = Solution.of(value.clone(), len(value))
        if len(rows) == 0:
            return met
        solver: BlockSolver = getattr(self, self.chosen(problem))
        part = problem.part(rows)
        with problem.clock:
            solution = solver.solve(part)
        fallback = solution.fallback | _on_bounds(part, solution.value) | _unfinished(part, solution.value)
        return met.put(rows, Solution(solution.value, fallback, solution.iterations))


def _unfinished(problem: Problem, value: Tensor) -> Tensor:
    """Samples that are not done where the clock has stopped the solver: (b,) bool."""
    if not problem.clock.stopped:
        return torch.zeros(len(value), dtype=torch.bool, device=value.device)
    return row_norm(problem.target - problem.run(value)) > problem.enough


def _on_bounds(problem: Problem, value: Tensor) -> Tensor:
    """Samples that the gate's bounds stopped: a hair farther from the anchor and they would not pass. (b,) bool."""
    if not problem.gate.enabled:
        return torch.zeros(len(value), dtype=torch.bool, device=value.device)
    farther = problem.anchor + (1 + 1e-4) * (value - problem.anchor)
    moved = (value != problem.anchor).flatten(1).any(1)
    return moved & ~admissible(farther, problem.anchor, problem.gate)
