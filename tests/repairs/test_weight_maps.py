"""Per-sample gradients of every kind of weight, against autograd one sample at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.errors import OptionError
from frpt.graph.inputs import Inputs
from frpt.repairs.weight_maps import Gradients, Pass, chosen, weight_maps


class Shared(nn.Module):
    """One weight used twice, and one parameter that no linear map uses."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.same(torch.tanh(self.same(x)) * self.scale)
        return out


class Tied(nn.Module):
    """One weight of two modules, each with a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.other(torch.tanh(self.one(x)))
        return out


class Tokens(nn.Module):
    """Attention with its own functional projections, then a head on the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x, need_weights=False)
        out: Tensor = self.head(y[:, 0])
        return out


def conv(layer: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)), (5,)),
    "conv1d": (lambda: conv(nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), 6), (4, 9)),
    "conv2d": (lambda: conv(nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), 4), (3, 7, 6)),
    "conv2d same": (lambda: conv(nn.Conv2d(2, 4, 4, padding="same", bias=False), 4), (2, 5, 5)),
    "conv3d": (lambda: conv(nn.Conv3d(2, 3, 2, stride=2), 3), (2, 4, 5, 4)),
    "depthwise": (lambda: conv(nn.Conv2d(4, 4, 3, groups=4), 4), (4, 6, 6)),
    "shared": (Shared, (6,)),
    "tied": (Tied, (6,)),
    "tokens": (Tokens, (5, 8)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_per_sample_gradients_are_autograds(kind: str) -> None:
    torch.manual_seed(0)
    make, shape = KINDS[kind]
    model, x = make(), torch.randn(4, *shape)
    with torch.no_grad():
        model(x)
    model.double().eval()
    x = x.double()
    captured, _ = frpt.Reverser(model, x).node("out")
    maps, held = weight_maps(captured)
    assert {n for n, _ in model.named_parameters()} == {n for m in maps for n in (m.name, m.bias) if n} | set(held)
    assert held == {"shared": ["scale"], "tied": ["one.bias", "other.bias"]}.get(kind, [])
    forward = Pass(captured, maps, Inputs.of(x))
    torch.testing.assert_close(forward.output, model(x))
    gradients = Gradients(captured, [forward.gradients(forward.output.square().sum())])
    for i in range(len(x)):
        model.zero_grad()
        model(x[i : i + 1]).square().sum().backward()
        weight = torch.eye(len(x), dtype=torch.float64)[i]
        for m in maps:
            values = gradients.weighted_sum(m, weight)
            torch.testing.assert_close(gradients.along(m, values)[i], values.square().sum())
            like = {node: captured.weight(node) for node in m.nodes}
            for node, value in m.parameters(values, like).items():
                expected = captured.held(node).grad
                assert expected is not None
                torch.testing.assert_close(value, expected)


def test_a_matrix_goes_there_and_back() -> None:
    torch.manual_seed(0)
    model, x = KINDS["conv1d"][0](), torch.randn(2, 4, 9)
    model(x)
    captured, _ = frpt.Reverser(model.eval(), x).node("out")
    for m in weight_maps(captured)[0]:
        values = {node: captured.weight(node) for node in m.nodes}
        assert m.matrix(values).shape == (m.groups, m.outputs, m.inputs)
        for node, value in m.parameters(m.matrix(values), values).items():
            assert torch.equal(value, values[node])


def test_modules_are_chosen_by_name() -> None:
    model, x = KINDS["linear"][0]().eval(), torch.randn(2, 5)
    maps, _ = weight_maps(frpt.Reverser(model, x).node("out")[0])
    assert [m.name for m in chosen(maps, ["2"])] == ["2.weight"]
    assert chosen(maps, None) == maps
    with pytest.raises(OptionError, match=r"no weight that can be moved is in \['7'\]"):
        chosen(maps, ["0", "7"])
    with pytest.raises(OptionError, match=r"no weight that can be moved is in \['2\.w'\]"):
        chosen(maps, ["2", "2.w"])  # the beginning of a name is none
