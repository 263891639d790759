"""Finds the batch in a node's value: which axis, and what was folded into it (windows, tokens).

Called by ``frpt.graph.capture``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from frpt.common.batch_axis import BatchAxis


def batch_axis_in(node: Node, symbol: Any, batch: int, from_input: set[Node]) -> BatchAxis | None:
    """The batch axis of a node, by the batch symbol in its shape (or, in a static capture, by its size).

    A token expanded over the batch has one too, though nothing of the input is in it.
    """
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or (symbol is None and node.op != "call_function" and node not in from_input):
        return None
    for dim, size in enumerate(value.shape):
        folded = _multiple(size, symbol, batch)
        if folded == 1:
            return BatchAxis(dim)
        if folded is not None:
            outer = _outer(node, dim, folded, symbol, batch)
            return BatchAxis(dim, outer, folded // outer)
    return None


def _multiple(size: Any, symbol: Any, batch: int) -> int | None:
    """k if the size is k times the batch."""
    if symbol is None:
        fixed = int(size)
        return fixed // batch if fixed > 0 and fixed % batch == 0 else None
    if not isinstance(size, torch.SymInt) or symbol not in size.node.expr.free_symbols:
        return None
    k = size.node.expr / symbol
    return int(k) if k.is_integer and k.is_number else None


def _outer(node: Node, dim: int, folded: int, symbol: Any, batch: int) -> int:
    """How much of a folded axis runs slower than the batch: 1 unless a view merged axes before the batch into it."""
    before = node
    while before.all_input_nodes:
        source = before.all_input_nodes[0]
        value = source.meta.get("val")
        if not isinstance(value, Tensor):
            return 1
        axes = [d for d, s in enumerate(value.shape) if _multiple(s, symbol, batch) == 1]
        if axes and symbol is not None:
            ahead = [s for s in value.shape[: axes[0]] if isinstance(s, int)]
            kept = [s for s in before.meta["val"].shape[:dim] if isinstance(s, int)]
            outer = math.prod(ahead) // max(math.prod(kept), 1)
            return outer if outer and folded % outer == 0 else 1
        before = source
    return 1
