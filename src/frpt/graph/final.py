"""What a network ends in: a softmax or a sigmoid, also where its values are moved, copied or clamped afterwards.

    reshape(sigmoid(z)) = sigmoid(reshape(z)):  what only moves values goes before the activation

so that the scores before it are shaped like the output. Called by ``frpt.graph.capture``.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from frpt.errors import LabelWarning

aten = torch.ops.aten

_PROBABILITIES: dict[Any, str] = {
    aten.softmax.int: "softmax", aten._softmax.default: "softmax", aten.sigmoid.default: "sigmoid",
}  # fmt: skip
_SHAPES = {
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default,
}  # fmt: skip
_MOVES = {
    *_SHAPES, aten.select.int, aten.slice.Tensor, aten.permute.default, aten.transpose.int, aten.t.default,
}  # fmt: skip
_COPIES = {
    aten.clone.default, aten.alias.default, aten.contiguous.default, aten.detach.default, aten._to_copy.default,
    aten.to.dtype,
}  # fmt: skip
_CLAMPS = {aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default}
_PRODUCTS = {aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar}
_ARITHMETIC = {
    *_PRODUCTS, aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar, aten.neg.default,
}  # fmt: skip
_JOINS = {aten.cat.default, aten.stack.default}
_LITTLE = 1e-3
"""Probabilities that a clamp may hide, or a sum add, without a word: a choice."""
_TELLING = 8
"""Samples whose outputs tell probabilities from scores that happen to lie between 0 and 1: a choice."""


def activation(output: Node) -> tuple[str, Node]:
    """("softmax" or "sigmoid", the value before it) where the output ends in one; else ("", the output)."""
    node = output
    while _harmless(node):
        node = node.all_input_nodes[0]
    name = _PROBABILITIES.get(node.target, "")
    return (name, node.all_input_nodes[0]) if name else ("", output)


def doubts(end: Node, output: Tensor, yes_no: bool) -> str:
    """Why outputs are probabilities, though they are taken for scores, in a sentence; "" where they are scores.

    They are made of a softmax or a sigmoid by arithmetic (``100 * p``, ``1 - p``); or all of (b,) or (b, classes) look
    like some, and the network ends in nothing that is known to make them. yes_no: the labels say so to each entry.
    """
    if activation(end)[0]:
        return ""
    name, taken = ("sigmoid", "yes from 0 on") if yes_no else ("softmax", "scores, whose softmax is another one")
    made_of = _made_of(end)
    if made_of and (yes_no or made_of == "softmax") and bool((output >= 0).all()):  # below zero are scores of a kind
        return (
            f"the outputs are made of a {made_of} by arithmetic ({_op(end)}), and are taken for {taken}. Let the model "
            f"return the scores before the {made_of}, or end in it."
        )
    if output.dim() > 2 or len(output) < _TELLING:
        return ""
    rows = output.detach().reshape(len(output), -1).double()
    between = bool(((rows >= 0) & (rows <= 1)).all()) and bool(((rows > 0) & (rows < 1)).any())
    if not between or not (yes_no or (rows.shape[1] > 1 and bool(((rows.sum(1) - 1).abs() <= _LITTLE).all()))):
        return ""
    return (
        f"the outputs look like probabilities, but the network does not end in a {name} that frpt knows: they are "
        f"taken for {taken}. Let the model return the scores before them, or end in torch.{name}."
    )


def warn_of_probabilities(end: Node, output: Tensor, yes_no: bool) -> None:
    """Say so where outputs are taken for scores and are probabilities."""
    if reason := doubts(end, output, yes_no):
        warnings.warn(reason, LabelWarning, stacklevel=2)


def _op(node: Node) -> str:
    """The op's short name: ``mul``."""
    return str(node.target).split(".")[1]


def _made_of(node: Node) -> str:
    """The softmax or sigmoid that a value is made of by arithmetic with numbers and joins; "" where there is none."""
    if node.target in _PROBABILITIES:
        return _PROBABILITIES[node.target]
    known = node.target in _JOINS or node.target in _ARITHMETIC or node.target in _MOVES or node.target in _COPIES
    sources = [n for n in node.all_input_nodes if n.op == "call_function" and isinstance(n.meta.get("val"), Tensor)]
    if not known or not sources or (len(sources) > 1 and node.target in _PRODUCTS):
        return ""  # a product of two values is a gate
    names = {_made_of(source) for source in sources}
    return names.pop() if len(names) == 1 else ""


def activated_last(program: ExportedProgram, output: Node) -> Node:
    """The output, computed with what only moves values before its softmax or sigmoid; the same one if there is none."""
    chain = [output]
    while _harmless(chain[-1]) or chain[-1].target in _MOVES:
        chain.append(chain[-1].all_input_nodes[0])
    *behind, last = chain
    moves = [node for node in reversed(behind) if not _harmless(node)]
    if last.target not in _PROBABILITIES or not moves or not _commutes(last, moves):
        return output
    graph, end = program.graph, next(n for n in program.graph.nodes if n.op == "output")
    stacks: dict[str, Any] = {}
    for node in reversed(chain):
        stacks |= node.meta.get("nn_module_stack") or {}
    before = last.all_input_nodes[0]
    with graph.inserting_before(end):
        for node in [*moves, last, *(n for n in reversed(behind) if _harmless(n))]:
            source, before = before, graph.node_copy(node, _in_place_of(node, before))
            before.meta = {**node.meta, "val": _value(node, source), "nn_module_stack": {}}
    before.meta["nn_module_stack"] = stacks
    return before


def _in_place_of(node: Node, source: Node) -> Any:
    """A map of a node's inputs: its first one becomes the source."""
    first = node.all_input_nodes[0]
    return lambda n: source if n is first else n


def _value(node: Node, source: Node) -> Tensor:
    """The fake value of a node's op on another input."""
    swap = _in_place_of(node, source)
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: swap(n).meta["val"])
    value: Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
    return value


def _commutes(last: Node, moves: list[Node]) -> bool:
    """Whether moving first gives the same: any move for a sigmoid; for a softmax shapes that keep its axis."""
    if _PROBABILITIES[last.target] == "sigmoid":
        return True
    if len(last.args) < 2:
        return False
    axis = int(last.args[1])  # type: ignore[arg-type]
    kept = slice(axis, None) if axis < 0 else slice(axis + 1)
    before, after = (tuple(n.meta["val"].shape)[kept] for n in (last, moves[-1]))
    return all(node.target in _SHAPES for node in moves) and bool(before == after)


def _harmless(node: Node) -> bool:
    """Whether an op leaves shape and order: copies, casts, clamps to (0, 1), sums with next to nothing."""
    if node.target in _COPIES:
        return True
    if node.target is aten.slice.Tensor:
        return bool(tuple(node.meta["val"].shape) == tuple(node.all_input_nodes[0].meta["val"].shape))
    numbers = [v for v in (*node.args[1:], *node.kwargs.values()) if isinstance(v, int | float)]
    if node.target in _CLAMPS:
        return all(v <= _LITTLE or v >= 1 - _LITTLE for v in numbers)
    if len(node.args) < 2 or not isinstance(node.args[1], int | float):
        return False
    if node.target is aten.mul.Tensor:
        return node.args[1] == 1
    return node.target is aten.add.Tensor and abs(node.args[1]) <= _LITTLE
