"""Reverser: captures a model, plans the way back to a layer, and answers what the layer should have produced.

The first thing users meet; it knows nothing of single ops (``frpt.reverse`` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from difflib import get_close_matches
from typing import Any, TypedDict, cast, overload

import torch
from torch import Tensor, nn
from torch.fx import Node

from frpt.common.batch_axis import BatchAxis
from frpt.common.threads import threads_for
from frpt.embed import Embed, Embedder, as_labels
from frpt.errors import InputError, OptionError
from frpt.graph.capture import Captured, capture, eval_mode, warn_if_training, where
from frpt.graph.inputs import InputLike, Inputs, Picker
from frpt.graph.plan import Plan, shape_text
from frpt.graph.refused import check_gradients, check_kind
from frpt.options import Preset
from frpt.options import preset as preset_of
from frpt.reverse.backward import Walk
from frpt.reverse.batch import Batch
from frpt.reverse.forward import Record, behind
from frpt.reverse.network import Network, check_weights
from frpt.reverse.reconstruction import Reconstruction
from frpt.reverse.whole_path import WholePath
from frpt.solvers.variation import Variations

Layer = str | nn.Module
"""A layer: its name, or the module itself."""


class UnmeasuredOptions(TypedDict, total=False):
    """The options of a ``Reverser`` but for its reference: for functions that have a reference of their own, or none.

    Functions that make a Reverser take these by name and hand them on (``network_of``, ``make_reverser``); what each
    one means is said by ``Reverser`` alone. None stands for an option that was not given.
    """

    output: Picker
    preset: str | Preset | None
    embed: str | Embed | None
    margin: float | None
    class_dim: int | None
    ignore_index: int
    blocks: str | Sequence[str] | None


class ReverserOptions(UnmeasuredOptions, total=False):
    """The options of a ``Reverser``, all of them."""

    reference: Variations | None


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse options that do not exist, with the nearest that do."""
    names = list(known)
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=3, cutoff=0.5) or names
            raise OptionError(f"there is no option {name!r}; the nearest are {', '.join(map(repr, near))}")


def network_of(
    model: nn.Module | Reverser, options: UnmeasuredOptions, known: Iterable[str] = UnmeasuredOptions.__annotations__
) -> nn.Module:
    """The network itself, given alone or in a Reverser. Options beside a Reverser are refused: it has its own."""
    given = [name for name, value in options.items() if value is not None]
    check_names(options, known)
    if isinstance(model, Reverser):
        if given:
            raise OptionError(
                f"{', '.join(given)} and a Reverser were given, but these options belong to the Reverser: give them "
                "to it when you make it, or pass the model instead of the Reverser"
            )
        return model.model
    if not isinstance(model, nn.Module):
        raise OptionError(f"model must be an nn.Module or a Reverser, got {type(model).__name__}")
    return model


def layer_name(model: nn.Module, at: Layer) -> str:
    """The name of a layer that is given by its name, or as the module itself."""
    if isinstance(at, str):
        return at
    names: list[str] = [name for name, module in model.named_modules() if module is at]
    if not names:
        raise OptionError(f"at: this {type(at).__name__} is no module of the model; pass one of its own, or a name")
    return names[0]


def layer_names(model: nn.Module, at: Layer | Sequence[Layer]) -> list[str]:
    """The names of one layer or of several."""
    return [layer_name(model, one) for one in ([at] if isinstance(at, str | nn.Module) else at)]


def make_reverser(model: nn.Module | Reverser, example_inputs: InputLike, options: UnmeasuredOptions) -> Reverser:
    """The Reverser that was given, or one on the model with these options."""
    network = network_of(model, options, ReverserOptions.__annotations__)
    if isinstance(model, Reverser):
        return model
    given = {name: value for name, value in options.items() if value is not None}
    return Reverser(network, example_inputs, **cast(Any, given))


class Reverser:
    """Says what any layer of a trained network should have produced for a label. The model is never changed.

    Args:
        model: the trained network; captured once with ``torch.export`` and run in eval mode.
        example_inputs: a tensor, a tuple of positional or a dict of keyword inputs, batch first.
        kwargs: keyword inputs beside positional ones.
        output: which tensor of the model's output is meant, by name or index; a lone tensor, or one called ``logits``,
            needs none.
        preset: "default", "paper" (as the paper does it, op by op), "online" (quick, for every training step), or a
            ``Preset`` of your own.
        embed: how labels become output targets: "nearest", "max_assign", "one_hot", "regression", or a function
            (output, y) -> target.
        margin: by how much the label's score shall exceed every other; by default a hair, relative to the scores, and
            where no feature with such a lead is found, a hair as well.
        class_dim: the output's class axis, where shapes leave it open.
        ignore_index: the class id of labels that are not looked at.
        blocks: of a walk op by op: "finest" cut points, "stages" (residual and attention modules whole), or module
            patterns to keep whole.
        reference: how the layers' features vary (``frpt.Reference``). With one the answer is the likeliest feature in
            which the label wins, at the layers it knows; without, the least change by which the label wins.

    Raises:
        CaptureError: if the model cannot be turned into a graph.
        NonFiniteError: for weights that are NaN or infinite.
        OptionError: for options that do not exist.
        ReferenceMismatchError: for a reference of another network or of other weights.

    Example:
        >>> import torch, frpt
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> x, y = torch.randn(16, 4), torch.randint(3, (16,))
        >>> rev = frpt.Reverser(model, x)
        >>> rec = rev.reconstruct(x, y, at="1")
        >>> bool(rec.wins[rec.corrected].all())
        True
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
        check_kind(model)
        self.model = model
        self.preset = preset_of(preset)
        self.embed: str | Embed = self.preset.embed if embed is None else embed
        self.blocks = self.preset.blocks if blocks is None else blocks
        self.output = output
        self._captures: dict[tuple[Any, ...], Network] = {}
        self._quick = False
        warn_if_training(model)
        check_weights(model)
        self._example = self._capture(Inputs.of(example_inputs, kwargs))
        ends = self._example.captured.activation()[0]
        self.embedder = Embedder(self.embed, class_dim, margin, ignore_index, 0.5 if ends == "sigmoid" else 0.0)
        self.reference = reference
        if reference is not None:
            if not callable(getattr(reference, "check", None)):
                raise OptionError(f"reference must be a frpt.Reference, got {type(reference).__name__}")
            if self.preset.nearest is None:
                raise OptionError(f"the preset {self.preset.name!r} walks op by op and takes no reference")
            reference.check(self)

    def __repr__(self) -> str:
        measure = "" if self.reference is None else ", with a reference"
        return f"Reverser({type(self.model).__name__}, preset {self.preset.name!r}{measure}, {len(self.layers)} layers)"

    @property
    def layers(self) -> list[str]:
        """Every name that ``at`` accepts, output first."""
        return self._example.names.ordered()

    def layer(self, at: Layer) -> str:
        """The name of a layer that is given by its name, or as the module itself."""
        return layer_name(self.model, at)

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

    def quickly(self) -> Reverser:
        """The same, whose passes may round differently than the model does: for what is summed up and not handed on."""
        other = copy(self)
        other._quick = True
        return other

    def shape(self, at: Layer) -> str:
        """The shape of a layer's value, the batch written b."""
        return shape_text(self.node(at)[1])

    def upstream(self, at: Layer) -> list[str]:
        """Names of the parameters and buffers the layer's value depends on."""
        return self._example.captured.upstream(self.node(at)[1])

    def frozen(self, at: Layer) -> list[str]:
        """Names of the parameters and buffers the output uses after the layer or beside it; shared ones are in both."""
        return self._example.captured.frozen(self.node(at)[1])

    def batch_axis(self, at: Layer) -> BatchAxis:
        """Where the samples sit in the layer's value; ``batch_axis(at).front(value)`` has them on axis 0."""
        captured, node = self.node(at)
        axis = captured.batch_axis(node)
        if axis is None:
            raise InputError(
                f"{where(node)}: its value has no batch axis, so there is nothing to reconstruct per sample"
            )
        return axis

    def sample_shape(self, at: Layer) -> tuple[int, ...]:
        """The shape of one sample of the layer's value, as ``batch_axis(at).front`` has it."""
        samples, shape = self.batch_axis(at), list(self.node(at)[1].meta["val"].shape)
        inside = [] if samples == BatchAxis() else [samples.outer, samples.inner]
        return tuple(int(n) for n in [*shape[: samples.dim], *inside, *shape[samples.dim + 1 :]])

    def interval(self, at: Layer) -> tuple[float, float]:
        """The smallest and the largest value that the op before the layer can produce."""
        within = self._example.range(self.node(at)[1])
        return within.low, within.high

    def node(self, at: Layer, inputs: Inputs | None = None) -> tuple[Captured, Node]:
        """The captured graph of some inputs (the example's), and the layer's node in it."""
        network = self._example if inputs is None else self._capture(inputs)
        return network.captured, network.names[self.layer(at)]

    def plan(self, at: Layer) -> Plan:
        """The reverse path to a layer, checked whole; print it for the table.

        Args:
            at: the layer, by name or as a module.

        Returns:
            One unit for each gap between cut points, output first, with what reverses it.

        Raises:
            UnknownLayerError: for a name that no value of the network has.
            UnreachableLayerError: if the output does not depend on the layer.
            IrreversibleError: if ops on the way have neither a rule nor a derivative, or if samples mix.
        """
        return self._example.plan(self.layer(at))

    @overload
    def reconstruct(
        self, x: InputLike, y: Tensor, at: Layer, *, kwargs: Mapping[str, Any] | None = None
    ) -> Reconstruction: ...
    @overload
    def reconstruct(
        self,
        x: InputLike,
        y: Tensor,
        at: list[str] | list[nn.Module] | tuple[Layer, ...],
        *,
        kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Reconstruction]: ...
    def reconstruct(
        self, x: InputLike, y: Tensor, at: Layer | Sequence[Layer], *, kwargs: Mapping[str, Any] | None = None
    ) -> Reconstruction | dict[str, Reconstruction]:
        """What a layer (or each of several, in one sweep) should have produced for the labels.

        Args:
            x: inputs like the example's, with any number of samples.
            y: class ids; 0 and 1 shaped like the output (or of one logit), yes or no to each entry; or a
                floating-point tensor shaped like the output.
            at: the layer, by name or as a module; or several of them.
            kwargs: keyword inputs beside positional ones.

        Returns:
            The reconstruction; of several layers a dict of them by name.

        Raises:
            InputError: for inputs of another kind than the example's.
            LabelError: for labels that do not fit the output.
            NonFiniteError: for NaN or infinity in the inputs or the forward pass.
            UnknownLayerError, UnreachableLayerError, IrreversibleError: as ``plan`` raises them.
        """
        check_gradients()
        inputs = Inputs.of(x, kwargs)
        inputs.check_finite()
        single = isinstance(at, str | nn.Module)
        layers: Sequence[Layer] = [at] if isinstance(at, str | nn.Module) else at
        warn_if_training(self.model)
        with eval_mode(self.model), torch.no_grad(), self._threads(inputs):
            network = self._capture(inputs)
            plans = [network.plan(self.layer(one)) for one in layers]
            batch = self._answering(network, inputs, plans, as_labels(y))
            results = batch.to_all(plans)
        return results[plans[0].layer] if single else results

    def explain(self, x: InputLike, y: Tensor, at: Layer, *, kwargs: Mapping[str, Any] | None = None) -> Reconstruction:
        """The walk back to a layer op by op, whatever the preset answers: each op's consistency and deviation.

        Args:
            x: inputs like the example's.
            y: class ids, or a floating-point tensor shaped like the output.
            at: the layer, by name or as a module.
            kwargs: keyword inputs beside positional ones.

        Returns:
            A reconstruction whose target is what the walk ends with: the paper's answer with the preset's rules, as a
            rule another one than ``reconstruct`` gives. Print it for the table of units.
        """
        inputs = Inputs.of(x, kwargs)
        inputs.check_finite()
        with self.walking(inputs, y, [at]) as (walk, (plan,)):
            return walk.to(plan)

    @contextmanager
    def walking(self, inputs: Inputs, y: Tensor, layers: Sequence[Layer]) -> Iterator[tuple[Walk, list[Plan]]]:
        """A batch recorded, with the plans to some layers, to be walked back op by op."""
        with eval_mode(self.model), torch.no_grad():
            network = self._capture(inputs)
            plans = [network.plan(self.layer(one)) for one in layers]
            yield Walk(network, self.embedder, inputs, plans, as_labels(y)), plans

    def _answering(
        self,
        network: Network,
        inputs: Inputs,
        plans: Sequence[Plan],
        y: Tensor,
        known: Mapping[Node, Tensor] | None = None,
    ) -> Batch:
        """The batch recorded, and how the preset answers for it."""
        if self.preset.nearest is None:
            return Walk(network, self.embedder, inputs, plans, y, known)
        return WholePath(network, self.embedder, inputs, plans, y, known, self.reference, quick=self._quick)

    def reconstruct_from(
        self, x: InputLike, y: Tensor, at: Layer, value: Tensor, *, kwargs: Mapping[str, Any] | None = None
    ) -> Reconstruction:
        """What a layer should have produced for the labels where it produced ``value``, e.g. in train mode.

        Nothing before the layer is run, but for what reaches the output beside it.

        Args:
            x: inputs like the example's.
            y: class ids, or a floating-point tensor shaped like the output.
            at: the layer, by name or as a module.
            value: what the layer produced, shaped like its output.
            kwargs: keyword inputs beside positional ones.

        Returns:
            The reconstruction, with ``value`` as its anchor.
        """
        inputs = Inputs.of(x, kwargs)
        with eval_mode(self.model), torch.no_grad(), self._threads(inputs):
            network = self._capture(inputs)
            plan = network.plan(self.layer(at))
            return self._answering(network, inputs, [plan], as_labels(y), {plan.at: value}).to(plan)

    def values(self, x: InputLike, layers: Sequence[Layer], *, quick: bool = False) -> tuple[dict[str, Tensor], Tensor]:
        """(layer → its value, the output), from one forward pass. quick: it may round otherwise than the model."""
        inputs = Inputs.of(x)
        with eval_mode(self.model), torch.no_grad():
            network = self._capture(inputs)
            nodes = {name: network.names[name] for name in map(self.layer, layers)}
            keep = {*nodes.values(), network.captured.output}
            values = Record(network.captured, inputs, keep, quick=quick).values
        return {name: values[node] for name, node in nodes.items()}, values[network.captured.output]

    def run(self, x: InputLike, at: Layer, value: Tensor, *, kwargs: Mapping[str, Any] | None = None) -> Tensor:
        """The model's output if a layer had produced ``value``, all else as the forward pass has it.

        Args:
            x: inputs like the example's.
            at: the layer, by name or as a module.
            value: shaped like the layer's output.
            kwargs: keyword inputs beside positional ones.

        Returns:
            The output, computed in the model's own precision.

        Raises:
            InputError: for a value of another shape.
        """
        with eval_mode(self.model), torch.no_grad():
            captured, node = self.node(at, inputs := Inputs.of(x, kwargs))
            held, rest = behind(captured, node, inputs, value)
            out: Tensor = captured.run(rest, held, {captured.output}, inputs.batch)[captured.output]
        return out

    def run_on(
        self, x: InputLike, at: Layer, value: Tensor | None = None, *, kwargs: Mapping[str, Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(a, out): the layer's value, or ``value`` instead, and the output from it on, differentiable by ``a``."""
        inputs = Inputs.of(x, kwargs)
        with eval_mode(self.model):
            captured, node = self.node(at, inputs)
            with torch.no_grad():
                held, rest = behind(captured, node, inputs, value)
            with torch.enable_grad():
                held[node] = a = held[node].detach().clone().requires_grad_()
                out: Tensor = captured.run(rest, held, {captured.output}, inputs.batch)[captured.output]
        return a, out

    def _threads(self, inputs: Inputs) -> AbstractContextManager[None]:
        """As many threads as a pass over these samples is worth."""
        captured = self._capture(inputs).captured
        return threads_for(captured.nbytes((n for n in captured.nodes if n.op == "call_function"), inputs.batch))

    def _capture(self, inputs: Inputs) -> Network:
        """The capture for inputs of this kind; models that fix the batch size are captured once per size."""
        kind = inputs.signature()
        for key in ((kind, None), (kind, inputs.batch)):
            if key in self._captures:
                return self._captures[key]
        captured = capture(self.model, inputs, self.output)
        network = Network(captured, inputs, self.preset, self.blocks)
        self._captures[(kind, None if captured.dynamic else inputs.batch)] = network
        return network
