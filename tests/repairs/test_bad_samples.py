"""Samples, labels and options that a repair cannot take: refused before any work, in words."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.errors import FrptError, InputError, LabelError, MemoryMismatchError, OptionError
from frpt.repairs import Memory, compare_repairs, remember, repair


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


X = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
Y = net()(X).argmax(1)
WRONG = (Y[:3] + 1) % 3


@pytest.fixture(scope="module")
def memory() -> Memory:
    return remember(net(), X, progress=False)


@pytest.mark.parametrize(
    ("keep", "error", "words"),
    [
        ((X, torch.full((60, 3), 1e3)), LabelError, "keep: its labels are output targets, .* are class ids"),
        ((X, torch.ones(60, 3, dtype=torch.bool)), LabelError, "keep: its labels are yes and no, .* are class ids"),
        ((X[:, :5], Y), InputError, r"keep: its samples have the shapes \[\(5,\)\], those to be repaired \[\(6,\)\]"),
        ((X[:1], Y[:1]), InputError, "keep: at least two samples"),
    ],
)
def test_old_samples_of_another_kind(keep: Any, error: type[FrptError], words: str, memory: Memory) -> None:
    with pytest.raises(error, match=words):
        repair(net(), X[:3], WRONG, memory, keep=keep, progress=False)
    with pytest.raises(error, match=words):
        repair(net(), X[:3], WRONG, keep=keep, progress=False)  # of which a memory would be made


def test_other_samples_of_another_shape(memory: Memory) -> None:
    with pytest.raises(InputError, match=r"old: its samples have the shapes \[\(2,\)\]"):
        repair(net(), X[:3], WRONG, memory, method="replay", old=X[:, :2], progress=False)
    with pytest.raises(InputError, match=r"kind: its samples have the shapes \[\(3,\)\]"):
        compare_repairs(net(), X[:3], WRONG, memory, old=(X, Y), kind=(X[:, :3], Y))
    with pytest.raises(InputError, match=r"old: its samples have the shapes \[\(3,\)\]"):
        compare_repairs(net(), X[:3], WRONG, memory, old=(X[:, :3], Y))


def test_options_that_do_not_exist(memory: Memory) -> None:
    with pytest.raises(OptionError, match="loss must be logistic or hinge, got 'hingee'"):
        repair(net(), X[:3], WRONG, memory, loss="hingee", progress=False)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"seeds must be several numbers, such as range\(3\)"):
        compare_repairs(net(), X[:3], WRONG, memory, old=(X, Y), seeds=3)  # type: ignore[arg-type]


def test_output_targets_beyond_half_precision() -> None:
    """70,000 is infinite there: such a label would be as near to any output as to any other."""
    half = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).half().eval()
    x = X.half()
    past = remember(half, x, task="regression", progress=False)
    far = torch.full((60, 2), 7e4)
    with pytest.raises(LabelError, match=r"larger than the model's float16 can hold \(6.55e\+04\)"):
        repair(half, x[:2], far[:2], past, progress=False)
    with pytest.raises(LabelError, match=r"keep: an output target is larger"):
        repair(half, x[:2], torch.zeros(2, 2), past, keep=(x, far), progress=False)


def test_a_memory_of_a_network_with_fewer_weights(memory: Memory) -> None:
    with pytest.raises(MemoryMismatchError, match=r"knows nothing of 3\.weight"):
        repair(nn.Sequential(*net(), nn.Linear(3, 3)).eval(), X[:3], WRONG, memory, progress=False)


def test_no_budget_helps_samples_that_contradict_each_other(memory: Memory) -> None:
    x, y = X[[0, 0]], torch.tensor([int(WRONG[0]), int(Y[0])])
    notes = " ".join(repair(net(), x, y, memory, progress=False).notes)
    assert "are equal and have different labels: no network can be right on all" in notes
    assert "raise budget=" not in notes


class Tied(nn.Module):
    """Two modules that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.other(torch.tanh(self.one(x))))
        return out


@pytest.mark.parametrize("modules", [None, ["one"], "auto"])
def test_a_weight_of_two_modules(modules: Any) -> None:
    """It moves as one; the biases, which they do not share, are held."""
    torch.manual_seed(0)
    model = Tied().eval()
    before = copy.deepcopy(model.state_dict())
    y = (model(X[:6]).argmax(1) + 1) % 3
    fix = repair(model, X[:6], y, remember(model, X, progress=False), modules=modules, progress=False)
    assert fix.fixed.any()
    assert torch.equal(fix.model(X[:6]).argmax(1) == y, fix.fixed)
    assert fix.model.one.weight is fix.model.other.weight
    assert all(torch.equal(fix.model.state_dict()[n], before[n]) for n in ("one.bias", "other.bias"))
    assert torch.equal(frpt.apply(model, fix.diff)(X), fix.model(X))


class Counting(nn.Module):
    """Writes to buffers whenever it runs: a counter, and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        hidden = torch.relu(self.first(x))
        self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean(0))
        out: Tensor = self.last(hidden)
        return out


def test_a_network_that_counts_its_calls() -> None:
    torch.manual_seed(0)
    model = Counting().eval()
    rec = frpt.Reverser(model, X[:5]).reconstruct(X[:5], WRONG[[0, 1, 2, 0, 1]], at="first")
    with torch.no_grad():
        assert torch.equal(model.last(torch.relu(rec.target)).argmax(1)[rec.wins], WRONG[[0, 1, 2, 0, 1]][rec.wins])
    assert bool(rec.wins.all())
    fix = repair(model, X[:3], (model(X[:3]).argmax(1) + 1) % 3, remember(model, X, progress=False), progress=False)
    assert fix.fixed.any()
    assert int(model.count) == 1  # of the one call in this test
