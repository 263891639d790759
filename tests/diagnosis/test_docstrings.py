"""The examples in docstrings run, and every public name has its docstring with its parts."""

from __future__ import annotations

import copy
import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import frpt
from frpt.diagnosis import findings

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
CLASSES = [
    frpt.Diagnosis, frpt.Trajectory, findings.LayerFinding, findings.UnitFinding, findings.PairFinding,
    findings.SampleTable, findings.Specimen, findings.Advice,
]  # fmt: skip
CALLS = [
    frpt.diagnose, frpt.along_training, frpt.Diagnosis.to_html, frpt.Diagnosis.to_pandas, frpt.Diagnosis.to_csv,
    frpt.Diagnosis.plot, frpt.Trajectory.correlation, frpt.Trajectory.to_pandas, frpt.Trajectory.figure,
]  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples talk about: a small network, forty pictures, their diagnosis."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    g = torch.Generator().manual_seed(1)
    x = torch.randn(40, 1, 8, 8, generator=g)
    with torch.no_grad():
        y = net(x).argmax(1)
    y[:30] = (y[:30] + 1) % 3
    data = TensorDataset(x, y)
    start = copy.deepcopy(net.state_dict())
    diagnosis = frpt.diagnose(net, data, ["0"], gallery=4, progress=False)
    trajectory = frpt.along_training(net, {"start": start, "end": start}, data, "0", progress=False)
    folder: Path = tmp_path_factory.mktemp("docstrings")
    return {"frpt": frpt, "net": net, "data": data, "start": start, "folder": folder, "diagnosis": diagnosis,
            "trajectory": trajectory}  # fmt: skip


@pytest.mark.parametrize("public", [*CLASSES, *CALLS], ids=lambda public: str(public.__qualname__))
def test_the_example_runs(public: Any, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(public) or "", dict(names), public.__qualname__, None, 0)
    assert test.examples
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("public", CALLS, ids=lambda public: str(public.__qualname__))
def test_arguments_and_what_comes_back_are_told(public: Any) -> None:
    text = inspect.getdoc(public) or ""
    assert "Returns:" in text
    own = [n for n in inspect.signature(public).parameters if n not in ("self", "args", "kwargs", "options")]
    assert not own or "Args:" in text
    assert [n for n in own if n not in text] == []


@pytest.mark.parametrize("public", CLASSES, ids=lambda public: str(public.__qualname__))
def test_fields_are_told(public: Any) -> None:
    text = inspect.getdoc(public) or ""
    assert [n for n in public.__dataclass_fields__ if f"    {n}: " not in text] == []
