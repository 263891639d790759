"""A captured network: its names, the plan to each layer, and what is learnt or prepared once for all batches.

Made by ``frpt.Reverser``, one for each kind of inputs; ``frpt.reverse.backward`` and ``frpt.reverse.whole_path`` run
its plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.fx import Node

from frpt.errors import IrreversibleError, NonFiniteError
from frpt.graph.capture import Captured
from frpt.graph.inputs import Inputs
from frpt.graph.leverage import unmoved
from frpt.graph.mixing import mixing
from frpt.graph.names import Names
from frpt.graph.plan import Match, Plan, Unit, make_plan
from frpt.graph.ranges import ALL, ranges
from frpt.graph.refused import check_types
from frpt.options import Preset
from frpt.reverse.forward import Record
from frpt.reverse.match import match, pads_next
from frpt.solvers.base import UNBOUNDED, Range
from frpt.solvers.blocks.mean_jacobian import Stationary


class Network:
    """A captured graph for inputs of one kind, under one preset."""

    def __init__(self, captured: Captured, inputs: Inputs, preset: Preset, blocks: str | Sequence[str]) -> None:
        self.captured, self.preset, self.blocks = captured, preset, blocks
        self.inputs = inputs.first(2) if captured.dynamic else inputs
        check_types(captured, self.inputs)
        self.typical = inputs.first(preset.composite.mean_jacobian.samples) if captured.dynamic else inputs
        self.names = Names(captured)
        self.told: set[str] = set()
        """Units that have been warned of as slow."""
        self._plans: dict[str, Plan] = {}
        self._matches: dict[tuple[Node, Node], Match] = {}
        self._stationary: dict[tuple[Node, Node], Stationary | None] = {}
        self._ranges = ranges(captured.nodes)

    def plan(self, layer: str) -> Plan:
        """The reverse path to a layer, made once and checked whole."""
        if layer not in self._plans:
            plan = make_plan(self.captured, self.names, layer, self.blocks, self._match, pads_next)
            with torch.no_grad():
                mixed = mixing(self.captured, plan.at, self.inputs)
            if mixed:
                raise IrreversibleError(layer, mixed)
            with torch.no_grad():
                self._plans[layer] = replace(plan, note=unmoved(self.captured, plan.at, self.inputs))
        return self._plans[layer]

    def _match(self, unit: Unit) -> Match:
        """What reverses a unit; plans that share a unit share what is prepared for it."""
        key = (unit.source, unit.sink)
        if key not in self._matches:
            self._matches[key] = match(unit, self.captured, self.preset)
        return self._matches[key]

    def range(self, node: Node) -> Range:
        """The interval of values that a node's op can produce, where the preset keeps to it."""
        low, high = self._ranges.get(node, ALL)
        return Range(low, high) if self.preset.ranges else UNBOUNDED

    def stationary(self, unit: Unit) -> Stationary | None:
        """The average derivative of a block, learnt once from the example inputs, so that no batch changes another."""
        key = (unit.source, unit.sink)
        if key not in self._stationary:
            record = Record(self.captured, self.typical, {unit.source, unit.sink, *unit.side})
            everyone = torch.arange(record.batch, device=record.values[unit.source].device)
            fn, anchor, output, _ = record.block(unit, everyone)
            self._stationary[key] = self.preset.composite.mean_jacobian.learn(fn, anchor, output)
        return self._stationary[key]


def check_finite(record: Record, nodes: set[Node]) -> None:
    """Refuse a forward pass with NaN or infinity; where a weight is the cause, name it."""
    try:
        record.check_finite(nodes)
    except NonFiniteError:
        check_weights(record.captured.model)
        raise


def check_weights(model: nn.Module) -> None:
    """Refuse parameters with NaN or infinity, and buffers with NaN."""
    for name, p in model.named_parameters():
        if p.is_floating_point() and not bool(torch.isfinite(p).all()):
            bad = int((~torch.isfinite(p)).sum())
            raise NonFiniteError(f"parameter {name!r} holds {bad} NaN or infinite values; load a sound checkpoint")
    for name, b in model.named_buffers():
        if b.is_floating_point() and bool(torch.isnan(b).any()):
            raise NonFiniteError(f"buffer {name!r} holds NaN; load a sound checkpoint")
