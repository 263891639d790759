"""Which modules the value at a layer is computed by, found from one forward pass of the model itself.

The captured graph does not show modules that do nothing in eval mode (dropout), so each module's output is marked in
the autograd graph, and the marks behind the layer's value are collected.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from frpt.errors import TapError
from frpt.graph.capture import eval_mode
from frpt.graph.inputs import Inputs
from frpt.train.data import on_device
from frpt.train.tap import FeatureTap


class _Mark(torch.autograd.Function):
    """The identity, with a module's path on its node of the autograd graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, lever: Tensor, path: str) -> Tensor:
        ctx.path = path
        return value.clone()  # a view could not be modified in place by the ops after it

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0], None, None


def lineage(model: nn.Module, inputs: Inputs, at: str) -> tuple[set[str], set[str]]:
    """(paths of the modules whose output the value at the layer depends on, paths of all modules that were called)."""
    lever = torch.zeros((), requires_grad=True)  # makes every marked value part of the graph, whatever needs gradients
    called: set[str] = set()

    def mark(path: str, module: nn.Module, args: Any, output: Any) -> Any:
        called.add(path)

        def one(leaf: Any) -> Any:
            takes = isinstance(leaf, Tensor) and leaf.is_floating_point()
            return _Mark.apply(leaf, lever, path) if takes else leaf

        return pytree.tree_map(one, output)

    handles = [m.register_forward_hook(partial(mark, path)) for path, m in model.named_modules() if path]
    try:
        with FeatureTap(model, at) as tap, eval_mode(model), torch.enable_grad():
            first = next(model.parameters(), lever)
            call = on_device(inputs, first.device)
            model(*call.args, **call.kwargs)
            value = tap.value
    finally:
        for handle in handles:
            handle.remove()
    if value.grad_fn is None:
        raise TapError(f"the value at {at!r} is detached from what computes it; choose another layer")
    return _behind(value.grad_fn), called


def _behind(node: Any) -> set[str]:
    """Paths of all marks in an autograd graph."""
    found: set[str] = set()
    seen, stack = {node}, [node]
    while stack:
        current = stack.pop()
        if (path := getattr(current, "path", None)) is not None:
            found.add(path)
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found
