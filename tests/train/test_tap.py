"""The value at a layer, out of the user's own forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import frpt
from frpt.errors import TapError
from tests.models import Basic, Planner, ResNet
from tests.train.toys import network


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_value_and_gradient_are_the_layers() -> None:
    model, x = network(), torch.randn(3, 6)
    with frpt.FeatureTap(model, "3") as tap:
        model(x)
        assert torch.equal(tap.value, model[:4](x))
        tap.value.square().sum().backward()
    expected = network()
    expected[:4](x).square().sum().backward()
    assert torch.equal(model[0].weight.grad, expected[0].weight.grad)
    assert model[4].weight.grad is None
    assert hooks(model) == 0


def test_every_layer_of_a_network_agrees_with_the_captured_graph() -> None:
    torch.manual_seed(0)
    model, x = ResNet().eval(), torch.randn(2, 3, 16, 16)
    rev = frpt.Reverser(model, x)
    modules = {name for name, _ in model.named_modules()}
    names = [n for n in rev.layers if n.split("@")[0] in modules]
    assert "layer1.0.relu@0" in names
    with frpt.FeatureTap(model, names) as tap, torch.no_grad():
        out = model(x)
        for name in names:  # in-place ops after a layer must not reach the tapped value
            assert torch.allclose(rev.run(x, name, tap[name]), out, atol=1e-5), name


def test_calls_of_a_module_are_told_apart() -> None:
    block, x = Basic(4, 4).eval(), torch.randn(2, 4, 5, 5)
    with frpt.FeatureTap(block, ["relu", "relu@0", "relu@1"]) as tap:
        out = block(x)
        assert torch.equal(tap["relu"], tap["relu@1"])
        assert torch.equal(tap["relu"], out)
        assert torch.equal(tap["relu@0"], torch.relu(block.bn1(block.conv1(x))))


@pytest.mark.parametrize("name", ["relu@0", "relu", "conv1"])
def test_a_forward_pass_can_end_at_the_layer(name: str) -> None:
    block, x = Basic(4, 4).eval(), torch.randn(2, 4, 5, 5)
    ran: list[int] = []
    with frpt.FeatureTap(block, name) as tap, torch.no_grad():
        first = tap.run_to(block, x)
        block.bn2.register_forward_hook(lambda *_: ran.append(1))
        assert torch.equal(tap.run_to(block, x), first)
        assert len(ran) == (name == "relu")
        block(x)
        assert torch.equal(tap.value, first)


def test_names_that_no_module_returns() -> None:
    model = ResNet()
    with pytest.raises(TapError, match=r"'layer1.0'"):
        frpt.FeatureTap(model, "layer1.0/add")
    with pytest.raises(TapError, match="layer1"):
        frpt.FeatureTap(model, "layer11")
    with pytest.raises(TapError, match="at least one"):
        frpt.FeatureTap(model, [])
    assert hooks(model) == 0


def test_reading_without_a_pass_or_another_layer() -> None:
    planner = Planner()
    tap = frpt.FeatureTap(planner, ["backbone", "status"])
    with pytest.raises(TapError, match="call the model first"):
        tap["status"]
    with pytest.raises(TapError, match="not tapped"):
        tap["plan"]
    with pytest.raises(TapError, match="say which"):
        _ = tap.value
    tap.close()
    assert hooks(planner) == 0


def test_several_tensors_need_a_choice_and_failures_leave_no_hooks() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    model, x = Two(), torch.randn(2, 5, 3)
    with pytest.raises(TapError, match=r"lstm\[0\]"), frpt.FeatureTap(model, "lstm"):
        model(x)
    assert hooks(model) == 0
    with frpt.FeatureTap(model, "lstm[0]") as tap:
        assert torch.equal(model(x), tap.value)


def test_out_is_what_the_model_returns() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    with frpt.train.FeatureTap(model, ["out", "0"]) as tap:
        found = model(x)
        assert torch.equal(tap["out"], found)
        assert tap["out"].grad_fn is not None
    with frpt.train.FeatureTap(model, "out") as tap:
        assert torch.equal(tap.run_to(model, x), found)
    assert not model._forward_hooks
