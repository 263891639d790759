"""The loops in examples/ run, and train."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["loop_plain", "loop_lightning", "loop_trainer"])
def test_the_loop_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, name, raising=False)
    accuracy = importlib.import_module(name).main(samples=192, epochs=1)
    assert accuracy > 0.5
    assert "test accuracy" in capsys.readouterr().out
