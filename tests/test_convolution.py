"""Convolutions in a quick layout: PyTorch's, up to rounding."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import nn

import frpt
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


def test_a_quick_reverser_records_in_the_quick_layout_and_answers_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, (9, 1), (2, 1)), nn.ReLU(), nn.Conv2d(4, 4, (5, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    ).eval()
    x = torch.randn(12, 1, 40, 1)
    right = model(x).argmax(1)
    rev = frpt.Reverser(model, x[:4])
    with mock.patch("frpt.graph.capture.conv2d", side_effect=conv2d) as quick:
        rev.reconstruct(x, right, at="1")
        assert quick.call_count == 0
        rev.quickly().reconstruct(x, right, at="1")
        assert quick.call_count == 2
        rev.reconstruct(x, right, at="1")
        assert quick.call_count == 2
    exact, other = (r.reconstruct(x, (right + 1) % 3, at="1") for r in (rev, rev.quickly()))
    assert bool(other.wins.all())
    torch.testing.assert_close(other.target, exact.target, rtol=1e-3, atol=1e-4)
