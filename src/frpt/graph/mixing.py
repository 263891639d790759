"""Refuses networks in which samples see each other: there, no sample has a target of its own.

Found by running the graph twice with one sample changed. Called by ``frpt.reverse.network`` when a plan is made.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from frpt.graph.capture import Captured, is_shape, where
from frpt.graph.inputs import Inputs

_REASON = "it mixes samples across the batch: one sample's feature changes another's result"


def mixing(captured: Captured, at: Node, inputs: Inputs) -> list[tuple[str, str]]:
    """(place, reason) of the first op after ``at`` that mixes samples across the batch; [] if none does.

    Found by trying: one sample's feature is changed, then another's. An entry that follows both depends on two samples,
    wherever the op keeps its batch; and where the batch has an axis of its own, nobody else's row may follow.
    """
    batch, samples = inputs.batch, captured.batch_axis(at)
    if batch < 2 or samples is None:
        return []
    active = captured.downstream({at})
    plain: dict[Node, Any] = captured.given(inputs)
    changed: tuple[dict[Node, Any], ...] = ({}, {})
    for node in captured.nodes:
        if node not in plain:
            plain[node] = captured.evaluate(node, plain.__getitem__, batch)
        if node is at:
            for i, env in enumerate(changed):
                index = torch.tensor([i], device=plain[node].device)
                env[node] = samples.put(plain[node], index, samples.take(_other(plain[node]), index))
        elif node in active and not is_shape(node):
            for env in changed:
                env[node] = captured.evaluate(node, lambda n, env=env: env[n] if n in env else plain[n], batch)  # type: ignore[misc]
            values = [plain[node], *(env[node] for env in changed)]
            if _overlap(*values) or _strays(captured, node, *values[:2]):
                op = node.args[0] if node.target is operator.getitem else node
                return [(where(op), _REASON)]  # type: ignore[arg-type]
    return []


def _other(value: Tensor) -> Tensor:
    """A feature unlike the one there is."""
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(0)).to(value)
    return 3 * value + noise * (1 + value.abs().mean())


def _overlap(plain: Any, first: Any, second: Any) -> bool:
    """Whether an entry changed both times. Of several results, the getitems are looked at."""
    if not isinstance(plain, Tensor):
        return False
    return bool((_differs(plain, first) & _differs(plain, second)).any())


def _strays(captured: Captured, node: Node, plain: Any, first: Any) -> bool:
    """Whether a change of the first sample shows in the row of another."""
    samples = captured.batch_axis(node)
    sure = node is captured.output or (captured.dynamic and samples is not None and samples.outer * samples.inner == 1)
    if samples is None or not sure or not isinstance(plain, Tensor):
        return False
    return bool(_differs(samples.rows(plain)[1:], samples.rows(first)[1:]).any())


def _differs(a: Tensor, b: Tensor) -> Tensor:
    """Entries that differ by more than rounding."""
    if not a.is_floating_point():
        return a != b
    size = torch.nan_to_num(a.detach()).abs().amax() if a.numel() else 0.0
    return ((a - b).abs() > 1e-4 * size) & torch.isfinite(a - b)
