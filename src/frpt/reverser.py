"""Reverser: captures a model, plans the way back to a layer, and walks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.fx import Node

from frpt.common.batch import BatchAxis
from frpt.embed import Embed, Embedder, as_labels
from frpt.errors import InputError, IrreversibleError, OptionError
from frpt.graph.capture import Captured, capture, eval_mode, warn_if_training, where
from frpt.graph.inputs import InputLike, Inputs, Picker
from frpt.graph.mixing import mixing
from frpt.graph.plan import Choice, Plan, Unit, make_plan, shape_text
from frpt.options import Preset
from frpt.options import preset as preset_of
from frpt.reverse.backward import Network, Walk, check_weights, pads_next, planned_call
from frpt.reverse.forward import Record
from frpt.reverse.nearest import Nearest
from frpt.reverse.reconstruction import Reconstruction
from frpt.rules import rule_for
from frpt.solvers.variation import Variations


class Reverser:
    """Says what any layer of a trained network should have produced for a label. The model is never changed.

    example_inputs: a tensor, a tuple of positional or a dict of keyword inputs, batch first; ``kwargs`` beside it.
    output: which tensor of the model's output is meant (name or index); a lone tensor or ``logits`` is found without.
    preset: "default", "paper", "online" (quick, for every training step) or a ``Preset``.
    embed: how labels become targets, by name or a function (output, y). margin: by how much the label shall win.
    class_dim: the output's class axis where shapes leave it open.
    blocks: of a walk op by op: "finest" cut points, "stages" (residual and attention modules whole), or module patterns
    to keep whole.
    reference: how the layers' features vary (``frpt.Reference``): the answer is then the likeliest feature in which the
    label wins, at the layers it knows; without, the least change by which it does.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: InputLike,
        *,
        kwargs: Mapping[str, Any] | None = None,
        output: Picker = None,
        preset: str | Preset = "default",
        embed: str | Embed | None = None,
        margin: float | None = None,
        class_dim: int | None = None,
        ignore_index: int = -100,
        blocks: str | Sequence[str] | None = None,
        reference: Variations | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise OptionError(f"model must be an nn.Module, got {type(model).__name__}")
        self.model = model
        self.preset = preset_of(preset)
        self.embed: str | Embed = self.preset.embed if embed is None else embed
        self.embedder = Embedder(self.embed, class_dim, margin, ignore_index)
        self.blocks = self.preset.blocks if blocks is None else blocks
        self.output = output
        self._captures: dict[tuple[Any, ...], Network] = {}
        warn_if_training(model)
        check_weights(model)
        self._example = self._capture(Inputs.of(example_inputs, kwargs))
        self.reference = reference
        if reference is not None:
            if not callable(getattr(reference, "check", None)):
                raise OptionError(f"reference must be a frpt.Reference, got {type(reference).__name__}")
            if self.preset.nearest is None:
                raise OptionError(f"the preset {self.preset.name!r} walks op by op and takes no reference")
            reference.check(self)

    @property
    def layers(self) -> list[str]:
        """Every name ``at`` accepts, output first."""
        return self._example.names.ordered()

    @property
    def example(self) -> Inputs:
        """Some of the example inputs; a few samples where the batch size is free."""
        return self._example.typical

    def on(self, model: nn.Module) -> Reverser:
        """The same options on another model of the same architecture, e.g. a copy that is being trained."""
        e, example = self.embedder, self.example
        return Reverser(
            model, example.args, kwargs=example.kwargs, output=self.output, preset=self.preset, embed=self.embed,
            margin=e.margin, class_dim=e.class_dim, ignore_index=e.ignore_index, blocks=self.blocks,
        ).measured_by(self.reference)  # fmt: skip

    def measured_by(self, reference: Variations | None) -> Reverser:
        """The same, with another reference or none; it is not asked whether the weights are those it was made with."""
        other = copy(self)
        other.reference = reference
        return other

    def shape(self, layer: str) -> str:
        """The shape of a layer's value, the batch written b."""
        return shape_text(self._example.names[layer])

    def upstream(self, at: str) -> list[str]:
        """Names of the parameters and buffers the layer's value depends on."""
        return self._example.captured.upstream(self._example.names[at])

    def frozen(self, at: str) -> list[str]:
        """Names of the parameters and buffers the output uses after the layer or beside it; shared ones are in both."""
        return self._example.captured.frozen(self._example.names[at])

    def batch_axis(self, at: str) -> BatchAxis:
        """Where the samples sit in the layer's value; ``batch_axis(at).front(value)`` has them on axis 0."""
        node = self._example.names[at]
        found = self._example.captured.batch_axis(node)
        if found is None:
            raise InputError(
                f"{where(node)}: its value has no batch axis, so there is nothing to reconstruct per sample"
            )
        return found

    def sample_shape(self, at: str) -> tuple[int, ...]:
        """The shape of one sample of the layer's value, as ``batch_axis(at).front`` has it."""
        samples, shape = self.batch_axis(at), list(self._example.names[at].meta["val"].shape)
        inside = [] if samples == BatchAxis() else [samples.outer, samples.inner]
        return tuple(int(n) for n in [*shape[: samples.dim], *inside, *shape[samples.dim + 1 :]])

    def interval(self, at: str) -> tuple[float, float]:
        """The smallest and the largest value that the op before the layer can produce."""
        within = self._example.range(self._example.names[at], self.preset)
        return within.low, within.high

    def node(self, at: str, inputs: Inputs | None = None) -> tuple[Captured, Node]:
        """The captured graph of some inputs (the example's), and the layer's node in it."""
        found = self._example if inputs is None else self._capture(inputs)
        return found.captured, found.names[at]

    def plan(self, at: str) -> Plan:
        """The reverse path to a layer, checked whole; print it for the table."""
        return self._plan(self._example, at)

    @overload
    def reconstruct(
        self, x: InputLike, y: Tensor, at: str, *, kwargs: Mapping[str, Any] | None = None
    ) -> Reconstruction: ...
    @overload
    def reconstruct(
        self, x: InputLike, y: Tensor, at: list[str] | tuple[str, ...], *, kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Reconstruction]: ...
    def reconstruct(
        self, x: InputLike, y: Tensor, at: str | Sequence[str], *, kwargs: Mapping[str, Any] | None = None
    ) -> Reconstruction | dict[str, Reconstruction]:
        """What the layer (or each of several, in one sweep) should have produced for the labels.

        y: class ids, or a floating-point tensor shaped like the output.
        """
        inputs = Inputs.of(x, kwargs)
        inputs.check_finite()
        warn_if_training(self.model)
        with eval_mode(self.model), torch.no_grad():
            found = self._capture(inputs)
            plans = [self._plan(found, name) for name in ([at] if isinstance(at, str) else at)]
            solver = self._solver(found, inputs, plans, as_labels(y))
            results = {plan.layer: solver.to(plan) for plan in plans}
        return results[at] if isinstance(at, str) else results

    def explain(self, x: InputLike, y: Tensor, at: str, *, kwargs: Mapping[str, Any] | None = None) -> Reconstruction:
        """The walk back to a layer op by op, whatever the preset answers: each op's consistency and deviation.

        Its target is what the walk ends with, the paper's answer with the preset's rules; print it for the table.
        """
        inputs = Inputs.of(x, kwargs)
        inputs.check_finite()
        with self.walking(inputs, y, [at]) as (walk, (plan,)):
            return walk.to(plan)

    @contextmanager
    def walking(self, inputs: Inputs, y: Tensor, layers: Sequence[str]) -> Iterator[tuple[Walk, list[Plan]]]:
        """A batch recorded, with the plans to some layers, to be walked back op by op."""
        with eval_mode(self.model), torch.no_grad():
            found = self._capture(inputs)
            plans = [self._plan(found, name) for name in layers]
            yield Walk(found, self.preset, self.embedder, inputs, plans, as_labels(y)), plans

    def _solver(
        self,
        found: Network,
        inputs: Inputs,
        plans: Sequence[Plan],
        y: Tensor,
        known: Mapping[Node, Tensor] | None = None,
    ) -> Walk | Nearest:
        """The batch recorded, and how the preset answers for it."""
        if self.preset.nearest is None:
            return Walk(found, self.preset, self.embedder, inputs, plans, y, known)
        return Nearest(found, self.preset, self.embedder, inputs, plans, y, known, self.reference)

    def reconstruct_from(
        self, x: InputLike, y: Tensor, at: str, value: Tensor, *, kwargs: Mapping[str, Any] | None = None
    ) -> Reconstruction:
        """What the layer should have produced for the labels where it produced ``value``, e.g. in train mode.

        Nothing before the layer is run, but for what reaches the output beside it.
        """
        inputs = Inputs.of(x, kwargs)
        with eval_mode(self.model), torch.no_grad():
            found = self._capture(inputs)
            plan = self._plan(found, at)
            return self._solver(found, inputs, [plan], as_labels(y), {plan.at: value}).to(plan)

    def values(self, x: InputLike, layers: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
        """(layer → its value, the output), from one forward pass."""
        inputs = Inputs.of(x)
        with eval_mode(self.model), torch.no_grad():
            found = self._capture(inputs)
            nodes = {name: found.names[name] for name in layers}
            held = Record(found.captured, inputs, {*nodes.values(), found.captured.output}).values
        return {name: held[node] for name, node in nodes.items()}, held[found.captured.output]

    def run(self, x: InputLike, at: str, value: Tensor, *, kwargs: Mapping[str, Any] | None = None) -> Tensor:
        """The model's output if the layer ``at`` had produced ``value``, all else as the forward pass has it."""
        inputs = Inputs.of(x, kwargs)
        with eval_mode(self.model), torch.no_grad():
            found = self._capture(inputs)
            captured, node = found.captured, found.names[at]
            given = captured.given(inputs)
            recorded = captured.run(captured.nodes, given, {node}, inputs.batch)[node]
            if recorded.shape != value.shape:
                raise InputError(f"{at!r} has shape {tuple(recorded.shape)}, got a value of {tuple(value.shape)}")
            given[node] = value.to(recorded)
            out: Tensor = captured.run(captured.nodes, given, {captured.output}, inputs.batch)[captured.output]
        return out

    def run_on(
        self, x: InputLike, at: str, value: Tensor | None = None, *, kwargs: Mapping[str, Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(a, out): the layer's value, or ``value`` instead, and the output from it on, differentiable by ``a``."""
        inputs = Inputs.of(x, kwargs)
        with eval_mode(self.model):
            found = self._capture(inputs)
            captured, node = found.captured, found.names[at]
            active = captured.downstream({node})
            side = {i for n in active for i in n.all_input_nodes} - active | {node}
            with torch.no_grad():
                held = Record(captured, inputs, side).values
            if value is not None and value.shape != held[node].shape:
                raise InputError(f"{at!r} has shape {tuple(held[node].shape)}, got a value of {tuple(value.shape)}")
            with torch.enable_grad():
                a = held[node].detach() if value is None else value.detach().to(held[node])
                held[node] = a = a.clone().requires_grad_()
                rest = [n for n in captured.nodes if n in active]
                out: Tensor = captured.run(rest, held, {captured.output}, inputs.batch)[captured.output]
        return a, out

    def _capture(self, inputs: Inputs) -> Network:
        """The capture for inputs of this kind; models that fix the batch size are captured once per size."""
        kind = inputs.signature()
        for key in ((kind, None), (kind, inputs.batch)):
            if key in self._captures:
                return self._captures[key]
        found = Network(capture(self.model, inputs, self.output), inputs, self.preset.composite.mean_jacobian)
        self._captures[(kind, None if found.captured.dynamic else inputs.batch)] = found
        return found

    def _plan(self, found: Network, at: str) -> Plan:
        if at not in found.plans:
            choose = partial(self._choose, found.captured)
            plan = make_plan(found.captured, found.names, at, self.blocks, choose, pads_next)
            with torch.no_grad():
                mixed = mixing(found.captured, plan.at, found.inputs)
            if mixed:
                raise IrreversibleError(at, mixed)
            found.plans[at] = plan
        return found.plans[at]

    def _choose(self, captured: Captured, unit: Unit) -> Choice:
        """The rule of a unit, from shapes and from the weights as they are now."""
        call = planned_call(unit, lambda n: captured.weight(n) if n in captured.weights else n.meta.get("val"))
        rule = None if call is None else rule_for(call, self.preset.rules)
        if call is not None and rule is not None:
            chosen = rule.choose(call, self.preset) if rule.choose else None
            note = "" if chosen is None else str(chosen)
            return Choice(rule.name, rule.case(call) if rule.case else "", note, chosen)
        return Choice("composite", note=self.preset.composite.method)
