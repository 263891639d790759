"""Inputs that a model does not take: frpt's own error, with what was wrong, from every way in."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

import frpt
from frpt.errors import InputError

IDS, LABELS = torch.arange(80).reshape(20, 4) % 10, torch.arange(20) % 3


def words() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(32, 3)).eval()


def unknown() -> torch.Tensor:
    """A token id beyond the table."""
    return IDS.index_put((torch.tensor(3), torch.tensor(1)), torch.tensor(12))


USES: dict[str, Callable[[nn.Module, Path], object]] = {
    "reconstruct": lambda m, _: frpt.Reverser(m, IDS).reconstruct(unknown(), LABELS, at="1"),
    "run_on": lambda m, _: frpt.Reverser(m, IDS).run_on(unknown(), "1"),
    "diagnose": lambda m, _: frpt.diagnose(m, (unknown(), LABELS), progress=False),
    "remember": lambda m, _: frpt.remember(m, unknown(), progress=False),
    "post_train": lambda m, _: frpt.post_train(m, (unknown(), LABELS), at="1", epochs=1, progress=False),
    "write_targets": lambda m, f: frpt.write_targets(
        frpt.Reverser(m, IDS), (unknown(), LABELS), "1", f / "store", progress=False
    ),
}


@pytest.mark.parametrize("use", USES)
def test_a_token_id_beyond_the_table(use: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="index out of range"):
        USES[use](words(), tmp_path)


def test_more_inputs_than_labels() -> None:
    with pytest.raises(InputError, match="20 inputs and 15 labels"):
        frpt.diagnose(words(), (IDS, LABELS[:15]), progress=False)


def test_inputs_of_another_size() -> None:
    model = words()
    with pytest.raises(InputError, match=r"the model fails on the first samples of the data set, \(8, 3\)"):
        frpt.post_train(model, (IDS[:, :3], LABELS), at="1", epochs=1, progress=False)
    with pytest.raises(
        InputError, match=r"keep: its samples have the shapes \[\(3,\)\], those to be repaired \[\(4,\)\]"
    ):
        frpt.repair(model, IDS, LABELS, frpt.remember(model, IDS, progress=False), keep=(IDS[:, :3], LABELS))


X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


ON_NUMBERS: dict[str, Callable[[nn.Module, torch.Tensor, Path], object]] = {
    "Reverser": lambda m, x, _: frpt.Reverser(m, x),
    "reconstruct": lambda m, x, _: frpt.Reverser(m, of_model(m)).reconstruct(x, LABELS, at="1"),
    "run": lambda m, x, _: frpt.Reverser(m, of_model(m)).run(x, "1", torch.zeros(20, 8)),
    "diagnose": lambda m, x, _: frpt.diagnose(m, (x, LABELS), progress=False),
    "Reference": lambda m, x, _: frpt.Reference.fit(m, (x, LABELS), at=["1"], samples=20, progress=False),
    "remember": lambda m, x, _: frpt.remember(m, x, progress=False),
    "remember by a Reverser": lambda m, x, _: frpt.remember(frpt.Reverser(m, of_model(m)), x, progress=False),
    "repair": lambda m, x, _: frpt.repair(m, x, LABELS, frpt.remember(m, of_model(m), progress=False)),
    "repair by a Reverser": lambda m, x, _: frpt.repair(
        frpt.Reverser(m, of_model(m)), x, LABELS, frpt.remember(m, of_model(m), progress=False)
    ),
    "keep": lambda m, x, _: frpt.repair(
        m, of_model(m), LABELS, frpt.remember(m, of_model(m), progress=False), keep=(x, LABELS)
    ),
    "post_train": lambda m, x, _: frpt.post_train(m, (x, LABELS), at="1", epochs=1, progress=False),
    "write_targets": lambda m, x, f: frpt.write_targets(
        frpt.Reverser(m, of_model(m)), (x, LABELS), "1", f / "store", progress=False
    ),
}


def of_model(model: nn.Module) -> torch.Tensor:
    """The inputs in the type of the weights."""
    return X.to(next(model.parameters()).dtype)


@pytest.mark.parametrize("use", ON_NUMBERS)
def test_inputs_of_another_type_than_the_weights(use: str, tmp_path: Path) -> None:
    model, state = plain(), torch.get_rng_state()
    with pytest.raises(InputError, match=r"the inputs are float64, the model's weights are float32") as caught:
        ON_NUMBERS[use](model, X.double(), tmp_path)
    assert "x.to(torch.float32) (of NumPy: x.astype('float32')), or the model, model.to(torch.float64)" in str(
        caught.value
    )
    assert torch.equal(state, torch.get_rng_state())


def test_types_that_do_not_go_together() -> None:
    model = plain()
    with pytest.raises(InputError, match=r"float32, the model's weights are float16.*model.to\(torch.float32\)"):
        frpt.Reverser(deepcopy(model).half(), X)
    with pytest.raises(InputError, match=r"int64, the model's weights are float32.*x.to\(torch.float32\)\.$"):
        frpt.Reverser(model, X.long())
    images = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 3)).eval()
    with pytest.raises(InputError, match="the inputs are uint8, the model's weights are float32"):
        frpt.Reverser(images, torch.zeros(4, 1, 2, 2, dtype=torch.uint8))


class Converts(nn.Module):
    """Takes inputs of any type, and has weights of two."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8).bfloat16(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x.bfloat16()).float().relu())
        return out


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int32, torch.bfloat16])
def test_a_model_that_converts_its_inputs_takes_them(kind: torch.dtype) -> None:
    rec = frpt.Reverser(Converts().eval(), X.to(kind)).reconstruct(X.to(kind), LABELS, at="body")
    assert bool(rec.wins.all())


def test_inputs_without_numbers() -> None:
    rev = frpt.Reverser(plain(), X)
    with pytest.raises(InputError, match=r"inputs\[0\] is on the meta device: it has a shape, \(20, 4\)"):
        rev.reconstruct(X.to("meta"), LABELS, at="1")
    with pytest.raises(InputError, match=r"inputs\['input'\] is on the meta device"):
        frpt.Reverser(plain(), {"input": X.to("meta")})
