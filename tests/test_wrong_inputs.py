"""Inputs that a model does not take: frpt's own error, with what was wrong, from every way in."""

from __future__ import annotations

from collections.abc import Callable
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
