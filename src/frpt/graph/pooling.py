"""Max-pooling over pairs (windows of 2×2, 2×1 or 1×2) without branches: PyTorch's values and gradients, sooner.

Called by ``frpt.graph.capture`` in the place of ``aten.max_pool2d``, which takes most of a small CNN's passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_WORTH = 2**17
"""Entries from which it pays: PyTorch is done with fewer before so many calls are made."""


def max_pool2d(x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, *rest: bool) -> Tensor:
    """As ``aten.max_pool2d``, which does what is small or has other windows. x: (..., h, w)."""
    window = _pair(kernel)
    paired = set(window) == {1, 2} or window == (2, 2)
    apart = paired and _pair(stride or kernel) == window and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
    whole = not any(n % size for n, size in zip(x.shape[-2:], window, strict=True))
    dense = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
    if apart and whole and dense and x.device.type == "cpu" and x.is_floating_point() and x.numel() >= _WORTH:
        for dim in (-1, -2):
            x = _Pairs.apply(x, dim) if window[dim] > 1 else x
        return x
    listed = (list(v) if isinstance(v, list | tuple) else [v] for v in (kernel, stride, padding, dilation))
    pooled: Tensor = torch.ops.aten.max_pool2d.default(x, *listed, *rest)
    return pooled


class MaxPool2x2(nn.MaxPool2d):
    """``nn.MaxPool2d(2)``, quicker."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = super().forward(x) if torch.compiler.is_exporting() else max_pool2d(x, 2)
        return pooled


class _Pairs(torch.autograd.Function):
    """x → the larger of each pair of neighbours along an axis, counted from the end."""

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return torch.maximum(*_halves(x, dim))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        x, ctx.dim = inputs
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Back.apply(grad, *ctx.saved_tensors, ctx.dim), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        x, out = ctx.saved_tensors
        return _at_maxima(tangent, x, out, ctx.dim)

    @staticmethod
    def vmap(info: Any, dims: tuple[int, None], x: Tensor, dim: int) -> tuple[Tensor, int]:
        return _Pairs.apply(x.movedim(dims[0], 0), dim), 0


class _Back(torch.autograd.Function):
    """A gradient put where the maxima are, at the first of equal ones: shaped like x."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, out: Tensor, dim: int) -> Tensor:
        first = _halves(x, dim)[0] == out
        shape = _doubled(grad, first, dim)
        if torch._C._functorch.is_legacy_batchedtensor(grad):  # autograd.grad(is_grads_batched=True) knows no out=
            half = grad * first
            return torch.stack((half, grad - half), dim).reshape(shape)
        back = torch.empty_like(x) if shape == list(x.shape) else grad.new_empty(shape)
        one, other = _halves(back, dim)
        torch.sub(grad, torch.mul(grad, first, out=one), out=other)
        return back

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        _, x, out, ctx.dim = inputs
        ctx.save_for_backward(x, out)
        ctx.save_for_forward(x, out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, out = ctx.saved_tensors
        return _at_maxima(grad, x, out, ctx.dim), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        back: Tensor = _Back.apply(tangent, *ctx.saved_tensors, ctx.dim)
        return back

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *values: Any) -> tuple[Tensor, int]:
        aligned = (v.unsqueeze(0) if d is None else v.movedim(d, 0) for v, d in zip(values[:3], dims[:3], strict=True))
        return _Back.apply(*aligned, values[3]), 0


def _halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The first and the second of each pair along an axis, counted from the end."""
    pairs = x.unflatten(dim, (-1, 2))
    return pairs.select(dim, 0), pairs.select(dim, 1)


def _doubled(grad: Tensor, first: Tensor, dim: int) -> list[int]:
    """The shape of what is pooled to the shape of both together."""
    shape = [max(sizes) for sizes in zip(grad.shape, first.shape, strict=True)]
    shape[dim] *= 2
    return shape


def _at_maxima(value: Tensor, x: Tensor, out: Tensor, dim: int) -> Tensor:
    """The entries of something shaped like x where the maxima are."""
    one, other = _halves(value, dim)
    return torch.where(_halves(x, dim)[0] == out, one, other)


def _pair(value: Any) -> tuple[int, ...]:
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    return listed * 2 if len(listed) == 1 else listed
