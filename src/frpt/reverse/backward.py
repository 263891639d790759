"""The walk back, op by op: each unit's input from its output's target, until the layer is reached.

This is how the paper makes its targets (``preset="paper"``), and an explanation of the others (``Reverser.explain``).
Called by ``frpt.Reverser``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import Node

from frpt.common.clock import Clock
from frpt.embed import Embedder
from frpt.graph.inputs import Inputs
from frpt.graph.plan import Plan, Unit
from frpt.reverse.batch import Batch
from frpt.reverse.match import OneOp
from frpt.reverse.network import Network
from frpt.reverse.reconstruction import Reconstruction, UnitReport
from frpt.rules.registry import Call, Site
from frpt.solvers.base import Measured, Solution, UnitAxes
from frpt.solvers.blocks.problem import Problem


class Walk(Batch):
    """One batch, walked back to any planned layer; what two plans have in common is walked once."""

    def __init__(
        self,
        network: Network,
        embedder: Embedder,
        inputs: Inputs,
        plans: Sequence[Plan],
        y: Tensor,
        known: Mapping[Node, Tensor] | None = None,
    ) -> None:
        units = [unit for plan in plans for unit in plan.units]
        keep = {node for unit in units for node in (unit.source, unit.sink, *unit.side)}
        super().__init__(network, embedder, inputs, plans, y, known, keep, {unit.sink for unit in units})
        self.target = embedder(self.output, self.y)
        self.corrected = self.axis.rows(self.target != self.output).any(1)
        self.dtype = self.preset.dtype
        self.start = self.axis.take(self.target, self.index).to(self.dtype)
        self._reports: dict[tuple[Node, ...], UnitReport] = {}
        self._targets: dict[tuple[Node, ...], Tensor] = {(self.captured.output,): self.start}

    def to(self, plan: Plan) -> Reconstruction:
        """Walk back along a plan."""
        reports, value = self.units(plan)
        reached = value
        if plan.whole is not None and len(self.index):
            value = value.to(self.record.values[plan.at].dtype)
            reached = self.record.run(plan.whole, value, self.index)
        return self._result(plan, value, reached, lambda: tuple(reports))

    def units(self, plan: Plan) -> tuple[list[UnitReport], Tensor]:
        """The report of every unit down to a layer, and the targets there of the samples to be corrected."""
        key: tuple[Node, ...] = (self.captured.output,)
        reports: list[UnitReport] = []
        for unit in plan.units if len(self.index) else ():
            target, key = self._targets[key], (*key, unit.source)
            if key not in self._targets:
                solution = self.solve(unit, target, self.index)
                self._targets[key] = solution.value
                self._reports[key] = UnitReport.of(unit, solution, self.index, self.record.batch)
            reports.append(self._reports[key])
        return reports, self._targets[key]

    def solve(self, unit: Unit, target: Tensor, index: Tensor) -> Measured:
        """One unit, for the samples ``index``: by its rule, or as a block."""
        axes = UnitAxes(self.record.batch_axis(unit.source), self.record.batch_axis(unit.sink))
        anchor, output = self.record.taken(unit.source, index), self.record.taken(unit.sink, index)
        call = self.call(unit, index)
        if call is not None and isinstance(unit.match, OneOp):
            within = self.network.range(unit.source)
            site = Site.of(
                call, anchor.to(self.dtype), output.to(self.dtype), self.preset, axes, within, unit.match.prepared,
                unit.match.chosen,
            )  # fmt: skip
            solution = unit.match.function.solve(site, target)
            after = call.forward(solution.value.to(anchor.dtype))
        else:
            solution, after = self._block(unit, target, index)
        solution = solution.checked(f"{unit.where}, {unit.match.rule}")
        return solution.measured(anchor, output, after, target, axes)

    def call(self, unit: Unit, index: Tensor) -> Call | None:
        """A unit of one op with the values of the samples ``index``; None for a block."""
        if not isinstance(unit.match, OneOp):
            return None
        return unit.match.bound(lambda node: self.record.side(node, index, len(index)))

    def _block(self, unit: Unit, target: Tensor, index: Tensor) -> tuple[Solution, Tensor]:
        """The block between two cut points, solved iteratively on its sub-graph, in the model's own precision."""
        fn, anchor, output, axes = self.record.block(unit, index)
        solver = self.preset.composite
        problem = Problem(
            fn, anchor, axes.output.front(target).to(anchor.dtype), output, self.preset.gate, solver.limits,
            self.network.range(unit.source), repeats=self.captured.dynamic, batch=self.record.batch,
            clock=Clock(unit.where, solver.limits.seconds, self.network.told),
        )  # fmt: skip
        if solver.chosen(problem) == "secant":
            problem = replace(problem, stationary=self.network.stationary(unit))
        solution = solver.solve(problem)
        everyone = torch.arange(len(solution.value), device=target.device)
        after = axes.output.back(fn(solution.value, everyone))
        return replace(solution, value=axes.input.back(solution.value).to(self.dtype)), after
