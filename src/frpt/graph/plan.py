"""The reverse path from the output to a layer: one unit for each gap between cut points, checked before any work.

Called by ``frpt.reverse.network``, which also says what reverses each unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from frpt.common.text import html_table, table
from frpt.errors import IrreversibleError, OptionError, UnreachableLayerError
from frpt.graph.capture import Captured, is_float, is_shape, module_calls, module_path, op_name, where
from frpt.graph.cuts import cut_points, inside_blocks
from frpt.graph.names import Names

FINEST, STAGES = "finest", "stages"


@dataclass(frozen=True, eq=False)
class Match:
    """What reverses a unit, in the words of the plan's table; ``frpt.reverse.match`` adds what running it needs.

    rule: the rule's name, or "composite" for a block that is solved iteratively. case: "I" (outputs ≤ inputs), "II",
    or "" where the distinction has no meaning. note: how the rule goes about it.
    """

    rule: str
    case: str = ""
    note: str = ""
    chosen: Any = None
    """What the rule's ``choose`` returned; the note is its text."""

    def __str__(self) -> str:
        return f"{self.rule} ({self.note})" if self.note else self.rule


@dataclass(frozen=True, eq=False)
class Unit:
    """The ops between two cut points. ``nodes`` ends in ``sink``; ``side`` are values held at their forward value."""

    source: Node
    sink: Node
    nodes: tuple[Node, ...]
    side: tuple[Node, ...]
    name: str
    path: str
    match: Match = Match("")

    @property
    def op(self) -> str:
        """The op, or the ops of a block with their number."""
        names = [op_name(n) for n in self.nodes if op_name(n) != "getitem" and not is_shape(n)]
        return " + ".join(names) if len(names) == 1 or not self.composite else f"block of {len(names)}"

    @property
    def composite(self) -> bool:
        return self.match.rule.startswith("composite")

    @property
    def where(self) -> str:
        return where(self.sink)

    def shapes(self) -> tuple[str, str]:
        return shape_text(self.sink), shape_text(self.source)


@dataclass(frozen=True, repr=False)
class Plan:
    """The reverse path to a layer, output first. Printing it shows the table."""

    layer: str
    at: Node
    units: tuple[Unit, ...]
    whole: Unit | None = None
    """The path as one block, from the layer to the output; None if the layer is the output."""
    closable: bool = False
    """Whether gradients reach the layer from the output, so that the path can be solved as a whole."""
    note: str = ""
    """That the output cannot be moved from this layer, and where that is lost; "" if it can."""
    columns: tuple[str, ...] = field(
        default=("#", "unit", "module", "op", "rule", "case", "output -> input"), repr=False
    )

    def rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for i, u in enumerate(self.units):
            out, into = u.shapes()
            rows.append((str(i), u.name, u.path or "-", u.op, str(u.match), u.match.case or "-", f"{out} -> {into}"))
        return rows

    def __str__(self) -> str:
        return f"{self._title}\n{table(self.columns, self.rows())}" if self.units else self._title

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._title, self.columns, self.rows())

    @property
    def _title(self) -> str:
        if not self.units:
            return f"reverse path to {self.layer!r}: the output itself, nothing to reverse"
        note = f"\nnote: {self.note}" if self.note else ""
        return f"reverse path to {self.layer!r}, {len(self.units)} units{note}"

    def __len__(self) -> int:
        return len(self.units)


Matcher = Callable[[Unit], Match]


def make_plan(
    captured: Captured,
    names: Names,
    layer: str,
    blocks: str | Sequence[str],
    match: Matcher,
    joined: Callable[[Node], bool] = lambda node: False,
) -> Plan:
    """Plan the way back from the output to ``layer``, and check it whole before any work.

    joined: whether a value belongs to the op after it, so that there is no cut point between the two.
    """
    at = names[layer]
    cuts = cut_points(captured, {at})
    if at not in cuts:  # l_R always starts the path, whatever else is alive (it cannot be: it is the only source)
        raise UnreachableLayerError(f"the output does not depend on {layer!r}; choose a layer from Reverser.layers")
    patterns = _patterns(captured, cuts, blocks)
    cuts = [
        c
        for i, c in enumerate(cuts)
        if c in (at, captured.output) or not (joined(c) or inside_blocks(c, cuts[i + 1 :], patterns))
    ]
    active = captured.downstream({at})
    units = [_unit(captured, names, active, a, b) for a, b in pairwise(cuts)]
    units = [replace(u, match=match(u)) for u in reversed(units)]
    blocked = [item for u in units if u.composite for item in non_differentiable(u)]
    if blocked:
        raise IrreversibleError(layer, blocked)
    if not units:
        return Plan(layer, at, ())
    whole = _unit(captured, names, active, at, captured.output)
    whole = replace(whole, name="path", match=Match("composite"))
    return Plan(layer, at, tuple(units), whole, not non_differentiable(whole))


def _unit(captured: Captured, names: Names, active: set[Node], source: Node, sink: Node) -> Unit:
    low, high = captured.order[source], captured.order[sink]
    gap = {n for n in active if low < captured.order[n] <= high}
    nodes = tuple(n for n in captured.nodes if n in gap)
    side = tuple(dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in gap and i is not source))
    return Unit(source, sink, nodes, side, names.of(sink), _common_path(nodes))


def _common_path(nodes: Sequence[Node]) -> str:
    """The innermost module that contains all nodes."""
    paths = [[c[0] for c in module_calls(n)] for n in nodes]
    common = ""
    for level in zip(*paths, strict=False):
        if len(set(level)) > 1:
            break
        common = level[0]
    return common if len(nodes) > 1 else module_path(nodes[-1])


def _patterns(captured: Captured, cuts: Sequence[Node], blocks: str | Sequence[str]) -> list[str]:
    """Module patterns that stay whole. "stages": the innermost module around every gap of several ops."""
    if not isinstance(blocks, str):
        return list(blocks)
    if blocks == FINEST:
        return []
    if blocks != STAGES:
        raise OptionError(f"blocks must be {FINEST!r}, {STAGES!r} or a list of module patterns, got {blocks!r}")
    paths = []
    for a, b in pairwise(cuts):
        gap = [n for n in captured.nodes if captured.order[a] < captured.order[n] <= captured.order[b]]
        ops = [n for n in gap if n in captured.from_input and is_float(n) and op_name(n) != "getitem"]
        if len(ops) > 1 and (path := _common_path(ops)):
            paths.append(path)
    return paths


def non_differentiable(unit: Unit) -> list[tuple[str, str]]:
    """Where gradients stop in a composite unit, if none gets through: (place, reason) of each op that stops one."""
    reached, stops = {unit.source}, []
    for node in unit.nodes:
        if not any(i in reached for i in node.all_input_nodes):
            continue
        reason = _stops_gradient(node)
        if reason:
            stops.append((where(node), reason))
        else:
            reached.add(node)
    if unit.sink in reached:
        return []
    return stops or [(unit.where, "no gradient connects this unit's output to its input")]


_FLAT = {
    getattr(torch.ops.aten, n)
    for n in ("round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "floor_divide", "fix")
    if hasattr(torch.ops.aten, n)
}


def _stops_gradient(node: Node) -> str:
    """Why no gradient passes through this op; "" if one does. Tried on meta tensors."""
    value = node.meta.get("val")
    if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex()):
        return f"its result is {value.dtype}, which carries no gradient"
    if getattr(node.target, "overloadpacket", None) in _FLAT:
        return "its derivative is zero everywhere, and there is no rule for it"
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace == "aten":
        return ""
    return _custom_op_stops(node)


def _custom_op_stops(node: Node) -> str:
    """An op from outside ATen need not have a derivative: ask the dispatcher."""
    name = str(node.target)
    keys = ("Autograd", "AutogradCPU", "CompositeImplicitAutograd")
    if any(torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(), k) for k in keys):  # type: ignore
        return ""
    return f"{name} has no derivative registered"


def shape_text(node: Node) -> str:
    """``(b, 64, 8, 8)``: the batch symbol shown as b."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return "?"
    return "(" + ", ".join(_size_text(s) for s in value.shape) + ")"


def _size_text(size: int | torch.SymInt) -> str:
    if isinstance(size, int):
        return str(size)
    text = str(size.node.expr)
    for symbol in size.node.expr.free_symbols:
        text = text.replace(str(symbol), "b")
    return text
