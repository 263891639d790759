"""What reverses a unit: decided once, when the plan is made, and kept in the unit.

A unit that is one op with one active argument is reversed by that op's rule; anything else is a block, solved
iteratively on its sub-graph. Called by ``frpt.reverse.network``; ``frpt.reverse.backward`` runs what is decided here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from frpt.graph.capture import Captured
from frpt.graph.plan import Match, Unit
from frpt.options import Preset
from frpt.rules import rule_for
from frpt.rules.conv import PADDING, absorbs
from frpt.rules.registry import Call, Rule, bind

ValueOf = Callable[[Node], Any]


@dataclass(frozen=True, eq=False)
class OneOp(Match):
    """A unit that is one call of an op: its rule, and the call with graph nodes in the place of values."""

    function: Rule = None  # type: ignore[assignment]
    call: Call = None  # type: ignore[assignment]
    prepared: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """What the rule prepares once for each weight, by its kind; shared by all plans through this unit."""

    def bound(self, value_of: ValueOf) -> Call:
        """The call with values in the place of nodes."""
        return _with_values(self.call, value_of)


def match(unit: Unit, captured: Captured, preset: Preset) -> Match:
    """The rule of a unit, from shapes and from the weights as they are now; a block where there is none."""
    call = as_call(unit)
    if call is not None:
        planned = _with_values(call, lambda n: captured.weight(n) if n in captured.weights else n.meta.get("val"))
        rule = rule_for(planned, preset.rules)
        if rule is not None:
            case = rule.case(planned) if rule.case else ""
            chosen = rule.choose(planned, preset) if rule.choose else None
            return OneOp(rule.name, case, "" if chosen is None else str(chosen), chosen, rule, call)
    return Match("composite", note=preset.composite.method)


def as_call(unit: Unit) -> Call | None:
    """The unit as one call of an op with one active argument, nodes for values; None if it is anything else."""
    first, source, padded = unit.nodes[0], unit.source, None
    if len(unit.nodes) > 1 and pads_next(first) and first.args[0] is unit.source:
        pad = _arguments(first)
        source, padded = first, (pad["pad"], pad["mode"])
    ops = [n for n in unit.nodes if n.target is not operator.getitem and n is not source]
    if len(ops) != 1 or not isinstance(op := ops[0].target, OpOverload):
        return None
    picks = [n for n in unit.nodes if n.target is operator.getitem]
    if len(picks) > 1 or (picks and picks[0].args[0] is not ops[0]):
        return None
    args = _arguments(ops[0])
    active = [(name, i) for name, v in args.items() for i, item in enumerate(_items(v)) if item is source]
    if len(active) != 1:
        return None
    name, i = active[0]
    item = i if isinstance(args[name], list | tuple) else None
    args = {k: torch.fx.node.map_arg(v, lambda n: unit.source if n is source else n) for k, v in args.items()}
    pick = int(picks[0].args[1]) if picks else None  # type: ignore[arg-type]
    return Call(op, args, name, item, pick, unit.where, padded)


def pads_next(node: Node) -> bool:
    """Whether a node is just the padding of the convolution after it, written as an op of its own."""
    if node.target is not PADDING or len(node.users) != 1:
        return False
    user = next(iter(node.users))
    if not isinstance(user.target, OpOverload):
        return False
    args = _arguments(user)
    return args.get("input") is node and absorbs(user.target, args, _arguments(node))


def _with_values(call: Call, value_of: ValueOf) -> Call:
    return replace(call, args={k: torch.fx.node.map_arg(v, value_of) for k, v in call.args.items()})


def _arguments(node: Node) -> dict[str, Any]:
    assert isinstance(node.target, OpOverload)
    return bind(node.target, node.args, dict(node.kwargs))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]
