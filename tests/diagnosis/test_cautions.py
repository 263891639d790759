"""What a verdict says of itself: outputs that are no scores, coarse weights, a single layer, nothing to tell by."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import LabelWarning, OptionError
from frpt.repairs.ranking import Refits

Ending = Callable[[Tensor], Tensor]
MADE: dict[str, tuple[int, Ending, str]] = {
    "percent": (1, lambda z: 100 * torch.sigmoid(z).flatten(), r"made of a sigmoid by arithmetic \(mul\)"),
    "the other one": (1, lambda z: 1 - torch.sigmoid(z), r"made of a sigmoid by arithmetic \(rsub\)"),
    "both": (1, lambda z: torch.cat([1 - (p := torch.sigmoid(z)), p], 1), "look like probabilities"),
    "softmax in percent": (3, lambda z: 100 * z.softmax(1), r"made of a softmax by arithmetic \(mul\)"),
    "by hand": (3, lambda z: z.exp() / z.exp().sum(1, keepdim=True), "look like probabilities"),
}
SCORES: dict[str, tuple[int, Ending]] = {
    "a gate": (3, lambda z: z * torch.sigmoid(z)),
    "scaled scores": (3, lambda z: 100 * z),
    "bounded scores": (3, lambda z: 10 * (2 * torch.sigmoid(z) - 1)),
    "yes beyond a half": (1, lambda z: (torch.sigmoid(z) - 0.5).flatten()),
}


class Net(nn.Module):
    def __init__(self, outputs: int, end: Ending) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.end = nn.Linear(5, 8), nn.Linear(8, outputs), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.last(torch.relu(self.first(x))))


X = torch.randn(120, 5, generator=torch.Generator().manual_seed(1))


def wrong_by(outputs: int, model: nn.Module) -> TensorDataset:
    """The samples with labels that fit the output, a sixth of them others than the network's."""
    with torch.no_grad():
        out = model(X)
    classes = out.shape[1] if out.dim() == 2 and out.shape[1] > 1 else 2
    y = out.argmax(1) if classes > 2 or out.shape[-1] == 2 else (out > 0).long()
    y = y.clone()
    y[:20] = (y[:20] + 1) % classes
    return TensorDataset(X, y)


@pytest.mark.parametrize("name", MADE)
def test_probabilities_that_are_taken_for_scores_are_said_to_be(name: str) -> None:
    outputs, end, words = MADE[name]
    model = Net(outputs, end).eval()
    with pytest.warns(LabelWarning, match=words):
        found = frpt.diagnose(model, wrong_by(outputs, model), at=["first", "last"], gallery=0, progress=False)
    assert found.cautions[0] in str(found)
    assert found.cautions[0].startswith("Beware: the outputs")


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_not(name: str) -> None:
    outputs, end = SCORES[name]
    model = Net(outputs, end).eval()
    found = frpt.diagnose(model, wrong_by(outputs, model), at=["first", "last"], gallery=0, progress=False)
    assert not [said for said in found.cautions if "Beware" in said]


def damaged() -> tuple[nn.Module, TensorDataset]:
    """A network whose last layer is at fault, and samples that it was right on."""
    model = Net(3, lambda z: z).eval()
    with torch.no_grad():
        data = TensorDataset(X, model(X).argmax(1))
        model.last.weight[0] = 0
    return model, data


def test_in_bfloat16_no_layer_is_named() -> None:
    model, data = damaged()
    before = np.random.default_rng(0).exponential(size=100)
    after = {"a": 0.2 * before, "b": before}
    assert Refits(before, after).ranked().suspects == ("a",)
    assert Refits(before, after, coarse=True).ranked().suspects == ()
    coarse, (x, y) = copy.deepcopy(model).bfloat16(), data.tensors
    found = frpt.diagnose(coarse, TensorDataset(x.bfloat16(), y), at=["first"], gallery=0, progress=False)
    assert found.suspects == ()
    assert "No layer is named, because the weights are in bfloat16" in str(found)


def test_a_single_layer_is_not_blamed() -> None:
    model, data = damaged()
    found = frpt.diagnose(model, data, at=["out"], gallery=0, progress=False)
    assert found.suspects == ()
    assert "Only out (the output) was looked at, and nothing is told apart" in str(found)


def test_one_logit_has_no_cross_entropy() -> None:
    model = Net(1, lambda z: z.flatten()).eval()
    with pytest.raises(OptionError, match="say yes or no to each output, which has no classes: use loss='bce'"):
        frpt.diagnose(model, wrong_by(1, model), at=["first"], loss="cross_entropy", gallery=0, progress=False)


def test_class_names_by_number() -> None:
    model, data = damaged()
    given = {"2": "two", "0": "zero", "1": "one"}
    found = frpt.diagnose(model, data, class_names=given, gallery=0, progress=False)
    assert found.class_names == ("zero", "one", "two")
    reverse = {"two": 2, "zero": 0, "one": 1}
    found = frpt.diagnose(model, data, class_names=reverse, gallery=0, progress=False)  # type: ignore[arg-type]
    assert found.class_names == ("zero", "one", "two")
    with pytest.raises(OptionError, match="no name for class 2; its keys are the class ids, 0 to 2"):
        frpt.diagnose(model, data, class_names={0: "zero", 1: "one", 3: "two"}, gallery=0, progress=False)


def test_where_nothing_is_taken_back_there_is_no_interval() -> None:
    """Every output of the network is the same, whatever a layer before its dead end does."""
    model, data = damaged()
    with torch.no_grad():
        model.last.weight.zero_()
    found = frpt.diagnose(model, data, at=["first"], gallery=0, progress=False)
    first = next(f for f in found.layers if f.name == "first")
    assert first.fault_interval == (0, 0)
    row = next(line for line in str(found).splitlines() if line.startswith("first "))
    assert " 0 %     -" in row
    assert "(0 % to 0 %)" not in str(found)


def test_a_network_that_is_worse_than_a_guess_is_said_to_be() -> None:
    model = Net(3, lambda z: 5 * z).eval()
    with torch.no_grad():
        y = model(X).argmax(1)
    right = frpt.diagnose(model, (X, y), at=["first"], gallery=0, progress=False)
    assert right.cautions == ()
    wrong = frpt.diagnose(model, (X, (y + 1) % 3), at=["first"], gallery=0, progress=False)
    times = float(nn.functional.cross_entropy(model(X), (y + 1) % 3)) / math.log(3)
    assert times > 1.5
    assert wrong.cautions == (
        f"The loss is {times:.1f} times that of equal chances: refits that begin there can get stuck, and the layer "
        "named can be another than the one at fault.",
    )
