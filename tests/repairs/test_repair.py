"""Repair: what is failing is fixed, what was right stays, and everything that cannot be promised is said."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frpt.data.digits import digits
from frpt.errors import InputError, LabelError, MemoryMismatchError, NonFiniteError, OptionError
from frpt.graph.inputs import Inputs
from frpt.repairs import Memory, remember, repair
from frpt.repairs.fix import Fix
from frpt.repairs.notes import notes_on
from frpt.zoo import simple_cnn


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """The MNIST SimpleCNN, trained for a moment on half of the embedded digits."""
    (x, y), _ = digits(0)
    torch.manual_seed(0)
    model = simple_cnn("mnist")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    order = torch.randperm(2000)
    for i in range(150):
        rows = order[(32 * i) % 1968 :][:32]
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model.eval(), x, y


@pytest.fixture(scope="module")
def remembered(trained: tuple[nn.Module, Tensor, Tensor]) -> Memory:
    return remember(trained[0], trained[1][:2000], samples=300, progress=False)


def noisy(x: Tensor, seed: int) -> Tensor:
    return x + 1.2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def failing(trained: tuple[nn.Module, Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    model, x, y = trained
    x, y = noisy(x[2000:3500], 0), y[2000:3500]
    wrong = (model(x).argmax(1) != y).nonzero().squeeze(1)[:count]
    return x[wrong], y[wrong]


def test_failures_are_fixed_and_little_else_moves(
    trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory
) -> None:
    model, x, y = trained
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    fx, fy = failing(trained, 20)
    fix = repair(model, fx, fy, remembered)
    with torch.no_grad():
        right = fix.model(fx).argmax(1) == fy
        old, new = ((m(x[3500:]).argmax(1) == y[3500:]).double().mean() for m in (model, fix.model))
        kind = [(m(noisy(x[3500:], 1)).argmax(1) == y[3500:]).double().mean() for m in (model, fix.model)]
    assert torch.equal(fix.fixed, right)
    assert right.double().mean() >= 0.95
    assert new >= old - 0.015
    assert kind[1] > kind[0] + 0.02
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training is False
    assert "20 failing samples fixed" in str(fix)
    assert "conv" not in fix._repr_html_() or "<table>" in fix._repr_html_()


def test_the_metric_does_the_work(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    """The same samples fixed by plain gradient steps break several times as much."""
    model, x, y = trained
    fx, fy = failing(trained, 20)
    fix = repair(model, fx, fy, remembered)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(plain(fx), fy).backward()
        optimizer.step()
    with torch.no_grad():
        was = model(x[3500:]).argmax(1) == y[3500:]
        broken = [int((was & (m(x[3500:]).argmax(1) != y[3500:])).sum()) for m in (fix.model, plain)]
    assert broken[0] < broken[1] / 3


def test_with_old_samples_the_strength_is_chosen_and_reported(
    trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory
) -> None:
    model, x, y = trained
    fx, fy = failing(trained, 20)
    keep = (x[3500:4000], y[3500:4000])
    fix = repair(model, fx, fy, remembered, keep=keep)
    assert fix.kept is not None
    assert fix.kept.count == 250
    with torch.no_grad():
        before, after = ((m(keep[0]).argmax(1) == keep[1]) for m in (model, fix.model))
    rows = torch.arange(500) % 2 == 1
    assert set(fix.kept.broken.tolist()) == set((before & ~after & rows).nonzero().squeeze(1).tolist())
    assert "old samples" in str(fix)
    assert any("method='replay'" in note for note in fix.notes)
    alone = repair(model, fx, fy, keep=(keep[0][:400], keep[1][:400]))
    assert alone.fixed.double().mean() >= 0.9
    assert not any("method='replay'" in note for note in alone.notes)


def test_a_repair_that_costs_more_than_it_fixes_is_not_made(
    trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory
) -> None:
    """Digits that are right with the wrong label on purpose, beside the same digits with the right one."""
    model, x, y = trained
    old = x[3500:3600], y[3500:3600]
    with torch.no_grad():
        right = (model(old[0]).argmax(1) == old[1])[::2].nonzero().squeeze(1) * 2
    fix = repair(model, old[0][right], (old[1][right] + 1) % 10, remembered, keep=old, budget=9.0)
    assert fix.diff.moved == {}
    assert any("costs more of the old samples" in note for note in fix.notes)


def test_only_the_named_modules_move(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    model, _, _ = trained
    fx, fy = failing(trained, 5)
    fix = repair(model, fx, fy, remembered, modules=["classifier"])
    assert fix.diff.moved
    assert all(name.startswith("classifier") for name in fix.diff.moved)


def test_the_layer_to_blame_is_found_and_said(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    """Weights of one stage moved by noise: with some old samples, auto names that stage or the one after it."""
    model, x, y = trained
    broken = copy.deepcopy(model)
    with torch.no_grad():
        for p in broken.get_submodule("stage2").parameters():
            if p.dim() > 1:
                noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
                p += 1.5 * p.norm() / noise.norm() * noise
        wrong = (broken(x[2000:3000]).argmax(1) != y[2000:3000]).nonzero().squeeze(1)[:20] + 2000
    memory = remember(broken, x[:2000], samples=200, progress=False)
    fix = repair(broken, x[wrong], y[wrong], memory, keep=(x[3500:3900], y[3500:3900]), modules="auto")
    (said,) = (note for note in fix.notes if note.startswith("modules='auto'"))
    assert "refitting stage2 alone" in said
    assert fix.diff.moved
    assert {name.split(".")[0] for name in fix.diff.moved} == {"stage2"}
    with pytest.raises(OptionError, match="at least two"):
        repair(broken, x[wrong[:1]], y[wrong[:1]], memory, modules="auto")


def test_one_repair_after_the_other_keeps_the_first(
    trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory, tmp_path: Path
) -> None:
    model, _, _ = trained
    fx, fy = failing(trained, 30)
    first = repair(model, fx[:15], fy[:15], remembered)
    with pytest.raises(MemoryMismatchError, match="changed since"):
        repair(first.model, fx[15:], fy[15:], remembered)
    kept = Memory.load(first.memory.save(tmp_path / "memory"))
    second = repair(first.model, fx[15:], fy[15:], kept, budget=1.0)
    with torch.no_grad():
        still = (second.model(fx[:15]).argmax(1) == fy[:15])[first.fixed]
    assert second.fixed.double().mean() >= 0.95
    assert int((~still).sum()) == second.earlier_lost == 0


def test_explained_beside_the_reconstruction(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    model, _, _ = trained
    fx, fy = failing(trained, 10)
    fix = repair(model, fx, fy, remembered)
    (row,) = fix.explain("stage2")
    assert row.layer == "stage2"
    assert row.deviation > 0
    assert row.asked > 0
    assert 0 < row.cosine <= 1
    both = fix.explain()
    assert [m.layer for m in both] == ["stage2", "stage1"]
    assert str(both).startswith(f"features of {int(fix.fixed.sum())} fixed samples")
    assert "<table>" in both._repr_html_()
    with torch.no_grad():
        right = model(fx).argmax(1)
    nothing = repair(model, fx, right, remembered).explain()
    assert len(nothing) == 0
    assert "nothing to explain" in str(nothing)


def test_outputs_before_and_after(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    model, x, _ = trained
    fx, fy = failing(trained, 5)
    fix = repair(model, fx, fy, remembered, keep=(x[3500:3600], trained[2][3500:3600]))
    with torch.no_grad():
        assert torch.equal(fix.outputs()[0], model(fx))
        assert torch.equal(fix.outputs()[1], fix.model(fx))
    assert fix.kept is not None
    assert fix.kept.inputs.args[0].data_ptr() == x[3500:3600].data_ptr()  # no copy


def test_regression_targets_are_met() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2)).eval()
    x = torch.randn(300, 3)
    memory = remember(model, x, task="regression", progress=False)
    fx = torch.randn(8, 3)
    target = model(fx).detach() + torch.tensor([0.5, -0.5])
    fix = repair(model, fx, target, memory, budget=1e3)
    left = (fix.model(fx) - target).norm(dim=1) / (model(fx) - target).norm(dim=1)
    assert torch.equal(left <= 0.1, fix.fixed)  # nine tenths of what was missing are gone
    assert int(fix.fixed.sum()) >= 6
    assert not bool(fix.right_before.any())  # however small their residual is beside the target
    with pytest.raises(OptionError, match="regression"):
        repair(model, fx, target, remember(model, x, progress=False))


def test_the_owner_says_when_a_sample_is_right() -> None:
    """A repair ends as soon as the owner is content, and so moves less than one that goes for the labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2)).eval()
    memory = remember(model, torch.randn(300, 3), task="regression", progress=False)
    x = torch.randn(6, 3)
    y = model(x).detach() + torch.tensor([2.0, 0.0])
    seen: list[int] = []

    def first_is_up(outputs: Tensor, labels: Tensor) -> Tensor:
        assert torch.equal(labels, y)
        seen.append(len(outputs))
        return outputs[:, 0] > y[:, 0] - 1

    content = repair(model, x, y, memory, right=first_is_up, budget=1e3)
    to_the_end = repair(model, x, y, memory, budget=1e3)
    assert set(seen) == {6}
    assert not bool(content.right_before.any())
    assert bool(content.fixed.all())
    assert torch.equal(content.fixed, content.model(x)[:, 0] > y[:, 0] - 1)
    moved = [(fix.model(x) - model(x)).norm() for fix in (content, to_the_end)]
    assert moved[0] < moved[1]
    again = repair(content.model, x[:2], y[:2] + 1, content.memory, right=lambda out, to: out[:, 0] > to[:, 0] - 1.5)
    assert again.fixed.shape == (2,)
    for strange in (lambda out, to: out, lambda out, to: (out[:3] > 0).all(1)):
        with pytest.raises(OptionError, match="right="):
            repair(model, x, y, memory, right=strange)


def test_the_owner_is_asked_about_old_samples_too() -> None:
    """An old output may go far from its target as long as its owner calls it right, and is broken when they do not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2)).eval()
    x, old = torch.randn(6, 3), torch.randn(60, 3)
    y, known = model(x).detach() + torch.tensor([2.0, 0.0]), model(old).detach()

    def right(below: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda out, to: (out[:, 0] > to[:, 0] - 1) & (out[:, 0] < to[:, 0] + below)

    def fixed(below: float) -> Fix:
        memory = remember(model, old, task="regression", progress=False)
        return repair(model, x, y, memory, keep=(old, known), right=right(below), strength=0.01)

    lenient, strict = fixed(1e3), fixed(0.5)
    assert lenient.kept is not None
    assert strict.kept is not None
    assert not bool(right(0.5)(lenient.model(old), known).all())  # the repair does move old outputs
    assert len(lenient.kept.broken) == 0
    assert len(strict.kept.broken) > 0
    after = right(0.5)(strict.model(old), known)
    reported = torch.arange(60) % 2 == 1
    assert torch.equal(strict.kept.broken, (~after & reported).nonzero().squeeze(1))
    with pytest.raises(OptionError, match="each of the 60 samples"):
        repair(model, x, y, keep=(old, known), right=lambda out, to: torch.ones(6, dtype=torch.bool))


def test_in_half_precision(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, _ = trained
    half = copy.deepcopy(model).bfloat16()
    fx, fy = failing(trained, 10)
    fix = repair(half, fx.bfloat16(), fy, remember(half, x[:200].bfloat16(), progress=False))
    with torch.no_grad():
        right = fix.model(fx.bfloat16()).argmax(1) == fy
    assert bool(right[fix.fixed].all())
    assert fix.fixed.double().mean() >= 0.8
    assert next(fix.model.parameters()).dtype is torch.bfloat16


def test_samples_that_are_right_already_change_nothing(
    trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory
) -> None:
    model, x, _ = trained
    with torch.no_grad():
        y = model(x[:5]).argmax(1)
    fix = repair(model, x[:5], y, remembered)
    assert fix.diff.moved == {}
    assert bool(fix.fixed.all())
    assert "every sample was right already" in str(fix)


def test_what_an_owner_should_know_is_said(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    model, _, _ = trained
    fx, fy = failing(trained, 6)
    twice = repair(model, torch.cat([fx, fx[:1]]), torch.cat([fy, fy[:1]]), remembered)
    assert any("copies of others" in note for note in twice.notes)
    against = repair(model, torch.cat([fx, fx[:1]]), torch.cat([fy, (fy[:1] + 1) % 10]), remembered)
    assert any("equal and have different labels" in note for note in against.notes)
    assert any("not fixed" in note for note in against.notes)
    one = torch.full_like(fy, 3)
    assert any("one label only" in note for note in repair(model, fx, one, remembered).notes)
    tight = repair(model, fx, fy, remembered, budget=1e-9)
    assert any("within a predicted KL of 1e-09" in note for note in tight.notes)
    assert tight.predicted_kl <= 1e-2


def test_bad_input_is_refused(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    model, x, y = trained
    with pytest.raises(OptionError, match="remember"):
        repair(model, x[:2], y[:2])
    with pytest.raises(LabelError, match="2 samples and 3 labels"):
        repair(model, x[:2], y[:3], remembered)
    with pytest.raises(LabelError, match=r"\[12\] are out of range"):
        repair(model, x[:1], torch.tensor([12]), remembered)
    with pytest.raises(NonFiniteError):
        repair(model, x[:1] * torch.nan, y[:1], remembered)
    with pytest.raises(InputError, match="empty"):
        repair(model, x[:0], y[:0], remembered)
    with pytest.raises(OptionError, match="seed"):
        repair(model, x[:1], y[:1], remembered, seed=-1)
    with pytest.raises(OptionError, match="strength"):
        repair(model, x[:1], y[:1], remembered, strength=-1.0)


def test_a_far_move_is_warned_of(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    """One layer that has to do what all do: it moves far, and the memory's metric is of small changes."""
    model, x, y = trained
    wrong = (y[3500:3560] + 3) % 10
    fix = repair(model, x[3500:3560], wrong, remembered, modules=["classifier"], strength=1e-3)
    assert any("of its norm" in note and "keep=" in note for note in fix.notes)
    near = repair(model, *failing(trained, 3), remembered)
    assert not any("of its norm" in note for note in near.notes)


def test_frozen_weights_are_held(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    model = copy.deepcopy(trained[0])
    model.stage1.requires_grad_(False)
    fx, fy = failing(trained, 5)
    fix = repair(model, fx, fy, remembered)
    assert fix.diff.moved
    assert not any(name.startswith("stage1") for name in fix.diff.moved)
    assert any("requires_grad=False" in note for note in fix.notes)
    all_frozen = repair(model.requires_grad_(False), fx, fy, remembered)
    assert any(name.startswith("stage1") for name in all_frozen.diff.moved)


def test_a_memory_may_be_named_by_its_directory(
    trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory, tmp_path: Path
) -> None:
    fx, fy = failing(trained, 5)
    fix = repair(trained[0], fx, fy, remembered.save(tmp_path / "memory"))
    assert bool(fix.fixed.all())


def test_labels_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class ids of pixels; among the old samples; and floats for one logit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1)).eval()
    x, y = torch.randn(8, 1, 6, 6), torch.randint(3, (8, 6, 6))
    memory = remember(model, x, progress=False)
    monkeypatch.setattr(sys.modules[repair.__module__], "remember", lambda *_, **__: pytest.fail("a memory was made"))
    for options in ({"keep": (x, y)}, {"memory": memory}):
        with pytest.raises(LabelError, match=r"one class id for each sample.*yes or no.*or output targets") as caught:
            repair(model, x, y, **options)  # type: ignore[arg-type]
        assert "task=" not in str(caught.value)
    ids = nn.Sequential(model, nn.Flatten(), nn.Linear(108, 3)).eval()
    with pytest.raises(LabelError, match="keep: there are 8 samples and 5 labels"):
        repair(ids, x, y[:, 0, 0], keep=(x, y[:5, 0, 0]))
    with pytest.raises(LabelError, match="keep: a repair takes one class id for each sample"):
        repair(ids, x, y[:, 0, 0], keep=(x, y))
    logit = nn.Sequential(nn.Flatten(), nn.Linear(36, 1)).eval()
    with pytest.raises(LabelError, match=r"\(b, 1\), got \(b,\)\. If they say yes or no, .*y\.long"):
        repair(logit, x, torch.ones(8), keep=(x, torch.ones(8)))


def test_labels_that_do_not_fit_are_refused(trained: tuple[nn.Module, Tensor, Tensor], remembered: Memory) -> None:
    model, x, y = trained
    with pytest.raises(LabelError, match="got bool"):
        repair(model, x[:2], torch.tensor([True, False]), remembered)
    with pytest.raises(LabelError, match="must be integers"):
        repair(model, x[:2], y[:2].float(), remembered)
    numbers = remember(model, x[:100], task="regression", progress=False)
    with pytest.raises(OptionError, match="class ids"):
        repair(model, x[:2], y[:2], numbers)
    with torch.inference_mode(), pytest.raises(OptionError, match="inference_mode"):
        repair(model, x[:2], y[:2], remembered)


def test_an_old_output_is_broken_when_it_gets_farther_from_its_target() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    old, x, y = torch.randn(80, 4), torch.randn(4, 4), torch.randn(4, 2)
    with torch.no_grad():
        labels = model(old) + 0.3 * torch.randn(80, 2)
    fix = repair(model, x, y, keep=(old, labels), strength=1e-3)
    with torch.no_grad():
        before, after = ((labels - m(old)).norm(dim=1)[1::2] for m in (model, fix.model))
    broken = after > (1.05 * before).maximum(0.05 * labels[1::2].norm(dim=1))
    assert fix.kept is not None
    assert fix.kept.right_before == fix.kept.count == 40
    assert 0 < int(broken.sum()) == len(fix.kept.broken)


def test_failures_that_are_nearly_all_of_one_label_get_a_note() -> None:
    outputs = torch.zeros(20, 3)
    outputs[:, 1] = 1.0
    inputs, nothing = Inputs.of(torch.randn(20, 4)), torch.zeros(20, dtype=torch.bool)
    for own, noted in ((20, "all failures"), (19, "19 of 20 failures"), (16, "16 of 20 failures"), (15, "")):
        labels = torch.where(torch.arange(20) < own, 0, 2)
        notes = notes_on(inputs, labels, outputs, nothing, ~nothing, 0.3, 500)
        said = [note for note in notes if "drifts towards" in note]
        assert len(said) == (1 if noted else 0)
        assert all(note.startswith(f"{noted} are of class 0, taken for 1") for note in said)
