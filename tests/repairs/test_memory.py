"""Memory: the Fisher metric against a brute-force one, files, other networks, two memories together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import InputError, MemoryMismatchError, NonFiniteError, OptionError
from frpt.repairs import Memory, memory, remember
from frpt.repairs.curvature import Curvature


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double().eval()


def inputs(count: int = 200) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def changes(model: nn.Module, scale: float, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {n: scale * torch.randn(p.shape, generator=g, dtype=torch.float64) for n, p in model.named_parameters()}


def matrix(change: dict[str, Tensor], weight: str) -> Tensor:
    bias = change[weight.replace("weight", "bias")]
    return torch.cat([change[weight], bias[:, None]], 1)[None]


def predicted(m: Memory, change: dict[str, Tensor]) -> float:
    return 0.5 * sum(float(c.to(matrix(change, n)).energy(matrix(change, n))) for n, c in m.curvatures.items())


def actual(model: nn.Module, change: dict[str, Tensor], x: Tensor) -> float:
    before = model(x).log_softmax(1)
    weights = {n: p + change[n] for n, p in model.named_parameters()}
    after = torch.func.functional_call(model, weights, (x,)).log_softmax(1)
    return float((before.exp() * (before - after)).sum(1).mean())


@torch.no_grad()
def test_it_predicts_the_change_of_the_outputs() -> None:
    """½‖D‖² against the KL itself, on inputs that the memory does not know, for small changes of all weights."""
    model, m = net(), remember(net(), inputs(2000), samples=2000, progress=False)
    ratios = []
    for seed in range(12):
        change = changes(model, 0.01, seed)
        ratios.append(predicted(m, change) / actual(model, change, torch.randn(2000, 4, dtype=torch.float64)))
    mean = sum(ratios) / len(ratios)
    assert 0.8 < mean < 1.25
    assert max(ratios) / min(ratios) < 3


def test_the_powers_are_the_mean_squared_gradients() -> None:
    """S by hand: the gradient of each sample, for the label that the memory drew, turned into the eigenbases."""
    model, x = net(), inputs(30)
    m = remember(model, x, seed=3, progress=False)
    rows = torch.randperm(30, generator=torch.Generator().manual_seed(3))[:500].sort().values
    g = torch.Generator().manual_seed(3)
    total = torch.zeros(1, 3, 7, dtype=torch.float64)
    c = m.curvatures["2.weight"]
    labels = torch.multinomial(model(x[rows]).detach().softmax(1), 1, generator=g).squeeze(1)
    for i, label in zip(rows, labels, strict=True):
        model.zero_grad()
        (-model(x[i : i + 1]).log_softmax(1)[0, label]).backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        total += (c.left.double().mT @ matrix(grads, "2.weight") @ c.right.double()).square()
    torch.testing.assert_close(c.power.double(), total / 30, rtol=1e-4, atol=1e-8)


def test_curvlinops_has_the_same_factors() -> None:
    """The EKFAC of a third party (set up by ``make``); its labels are the same draws in the mean only."""
    curvlinops = pytest.importorskip("curvlinops")
    model, x = net(), inputs(4000)
    m = remember(model, x, samples=4000, progress=False)
    y = torch.zeros(len(x), dtype=torch.long)
    theirs = curvlinops.EKFACLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)], fisher_type="type-2",
        separate_weight_and_bias=False,
    )  # fmt: skip
    for seed in range(5):
        change = changes(model, 0.01, seed)
        flat = torch.cat([change[n].flatten() for n, _ in model.named_parameters()])
        with torch.no_grad():
            quadratic = 0.5 * float(flat @ (theirs @ flat))
        assert predicted(m, change) == pytest.approx(quadratic, rel=0.15)


def test_wide_matrices_keep_the_leading_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    whole = remember(model, inputs(500), progress=False)
    monkeypatch.setattr(memory, "_kept", lambda m: 3)
    cut = remember(model, inputs(500), progress=False)
    assert cut.nbytes < whole.nbytes
    c = cut.curvatures["0.weight"]
    assert not c.whole
    assert c.right.shape[2] < c.right.shape[1]
    for seed in range(5):
        change = changes(model, 0.01, seed)
        assert predicted(cut, change) == pytest.approx(predicted(whole, change), rel=0.3)
    D = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(0))
    metric = c.to(D).raised(0.3)
    gradient = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(1))
    step = metric.solve(gradient)  # F⁻¹g: ⟨D, F F⁻¹ g⟩ = ⟨D, g⟩, by the polarised energy
    inner = (metric.energy(D + step) - metric.energy(D - step)) / 4
    torch.testing.assert_close(inner, (D * gradient).sum(), rtol=2e-2, atol=2e-2)  # bases in half precision


def test_two_memories_together(tmp_path: Path) -> None:
    model = net()
    a, b = (remember(model, inputs(600)[i : i + 300], samples=300, progress=False) for i in (0, 300))
    both = a.joined(b)
    assert both.samples == 600
    same = a.joined(a)
    for seed in range(5):
        change = changes(model, 0.01, seed)
        mean = (predicted(a, change) + predicted(b, change)) / 2
        assert predicted(both, change) == pytest.approx(mean, rel=0.2)
        assert predicted(same, change) == pytest.approx(predicted(a, change), rel=1e-3)
    with pytest.raises(MemoryMismatchError, match="not of the same network"):
        a.joined(Memory({}, {}, 1, "classification"))


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = net()
    m = remember(model, inputs(), progress=False)
    again = Memory.load(m.save(tmp_path / "memory"))
    again.check(model)
    assert repr(again) == repr(m)
    for name, c in m.curvatures.items():
        for part in Curvature.__dataclass_fields__:
            assert torch.equal(getattr(c, part), getattr(again.curvatures[name], part))
    file = tmp_path / "memory" / "memory.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(MemoryMismatchError, match="damaged"):
        Memory.load(tmp_path / "memory")
    with pytest.raises(MemoryMismatchError, match="cannot be read"):
        Memory.load(tmp_path / "nothing")


def test_another_network_is_refused() -> None:
    m = remember(net(), inputs(), progress=False)
    other = net()
    with torch.no_grad():
        other[0].weight[0, 0] += 1
    with pytest.raises(MemoryMismatchError, match=r"weights have changed since, among them '0\.weight'"):
        m.check(other)
    with pytest.raises(MemoryMismatchError, match="this one has not"):
        m.check(nn.Linear(2, 2))


def test_the_same_seed_gives_the_same_memory_and_leaves_random_state_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    model = net()
    torch.set_rng_state(state)
    a, b = (remember(model, inputs(), samples=50, seed=7, progress=False) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a.curvatures["0.weight"].power, b.curvatures["0.weight"].power)


def test_a_data_set_or_a_tensor_is_remembered_alike() -> None:
    model, x = net(), inputs(60)
    a = remember(model, x, progress=False)
    b = remember(model, TensorDataset(x, torch.zeros(60)), progress=False)
    assert torch.equal(a.curvatures["2.weight"].power, b.curvatures["2.weight"].power)


def test_regression_counts_every_output_alike() -> None:
    """With variance 1 the Fisher of a linear map is E[kkᵀ] for every output."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x = torch.randn(4000, 3, dtype=torch.float64)
    m = remember(model, x, task="regression", samples=4000, progress=False)
    D = torch.randn(1, 2, 4, dtype=torch.float64)
    k = torch.cat([x, torch.ones(4000, 1)], 1)
    expected = (D[0] @ k.T).square().sum(0).mean()
    torch.testing.assert_close(m.curvatures["weight"].to(D).energy(D), expected, rtol=0.1, atol=0.0)


def test_bad_input() -> None:
    model = net()
    with pytest.raises(InputError):
        remember(model, torch.zeros(0, 4, dtype=torch.float64), progress=False)
    with pytest.raises(NonFiniteError):
        remember(model, torch.full((4, 4), torch.nan, dtype=torch.float64), progress=False)
    with pytest.raises(OptionError, match="task"):
        remember(model, inputs(), task="other", progress=False)  # type: ignore[arg-type]
    for wrong in ({"seed": -1}, {"seed": 1.5}, {"workers": -1}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} must be a whole number"):
            remember(model, inputs(), progress=False, **wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no linear map"):
        remember(nn.Softplus(), inputs(), progress=False)
    assert frpt is not None
