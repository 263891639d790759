"""Options live in the Reverser: what makes one takes its options by name, or a Reverser instead of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import OptionError
from tests.train.toys import blobs, network

OPTIONS: dict[str, Any] = {"margin": 0.3, "embed": "max_assign"}


@pytest.fixture(scope="module")
def rev() -> frpt.Reverser:
    return frpt.Reverser(network(), blobs(8).tensors[0], **OPTIONS)


def diagnosed(model: Any, **options: Any) -> str:
    return str(frpt.diagnose(model, blobs(), ["3"], gallery=0, progress=False, **options))


def followed(model: Any, **options: Any) -> str:
    return str(frpt.along_training(model, [network().state_dict()], blobs(), "3", progress=False, **options))


def fitted(model: Any, **options: Any) -> str:
    return frpt.Reference.fit(model, blobs(), "3", progress=False, **options).digest


@pytest.mark.parametrize("call", [diagnosed, followed, fitted])
def test_a_reverser_stands_for_the_model_and_its_options(call: Any, rev: frpt.Reverser) -> None:
    assert call(rev) == call(network(), **OPTIONS)
    with pytest.raises(OptionError, match=r"margin and a Reverser were given.*pass the model instead"):
        call(rev, margin=0.3)
    with pytest.raises(OptionError, match="'margin'"):
        call(network(), margins=0.3)
    with pytest.raises(OptionError, match=r"nn\.Module or a Reverser, got str"):
        call("network")


def test_a_diagnosis_takes_the_reversers_reference_or_its_own(rev: frpt.Reverser) -> None:
    ref = frpt.Reference.fit(rev, blobs(), ["3"], samples=40, progress=False)
    measured = frpt.Reverser(rev.model, blobs(8).tensors[0], **OPTIONS, reference=ref)
    assert diagnosed(measured) == diagnosed(rev, reference=ref)
    assert diagnosed(measured, reference=False) == diagnosed(rev, reference=False)
    assert diagnosed(measured) != diagnosed(rev, reference=False)
    assert torch.equal(rev.example.args[0], measured.example.args[0])


def test_a_module_stands_for_its_layer_everywhere(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x, y = torch.randn(40, 4), torch.randint(3, (40,))
    data = TensorDataset(x, y)
    assert [f.name for f in frpt.diagnose(model, data, at=[model[1], "0"], progress=False).layers] == ["out", "1", "0"]
    assert list(frpt.Reference.fit(model, data, at=model[1], progress=False).layers) == ["1"]
    store = frpt.write_targets(frpt.Reverser(model, x[:4]), data, at=model[1], store=tmp_path / "s", progress=False)
    assert list(store.layers) == ["1"]
