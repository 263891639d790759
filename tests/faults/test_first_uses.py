"""First uses load other packages: Python's random state and the warning filters stay as they were."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from frpt.common.imports import without_a_trace

ROOT = Path(__file__).parents[2]


def test_no_first_use_leaves_a_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.first_uses", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert [line for line in said if line.endswith((" moved random", " moved filters"))] == []
    assert said[-1] == "done"


def test_what_is_loaded_may_draw_and_filter_and_fail() -> None:
    state, filters = random.getstate(), list(warnings.filters)

    def load() -> None:
        with without_a_trace():
            random.random()
            warnings.simplefilter("error")
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert random.getstate() == state
    assert list(warnings.filters) == filters
