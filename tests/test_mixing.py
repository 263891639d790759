"""Networks whose samples see each other are refused, with the op named; those that only move the batch are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frpt
from frpt.errors import IrreversibleError


class Between(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.step(torch.tanh(self.first(x))))
        return out


MIXES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda h: h - h.mean(0),
    "max": lambda h: h / h.abs().max(),
    "matmul": lambda h: torch.softmax(h @ h.T, -1) @ h,
    "flip": lambda h: h.flip(0),
    "cumsum": lambda h: torch.cumsum(h, 0),
    "sort": lambda h: h.sort(0)[0],
    "roll": lambda h: h.roll(1, 0),
    "batch_norm": lambda h: F.batch_norm(h, None, None, training=True),
}


@pytest.mark.parametrize("op", MIXES)
def test_an_op_that_mixes_samples_is_named(op: str) -> None:
    torch.manual_seed(0)
    rev = frpt.Reverser(Between(MIXES[op]).eval(), torch.randn(4, 6))
    with pytest.raises(IrreversibleError, match=rf"\({op}.*mixes samples across the batch"):
        rev.plan("first")
    assert len(rev.plan("last")) == 0  # after it, all is well


KEEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "per sample": lambda h: h - h.mean(1, keepdim=True),
    "transposed": lambda h: (h.T * 2).T,
    "folded": lambda h: torch.tanh(h.reshape(-1, 2)).reshape(-1, 8),
    "a constant": lambda h: h + h.new_ones(8).cumsum(0),
    "last": lambda h: h.flip(1),
}


@pytest.mark.parametrize("name", KEEPS)
@pytest.mark.parametrize("batch", [1, 3])
def test_what_keeps_samples_apart_is_planned(name: str, batch: int) -> None:
    torch.manual_seed(0)
    rev = frpt.Reverser(Between(KEEPS[name]).eval(), torch.randn(batch, 6))
    assert len(rev.plan("first")) > 1


def test_a_sequence_first_transformer_is_planned() -> None:
    """Attention keeps the batch on its second axis, folds heads into it, and moves it back."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.attention, self.last = nn.Linear(6, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).transpose(0, 1)
            out: Tensor = self.last(self.attention(h, h, h)[0].transpose(0, 1).mean(1))
            return out

    assert len(frpt.Reverser(Model().eval(), torch.randn(3, 4, 6)).plan("first")) > 1
