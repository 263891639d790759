"""Max-pooling over windows of 2×2 without branches: PyTorch's values and gradients in half of its time on CPU.

Called by ``frpt.graph.capture`` in the place of ``aten.max_pool2d``, which takes most of a small CNN's passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_WORTH = 2**17
"""Entries from which it pays: PyTorch is done with fewer before so many calls are made."""


def max_pool2d(x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, *rest: bool) -> Tensor:
    """As ``aten.max_pool2d``, which does what is small, not 2×2 or channels-last. x: (..., h, w)."""
    halves = _are(kernel, 2) and _are(stride or kernel, 2) and _are(padding, 0) and _are(dilation, 1)
    even = not any(n % 2 for n in x.shape[-2:])
    plain = x.device.type == "cpu" and x.is_floating_point() and x.is_contiguous()
    if halves and even and plain and x.numel() >= _WORTH:
        quick: Tensor = _Pool.apply(x)[0]
        return quick
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


class _Pool(torch.autograd.Function):
    """x (..., 2h, 2w) → the windows' maxima (..., h, w), and those of their rows (..., 2h, w)."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.maximum(x[..., ::2], x[..., 1::2])
        return torch.maximum(rows[..., ::2, :], rows[..., 1::2, :]), rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        back: Tensor = _Back.apply(grad, *ctx.saved_tensors)
        return back

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        return _at_maxima(tangent, *ctx.saved_tensors), None

    @staticmethod
    def vmap(info: Any, dims: tuple[int], x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _Pool.apply(x.movedim(dims[0], 0)), (0, 0)


class _Back(torch.autograd.Function):
    """A gradient (..., h, w) put where the maxima are, at the first of equal ones: (..., 2h, 2w)."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, out: Tensor, rows: Tensor) -> Tensor:
        return _put(_put(grad, rows[..., ::2, :] == out, -2), x[..., ::2] == rows, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _at_maxima(grad, *ctx.saved_tensors), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Tensor | None) -> Tensor:
        back: Tensor = _Back.apply(tangent, *ctx.saved_tensors)
        return back

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *values: Tensor) -> tuple[Tensor, int]:
        aligned = (v.unsqueeze(0) if d is None else v.movedim(d, 0) for v, d in zip(values, dims, strict=True))
        return _Back.apply(*aligned), 0


def _put(grad: Tensor, first: Tensor, dim: int) -> Tensor:
    """Each entry at the first or the second of its two places along ``dim``, zero at the other."""
    shape = [max(sizes) for sizes in zip(grad.shape, first.shape, strict=True)]
    shape[dim] *= 2
    if torch._C._functorch.is_legacy_batchedtensor(grad):  # autograd.grad(is_grads_batched=True), which knows no out=
        half = grad * first
        return torch.stack((half, grad - half), dim).reshape(shape)
    out = grad.new_empty(shape)
    one, other = (out.unflatten(dim, (-1, 2)).select(dim, i) for i in (0, 1))
    torch.sub(grad, torch.mul(grad, first, out=one), out=other)
    return out


def _at_maxima(value: Tensor, x: Tensor, out: Tensor, rows: Tensor) -> Tensor:
    """The entries of (..., 2h, 2w) where the maxima are: (..., h, w)."""
    within = torch.where(x[..., ::2] == rows, value[..., ::2], value[..., 1::2])
    return torch.where(rows[..., ::2, :] == out, within[..., ::2, :], within[..., 1::2, :])


def _are(value: Any, number: int) -> bool:
    return value == number or (isinstance(value, list | tuple) and all(v == number for v in value) and len(value) > 0)
