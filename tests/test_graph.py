"""Cut points against brute force, layouts, ranges, and the direction of imports."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import frpt
from frpt.common.batch_axis import BatchAxis
from frpt.graph.capture import Captured, capture, module_path, source_line
from frpt.graph.cuts import cut_points
from frpt.graph.inputs import Inputs
from frpt.graph.ranges import ranges


class RandomDag(nn.Module):
    """Node k mixes the earlier nodes listed in wiring[k]; everything without a later reader is summed at the end."""

    def __init__(self, wiring: list[list[int]]) -> None:
        super().__init__()
        self.wiring = wiring
        self.steps = nn.ModuleList(nn.Linear(3, 3) for _ in wiring)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step, sources in zip(self.steps, self.wiring, strict=True):
            values.append(step(sum(values[s] for s in sources)))  # type: ignore[arg-type]
        read = {s for sources in self.wiring for s in sources}
        return torch.stack([v for i, v in enumerate(values) if i not in read]).sum(0)


@st.composite
def wirings(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(2, 7))
    return [draw(st.lists(st.integers(max(0, k - 3), k), min_size=1, max_size=2, unique=True)) for k in range(count)]


def reaches_around(captured: Captured, source: torch.fx.Node, removed: torch.fx.Node) -> bool:
    """Whether some path leads from the source to the output without the removed node."""
    seen, stack = set(), [source]
    while stack:
        node = stack.pop()
        if node is removed or node in seen:
            continue
        seen.add(node)
        if node is captured.output:
            return True
        stack.extend(u for u in node.users if u.op != "output")
    return False


@settings(max_examples=25, deadline=None, derandomize=True)
@given(wirings())
def test_cut_points_are_the_nodes_on_every_path(wiring: list[list[int]]) -> None:
    captured = capture(RandomDag(wiring).eval(), Inputs.of(torch.randn(2, 3)))
    source = captured.inputs[0]
    active = captured.downstream({source})
    expected = [
        n
        for n in captured.nodes
        if n in active
        and isinstance(n.meta["val"], Tensor)
        and (n is source or not reaches_around(captured, source, n))
    ]
    assert cut_points(captured, {source}) == expected


def test_names_and_source_lines_survive() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * 2

    captured = capture(Net().eval(), Inputs.of(torch.randn(2, 3)))
    tanh = next(n for n in captured.nodes if "tanh" in n.name)
    assert module_path(tanh) == "inner.1"
    assert source_line(captured.output).startswith("test_graph.py:")


def test_constants_in_the_shape_of_a_value_do_not_depend_on_it() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(9, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.b(torch.cat([h, torch.ones_like(h), h.new_zeros(h.shape[0], 1)], 1))

    torch.manual_seed(0)
    model, x = Padded().eval(), torch.randn(3, 3)
    rev = frpt.Reverser(model, x, margin=0.1)
    assert [u.match.rule for u in rev.plan("a").units] == ["linear", "gather"]
    with torch.no_grad():
        y = 1 - model(x).argmax(1)
    y[0] = 1 - y[0]
    rec = rev.reconstruct(x, y, at="a")
    assert (rev.run(x, "a", rec.target).argmax(1) == y).all()


def test_weights_are_shared_never_copied() -> None:
    model = nn.Linear(3, 2).eval()
    captured = capture(model, Inputs.of(torch.randn(2, 3)))
    weights = [captured.weight(n) for n in captured.weights]
    assert {w.data_ptr() for w in weights} == {model.weight.data_ptr(), model.bias.data_ptr()}


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_samples_take_and_put(batch: int, outer: int, inner: int, dim: int) -> None:
    shape = [2, 3, 4]
    shape[dim] = outer * batch * inner
    t = torch.arange(float(torch.tensor(shape).prod())).reshape(shape)
    samples = BatchAxis(dim, outer, inner)
    assert samples.count(t) == batch
    assert torch.equal(samples.back(samples.front(t)), t)
    index = torch.tensor([batch - 1])
    taken = samples.take(t, index)
    assert torch.equal(samples.put(t, index, taken), t)
    changed = samples.put(t, index, taken + 1)
    assert torch.equal(samples.rows(changed)[:-1], samples.rows(t)[:-1])
    assert torch.equal(samples.rows(changed)[-1], samples.rows(t)[-1] + 1)
    assert samples.over(torch.arange(batch), t).shape == t.shape


def test_windows_folded_into_the_batch_are_found() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:  # (b, 6, 4)
            windows = self.mix(x.reshape(-1, 3, 4))  # two windows a sample
            return windows.reshape(x.shape[0], -1)

    captured = capture(Windows().eval(), Inputs.of(torch.randn(3, 6, 4)))
    mixed = next(n for n in captured.nodes if "linear" in n.name)
    assert captured.batch_axis(mixed) == BatchAxis(0, 1, 2)


@pytest.mark.parametrize(
    ("layer", "low", "high"),
    [
        (nn.ReLU(), 0, float("inf")),
        (nn.ReLU6(), 0, 6),
        (nn.Sigmoid(), 0, 1),
        (nn.Hardtanh(-2, 3), -2, 3),
        (nn.Sequential(nn.ReLU(), nn.MaxPool1d(2), nn.Flatten()), 0, float("inf")),
        (nn.ELU(0.5), -0.5, float("inf")),
        (nn.GELU(approximate="tanh"), -0.1700407505712541, float("inf")),
        (nn.Linear(4, 4), -float("inf"), float("inf")),
    ],
)
def test_ranges_hold_and_are_tight(layer: nn.Module, low: float, high: float) -> None:
    x = torch.linspace(-20, 20, 8001, dtype=torch.float64).reshape(-1, 1, 1).expand(-1, 2, 4).contiguous()
    layer = layer.double().eval()
    captured = capture(layer, Inputs.of(x))
    found = ranges(captured.nodes)[captured.output]
    assert found == pytest.approx((low, high), abs=1e-4)
    with torch.no_grad():
        y = layer(x)
    assert y.min() >= found[0] - 1e-9
    assert y.max() <= found[1] + 1e-9
