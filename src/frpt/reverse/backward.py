"""The walk back for one batch: its forward pass recorded, its output target, then unit by unit to a layer."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Node

from frpt.common.batch import relative
from frpt.common.clock import Clock
from frpt.embed import Embedder
from frpt.errors import NonFiniteError
from frpt.graph.capture import Captured
from frpt.graph.inputs import Inputs
from frpt.graph.names import Names
from frpt.graph.plan import Plan, Unit
from frpt.graph.ranges import ALL, ranges
from frpt.options import Preset
from frpt.reverse.forward import Record
from frpt.reverse.reconstruction import Reconstruction, UnitReport, deviation_of
from frpt.rules import rule_for
from frpt.rules.conv import absorbs
from frpt.rules.registry import Call, Site, bind
from frpt.solvers.base import UNBOUNDED, Measured, Range, Solution, UnitAxes
from frpt.solvers.blocks.mean_jacobian import MeanJacobian, Stationary
from frpt.solvers.blocks.problem import BlockFunction, Problem


class Network:
    """A captured graph with its names, plans, ranges and what is prepared per unit."""

    def __init__(self, captured: Captured, inputs: Inputs, learner: MeanJacobian = MeanJacobian()) -> None:
        self.captured, self.learner = captured, learner
        self.inputs = inputs.first(2) if captured.dynamic else inputs
        self.typical = inputs.first(learner.samples) if captured.dynamic else inputs
        self.names = Names(captured)
        self.plans: dict[str, Plan] = {}
        self._ranges = ranges(captured.nodes)
        self.prepared: dict[tuple[Node, Node], dict[str, tuple[Any, Any]]] = {}
        self.told: set[str] = set()  # units that have been warned of as slow
        self._stationary: dict[tuple[Node, Node], Stationary | None] = {}

    def range(self, node: Node, preset: Preset) -> Range:
        """The interval of values that a node's op can produce, where the preset keeps to it."""
        low, high = self._ranges.get(node, ALL)
        return Range(low, high) if preset.ranges else UNBOUNDED

    def stationary(self, unit: Unit) -> Stationary | None:
        """The average derivative of a block, learnt once from the example inputs, so that no batch changes another."""
        key = (unit.source, unit.sink)
        if key not in self._stationary:
            record = Record(self.captured, self.typical, {unit.source, unit.sink, *unit.side})
            everyone = torch.arange(record.batch, device=record.values[unit.source].device)
            fn, anchor, output, _ = record.block(unit, everyone)
            self._stationary[key] = self.learner.learn(fn, anchor, output)
        return self._stationary[key]


class Walk:
    """One batch op by op: the record of its forward pass, its output target, and the way back to any planned layer."""

    def __init__(
        self,
        found: Network,
        preset: Preset,
        embedder: Embedder,
        inputs: Inputs,
        plans: Sequence[Plan],
        y: Tensor,
        known: Mapping[Node, Tensor] | None = None,
    ) -> None:
        self.preset = preset
        self.found = found
        self.captured = found.captured
        self.batch = inputs.batch
        nodes = {n for p in plans for u in p.units for n in (u.source, u.sink, *u.side)}
        keep = nodes | {p.at for p in plans} | {self.captured.output}
        self.record = Record(self.captured, inputs, keep, known)
        self.values = self.record.values
        output = self.values[self.captured.output]
        check_finite(self.record, {n for p in plans for n in (p.at, *(u.sink for u in p.units))})
        self.embedder, self.y = embedder, y.to(output.device)
        self.target = target = embedder(output, self.y)
        samples = self.record.batch_axis(self.captured.output)
        self.corrected = samples.rows(target != output).any(1)
        self.index = self.corrected.nonzero().squeeze(1)
        self.dtype = self.preset.dtype
        self.start = samples.take(target, self.index).to(self.dtype)
        self._reports: dict[tuple[Node, ...], UnitReport] = {}
        self._targets: dict[tuple[Node, ...], Tensor] = {(self.captured.output,): self.start}

    def to(self, plan: Plan) -> Reconstruction:
        """Walk back along a plan; parts of the way another plan has gone are not walked again."""
        anchor, samples = self.values[plan.at], self.record.batch_axis(plan.at)
        reports, found = self.units(plan)
        target = anchor.clone() if len(self.index) == 0 else samples.put(anchor, self.index, found)
        output, out = self.values[self.captured.output], self.record.batch_axis(self.captured.output)
        reached = output
        if plan.whole is not None and len(self.index):
            after = self.record.run(plan.whole, samples.take(target, self.index), self.index)
            reached = out.put(output, self.index, after)
        before = out.norm(self.target.double() - output.double())
        left = out.norm(self.target.double() - reached.double())
        return Reconstruction(
            layer=plan.layer,
            target=target,
            anchor=anchor,
            deviation=deviation_of(samples, target, anchor),
            corrected=self.corrected,
            closed=torch.where(self.corrected, 1 - relative(left, before), 1.0),
            share=self.embedder.share(reached, self.y),
            walk=lambda: tuple(reports),
        )

    def units(self, plan: Plan) -> tuple[list[UnitReport], Tensor]:
        """The report of every unit down to a layer, and the targets there of the samples to be corrected."""
        key: tuple[Node, ...] = (self.captured.output,)
        reports: list[UnitReport] = []
        for unit in plan.units if len(self.index) else ():
            target, key = self._targets[key], (*key, unit.source)
            if key not in self._targets:
                solution = self.solve(unit, target, self.index)
                self._targets[key] = solution.value
                self._reports[key] = UnitReport.of(unit, solution, self.index, self.batch)
            reports.append(self._reports[key])
        return reports, self._targets[key]

    def solve(self, unit: Unit, target: Tensor, index: Tensor) -> Measured:
        """One unit, for the samples ``index``."""
        at = UnitAxes(self.record.batch_axis(unit.source), self.record.batch_axis(unit.sink))
        anchor, output = self.record.taken(unit.source, index), self.record.taken(unit.sink, index)
        call = None
        if not unit.composite:
            call = planned_call(unit, lambda node: self.record.side(node, index, len(index)))
        if call is not None and (rule := rule_for(call, self.preset.rules)) is not None:
            cache = self.found.prepared.setdefault((unit.source, unit.sink), {})
            site = Site.of(
                call,
                anchor.to(self.dtype),
                output.to(self.dtype),
                self.preset,
                at,
                self.found.range(unit.source, self.preset),
                cache,
                unit.choice.chosen,
            )
            solution = rule.solve(site, target)
            after = call.forward(solution.value.to(anchor.dtype))
        else:
            solution, after = self._composite(unit, target, index)
        solution = solution.checked(f"{unit.where}, {unit.choice.rule}")
        return solution.measured(anchor, output, after, target, at)

    def _composite(self, unit: Unit, target: Tensor, index: Tensor) -> tuple[Solution, Tensor]:
        """The block between two cut points, solved iteratively on its sub-graph."""
        problem, at, block = self._problem(unit, target, index)
        solver = self.preset.composite
        if solver.chosen(problem) == "secant":
            problem = replace(problem, stationary=self.found.stationary(unit))
        solution = solver.solve(problem)
        everyone = torch.arange(len(solution.value), device=target.device)
        after = at.output.back(block(solution.value, everyone))
        return replace(solution, value=at.input.back(solution.value).to(self.dtype)), after

    def _problem(self, unit: Unit, target: Tensor, index: Tensor) -> tuple[Problem, UnitAxes, BlockFunction]:
        """A unit as a problem with samples first, evaluated in the model's precision (float32 between steps)."""
        fn, anchor, output, at = self.record.block(unit, index)
        wanted = at.output.front(target).to(anchor.dtype)
        within = self.found.range(unit.source, self.preset)
        limits = self.preset.composite.limits
        problem = Problem(
            fn, anchor, wanted, output, self.preset.gate, limits, within,
            repeats=self.captured.dynamic, batch=self.batch, clock=Clock(unit.where, limits.seconds, self.found.told),
        )  # fmt: skip
        return problem, at, fn


def planned_call(unit: Unit, value_of: Any) -> Call | None:
    """The unit as one call of an op with one active argument; None if it is anything else."""
    first = unit.nodes[0]
    source, padded = unit.source, None
    if len(unit.nodes) > 1 and pads_next(first) and first.args[0] is unit.source:
        pad = bind(first.target, first.args, dict(first.kwargs))  # type: ignore[arg-type]
        source, padded = first, (pad["pad"], pad["mode"])
    ops = [n for n in unit.nodes if n.target is not operator.getitem and n is not source]
    if len(ops) != 1 or not isinstance(op := ops[0].target, OpOverload):
        return None
    node = ops[0]
    picks = [n for n in unit.nodes if n.target is operator.getitem]
    if len(picks) > 1 or (picks and picks[0].args[0] is not node):
        return None
    bound = bind(op, node.args, dict(node.kwargs))
    places = [(name, i) for name, v in bound.items() for i, item in enumerate(_items(v)) if item is source]
    if len(places) != 1:
        return None
    name, i = places[0]
    args = {
        k: torch.fx.node.map_arg(v, lambda n: value_of(unit.source if n is source else n)) for k, v in bound.items()
    }
    pick = int(picks[0].args[1]) if picks else None  # type: ignore[arg-type]
    return Call(op, args, name, i if isinstance(bound[name], list | tuple) else None, pick, unit.where, padded)


def pads_next(node: Node) -> bool:
    """Whether a node is just the padding of the convolution after it, written as an op of its own."""
    if node.target is not torch.ops.aten.pad.default or len(node.users) != 1:
        return False
    user = next(iter(node.users))
    if not isinstance(user.target, OpOverload):
        return False
    args = bind(user.target, user.args, dict(user.kwargs))
    return args.get("input") is node and absorbs(
        user.target, args, bind(node.target, node.args, dict(node.kwargs))
    )  # fmt: skip


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def check_finite(record: Record, nodes: set[Node]) -> None:
    """Refuse a forward pass with NaN or infinity; where a weight is the cause, name it."""
    try:
        record.check_finite(nodes)
    except NonFiniteError:
        check_weights(record.captured.model)
        raise


def check_weights(model: nn.Module) -> None:
    for name, p in model.named_parameters():
        if p.is_floating_point() and not bool(torch.isfinite(p).all()):
            bad = int((~torch.isfinite(p)).sum())
            raise NonFiniteError(f"parameter {name!r} holds {bad} NaN or infinite values; load a sound checkpoint")
    for name, b in model.named_buffers():
        if b.is_floating_point() and bool(torch.isnan(b).any()):
            raise NonFiniteError(f"buffer {name!r} holds NaN; load a sound checkpoint")
