"""Controls: each does what its formula says, on the user's terms; and the table that compares them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frpt
from frpt.errors import LabelError, OptionError
from frpt.repairs import Memory, compare_repairs, controls, memory, remember, repair
from frpt.repairs.controls import DESCENTS, Descent, diagonal

METHODS = ("finetune", "ewc", "replay")


@pytest.fixture(scope="module")
def trained() -> nn.Sequential:
    """A small classifier with batch norm and dropout, left in train mode: a repair must not care."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)
    )
    x, y = old(2000, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for i in range(150):
        rows = slice(64 * (i % 30), 64 * (i % 30) + 64)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model


def old(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


@torch.no_grad()
def failing(model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """Samples of another kind, shifted, that the network gets wrong."""
    x, y = old(3000, 2)
    x = x + torch.tensor([0.0, 0.0, 1.0, 1.5, 0.0, 0.0])
    wrong = (copy.deepcopy(model).eval()(x).argmax(1) != y).nonzero().squeeze(1)[:count]
    return x[wrong], y[wrong]


@pytest.fixture(scope="module")
def remembered(trained: nn.Sequential) -> Memory:
    return remember(trained, old(500, 3)[0], progress=False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:the model is in train mode")
def test_failures_are_fixed_on_a_copy(trained: nn.Sequential, remembered: Memory, method: controls.Method) -> None:
    before, state = copy.deepcopy(trained.state_dict()), torch.get_rng_state()
    x, y = failing(trained, 12)
    fixes = [repair(trained, x, y, remembered, method=method, old=old(300, 4)[0], seed=1) for _ in range(2)]
    fix = fixes[0]
    assert fix.fixed.double().mean() >= 0.9
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(fix.model).eval()(x).argmax(1) == y, fix.fixed)
    assert all(torch.equal(before[k], v) for k, v in trained.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in trained.modules())
    assert not any(p.grad is not None and p.grad.isnan().any() for p in trained.parameters())
    assert torch.equal(fix.model[1].running_mean, trained[1].running_mean)
    assert torch.equal(fixes[0].model[0].weight, fixes[1].model[0].weight)
    assert fix.method == method
    assert str(fix).startswith(f"{method}: ")
    assert fix.seconds > 0
    assert fix.rounds > 0
    back = frpt.apply(fix.model, fix.diff, back=True)
    assert torch.equal(back[0].weight, trained[0].weight)


def test_the_diagonal_is_that_of_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry by entry: the energy of a change of one weight alone; also where only leading directions are kept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).eval()
    for full in (1024, 2):
        monkeypatch.setattr(memory, "_kept", lambda m, full=full: min(full, m.inputs))
        c = remember(model, torch.randn(200, 5), progress=False).curvatures["0.weight"]
        c = c.to(c.left.double())
        found = diagonal(c)
        for i in range(4):
            for j in range(6):
                one = torch.zeros(1, 4, 6, dtype=torch.float64)
                one[0, i, j] = 1
                torch.testing.assert_close(found[0, i, j], c.energy(one), rtol=2e-3, atol=1e-6)


def test_one_step_is_adams_on_the_cross_entropy(trained: nn.Sequential, remembered: Memory) -> None:
    """Fine-tuning by hand, as an owner would write it."""
    model = copy.deepcopy(trained).eval()
    x, y = failing(trained, 12)
    fix = repair(model, x, y, remembered, method="finetune")
    plain = copy.deepcopy(model)
    moved = [p for m in plain if isinstance(m, nn.Linear) for p in m.parameters()]
    optimizer = torch.optim.Adam(moved, lr=DESCENTS["finetune"].rate)
    for _ in range(fix.rounds):
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(fix.model[4].weight, plain[4].weight, rtol=1e-3, atol=1e-4)
    assert "1.weight" not in fix.diff.moved  # batch norm's own are held


def test_a_stronger_penalty_moves_less(trained: nn.Sequential, remembered: Memory) -> None:
    model = copy.deepcopy(trained).eval()
    x, y = failing(trained, 12)
    inputs = old(300, 4)[0]
    for method, weak, strong in (("ewc", 0.1, 30.0), ("replay", 0.1, 30.0)):
        costs = []
        for strength in (weak, strong):
            fix = repair(model, x, y, remembered, method=method, strength=strength, old=inputs)  # type: ignore[arg-type]
            with torch.no_grad():
                was, now = model(inputs).log_softmax(1), fix.model(inputs).log_softmax(1)
            costs.append(float((was.exp() * (was - now)).sum(1).mean()))
        assert costs[1] < costs[0], method


def test_it_stops_where_nothing_more_is_won(
    trained: nn.Sequential, remembered: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(trained).eval()
    x, y = failing(trained, 4)
    twice, against = torch.cat([x, x]), torch.cat([y, (y + 1) % 3])  # no network is right on all
    monkeypatch.setitem(DESCENTS, "finetune", Descent(rate=3e-3, ladder=(1.0,), epochs=100_000))
    fix = repair(model, twice, against, remembered, method="finetune")
    assert fix.rounds < 2000
    assert any("are not fixed: " in note for note in fix.notes)
    assert not any("budget" in note for note in fix.notes)


def test_output_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2)).eval()
    inputs = torch.randn(300, 3)
    m = remember(model, inputs, task="regression", progress=False)
    x = torch.randn(4, 3)
    target = model(x).detach() + torch.tensor([0.5, -0.5])
    for method in METHODS:
        monkeypatch.setitem(DESCENTS, method, Descent(rate=1e-2, ladder=(0.01,)))
        fix = repair(model, x, target, m, method=method, old=inputs)  # type: ignore[arg-type]
        left = (fix.model(x) - target).norm(dim=1)
        assert bool((left < (model(x) - target).norm(dim=1)).all()), method


def test_half_of_keep_is_replayed_and_the_other_reported(trained: nn.Sequential, remembered: Memory) -> None:
    model = copy.deepcopy(trained).eval()
    x, y = failing(trained, 12)
    fix = repair(model, x, y, remembered, method="replay", keep=old(400, 4))
    assert fix.kept is not None
    assert fix.kept.count == 200


def test_bad_options(trained: nn.Sequential, remembered: Memory) -> None:
    model = copy.deepcopy(trained).eval()
    x, y = failing(trained, 3)
    with pytest.raises(OptionError, match="needs old inputs"):
        repair(model, x, y, remembered, method="replay")
    with pytest.raises(OptionError, match="method must be nearest, finetune"):
        repair(model, x, y, remembered, method="other")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no strength"):
        repair(model, x, y, remembered, method="finetune", strength=1.0)


def test_compared_in_one_table(trained: nn.Sequential, remembered: Memory) -> None:
    model = copy.deepcopy(trained).eval()
    x, y = failing(trained, 25)
    kind = failing(trained, 60)[0][25:], failing(trained, 60)[1][25:]
    result = compare_repairs(model, x, y, remembered, old=old(801, 5), kind=kind, seeds=(0, 1))
    assert result.old_count == 400
    assert result.count == 25
    assert result.kind_before == 0
    frame = result.to_pandas()
    assert len(frame) == 8
    assert set(frame.method) == {"nearest", *METHODS}
    ox, oy = (t[1::2] for t in old(801, 5))
    fix = repair(model, x, y, remembered)
    with torch.no_grad():
        was, now = (m(ox).argmax(1) == oy for m in (model, fix.model))
    assert result.mean("nearest", "broken") == int((was & ~now).sum())
    assert result.mean("nearest", "old") == pytest.approx(100 * float(now.double().mean()))
    assert result.mean("nearest", "fixed") == pytest.approx(100 * float(fix.fixed.double().mean()))
    assert "kind %" in str(result)
    assert "<table>" in result._repr_html_()
    few = compare_repairs(model, x, y, remembered, old=old(800, 5), methods=("nearest",))
    assert "kind %" not in repr(few)
    with pytest.raises(OptionError, match="was not compared"):
        few.mean("ewc", "old")


def test_bad_comparisons(trained: nn.Sequential, remembered: Memory) -> None:
    model = copy.deepcopy(trained).eval()
    x, y = failing(trained, 3)
    with pytest.raises(OptionError, match="nothing to compare"):
        compare_repairs(model, x, y, remembered, old=old(10, 1), methods=())
    with pytest.raises(LabelError, match="old: there are 10 samples and 9 labels"):
        compare_repairs(model, x, y, remembered, old=(old(10, 1)[0], old(9, 1)[1]))
    with pytest.raises(LabelError, match="kind: repairs are compared by class ids"):
        compare_repairs(model, x, y, remembered, old=old(10, 1), kind=(x, torch.zeros(3, 3)))
    with pytest.raises(OptionError, match="at least two"):
        compare_repairs(model, x, y, remembered, old=old(1, 1))
