"""Convolutions in a quick layout: PyTorch's, up to rounding."""

from __future__ import annotations

import pytest
import torch

from frpt.common.convolution import conv2d


@pytest.mark.parametrize(
    ("x", "weight", "more"),
    [
        ((3, 1, 40, 1), (4, 1, 8, 1), ([4, 1],)),
        ((3, 2, 40, 1), (4, 2, 8, 1), ([3, 1], [5, 0], [2, 1])),
        ((3, 2, 40, 1), (4, 2, 8, 1), ([1], [0], [1])),
        ((3, 2, 40, 1), (4, 2, 8, 1), ([2, 1], [1, 1])),
        ((3, 4, 9, 7), (6, 2, 3, 3), ([2, 1], [1, 1], [1, 1], 2)),
        ((4, 9, 7), (6, 4, 3, 3), ([1, 1], [1, 1])),
    ],
)
def test_value_and_gradients_are_pytorchs(
    x: tuple[int, ...], weight: tuple[int, ...], more: tuple[list[int] | int, ...]
) -> None:
    g = torch.Generator().manual_seed(0)
    leaves = [torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in (x, weight, weight[:1])]
    ours, theirs = (conv(*leaves, *more) for conv in (conv2d, torch.ops.aten.conv2d.default))
    torch.testing.assert_close(ours, theirs)
    back = torch.randn(ours.shape, generator=g, dtype=torch.float64)
    for mine, other in zip(*(torch.autograd.grad(out, leaves, back) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other)
