"""Max-pooling over windows of two along an axis, or two, without branches: PyTorch's values and gradients, quicker.

    2×2:  max(max(a, b), max(c, d)), pairs in a row, then of rows; the gradient goes to the first of equal entries

Called by ``frpt.graph.capture`` in the place of ``aten.max_pool2d``, which takes most of a small CNN's passes and half
of those of a network of signals on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_WORTH = {1: 2**15, 2: 2**17}
"""Axes that are pooled → entries from which it pays: PyTorch is done with fewer before so many calls are made
(benchmarks/layout.py)."""


def max_pool2d(x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, *rest: bool) -> Tensor:
    """As ``aten.max_pool2d``, which does what is small, no window of pairs, or images channels-last. x: (..., h, w)."""
    window, steps, padding, dilation = (_pair(v) for v in (kernel, stride or kernel, padding, dilation))
    pairs = window == steps and padding == [0, 0] and dilation == [1, 1] and window in ([2, 2], [2, 1], [1, 2])
    even = not any(n % k for n, k in zip(x.shape[-2:], window, strict=True))
    plain = x.device.type == "cpu" and x.is_floating_point() and (x.is_contiguous() or 1 in x.shape[-2:])
    if not (pairs and even and plain and x.numel() >= _WORTH[window.count(2)]):
        pooled: Tensor = torch.ops.aten.max_pool2d.default(x, window, steps, padding, dilation, *rest)
        return pooled
    for axis in (-1, -2):
        if window[axis] == 2:
            x = _Pairs.apply(x, axis)
    return x


class MaxPool2x2(nn.MaxPool2d):
    """``nn.MaxPool2d(2)``, quicker."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = super().forward(x) if torch.compiler.is_exporting() else max_pool2d(x, 2)
        return pooled


class _Pairs(torch.autograd.Function):
    """x (..., 2n, ...) → the larger one of each pair (..., n, ...). axis: negative."""

    @staticmethod
    def forward(x: Tensor, axis: int) -> Tensor:
        one, other = _halves(x, axis)
        return torch.maximum(one, other)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.axis = inputs[1]
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, out = ctx.saved_tensors
        return _Back.apply(grad, x, out, ctx.axis), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        x, out = ctx.saved_tensors
        return _at_maxima(tangent, x, out, ctx.axis)

    @staticmethod
    def vmap(info: Any, dims: tuple[int, None], x: Tensor, axis: int) -> tuple[Tensor, int]:
        return _Pairs.apply(x.movedim(dims[0], 0), axis), 0


class _Back(torch.autograd.Function):
    """A gradient (..., n, ...) put where the larger ones are, at the first of equal ones: (..., 2n, ...)."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, out: Tensor, axis: int) -> Tensor:
        first = _halves(x, axis)[0] == out
        shape = [max(sizes) for sizes in zip(grad.shape, first.shape, strict=True)]
        shape[axis] *= 2
        if torch._C._functorch.is_legacy_batchedtensor(grad):  # autograd.grad(is_grads_batched=True): no out=
            half = grad * first
            return torch.stack((half, grad - half), axis).reshape(shape)
        back = torch.empty_like(x) if list(x.shape) == shape else grad.new_empty(shape)
        one, other = _halves(back, axis)
        torch.sub(grad, torch.mul(grad, first, out=one), out=other)
        return back

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        ctx.axis = inputs[3]
        ctx.save_for_backward(*inputs[1:3])
        ctx.save_for_forward(*inputs[1:3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, out = ctx.saved_tensors
        return _at_maxima(grad, x, out, ctx.axis), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Tensor | None) -> Tensor:
        back: Tensor = _Back.apply(tangent, *ctx.saved_tensors, ctx.axis)
        return back

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *values: Any) -> tuple[Tensor, int]:
        *tensors, axis = values
        aligned = [v.unsqueeze(0) if d is None else v.movedim(d, 0) for v, d in zip(tensors, dims[:3], strict=True)]
        return _Back.apply(*aligned, axis), 0


def _halves(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The first and the second of each pair, as views."""
    pairs = x.unflatten(axis, (-1, 2))
    return pairs.select(axis, 0), pairs.select(axis, 1)


def _at_maxima(value: Tensor, x: Tensor, out: Tensor, axis: int) -> Tensor:
    """The entries where the larger ones are: (..., n, ...)."""
    one, other = _halves(value, axis)
    return torch.where(_halves(x, axis)[0] == out, one, other)


def _pair(value: Any) -> list[int]:
    sizes = list(value) if isinstance(value, list | tuple) else [value]
    return sizes * 2 if len(sizes) == 1 else sizes
