"""Networks that draw random numbers in eval mode are refused; those that only could are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frpt
from frpt.errors import CaptureError

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


class Drawing(nn.Module):
    """Dropout that stays on, or noise."""

    def __init__(self, noise: bool) -> None:
        super().__init__()
        self.first, self.last, self.noise = nn.Linear(6, 16), nn.Linear(16, 3), noise

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        h = h + 0.1 * torch.randn_like(h) if self.noise else F.dropout(h, 0.3, training=True)
        out: Tensor = self.last(h)
        return out


@pytest.mark.parametrize("noise", [False, True])
def test_a_network_that_draws_is_refused_where_it_draws(noise: bool) -> None:
    model, words = Drawing(noise).eval(), r"draws random numbers in eval mode as well, at .*test_draws.py"
    before = torch.get_rng_state()
    with pytest.raises(CaptureError, match=words):
        frpt.Reverser(model, X)
    with pytest.raises(CaptureError, match=words):
        frpt.remember(model, X, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_that_is_off_draws_nothing() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.5), nn.Unflatten(1, (1, 8)), layer, nn.Flatten(), nn.Linear(8, 3)
    )
    recurrent = nn.LSTM(6, 3, 2, dropout=0.5, batch_first=True)
    assert frpt.Reverser(model.eval(), X).layers
    assert frpt.Reverser(recurrent.eval(), torch.randn(4, 5, 6), output=0).layers
