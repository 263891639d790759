"""Killed anywhere, by anyone's side, on a full disk: the store ends with the bytes of an undisturbed run."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import frpt
from frpt.errors import StoreBusyError, StoreError, StoreMismatchError
from frpt.files.lock import WriterLock
from tests.targets.common import contents, data, forked, model, reverser

OPTIONS: dict[str, Any] = {"mode": "delta", "progress": False, "batch_size": 6, "shard_size": 12}
SHARDS = 6


@pytest.fixture(scope="module")
def rev() -> frpt.Reverser:
    return reverser()


@pytest.fixture(scope="module")
def undisturbed(rev: frpt.Reverser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("undisturbed")
    frpt.write_targets(rev, data(), ["0", "2"], path, **OPTIONS)
    found = contents(path)
    shards = {f"shard-{i:06d}.{end}" for i in range(SHARDS) for end in ("safetensors", "json")}
    assert found.keys() == {"manifest.json"} | shards
    return found


def writing(rev: frpt.Reverser, path: Path, rank: int = 0, world: int = 1) -> Callable[[], object]:
    return lambda: frpt.write_targets(rev, data(), ["0", "2"], path, rank=rank, world=world, **OPTIONS)


def disk_calls(monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], object]) -> list[int]:
    """Count calls that reach the disk, and act just before one of them."""
    calls = [0]
    for name in ("fsync", "replace", "link", "unlink"):
        real = getattr(os, name)

        def call(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == at:
                act()
            return _real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)
    return calls


def test_killed_before_any_call_to_the_disk(
    rev: frpt.Reverser, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = disk_calls(patch, -1, lambda: None)
        writing(rev, tmp_path / "count")()
    assert calls[0] > 6 * SHARDS
    for number in sorted({*range(1, 14), *range(14, calls[0], 5), calls[0] - 1, calls[0]}):
        path = tmp_path / str(number)

        def killed(path: Path = path, number: int = number) -> None:
            disk_calls(monkeypatch, number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            writing(rev, path)()

        process = forked(killed)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        writing(rev, path)()
        assert contents(path) == undisturbed, f"killed before call {number}"


def test_killed_at_random_moments(rev: frpt.Reverser, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    def seconds() -> float:
        start = time.perf_counter()
        forked(writing(rev, tmp_path / str(start))).join()
        return time.perf_counter() - start

    whole, chance, kills = min(seconds() for _ in range(3)), random.Random(0), 0
    for trial in range(24):
        if trial >= 8 and kills >= 4:  # a writer may be done before its time is up
            break
        path = tmp_path / str(trial)
        for _ in range(2):
            process = forked(writing(rev, path))
            process.join(chance.uniform(0.05, 0.8) * whole)
            process.kill()
            process.join()
            assert process.exitcode in (0, -signal.SIGKILL)
            kills += process.exitcode == -signal.SIGKILL
        store = frpt.write_targets(rev, data(), ["0", "2"], path, **OPTIONS)
        assert contents(path) == undisturbed
        assert store.verify(progress=False) == []
    assert kills >= 4


@pytest.mark.parametrize(("world", "killed"), [(2, None), (5, None), (3, 1)])
def test_several_writers_at_once_make_the_same_store(
    rev: frpt.Reverser, undisturbed: dict[str, bytes], tmp_path: Path, world: int, killed: int | None
) -> None:
    processes = [forked(writing(rev, tmp_path, rank, world)) for rank in range(world)]
    if killed is not None:
        processes[killed].kill()
    for process in processes:
        process.join()
    assert [p.exitcode for i, p in enumerate(processes) if i != killed] == [0] * (world - (killed is not None))
    if killed is not None:
        again = forked(writing(rev, tmp_path, killed, world))
        again.join()
        assert again.exitcode == 0
    assert contents(tmp_path) == undisturbed


def test_leftovers_of_writers_that_are_no_more_are_swept_and_those_of_others_stay(
    rev: frpt.Reverser, tmp_path: Path
) -> None:
    left = [f"shard-000003.safetensors.{rank}.tmp" for rank in (0, 1, 7)]
    for name in left:
        (tmp_path / name).write_text("half")
    writing(rev, tmp_path, 0, 2)()
    assert [name for name in left if (tmp_path / name).exists()] == [left[1]]
    writing(rev, tmp_path)()
    assert not list(tmp_path.glob("*.tmp"))


def test_each_writer_writes_its_own_shards(rev: frpt.Reverser, tmp_path: Path) -> None:
    store = frpt.write_targets(rev, data(), ["0", "2"], tmp_path, rank=1, world=3, **OPTIONS)
    assert {f.name for f in tmp_path.glob("*.safetensors")} == {"shard-000001.safetensors", "shard-000004.safetensors"}
    assert not store.complete


def test_a_full_disk_is_said_and_nothing_is_lost(
    rev: frpt.Reverser, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for number in (1, 2, 13, 24):
        path = tmp_path / str(number)
        with monkeypatch.context() as patch:
            disk_calls(patch, number, full)
            with pytest.raises(StoreError, match=r"disk is full.*make the same call again"):
                writing(rev, path)()
        kept = contents(path)
        assert kept.items() <= {**undisturbed, "manifest.json": kept.get("manifest.json", b"")}.items()
        writing(rev, path)()
        assert contents(path) == undisturbed


def test_a_path_that_cannot_be_written_is_said(rev: frpt.Reverser, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not be written"):
        writing(rev, tmp_path / "file")()


def test_a_store_somebody_writes_is_refused_until_he_dies(
    rev: frpt.Reverser, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    def hold() -> None:
        with WriterLock(tmp_path, 0, 1):
            time.sleep(600)

    process = forked(hold)
    lock = tmp_path / "writer-0.lock"
    while not (lock.exists() and lock.read_text()):
        time.sleep(0.01)
    with pytest.raises(StoreBusyError, match=f"process {process.pid} on .*remove writer-0.lock"):
        writing(rev, tmp_path)()
    with pytest.raises(StoreBusyError, match="writer 0 of 1"):
        writing(rev, tmp_path, 1, 2)()  # its shards would overlap
    assert lock.exists()
    process.kill()
    process.join()
    writing(rev, tmp_path)()
    assert contents(tmp_path) == undisturbed


def test_two_writers_in_one_process_are_refused_and_other_ranks_are_not(tmp_path: Path) -> None:
    with WriterLock(tmp_path, 0, 2):
        with pytest.raises(StoreBusyError), WriterLock(tmp_path, 0, 2):
            pass
        with pytest.raises(StoreBusyError), WriterLock(tmp_path, 2, 3):
            pass
        with WriterLock(tmp_path, 1, 2):
            pass
        assert [f.name for f in tmp_path.iterdir()] == ["writer-0.lock"]
    with WriterLock(tmp_path, 0, 1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_locks_of_the_dead_are_taken_over_and_those_of_other_hosts_are_not(tmp_path: Path) -> None:
    gone = forked(lambda: None)
    gone.join()
    lock = tmp_path / "writer-0.lock"
    for host, pid, refused in [(socket.gethostname(), gone.pid, False), ("elsewhere", gone.pid, True)]:
        lock.write_text(json.dumps({"host": host, "pid": pid, "rank": 0, "world": 1}))
        if refused:
            with pytest.raises(StoreBusyError, match="elsewhere"), WriterLock(tmp_path, 0, 1):
                pass
            with pytest.raises(StoreBusyError, match="elsewhere"), WriterLock(tmp_path, 1, 2):
                pass
            assert lock.exists()
        else:
            with WriterLock(tmp_path, 1, 2):
                pass
            with WriterLock(tmp_path, 0, 1):
                assert json.loads(lock.read_text())["pid"] == os.getpid()
            assert not lock.exists()


def flip(file: Path, place: int, bit: int = 0) -> None:
    damaged = bytearray(file.read_bytes())
    damaged[place] ^= 1 << bit
    file.write_bytes(bytes(damaged))


@pytest.fixture
def store(undisturbed: dict[str, bytes], tmp_path: Path) -> frpt.TargetStore:
    for name, content in undisturbed.items():
        (tmp_path / name).write_bytes(content)
    return frpt.TargetStore(tmp_path)


def test_any_flipped_bit_is_found_and_named(store: frpt.TargetStore, undisturbed: dict[str, bytes]) -> None:
    chance = random.Random(0)
    assert store.verify(progress=False) == []
    for name, content in undisturbed.items():
        for place in {0, len(content) - 1, *(chance.randrange(len(content)) for _ in range(8))}:
            flip(store.path / name, place, chance.randrange(8))
            if name == "manifest.json":
                with pytest.raises(StoreError, match=r"manifest\.json.* (is damaged|format version)"):
                    frpt.TargetStore(store.path)
            else:
                assert store.verify(progress=False) == [name.replace(".json", ".safetensors")]
            (store.path / name).write_bytes(content)


def test_repair_writes_bad_shards_again_and_no_others(
    rev: frpt.Reverser, store: frpt.TargetStore, undisturbed: dict[str, bytes]
) -> None:
    flip(store.path / "shard-000003.safetensors", 300)
    (store.path / "shard-000001.safetensors").unlink()
    before = {f.name: f.stat().st_ino for f in store.path.iterdir()}
    assert frpt.targets.rewrite_damaged(rev, data(), store.path, progress=False) == [
        "shard-000001.safetensors",
        "shard-000003.safetensors",
    ]
    assert contents(store.path) == undisturbed
    after = {f.name: f.stat().st_ino for f in store.path.iterdir()}
    rewritten = {name for name in after if before.get(name) != after[name]}
    assert rewritten == {f"shard-00000{i}.{end}" for i in (1, 3) for end in ("safetensors", "json")}
    assert frpt.targets.rewrite_damaged(rev, data(), store, progress=False) == []


def test_repair_with_other_things_than_the_store_was_written_with_is_refused(
    rev: frpt.Reverser, store: frpt.TargetStore
) -> None:
    flip(store.path / "shard-000003.safetensors", 300)
    damaged = contents(store.path)
    other = model()
    with torch.no_grad():
        other[2].bias[0] += 1
    with pytest.raises(StoreMismatchError, match=r"frozen part after '0' has other values in 2\.bias"):
        frpt.targets.rewrite_damaged(reverser(other), data(), store, progress=False)
    with pytest.raises(StoreMismatchError, match="margin"):
        frpt.targets.rewrite_damaged(reverser(margin=1.0), data(), store, progress=False)
    items = data()
    items[40] = (items[40][0], (items[40][1] + 1) % 4)
    with pytest.raises(StoreMismatchError, match="labels of samples 36 to 47"):
        frpt.targets.rewrite_damaged(rev, items, store, progress=False)
    assert contents(store.path) == damaged


def test_a_lost_manifest_or_shard_is_made_again_by_writing(
    rev: frpt.Reverser, store: frpt.TargetStore, undisturbed: dict[str, bytes]
) -> None:
    (store.path / "manifest.json").unlink()
    (store.path / "shard-000002.safetensors").unlink()
    kept = (store.path / "shard-000000.safetensors").stat().st_ino
    writing(rev, store.path)()
    assert contents(store.path) == undisturbed
    assert (store.path / "shard-000000.safetensors").stat().st_ino == kept
    (store.path / "shard-000004.safetensors").unlink()
    with pytest.raises(StoreError, match=r"shard-000004\.safetensors .*cannot be read"):
        store.read("0", [50])
    writing(rev, store.path)()
    assert contents(store.path) == undisturbed


def test_shards_of_another_checkpoint_are_not_taken_for_finished(rev: frpt.Reverser, store: frpt.TargetStore) -> None:
    (store.path / "manifest.json").unlink()
    other = model()
    with torch.no_grad():
        other[4].bias[0] += 1
    written = frpt.write_targets(reverser(other), data(), ["0", "2"], store.path, **OPTIONS)
    written.check(reverser(other))
    assert written.verify(progress=False) == []
    fresh = frpt.write_targets(reverser(other), data(), ["0", "2"], store.path / "fresh", **OPTIONS)
    assert torch.equal(written.read("2", range(72))[0], fresh.read("2", range(72))[0])


def test_bytes_do_not_depend_on_loading_processes(
    rev: frpt.Reverser, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    frpt.write_targets(rev, data(), ["2", "0"], tmp_path, workers=2, **OPTIONS)
    assert contents(tmp_path) == undisturbed
