"""Layers from which the output cannot be moved are named by the plan and by the first reconstruction."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.graph.leverage import LEAST

X, Y = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4


class Residual(nn.Module):
    """A block whose branch ends in a batch norm, or in a layer scale as ConvNeXt's."""

    def __init__(self, channels: int, scale: float | None = None, gate: bool = False) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()
        self.bn = nn.BatchNorm2d(channels)
        self.scale = None if scale is None else nn.Parameter(torch.full((channels, 1, 1), scale))
        self.gate = (
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Sigmoid()) if gate else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.conv(x))
        if self.gate is not None:
            out = out * self.gate(out)
        out = self.bn(out)
        return x + (out if self.scale is None else self.scale * out)


def network(*blocks: Residual) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4)
    ).eval()


def zeroed(gate: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    model = network(Residual(5), Residual(5, gate=gate))
    nn.init.zeros_(model[2].bn.weight)
    return model


def test_a_branch_behind_a_batch_norm_of_zeros() -> None:
    rev = frpt.Reverser(zeroed(), X)
    plan = rev.plan("2.conv")
    assert "moves it not at all" in plan.note
    assert "lost at 2.bn (batch_norm" in plan.note
    assert plan.note in str(plan)
    rec = rev.reconstruct(X, Y, at="2.conv")
    assert not bool(rec.wins[rec.corrected].any())
    assert "lost at 2.bn" in str(rec)
    assert rev.plan("1.conv").note == rev.plan("1").note == rev.plan("0").note == ""


def test_a_squeeze_and_excitation_in_such_a_branch() -> None:
    rev = frpt.Reverser(zeroed(gate=True), X)
    for layer in ("2.gate", "2.gate.1", "2.act"):
        assert "lost at 2.bn" in rev.plan(layer).note


@pytest.mark.parametrize(("scale", "named"), [(1e-6, True), (0.1, False)])
def test_a_branch_under_a_layer_scale(scale: float, named: bool) -> None:
    torch.manual_seed(0)
    rev = frpt.Reverser(network(Residual(5), Residual(5, scale)), X)
    note = rev.plan("2.conv").note
    assert ("of its norm" in note and "lost at 2 (add" in note) if named else note == ""


def test_a_note_is_not_printed_where_labels_win() -> None:
    """A layer that is hardly followed may still do for samples on the boundary."""
    torch.manual_seed(0)
    model = network(Residual(5, 0.5 * LEAST))
    rev = frpt.Reverser(model, X)
    right = model(X).argmax(1)
    assert rev.plan("1.conv").note != ""
    assert rev.plan("1.conv").note not in str(rev.reconstruct(X, right, at="1.conv"))


def test_saturated_probabilities_are_looked_through() -> None:
    """The values before a softmax move, though the probabilities round to 0 and 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(1)).eval()
    with torch.no_grad():
        model[3].bias[1] = 1e3
    rev = frpt.Reverser(model, X)
    assert rev.plan("2").note == ""


def test_a_diagnosis_names_them() -> None:
    torch.manual_seed(0)
    model = network(Residual(5, 1e-6))
    x = torch.randn(40, 3, 8, 8)
    y = (model(x).argmax(1) + (torch.arange(40) % 3 == 0)) % 4
    found = frpt.diagnose(model, (x, y), at=["1", "1.conv"], gallery=0, progress=False)
    assert list(found.unmoved) == ["1.conv"]
    assert "At 1.conv the output hardly follows this layer" in str(found)
