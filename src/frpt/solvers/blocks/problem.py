"""A block solved as a whole: find a near â with Φ(a) = t for any differentiable Φ. Every sample is its own problem.

``Problem`` is what ``frpt.reverse`` and ``frpt.ops`` hand to a block solver; ``composite.Composite`` chooses which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive, require_positive
from frpt.common.clock import Clock
from frpt.solvers.base import UNBOUNDED, Range, Solution, per_system, row_norm
from frpt.solvers.linear.gate import Gate, admissible, admitted

if TYPE_CHECKING:
    from frpt.solvers.blocks.mean_jacobian import Stationary

BlockFunction = Callable[[Tensor, Tensor], Tensor]
"""(a, index) -> Φ(a): a holds the samples ``index: (k,)`` of the batch, first axis; the result likewise."""


@dataclass(frozen=True)
class Limits:
    """What any block solver may use up, and when it is done.

    Args:
        iterations: most passes (forward and backward) over a block for a sample; of steps for Gauss–Newton and Adam.
            With 20, the paper's number (B.1.2), multi-secant steps leave ten to a thousand times less than Adam on
            most blocks (benchmarks/composite.py); 25 leaves room for the Gauss–Newton steps behind them.
        tolerance: ‖Φ(a) − t‖/‖t‖ at which a sample is done; what float32 blocks reach (benchmarks/composite.py).
        budget: bytes that the Jacobians or pairs of the samples may take; samples go through in parts.
        seconds: time that one unit, or the path as a whole, may take with one batch; None: any. A solver that has used
            it up stops with the best so far: samples not finished count as a fallback, and a ``SlowUnitWarning`` names
            the unit. It is looked at between steps, and between the rows of a Jacobian; the factorisation of the
            Jacobians that memory holds at a time is not interrupted (two of 3,072 × 3,072 took a minute on one core).
            Such a result depends on the machine and what else it does, and cannot be reproduced. Half an hour is out of
            reach of normal work: it keeps a Jacobian that fits into memory and not into a day from being waited for.

    Raises:
        OptionError: a limit is not a positive number.

    Example:
        >>> import frpt
        >>> frpt.Limits(iterations=5).tolerance
        1e-06
    """

    iterations: int = 25
    tolerance: float = 1e-6
    budget: int = 4 * 2**30
    seconds: float | None = 1800.0

    def __post_init__(self) -> None:
        require_numbers_positive(self)
        if self.seconds is not None:
            require_positive(self, "seconds")


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
    limits: Limits = Limits()
    within: Range = UNBOUNDED
    start: tuple[Tensor, Tensor] | None = None
    """Where to begin, if not at the anchor: (a, Φ(a))."""
    stationary: Stationary | None = None
    """The block's average derivative, where it is known (``mean_jacobian.MeanJacobian.learn``)."""
    repeats: bool = True
    """Whether fn takes one sample several times at once; a graph of fixed batch size does not."""
    stop_at: float | None = None
    """Stop at this share of the residual at the anchor, instead of ``limits.tolerance`` of the target."""
    batch: int | None = None
    """Samples of the batch these were taken from (those that need no correction are left out); None: these are all."""
    unit: float | None = None
    """The length that deviations are measured in, if not the anchor's norm."""
    clock: Clock = field(default_factory=Clock)
    """Runs out when the unit has taken ``limits.seconds``: iterations then stop with the best so far."""

    @property
    def enough(self) -> Tensor:
        """The residual norm at which a sample is done: (b,)."""
        if self.stop_at is not None:
            return self.stop_at * row_norm(self.target - self.output)
        return self.limits.tolerance * self.scale()

    @property
    def length(self) -> Tensor:
        """What a deviation is measured in: ``unit``, or the anchor's norm, which the gate holds above zero: (b,)."""
        if self.unit is not None:
            return torch.full((len(self.anchor),), self.unit, dtype=torch.float64, device=self.anchor.device)
        return row_norm(self.anchor).clamp_min(self.gate.floor * self.inputs**0.5)

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
        if len(rows) == len(self.anchor):
            return self
        return replace(
            self,
            fn=lambda a, index: self.fn(a, rows[index]),
            anchor=self.anchor[rows],
            target=self.target[rows],
            output=self.output[rows],
            start=None if self.start is None else (self.start[0][rows], self.start[1][rows]),
        )

    def inside(self, a: Tensor, index: Tensor) -> Tensor:
        """a where the range and the gate's bounds allow it, else the farthest point on the way that they do."""
        anchor = self.anchor[index]
        a = self.within.clamp(a, anchor)
        if not self.gate.enabled:
            return a
        bad = ~admissible(a, anchor, self.gate)
        if not bool(bad.any()):
            return a
        return torch.where(per_system(bad, a), admitted(a, anchor, self.gate), a)

    def run(self, value: Tensor) -> Tensor:
        """Φ of all samples, without a graph for gradients."""
        with torch.no_grad():
            return self.fn(value, torch.arange(len(value), device=value.device))

    def line_search(
        self, index: Tensor, a: Tensor, phi: Tensor, point: Callable[[float, Tensor], Tensor], lengths: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Move the samples ``index: (k,)`` by the longest of a few lengths that lowers the residual.

        a, phi: where they are and Φ there; both are written to. point: (length, which of the k) -> where it leads.
        Returns the forward passes of each sample, (k,), and which of the k no length makes good.
        """
        passes = torch.zeros_like(index)
        waiting = torch.arange(len(index), device=index.device)
        for length in lengths:
            rows = index[waiting]
            there = self.inside(point(length, waiting), rows)
            with torch.no_grad():
                out = self.fn(there, rows)
            passes[waiting] += 1
            drop = row_norm(self.target[rows] - out) < row_norm(self.target[rows] - phi[waiting])  # not where it is NaN
            done = waiting[drop]
            a[done], phi[done] = there[drop], out[drop]
            waiting = waiting[~drop]
            if len(waiting) == 0:
                break
        return passes, waiting

    def in_parts(self, sample_bytes: int, solve: Callable[[Problem], Solution]) -> Solution:
        """Solve for as many samples at a time as the memory budget holds; samples are independent."""
        most = max(1, self.limits.budget // sample_bytes)
        everyone = torch.arange(len(self.anchor), device=self.anchor.device)
        return Solution.joined([solve(self.part(rows)) for rows in everyone.split(most)])
