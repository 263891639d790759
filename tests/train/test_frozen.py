"""Who is trained, and that nobody else moves."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.errors import FreezeError
from tests.models import Planner, ResNet
from tests.train.toys import Mixed, network


@cache
def reverser() -> frpt.Reverser:
    return frpt.Reverser(Mixed().eval(), torch.randn(4, 6))


def flags(model: nn.Module) -> list[tuple[bool, bool]]:
    return [(m.training, "train" in m.__dict__) for m in model.modules()]


def test_exactly_what_the_layer_depends_on_is_trained() -> None:
    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randn(4, 6)
    frozen = frpt.freeze(model, x, "body")
    model.train()
    model(x).sum().backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None}
    assert trained == set(frozen.parameters)
    assert trained == {n for n, _ in model.named_parameters() if n.split(".")[0] in ("stem", "attention", "body")}
    total = sum(p.numel() for p in model.parameters())
    assert f"of {total} parameters" in str(frozen)


def test_modes_follow_train_only_before_the_layer() -> None:
    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randn(4, 6)
    with frpt.freeze(model, reverser(), "body", batch_norm="train") as frozen:
        model.train()
        model.tail.train()
        modes = {n: m.training for n, m in model.named_modules()}
        assert [n for n, on in modes.items() if not on] == frozen.modules
        assert frozen.modules == ["tail", "tail.0", "tail.1", "tail.2", "head"]
        assert modes["attention.out_proj"]
        statistics = model.tail[0].running_mean.clone(), model.stem[1].running_mean.clone()
        model(x)
        assert torch.equal(model.tail[0].running_mean, statistics[0])
        assert not torch.equal(model.stem[1].running_mean, statistics[1])
        frozen.check()
        other = deepcopy(model).train()
        assert not other.tail[1].training
        assert not model.tail[1].training


def test_the_whole_model_in_train_mode() -> None:
    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randn(4, 6)
    with frpt.freeze(model, reverser(), "body", whole_train=True, batch_norm="train") as frozen:
        assert frozen.modules == []
        model.train()
        assert all(m.training for m in model.modules())
        before = model.tail[0].running_mean.clone()
        model(x)
        assert not torch.equal(model.tail[0].running_mean, before)
        frozen.check()  # statistics may move, parameters may not
        assert "tail.0.running_mean" in frozen.moving()
        with torch.no_grad():
            model.head.weight.add_(1)
        with pytest.raises(FreezeError, match=r"head\.weight"):
            frozen.check()


def test_everything_is_given_back() -> None:
    model = Mixed()
    model.head.weight.requires_grad_(False)
    model.tail.eval()
    before = flags(model), [p.requires_grad for p in model.parameters()]
    with pytest.raises(ZeroDivisionError), frpt.freeze(model, reverser(), "body"):
        raise ZeroDivisionError
    assert (flags(model), [p.requires_grad for p in model.parameters()]) == before


@pytest.mark.parametrize("what", ["head.weight", "tail.0.running_var", "tail.0.num_batches_tracked"])
def test_a_change_of_the_frozen_part_is_found(what: str) -> None:
    model = Mixed().eval()
    frozen = frpt.freeze(model, reverser(), "body", batch_norm="train")
    with torch.no_grad():
        model.stem[0].weight.add_(1)
        model.stem[1].running_mean.add_(1)
    frozen.check()
    with torch.no_grad():
        dict([*model.named_parameters(), *model.named_buffers()])[what].flatten()[0:1].add_(1)
    with pytest.raises(FreezeError, match=what):
        frozen.check()


def test_branches_beside_the_layer_stay() -> None:
    planner = Planner().eval()
    example = {"image": torch.randn(2, 3, 8, 8), "status": torch.randn(2, 4)}
    frozen = frpt.freeze(planner, example, "backbone")
    assert set(frozen.parameters) == {"backbone.0.weight", "backbone.0.bias"}
    assert "status" in frozen.modules
    assert "backbone.1" not in frozen.modules


def test_a_layer_inside_a_residual_branch() -> None:
    model = ResNet().eval()
    frozen = frpt.freeze(model, torch.randn(2, 3, 16, 16), "layer1.0.conv1")
    assert {n.rsplit(".", 1)[0] for n in frozen.parameters} == {"stem.0", "stem.1", "layer1.0.conv1"}
    assert "layer1.0.bn1" in frozen.modules
    assert "layer1.0" not in frozen.modules


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_weights_on_both_sides_are_refused_by_name() -> None:
    model = Tied().eval()
    with pytest.raises(FreezeError, match=r"'first.weight'.*before and after 'first'"):
        frpt.freeze(model, torch.randn(2, 6), "first")
    assert all(p.requires_grad for p in model.parameters())
    frozen = frpt.freeze(model, torch.randn(2, 6), "second")
    assert len(frozen.trainable()) == 3


def test_nothing_to_train_and_a_reverser_of_another_network() -> None:
    model = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(6, 3)).eval()
    with pytest.raises(FreezeError, match="depends on no parameter"):
        frpt.freeze(model, torch.randn(2, 6), "1")
    with pytest.raises(FreezeError, match="another architecture"):
        frpt.freeze(model, frpt.Reverser(network(), torch.randn(2, 6)), "3")
