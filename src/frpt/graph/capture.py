"""From an nn.Module to a captured graph: torch.export, functionalised, module names, batch axes, shared weights.

Called by ``frpt.Reverser``, once for each kind of inputs. The graph computes what the model computes; a capture that
does not is refused.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from frpt.common.batch_axis import BatchAxis
from frpt.common.convolution import conv2d
from frpt.common.pooling import max_pool2d
from frpt.errors import CaptureError, EvalModeWarning, FrptError, InputError
from frpt.graph.final import activated_last, activation
from frpt.graph.inputs import Inputs, Picked, Picker
from frpt.graph.layout import batch_axis_in
from frpt.graph.quiet import quiet_export
from frpt.graph.refused import draws, of_types, wrong_type

_PREFIX = "model"
"""Attribute under which ``Picked`` holds the user's model: every path in the graph starts with it."""


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval behaviour inside; every module's own mode afterwards, also after an exception."""
    training = [m for m in model.modules() if m.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def warn_if_training(model: nn.Module) -> None:
    """Say so if a module in train mode would behave differently in eval mode."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    names = [name or "the model" for name, m in model.named_modules() if m.training and isinstance(m, kinds)]
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        warnings.warn(
            f"the model is in train mode ({shown}): reconstruction uses eval behaviour (no dropout, running averages) "
            "and restores the mode afterwards. Call model.eval() first to say that you mean it.",
            EvalModeWarning,
            stacklevel=3,
        )


class Captured:
    """The graph of one call of the model. Weights are looked up in the user's model at every run, never copied."""

    def __init__(self, model: nn.Module, program: ExportedProgram, inputs: Inputs) -> None:
        self.model = model
        self.program = program
        self.example_batch = inputs.batch
        self._axes: dict[Node, BatchAxis | None] = {}
        self._sizes: dict[tuple[Any, int], Any] = {}
        self._ends: dict[tuple[Node, ...], dict[Node, list[Node]]] = {}
        self._bind(inputs)
        output = self._picked()
        if not is_float(output):
            raise CaptureError("the picked output is not a floating-point tensor; choose another with output=")
        self.output: Node = activated_last(program, output)
        self.nodes: list[Node] = self._live()
        if drawn := [where(node) for node in self.nodes if draws(node)]:
            raise CaptureError(
                f"the network draws random numbers in eval mode as well, at {drawn[0]}: every pass has another output, "
                "and nothing can be said to give a label. Turn them off there, as F.dropout(x, p, self.training) does."
            )
        self.order: dict[Node, int] = {n: i for i, n in enumerate(self.nodes)}

    def _bind(self, inputs: Inputs) -> None:
        """Sort the placeholders: weights by path, constants by name, user inputs by position."""
        kinds = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        self.weights: dict[Node, str] = {}
        self.constants: dict[Node, Any] = {}
        self.inputs: list[Node] = []
        for node in self.program.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = kinds[node.name]
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                self.weights[node] = spec.target.removeprefix(_PREFIX + ".")
            elif spec.kind == InputKind.USER_INPUT:
                self.inputs.append(node)
            else:
                self.constants[node] = self.program.constants[spec.target]
        self.symbol: Any = None
        self.dynamic = False
        for node, leaf in zip(self.inputs, _leaves(inputs), strict=True):
            value = node.meta.get("val")
            if isinstance(leaf, Tensor) and inputs.carries_batch(leaf) and isinstance(value, Tensor):
                self.symbol = batch_symbol(value)
                self.dynamic = self.symbol is not None
                break

    def _picked(self) -> Node:
        """The picked output; before it the graph returns the buffers that the network writes to, such as a counter."""
        returned = next(n for n in self.program.graph.nodes if n.op == "output").args[0]
        specs = self.program.graph_signature.output_specs
        node: Node = next(n for n, spec in zip(returned, specs, strict=True) if spec.kind == OutputKind.USER_OUTPUT)
        return node

    def _live(self) -> list[Node]:
        """Nodes the output depends on, in execution order."""
        live: set[Node] = set()
        stack = [self.output]
        while stack:
            node = stack.pop()
            if node not in live:
                live.add(node)
                stack.extend(node.all_input_nodes)
        return [n for n in self.program.graph.nodes if n in live]

    @cached_property
    def from_input(self) -> set[Node]:
        """Live values computed from the user's inputs; shapes don't count."""
        return self.downstream(set(self.inputs))

    def downstream(self, sources: set[Node]) -> set[Node]:
        """The sources and the live values computed from them; shape-only values don't count."""
        reached = {n for n in self.nodes if n in sources}
        for node in self.nodes:
            if not is_shape(node) and not fills(node) and any(i in reached for i in node.all_input_nodes):
                reached.add(node)
        return reached

    def behind(self, node: Node, stop: set[Node] | None = None) -> set[Node]:
        """The node and the live values it is computed from, not looking behind ``stop``; shapes don't count."""
        ends, seen, stack = stop or set(), set(), [node]
        while stack:
            value = stack.pop()
            if value in seen or value in ends or is_shape(value):
                continue
            seen.add(value)
            if not fills(value):
                stack.extend(value.all_input_nodes)
        return seen

    def upstream(self, at: Node) -> list[str]:
        """Names of the parameters and buffers the value at a node depends on."""
        return self._named(self.behind(at))

    def frozen(self, at: Node) -> list[str]:
        """Names of the parameters and buffers the output uses after a node or beside it."""
        before = {n for n in self.behind(at) if n in self.from_input}
        return self._named(self.behind(self.output, before | {at}))

    def _named(self, nodes: set[Node]) -> list[str]:
        """Weights among the nodes as the model names them, in its order; of tied ones the first name."""
        held = {id(self.held(n)) for n in nodes if n in self.weights}
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return [name for name, tensor in named if id(tensor) in held]

    def batch_axis(self, node: Node) -> BatchAxis | None:
        """Where the batch is in a node's value; None if it has none."""
        if node not in self._axes:
            self._axes[node] = batch_axis_in(node, self.symbol, self.example_batch, self.from_input)
        return self._axes[node]

    def size(self, value: Any, batch: int) -> Any:
        """A symbolic size at this batch size."""
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value
        key = (expr := value.node.expr, batch)
        if key not in self._sizes:
            self._sizes[key] = expr.subs(self.symbol, batch) if self.symbol is not None else expr
        number = self._sizes[key]
        if isinstance(value, torch.SymBool):
            return bool(number)
        return int(number) if isinstance(value, torch.SymInt) else float(number)

    def nbytes(self, nodes: Iterable[Node], batch: int) -> int:
        """About what the values at some nodes take; those whose size depends on the data are left out."""

        def follows(size: int | torch.SymInt) -> bool:
            return isinstance(size, int) or size.node.expr.free_symbols <= {self.symbol}

        values = [n.meta["val"] for n in nodes if isinstance(n.meta.get("val"), Tensor)]
        known = [v for v in values if all(map(follows, v.shape))]
        return sum(prod(self.size(s, batch) for s in v.shape) * v.itemsize for v in known)

    def weight(self, node: Node) -> Tensor:
        """The model's present parameter or buffer behind a placeholder."""
        return self.held(node).detach()

    def held(self, node: Node) -> Tensor:
        """The same as the very object the model holds."""
        path, _, name = self.weights[node].rpartition(".")
        tensor: Tensor = getattr(self.model.get_submodule(path), name)
        return tensor

    def given(self, inputs: Inputs) -> dict[Node, Any]:
        """Values of all placeholders for one call; of another type than the graph was made for they are refused."""
        values: dict[Node, Any] = dict(zip(self.inputs, _leaves(inputs), strict=True))
        for node, value in values.items():
            made_for = node.meta.get("val")
            if not isinstance(value, Tensor) or not isinstance(made_for, Tensor) or value.dtype == made_for.dtype:
                continue
            if value.is_floating_point() or made_for.is_floating_point():
                raise wrong_type([value.dtype], self.model, f"the network was captured with {made_for.dtype}")
        values.update(self.constants)
        values.update({n: self.weight(n) for n in self.weights})
        return values

    def run(
        self, nodes: Sequence[Node], values: Mapping[Node, Any], keep: set[Node], batch: int, *, quick: bool = False
    ) -> dict[Node, Any]:
        """Execute ``nodes`` in order from given ``values``; what is not in ``keep`` is freed after its last use.

        quick: convolutions may round differently than the model does.
        """
        env: dict[Node, Any] = dict(values)
        ends = self.last_uses(nodes)
        for node in nodes:
            if node not in env:
                env[node] = self.evaluate(node, env.__getitem__, batch, quick)
            for dead in ends.get(node, ()):
                if dead not in keep:
                    env.pop(dead, None)
        return {n: env[n] for n in keep if n in env}

    def activation(self) -> tuple[str, Node]:
        """("softmax" or "sigmoid", the value before it) where the output ends in one; else ("", the output)."""
        return activation(self.output)

    def output_of(self, inputs: Inputs, weights: Mapping[Node, Tensor] | None = None) -> Tensor:
        """The network's output, with some other weights; not differentiable."""
        values = self.given(inputs) | dict(weights or {})
        with torch.no_grad():
            out: Tensor = self.run(self.nodes, values, {self.output}, inputs.batch)[self.output]
        return out

    def last_uses(self, nodes: Sequence[Node]) -> dict[Node, list[Node]]:
        """Node → the values that no later one of ``nodes`` uses; kept for the tuples that plans run again and again."""
        last_uses = self._ends.get(nodes) if isinstance(nodes, tuple) else None
        if last_uses is None:
            last_uses = {}
            for value, user in {i: n for n in nodes for i in n.all_input_nodes}.items():
                last_uses.setdefault(user, []).append(value)
            if isinstance(nodes, tuple):
                self._ends[nodes] = last_uses
        return last_uses

    def evaluate(self, node: Node, value_of: Callable[[Node], Any], batch: int, quick: bool = False) -> Any:
        """The value of one node; shape-only ones come from their symbolic expression."""
        if is_shape(node):
            return self.size(node.meta["val"], batch)
        if node.op == "get_attr":
            return getattr(self.program.graph_module, str(node.target))
        if node.target is torch.ops.aten.detach.default:  # gradients may pass: its value is its input's
            return value_of(node.args[0])  # type: ignore[arg-type]
        args = torch.fx.node.map_arg(node.args, value_of)
        kwargs = torch.fx.node.map_arg(node.kwargs, value_of)
        if node.target is torch.ops.aten.view.default:  # its input may have other strides than in the user's forward
            return torch.ops.aten.reshape.default(*args)
        if node.target is torch.ops.aten.max_pool2d.default:
            return max_pool2d(*args, **kwargs)  # type: ignore[arg-type]
        if quick and node.target is torch.ops.aten.conv2d.default:
            return conv2d(*args, **kwargs)  # type: ignore[arg-type]
        try:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except IndexError as error:
            raise InputError(
                f"{where(node)}: {error}: an input holds a number, such as a token id, beyond the table of this op"
            ) from error


def capture(model: nn.Module, inputs: Inputs, output: Picker = None) -> Captured:
    """Capture ``model`` at ``inputs``, the batch dynamic where the model allows it. The model stays as it was."""
    example = inputs.repeated(2) if inputs.batch == 1 else inputs  # export takes a size of 1 for a constant
    with eval_mode(model), torch.no_grad():
        program = _export(Picked(model, output, example), example, dynamic=True)
        if program is not None and _is_dynamic(program, example):
            return Captured(model, program, example)
        program = _export(Picked(model, output, inputs), inputs, dynamic=False)
        assert program is not None
        return Captured(model, program, inputs)


def _export(wrapped: Picked, inputs: Inputs, dynamic: bool) -> ExportedProgram | None:
    try:
        with quiet_export():
            program = torch.export.export(
                wrapped,
                inputs.args,
                inputs.kwargs,
                dynamic_shapes=_batch_free(inputs) if dynamic else None,
                strict=False,
            )
            decomposed: ExportedProgram = program.run_decompositions({})
            return decomposed
    except FrptError:
        raise
    except Exception as error:
        if dynamic:
            return None  # the model may fix its batch size: tried again without a dynamic one, where errors are final
        _explain(wrapped, inputs, error)


def _batch_free(inputs: Inputs) -> Any:
    """What torch.export shall leave open: axis 0 of every tensor that carries the batch."""

    def free(leaf: Any) -> dict[int, Any] | None:
        return {0: Dim.AUTO} if isinstance(leaf, Tensor) and inputs.carries_batch(leaf) else None

    args, kwargs = pytree.tree_map(free, (inputs.args, inputs.kwargs))
    return {**{f"args_{i}": spec for i, spec in enumerate(args)}, **kwargs} if kwargs else {"args": args}


def _explain(wrapped: Picked, inputs: Inputs, error: Exception) -> NoReturn:
    """Raise what is really wrong: inputs the model itself refuses, or code that torch.export cannot follow."""
    try:
        wrapped(*inputs.args, **inputs.kwargs)
    except Exception as own:
        if of_types(own):
            raise wrong_type({t.dtype for t in inputs.tensors}, wrapped.model, str(own)) from own
        raise InputError(
            f"the model fails on the example inputs by itself: {type(own).__name__}: {own}. "
            "Pass inputs of the shapes and types its forward takes."
        ) from own
    raise CaptureError(
        f"torch.export could not capture {type(wrapped.model).__name__}: {type(error).__name__}: {error}\n"
        "Data-dependent control flow has to leave the forward pass, or be written with torch.cond or torch.where."
    ) from error


def _is_dynamic(program: ExportedProgram, inputs: Inputs) -> bool:
    names = program.graph_signature.user_inputs
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    for name, leaf in zip(names, _leaves(inputs), strict=True):
        if isinstance(leaf, Tensor) and inputs.carries_batch(leaf) and isinstance(name, str):
            value = values[name]
            return isinstance(value, Tensor) and batch_symbol(value) is not None
    return False


def batch_symbol(value: Tensor) -> Any:
    """The symbol of axis 0; None where the size was fixed while tracing."""
    size = value.shape[0]
    if isinstance(size, torch.SymInt) and size.node.expr.free_symbols:
        return size.node.expr
    return None


def _leaves(inputs: Inputs) -> list[Any]:
    return pytree.tree_leaves((inputs.args, inputs.kwargs))


def is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def is_shape(node: Node) -> bool:
    """A number derived from sizes only."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


_FILLS = {
    getattr(torch.ops.aten, f"{value}{how}")
    for value, how in [
        *[(v, "_like") for v in ("ones", "zeros", "full", "empty")],
        *[(f"new_{v}", "") for v in ("ones", "zeros", "full", "empty")],
    ]
}


def fills(node: Node) -> bool:
    """A tensor of constants made in the shape of another: it depends on that one's sizes only."""
    return getattr(node.target, "overloadpacket", None) in _FILLS


def module_calls(node: Node) -> list[tuple[str, int]]:
    """Enclosing modules of a node, outermost first, each with the number of its call: [("layer1.0", 0), ...]."""
    calls = []
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        name = str(path).removeprefix(_PREFIX).removeprefix(".")
        repeat = re.search(r"@(\d+)$", key)
        if name and not name.startswith("_empty"):
            calls.append((re.sub(r"@\d+", "", name), int(repeat.group(1)) if repeat else 0))
    return calls


def module_path(node: Node) -> str:
    """Path of the innermost module that computed a node; "" at the top."""
    calls = module_calls(node)
    return calls[-1][0] if calls else ""


def source_line(node: Node) -> str:
    """``file.py:12`` of the innermost line that made the node."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    if not frames:
        return "source unknown"
    file, line = frames[-1]
    return f"{file.rsplit('/', 1)[-1]}:{line}"


def op_name(node: Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.split("::")[-1]
        return name.lstrip("_").removeprefix("native_").removesuffix("_legit_no_training")
    return getattr(target, "__name__", str(target))


def where(node: Node) -> str:
    """Module path, op and source line, for errors."""
    return f"{module_path(node) or 'top level'} ({op_name(node)}, {source_line(node)})"
