"""No thread is left behind by a call; small calls use few, and torch's own settings of them stay as they were."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import frpt
from frpt.common.threads import threads_for
from frpt.graph.capture import Captured
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
    until = time.monotonic() + 5
    while tasks() > count and time.monotonic() < until:  # a thread that is joined may still be on its way out
        time.sleep(0.01)
    assert tasks() <= count
    assert (torch.get_num_threads(), torch.get_num_interop_threads()) == settings


@pytest.fixture
def two_threads() -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


@pytest.mark.usefixtures("two_threads")
def test_threads_are_as_before_after_a_call_and_after_a_failure() -> None:
    with threads_for(2**20):
        assert torch.get_num_threads() == 1
    with threads_for(2**30):
        assert torch.get_num_threads() == 2
    with pytest.raises(KeyboardInterrupt), threads_for(2**20):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_other_threads_keep_their_number_during_a_call() -> None:
    """One that has used torch before, and one that does so for the first time."""
    seen: dict[str, int] = {}
    before, during = threading.Event(), threading.Event()

    def old() -> None:
        torch.ones(2).sum()
        before.set()
        during.wait(10)
        seen["old"] = torch.get_num_threads()

    def new() -> None:
        seen["new"] = torch.get_num_threads()

    first, second = threading.Thread(target=old), threading.Thread(target=new)
    first.start()
    before.wait(10)
    with threads_for(2**20):
        during.set()
        second.start()
        first.join()
        second.join()
    assert seen == {"old": 2, "new": 2}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("samples", "threads"), [(4, 1), (40_000, 2)])
def test_a_reconstruction_has_as_many_threads_as_it_is_worth(
    monkeypatch: pytest.MonkeyPatch, samples: int, threads: int
) -> None:
    seen = set()
    run = Captured.run

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.add(torch.get_num_threads())
        return run(*args, **kwargs)

    model, (x, _) = network(), blobs(samples).tensors
    y = model(x).argmax(1)
    y[:100] = (y[:100] + 1) % 4  # a search for all of them would take a quarter of a minute
    rev = frpt.Reverser(model, x[:4])
    rev.plan("1")
    monkeypatch.setattr(Captured, "run", watched)
    rev.reconstruct(x, y, at="1")
    assert seen == {threads}
