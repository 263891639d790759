"""A convolution, a recurrent layer and a head: layers have axes, a diagnosis does not rule the recurrent one out."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.diagnosis.layer_axes import axes
from frpt.repairs.ranking import Refits


class Signals(nn.Module):
    """Pictures (1, 16, 20) whose columns, two at a time, are read one after the other."""

    def __init__(self, steps: int = 10) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d((8, steps)))
        self.project = nn.Linear(4 * 8, 12)
        self.gru = nn.GRU(12, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.conv(x).permute(0, 3, 1, 2).flatten(2)
        read, _ = self.gru(self.project(columns))
        scores: Tensor = self.head(read[:, -1])
        return scores


def signals(steps: int = 10) -> tuple[Signals, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x = Signals(steps).eval(), torch.randn(48, 1, 16, 20)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 6, 7, 10, 15, 20])
def test_steps_that_are_no_patches_are_a_row(steps: int) -> None:
    """Steps of a sequence are laid on a grid only if patches of the picture could make it."""
    model, x, _ = signals(steps)
    rev = frpt.Reverser(model, x)
    found = axes(rev, "project")
    value = rev.batch_axis("project").front(rev.run_on(x, "project")[0])
    if found.kind == "tokens":
        assert found.grid[0] * found.grid[1] + found.extra == steps
        assert found.on_grid(value).shape == (48, 12, *found.grid)
    else:
        assert (found.kind, steps) == ("vector", 1)


def test_a_diagnosis_with_pictures() -> None:
    model, x, y = signals()
    found = frpt.diagnose(model, (x, (y + (torch.arange(48) < 20)) % 3), gallery=4, progress=False)
    assert [f.name for f in found.layers] == ["out", "gru", "project", "conv"]
    assert found.recurrent == ("gru",)
    assert len(found.gallery) == 4


def test_nothing_wrong_nobody_suspected() -> None:
    model, x, y = signals()
    found = frpt.diagnose(model, (x, y), progress=False)
    assert found.score == 1
    assert found.suspects == ()


def test_a_recurrent_layer_is_not_ruled_out() -> None:
    """Few Gauss-Newton steps refit little of it, so that a small share says nothing."""
    before = torch.linspace(0.5, 1.5, 200).numpy()
    after = {"out": 0.5 * before, "gru": 0.9 * before, "conv": 0.95 * before}
    assert Refits(before, after).ranked().suspects == ("out",)
    assert Refits(before, after, recurrent=("gru",)).ranked().suspects == ("out", "gru")


def test_capturing_a_recurrent_layer_warns_of_nothing() -> None:
    model, x, _ = signals()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frpt.Reverser(model, x)
