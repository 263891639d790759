"""A run that was stopped, by an exception, a full disk or SIGKILL, goes on to the same numbers."""

from __future__ import annotations

import multiprocessing
import os
import pickletools
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import frpt
from frpt.errors import PartialError
from frpt.train import resume
from tests.train.toys import blobs, network, parameters


class Dropped(nn.Module):
    """Draws random numbers in training and keeps statistics, all of which have to be as they would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def model() -> Dropped:
    torch.manual_seed(1)
    return Dropped().eval()


@cache
def reverser() -> frpt.Reverser:
    return frpt.Reverser(model(), blobs(2).tensors[0], preset="online")


def decay(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


class StoppedError(Exception):
    pass


class Until:
    """A task loss that ends the run at its n-th call."""

    def __init__(self, calls: int, kill: bool = False) -> None:
        self.calls, self.kill = calls, kill

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.calls -= 1
        if self.calls == 0:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise StoppedError
        return F.cross_entropy(outputs, labels)


def train(folder: Path | None = None, loss: Any = F.cross_entropy, **options: Any) -> frpt.Result:
    options = {"targets": "anchor", "epochs": 3, "batch_size": 10, "lr": 1e-2, "schedule": decay, **options}
    return frpt.post_train(
        reverser(), blobs(), "body", val=blobs(16, 1), task_loss=loss, partial=folder, progress=False, **options,
    )  # fmt: skip


@cache
def undisturbed() -> frpt.Result:
    return train()


def same(a: frpt.Result, b: frpt.Result) -> None:
    assert torch.equal(parameters(a.model), parameters(b.model))
    assert [replace(r, seconds=0, samples_per_second=0) for r in a.history] == [
        replace(r, seconds=0, samples_per_second=0) for r in b.history
    ]


@pytest.mark.parametrize(("calls", "steps"), [(8, None), (13, 3)])
def test_a_run_stopped_by_an_exception_goes_on(tmp_path: Path, calls: int, steps: int | None) -> None:
    with pytest.raises(StoppedError):
        train(tmp_path, Until(calls), partial_steps=steps)
    counted = Until(1000)
    result = train(tmp_path, counted, partial_steps=steps)
    done = (calls - 1) // (steps or 5) * (steps or 5)
    assert 1000 - counted.calls == 15 - done
    same(result, undisturbed())


def test_a_killed_run_goes_on_and_a_finished_one_stays(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=train, args=(tmp_path, Until(9, kill=True)), kwargs={"partial_steps": 2})
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    same(train(tmp_path, Until(1000)), undisturbed())
    same(train(tmp_path, Until(1)), undisturbed())


def test_offline_and_online_runs_go_on_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 2}
    for targets in (None, "online"):
        folder = tmp_path / str(targets)
        with pytest.raises(StoppedError):
            train(folder, Until(7), targets=targets, **options)
        same(train(folder, Until(1000), targets=targets, **options), train(targets=targets, **options))


def test_a_half_done_run_holds_only_json_and_tensors(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    (state,) = tmp_path.iterdir()
    assert sorted(p.name for p in state.iterdir()) == ["state.json", "tensors.safetensors"]
    for file in state.iterdir():
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever pickletools says of bytes that are no pickle
            pickletools.dis(file.read_bytes(), out=open(os.devnull, "w"))  # noqa: SIM115
    assert not any(name.startswith("/model/head") for name in load_file(state / "tensors.safetensors"))


def test_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    with pytest.raises(PartialError, match="seed was 0, now 4"):
        train(tmp_path, epochs=1, seed=4)
    with pytest.raises(PartialError, match=r"c_rec was 0\.3, now 0\.0; targets was 'anchor', now 'none'"):
        train(tmp_path, epochs=1, c_rec=0.0)


def test_a_full_disk_leaves_the_state_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    serialize = resume.save

    def full(tensors: dict[str, Tensor]) -> bytes:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return serialize(tensors)

    monkeypatch.setattr(resume, "save", full)
    with pytest.raises(PartialError, match=r"No space left.*intact \(state-0000000005\)"):
        train(tmp_path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["state-0000000005"]
    same(train(tmp_path), undisturbed())


def test_damage_is_named(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    (state,) = tmp_path.iterdir()
    (state / "state.json").write_text("{")
    with pytest.raises(PartialError, match="is damaged"):
        train(tmp_path, epochs=1)


def test_structures_survive_and_others_are_refused() -> None:
    tree = {"a": [1, (2.5, None)], 3: {"t": torch.arange(3)}, "flag": True, "x": float("inf")}
    tensors: dict[str, Tensor] = {}
    again = resume.unpack(resume.pack(tree, tensors), tensors)
    assert torch.equal(again[3].pop("t"), torch.arange(3))
    assert again == {"a": [1, (2.5, None)], 3: {}, "flag": True, "x": float("inf")}
    with pytest.raises(PartialError, match="schedule/fn is a function"):
        resume.pack({"schedule": {"fn": network}}, {})
