"""A recorded forward pass, and any unit of it run again from another feature, for some of the samples.

Made by ``frpt.reverse.batch`` for every batch; solvers get their function Φ from ``Record.block``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from frpt.common.batch_axis import BatchAxis
from frpt.errors import InputError, NonFiniteError
from frpt.graph.capture import Captured, is_shape, where
from frpt.graph.inputs import Inputs
from frpt.graph.plan import Unit
from frpt.solvers.base import UnitAxes
from frpt.solvers.blocks.problem import BlockFunction

AT_ONCE = 512
"""Most samples of a recording pass: more at a time are slower on a CPU, by half at 1,024 (a SimpleCNN on CIFAR-10)."""


class Record:
    """The values at some nodes for one batch. What a unit needs from elsewhere is held at its recorded value.

    known: values that are there already; what only they depend on is not run. quick: the pass may round differently
    than the model does.
    """

    def __init__(
        self,
        captured: Captured,
        inputs: Inputs,
        nodes: Iterable[Node],
        known: Mapping[Node, Tensor] | None = None,
        *,
        quick: bool = False,
    ) -> None:
        self.captured, self.quick = captured, quick
        self.batch = inputs.batch
        keep = set(nodes)
        held = {node: value.to(node.meta["val"].dtype) for node, value in (known or {}).items()}
        rounds = -(-self.batch // AT_ONCE) if captured.dynamic else 1
        size = usual_size(-(-self.batch // rounds), self.batch) if rounds > 1 else self.batch
        parts = []
        for i in range(0, self.batch, size):
            some = {node: self.batch_axis(node).front(value)[i : i + size] for node, value in held.items()}
            parts.append(self._forward(inputs.part(i, i + size), keep, some))
        self.values = parts[0] if rounds == 1 else {node: self._joined(node, parts) for node in parts[0]}

    def _forward(self, inputs: Inputs, keep: set[Node], known: Mapping[Node, Tensor]) -> dict[Node, Any]:
        """The values of ``keep`` for some of the samples. known: samples first."""
        given = self.captured.given(inputs) | {node: self.batch_axis(node).back(value) for node, value in known.items()}
        return self.captured.run(needed(self.captured, keep, set(given)), given, keep, inputs.batch, quick=self.quick)

    def _joined(self, node: Node, parts: Sequence[Mapping[Node, Any]]) -> Any:
        """A node's value for all samples; what has none is the same in every part, but for sizes."""
        samples = self.captured.batch_axis(node)
        if is_shape(node):
            return self.captured.size(node.meta["val"], self.batch)
        if samples is None or not isinstance(parts[0][node], Tensor):
            return parts[0][node]
        return samples.back(torch.cat([samples.front(part[node]) for part in parts]))

    def batch_axis(self, node: Node) -> BatchAxis:
        samples = self.captured.batch_axis(node)
        if samples is None:
            raise InputError(
                f"{where(node)}: its value has no batch axis, so there is nothing to reconstruct per sample"
            )
        return samples

    def taken(self, node: Node, index: Tensor) -> Tensor:
        """A node's value for the samples ``index: (k,)``."""
        return self.batch_axis(node).take(self.values[node], index)

    def side(self, node: Node, index: Tensor | None, batch: int) -> Any:
        """A value held at its forward value, for some samples or (index None) all of them."""
        if node not in self.values:
            return self.captured.evaluate(node, self.values.__getitem__, batch)
        value, samples = self.values[node], self.captured.batch_axis(node)
        if index is None or samples is None or not isinstance(value, Tensor):
            return self.captured.size(node.meta.get("val"), batch) if isinstance(value, int | float) else value
        return samples.take(value, index)

    def run(self, unit: Unit, a: Tensor, index: Tensor, *, quick: bool = False) -> Tensor:
        """Φ(a) of a unit's sub-graph for the samples ``index``; a graph of fixed batch size gets a whole batch.

        quick: it may round differently than the model does.
        """
        samples, count = self.batch_axis(unit.source), len(index)
        whole = not self.captured.dynamic
        if whole:
            anchor = self.values[unit.source]
            a = samples.back(samples.front(anchor).index_copy(0, index, samples.front(a)))
        else:
            size = usual_size(count, self.batch)
            a, index = samples.extended(a, size), BatchAxis().extended(index, size)
        batch = self.batch if whole else len(index)
        env: dict[Node, Any] = {unit.source: a}
        for node in unit.side:
            env[node] = self.side(node, None if whole else index, batch)
        result: Tensor = self.captured.run(unit.nodes, env, {unit.sink}, batch, quick=quick or self.quick)[unit.sink]
        sink = self.batch_axis(unit.sink)
        return sink.take(result, index) if whole else sink.first(result, count)

    def block(
        self, unit: Unit, index: Tensor, *, quick: bool = False
    ) -> tuple[BlockFunction, Tensor, Tensor, UnitAxes]:
        """(Φ, â, Φ(â), where the samples are) of the samples ``index``, samples first, in at least float32.

        quick: Φ may round differently than the model does.
        """
        at = UnitAxes(self.batch_axis(unit.source), self.batch_axis(unit.sink))
        anchor, output = self.taken(unit.source, index), self.taken(unit.sink, index)
        work = torch.float32 if anchor.dtype.itemsize < 4 else anchor.dtype

        def fn(a: Tensor, rows: Tensor) -> Tensor:
            out = self.run(unit, at.input.back(a).to(anchor.dtype), index[rows], quick=quick)
            return at.output.front(out).to(work)

        return fn, at.input.front(anchor).to(work), at.output.front(output).to(work), at

    def check_finite(self, nodes: Iterable[Node]) -> None:
        for node in sorted(nodes, key=self.captured.order.__getitem__):
            if not bool(torch.isfinite(self.values[node]).all()):
                raise NonFiniteError(
                    f"{where(node)}: the forward pass produces NaN or infinity here; the layer before it overflows or "
                    "divides by zero. Check its weights and the scale of the inputs."
                )


def needed(captured: Captured, keep: set[Node], known: set[Node]) -> list[Node]:
    """The nodes to run, in order, for the values of ``keep`` from known ones."""
    required: set[Node] = set()
    stack = list(keep)
    while stack:
        node = stack.pop()
        if node not in required:
            required.add(node)
            stack.extend(() if node in known or is_shape(node) else node.all_input_nodes)
    return [n for n in captured.nodes if n in required]


def behind(captured: Captured, node: Node, inputs: Inputs, value: Tensor | None) -> tuple[dict[Node, Any], list[Node]]:
    """What the network behind a layer starts from, and its nodes; what reaches it beside the layer is recorded.

    value: of the layer; with one, nothing before the layer is run.
    """
    given = captured.given(inputs)
    if value is not None:
        shape = tuple(captured.size(n, inputs.batch) for n in node.meta["val"].shape)
        if shape != tuple(value.shape):
            raise InputError(f"{where(node)} has shape {shape}, got a value of {tuple(value.shape)}")
        given[node] = value.detach().to(next(iter(inputs.tensors)).device, node.meta["val"].dtype)
    active = captured.downstream({node})
    rest = [n for n in captured.nodes if n in active and n is not node]
    side = {i for n in rest for i in n.all_input_nodes} - active | {node}
    if captured.output not in active:
        side.add(captured.output)
    return captured.run(needed(captured, side, set(given)), given, side, inputs.batch), rest


def usual_size(count: int, batch: int) -> int:
    """The next of a few batch sizes, 4 from a power of two to the next: what a backend makes for a size, it keeps.

    At least 8 (or all samples there are) and a multiple of 4: of such sizes the kernels give each sample the same bits,
    so that a sample does not depend on how many of its companions are still at work.
    """
    count = max(count, min(batch, 8))
    step = max(1 << max((count - 1).bit_length() - 3, 0), 4) if count > 8 else 1
    return -(-count // step) * step
