"""RULES: ATen op -> reverse rule. A rule is a pure function of a site and a target; registering one twice raises.

    rule.choose(call, preset)      when the way back is planned: how this call will be solved, once for each unit
    rule.solve(site, target)       for each batch: the nearest input to the anchor whose output is the target

``frpt.reverse`` and ``frpt.ops`` look rules up by ``rule_for``; the files beside this one register theirs by
``reverses``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload

from frpt.common.batch_axis import BatchAxis
from frpt.errors import OptionError
from frpt.options import Gate, Preset
from frpt.solvers.base import UNBOUNDED, Range, Solution, UnitAxes, per_system
from frpt.solvers.linear.gate import admissible, admitted, anchored
from frpt.solvers.linear.linear_map import LinearMap


@dataclass(frozen=True)
class Call:
    """One op of the graph as planned: arguments by their schema names, one of them active (it depends on l_R).

    Tensors among the arguments are fake at planning time and real in a ``Site``.
    """

    op: OpOverload
    args: dict[str, Any]
    slot: str
    item: int | None = None
    """Position of the active tensor where the active argument is a list (cat, stack)."""
    pick: int | None = None
    """Which output of an op with several is the unit's output."""
    where: str = ""
    padded: tuple[list[int], str] | None = None
    """Padding that a convolution's input gets first, where the model does that by an op of its own: (widths, mode)."""

    @property
    def active(self) -> Tensor:
        value = self.args[self.slot]
        tensor: Tensor = value if self.item is None else value[self.item]
        return tensor

    def forward(self, a: Tensor) -> Tensor:
        """Φ(a): the op itself, its active argument replaced."""
        if self.padded is not None:
            a = torch.ops.aten.pad.default(a, *self.padded)
        value = a if self.item is None else [*self.args[self.slot]]
        if self.item is not None:
            value[self.item] = a
        out = call_op(self.op, {**self.args, self.slot: value})
        tensor: Tensor = out if self.pick is None else out[self.pick]
        return tensor


@dataclass(frozen=True)
class Site(Call):
    """A call with its recorded values: what a rule works on.

    anchor: the recorded input â, output: the recorded Φ(â), both in solver precision. ``args`` keep the model's dtype.
    axes: where the samples are in both. within: the range of the op before. cache: what ``prepared`` has made for the
    unit. chosen: what the rule's ``choose`` has said when the unit was planned; None where there was no plan.
    """

    anchor: Tensor = None  # type: ignore[assignment]
    output: Tensor = None  # type: ignore[assignment]
    preset: Preset = None  # type: ignore[assignment]
    axes: UnitAxes = UnitAxes()
    within: Range = UNBOUNDED
    cache: dict[str, tuple[Any, Any]] | None = None
    chosen: Any = None

    @staticmethod
    def of(
        call: Call,
        anchor: Tensor,
        output: Tensor,
        preset: Preset,
        axes: UnitAxes = UnitAxes(),
        within: Range = UNBOUNDED,
        cache: dict[str, tuple[Any, Any]] | None = None,
        chosen: Any = None,
    ) -> Site:
        """The call with its recorded values."""
        own = {f.name: getattr(call, f.name) for f in fields(Call)}
        return Site(
            **own, anchor=anchor, output=output, preset=preset, axes=axes, within=within, cache=cache, chosen=chosen
        )

    @property
    def gate(self) -> Gate:
        return self.preset.gate

    @cached_property
    def eps(self) -> float:
        """Distance to keep from the ends of an open range: the precision of the model's own numbers."""
        return torch.finfo(self.active.dtype).eps

    def tensor(self, name: str) -> Tensor | None:
        """A tensor argument in solver precision."""
        value = self.args.get(name)
        return value.to(self.anchor.dtype) if isinstance(value, Tensor) else None

    def prepared(self, kind: str, weight: Tensor, make: Callable[[Tensor], Any]) -> Any:
        """``make(weight)``, made once per weight: the second batch through a layer takes it from the cache."""
        if self.cache is None:
            return make(weight.to(self.anchor.dtype))
        known, value = self.cache.get(kind, (None, None))
        if known is None or not _identical(known, weight):
            value = make(weight.to(self.anchor.dtype))
            self.cache[kind] = (weight.clone(), value)
        return value

    def exact(self, value: Tensor) -> Solution:
        """A solution by formula; where the gate refuses its magnitude or deviation, as far towards it as it admits."""
        rows, anchor = self.axes.input.rows(value), self.axes.input.rows(self.anchor)
        failed = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        if self.gate.enabled:
            failed = ~admissible(rows, anchor, self.gate)
        if bool(failed.any()):
            rows = torch.where(failed[:, None], admitted(rows, anchor, self.gate), rows)
            front = self.axes.input.front(value)
            value = self.axes.input.back(rows.reshape(front.shape))
        return Solution.of(value, len(rows), failed)

    def linear(
        self,
        A: LinearMap,
        residual: Tensor,
        split: Callable[[Tensor], Tensor],
        join: Callable[[Tensor], Tensor],
        at_once: int | None = None,
    ) -> Solution:
        """The anchored solve of a linear map A. split: input -> (s, *in) systems, join: back. residual: (s, *out).

        at_once: systems that memory holds at a time.
        """
        anchor, bounded = split(self.anchor), self.preset.bounded
        count = max(1, len(anchor) if at_once is None else at_once)
        parts = zip(anchor.split(count), residual.split(count), strict=True)
        solved = [anchored(A, a, r, self.gate, self.within, bounded) for a, r in parts]
        return self.per_sample(Solution.joined(solved), join)

    def per_sample(self, solved: Solution, join: Callable[[Tensor], Tensor]) -> Solution:
        """Solved systems as the solution of the samples they belong to."""
        value = join(solved.value)

        def largest(v: Tensor) -> Tensor:
            spread = join(per_system(v, solved.value).expand_as(solved.value))
            return self.axes.input.rows(spread).amax(1)

        return Solution(value, largest(solved.fallback), largest(solved.iterations))


def _identical(a: Tensor, b: Tensor) -> bool:
    """The same numbers. (torch.hash_tensor does not tell permuted or negated weights apart.)"""
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


RuleFunction = Callable[[Site, Tensor], Solution]
F = TypeVar("F", bound=RuleFunction)


@dataclass(frozen=True)
class Rule:
    """name; the function; the slots it can reverse (None: any); when it applies; whether entries are independent.

    case: what the plan says of a call. choose: how a call will be solved, decided when it is planned, from shapes and
    the weights as they are then; what it returns is printed in the plan and handed to the function as ``site.chosen``.
    fixed_point: a target that is met returns the anchor, whatever the function says; a rule that keeps that law itself,
    or is meant not to, turns it off.
    """

    name: str
    function: RuleFunction
    slots: tuple[str, ...] | None
    when: Callable[[Call], bool] | None
    elementwise: bool
    case: Callable[[Call], str] | None
    choose: Callable[[Call, Preset], Any] | None
    fixed_point: bool

    def applies(self, call: Call) -> bool:
        return (self.slots is None or call.slot in self.slots) and (self.when is None or self.when(call))

    def solve(self, site: Site, target: Tensor) -> Solution:
        """The rule under the law of the fixed point: what is met already keeps its anchor, to the last bit."""
        solution = self.function(site, target)
        if not self.fixed_point:
            return solution.checked(f"{site.where}, rule {self.name}")
        met = target == site.output
        if self.elementwise and met.shape == site.anchor.shape:
            keep = met
        else:
            keep = site.axes.input.over(site.axes.output.rows(met).all(1), site.anchor)
        value = torch.where(keep, site.anchor, solution.value)
        return replace(solution, value=value).checked(f"{site.where}, rule {self.name}")


RULES: dict[str, dict[OpOverload, Rule]] = {"default": {}, "paper": {}}


def reverses(
    *ops: OpOverload,
    slots: tuple[str, ...] | None = None,
    when: Callable[[Call], bool] | None = None,
    elementwise: bool = False,
    case: Callable[[Call], str] | None = None,
    choose: Callable[[Call, Preset], Any] | None = None,
    fixed_point: bool = True,
    preset: str = "default",
) -> Callable[[F], F]:
    """Register the decorated function as the reverse rule of ``ops``.

    Args:
        ops: ATen op overloads, e.g. ``torch.ops.aten.relu.default``.
        slots: names of the arguments it can be asked to reverse; None: any.
        when: further conditions on a call; where they fail the op is solved as a composite block.
        elementwise: entry i of the output depends on entry i of the input only.
        case: "I" or "II" of a call, for the plan.
        choose: how a call will be solved, decided once when it is planned; printable (see ``Rule``).
        fixed_point: whether a target that is met returns the anchor, whatever the function says.
        preset: the registry it goes to: "default", or one that a ``Preset`` names in ``rules``.

    Returns:
        A decorator that registers a function (site, target) -> ``Solution`` and returns it.

    Raises:
        OptionError: an op has a rule in that registry already.

    Example:
        >>> import frpt, torch
        >>> @frpt.reverses(torch.ops.aten.sinh.default, elementwise=True, preset="example")
        ... def sinh(site, target):
        ...     return site.exact(torch.asinh(target))
        >>> from frpt.rules import RULES
        >>> RULES.pop("example")[torch.ops.aten.sinh.default].name
        'sinh'
    """

    def register(function: F) -> F:
        table = RULES.setdefault(preset, {})
        for op in ops:
            if op in table:
                raise OptionError(f"{op} already has the {preset} rule {table[op].name!r}; remove one of the two")
            table[op] = Rule(function.__name__, function, slots, when, elementwise, case, choose, fixed_point)
        return function

    return register


def rule_for(call: Call, rules: str = "default") -> Rule | None:
    """The rule that reverses a call: the preset's own first, then the default; None if there is none."""
    for table in (RULES.get(rules, {}), RULES["default"]):
        rule = table.get(call.op)
        if rule is not None and rule.applies(call):
            return rule
    return None


def bind(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by schema name, defaults filled in."""
    arguments = op._schema.arguments
    given = {a.name: v for a, v in zip(arguments, args, strict=False)} | kwargs
    return {a.name: given.get(a.name, a.default_value) for a in arguments}


def call_op(op: OpOverload, args: dict[str, Any]) -> Any:
    """Call an op with arguments by schema name; a view as a reshape, since strides may differ from the model's own."""
    positional = [args[a.name] for a in op._schema.arguments if not a.kwarg_only]
    keyword = {a.name: args[a.name] for a in op._schema.arguments if a.kwarg_only}
    return (torch.ops.aten.reshape.default if op is torch.ops.aten.view.default else op)(*positional, **keyword)


def plain_site(call: Call, preset: Preset, samples: BatchAxis = BatchAxis()) -> Site:
    """A site without a graph around it: the op is run to record its output. For direct use and tests."""
    with torch.no_grad():
        output = call.forward(call.active)
    dtype, axes = preset.dtype, UnitAxes(samples, samples)
    return Site.of(call, anchor=call.active.to(dtype), output=output.to(dtype), preset=preset, axes=axes)
