"""A half-done training run on disk: damage is named, another run is refused, and two runs cannot share it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import PartialError
from tests.faults.damage import HOSTILE, flips
from tests.train.test_resume import StoppedError, Until
from tests.train.toys import blobs, network, parameters, reverser

Loss = Callable[[Tensor, Tensor], Tensor]


def train(folder: Path, data: Any = None, loss: Loss | None = None, model: Any = None, **options: Any) -> frpt.Result:
    options = {"targets": "anchor", "epochs": 1, "batch_size": 16, "lr": 1e-2, **options}
    return frpt.post_train(
        model or reverser(), data or blobs(), "3", task_loss=loss, partial=folder, progress=False, **options
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partial")
    train(folder)
    return folder


@pytest.fixture
def half_done(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_every_flipped_bit_is_noticed(half_done: Path, name: str) -> None:
    (state,) = half_done.iterdir()
    before = parameters(train(half_done).model)
    for bit in flips(state / name, 8):
        with pytest.raises(PartialError, match="state-"):
            train(half_done)
        assert bit >= 0
    assert torch.equal(parameters(train(half_done).model), before)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_hostile_files_are_refused(half_done: Path, name: str, harm: Callable[[Path], None]) -> None:
    (state,) = half_done.iterdir()
    harm(state / name)
    with pytest.raises(PartialError, match="state-"):
        train(half_done)


def test_a_state_of_another_shape_is_refused(half_done: Path) -> None:
    """The checksum fits, as whoever wrote the file has made it, but it is no state of a run."""
    from frpt.train.resume import Partial, load

    (state,) = half_done.iterdir()
    held = load(state)
    for key in ("run", "position", "tally", "history", "balance", "model", "optimizer"):
        Partial(half_done).save(3, {k: v for k, v in held.items() if k != key})
        with pytest.raises(PartialError):
            train(half_done)
        Partial(half_done).save(3, {**held, key: [1, 2]})
        with pytest.raises(PartialError):
            train(half_done)
    Partial(half_done).save(3, held)
    train(half_done)


def scaled(outputs: Tensor, labels: Tensor) -> Tensor:
    return 2 * F.cross_entropy(outputs, labels)


def constant(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, steps)


def other_label() -> TensorDataset:
    x, y = blobs().tensors
    y = y.clone()
    y[17] = (y[17] + 1) % 4
    return TensorDataset(x, y)


def other_input() -> TensorDataset:
    x, y = blobs().tensors
    x = x.clone()
    x[31, 2] += 1e-3
    return TensorDataset(x, y)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": other_label()}, "data"),
        ({"data": other_input()}, "data"),
        ({"val": blobs(16, 1)}, "validation data"),
        ({"loss": scaled}, "task loss"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "task loss"),
        ({"schedule": constant}, "schedule"),
        ({"optimizer": partial(torch.optim.AdamW, lr=1e-2)}, "optimizer"),
    ],
    ids=["label", "input", "val", "loss", "smoothing", "schedule", "optimizer"],
)
def test_another_run_is_refused(half_done: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(PartialError, match=f"belongs to another run.*{named}"):
        train(half_done, **change)


def test_losses_that_differ_in_a_number_are_told_apart(tmp_path: Path) -> None:
    def weighted(weight: float) -> Loss:
        return lambda outputs, labels: weight * F.cross_entropy(outputs, labels)

    train(tmp_path, loss=weighted(1.0))
    train(tmp_path, loss=weighted(1.0))
    with pytest.raises(PartialError, match="task loss"):
        train(tmp_path, loss=weighted(2.0))


@pytest.mark.parametrize(
    "option", [{"embed": "one_hot"}, {"preset": "paper"}, {"margin": 0.1}], ids=lambda o: next(iter(o))
)
def test_another_reconstruction_is_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    options: dict[str, Any] = {"model": network(), "targets": "online", "every": 4}
    train(tmp_path, **options)
    with pytest.raises(PartialError, match=f"belongs to another run.*{next(iter(option))}"):
        train(tmp_path, **options, **option)


class Augmented(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Random, from torch's generator or from one of its own that goes on with every look."""

    def __init__(self, own: bool) -> None:
        self.generator = torch.Generator().manual_seed(0) if own else None

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(6, generator=self.generator), index % 4


@pytest.mark.parametrize("own", [False, True])
def test_augmented_data_go_on(tmp_path: Path, own: bool) -> None:
    with pytest.raises(StoppedError):
        train(tmp_path, Augmented(own), Until(4), epochs=2, batch_size=10)
    assert len(train(tmp_path, Augmented(own), Until(1000), epochs=2, batch_size=10).history) == 2


def test_two_runs_cannot_share_a_directory(tmp_path: Path) -> None:
    refused: list[str] = []

    def nested(outputs: Tensor, labels: Tensor) -> Tensor:
        if not refused:
            refused.append("")
            with pytest.raises(PartialError, match="is being written by process") as error:
                train(tmp_path, loss=scaled)
            refused[0] = str(error.value)
        return F.cross_entropy(outputs, labels)

    train(tmp_path, loss=nested)
    assert str(os.getpid()) in refused[0]
    assert [p.name for p in tmp_path.iterdir()] == ["state-0000000003"]


def test_the_checksum_is_in_the_file(half_done: Path) -> None:
    (state,) = half_done.iterdir()
    content = json.loads((state / "state.json").read_text())
    assert {len(content[key]) for key in ("sha256", "checksum")} == {64}
