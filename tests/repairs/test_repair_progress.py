"""What a repair and a memory tell of themselves while they are made."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from frpt.files.progress import Progress
from frpt.repairs import Memory, compare_repairs, controls, remember, repair


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3)).eval()


def inputs(count: int, seed: int) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def remembered() -> Memory:
    return remember(net(), inputs(200, 1), progress=False)


def failures() -> tuple[Tensor, Tensor]:
    x = inputs(12, 2)
    return x, (net()(x).argmax(1) + 1) % 3


class Told:
    """Every word that a bar was given, and its stages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: list[str] = []
        self.stages: list[str] = []
        advance, describe = Progress.advance, Progress.describe

        def advanced(bar: Progress, count: float = 1, words: str | None = None, last: bool = False) -> None:
            self.words += [words] if words else []
            advance(bar, count, words, last)

        def described(bar: Progress, description: str) -> None:
            self.stages.append(description)
            describe(bar, description)

        monkeypatch.setattr(Progress, "advance", advanced)
        monkeypatch.setattr(Progress, "describe", described)


def test_each_step_of_a_repair_is_told(remembered: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    fix = repair(net(), *failures(), remembered, budget=1.0)
    strengths = [f"{tried.strength:g}" for tried in fix.curve]
    assert strengths
    for strength in strengths:
        assert f"strength {strength}, step 1: " in "\n".join(told.words)
    assert len([words for words in told.words if " step " in words]) >= fix.rounds
    assert told.words[0].endswith("step 1: 0 of 12 samples right")
    assert all(words.endswith("of 12 samples right") for words in told.words)


def test_a_line_says_what_was_tried(remembered: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    fix = repair(net(), *failures(), remembered, strength=100.0)
    told = capsys.readouterr().err
    assert told.startswith("repairing: 1 strength in ")
    assert told.endswith(f", strength 100, {int(fix.fixed.sum())} of 12 samples right\n")
    repair(net(), *failures(), remembered, progress=False)
    assert capsys.readouterr().err == ""


def test_every_control_tells_its_steps(remembered: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    methods: tuple[controls.Method, ...] = ("finetune", "ewc", "replay")
    for method in methods:
        told.words.clear()
        repair(net(), *failures(), remembered, method=method, old=inputs(50, 3))
        assert told.words[0].startswith("strength ")
        assert told.words[0].endswith(", step 1")


def test_other_stages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    x = inputs(60, 4)
    repair(net(), *failures(), keep=(x, net()(x).argmax(1)), modules="auto")
    assert told.stages == ["a mock repair", "ranking layers", "repairing"]


def test_a_comparison_counts_its_repairs(
    remembered: Memory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told, (x, y) = Told(monkeypatch), failures()
    old = inputs(20, 3), net()(inputs(20, 3)).argmax(1)
    compare_repairs(net(), x, y, remembered, old=old, methods=("nearest", "ewc"), seeds=(0, 1))
    assert [stage for stage in told.stages if "seed" in stage] == [
        "nearest, seed 0", "nearest, seed 1", "ewc, seed 0", "ewc, seed 1",
    ]  # fmt: skip
    assert "comparing repairs: 4 repairs in" in capsys.readouterr().err
    compare_repairs(net(), x, y, remembered, old=old, methods=("nearest",), progress=False)
    assert capsys.readouterr().err == ""


def test_inputs_are_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Two passes are made over them."""
    remember(net(), inputs(175, 1))
    assert capsys.readouterr().err.startswith("remembering: 175 inputs in ")
