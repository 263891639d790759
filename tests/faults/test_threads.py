"""No thread is left behind by a call, and torch's own settings of them stay as they were."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import frpt
from tests.train.toys import blobs, network

CALLS: dict[str, Callable[[torch.nn.Module, TensorDataset, Path], object]] = {
    "reconstruct": lambda net, data, folder: frpt.Reverser(net, data.tensors[0]).reconstruct(*data.tensors, at="1"),
    "diagnose": lambda net, data, folder: frpt.diagnose(net, data, ["1"], gallery=1),
    "repair": lambda net, data, folder: frpt.repair(
        net, data.tensors[0][:4], data.tensors[1][:4], frpt.remember(net, data.tensors[0])
    ),
    "write_targets": lambda net, data, folder: frpt.write_targets(
        frpt.Reverser(net, data.tensors[0]), data, at=["1"], store=folder / "store"
    ),
    "post_train": lambda net, data, folder: frpt.post_train(net, data, at="1", targets="online", epochs=1, seed=0),
}


def tasks() -> int:
    """Threads of this process, those of libraries among them."""
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc, which is Linux's")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_no_thread_is_left_behind(call: Callable[..., object], tmp_path: Path) -> None:
    data = blobs(24)
    settings = torch.get_num_threads(), torch.get_num_interop_threads()
    call(network(), data, tmp_path / "first")  # libraries start their own pools once
    named, count = {t.name for t in threading.enumerate()}, tasks()
    call(network(), data, tmp_path / "second")
    assert {t.name for t in threading.enumerate()} == named
    assert tasks() <= count
    assert (torch.get_num_threads(), torch.get_num_interop_threads()) == settings
