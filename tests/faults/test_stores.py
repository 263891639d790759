"""Target stores that are damaged or made to do harm: named by shard where they are read, and nothing is followed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import StoreError
from frpt.files.digest import sha256_of_bytes
from frpt.targets.manifest import FILE, dump
from tests.faults.damage import HOSTILE, flips
from tests.targets.common import data, model, reverser


@pytest.fixture(scope="module", params=["dense", "delta"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    frpt.write_targets(reverser(), data(), "0", path, mode=request.param, shard_size=24, progress=False)
    return path


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def read(path: Path) -> torch.Tensor:
    store = frpt.TargetStore(path)
    return store.read("0", range(store.count))[0]


def test_a_flipped_bit_is_named_by_its_shard_when_it_is_read(store: Path) -> None:
    sound = read(store)
    for _ in flips(store / "shard-000001.safetensors", 40):
        with pytest.raises(StoreError, match=r"shard-000001.*damaged"):
            read(store)
    for _ in flips(store / FILE, 40):
        with pytest.raises(StoreError, match=r"manifest\.json"):
            read(store)
    assert torch.equal(read(store), sound)


def test_training_on_a_damaged_store_names_the_shard(store: Path) -> None:
    x, y = zip(*data(), strict=True)
    pairs = TensorDataset(torch.stack(x), torch.tensor(y))
    for _ in flips(store / "shard-000002.safetensors", 1):
        with pytest.raises(StoreError, match=r"shard-000002.*damaged"):
            frpt.post_train(model(), pairs, "0", targets=store, epochs=1, progress=False)


def test_a_shard_is_compared_once(store: Path) -> None:
    opened = frpt.TargetStore(store)
    opened.check_shards(progress=False)
    again = pickle.loads(pickle.dumps(opened))
    for _ in flips(store / "shard-000001.safetensors", 1, seed=3):
        again.read("0", [30])  # mapped without another look at the checksum: it was found sound


@pytest.mark.parametrize("name", [FILE, "shard-000000.safetensors", "shard-000000.json"])
@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_hostile_files_are_refused(store: Path, name: str, harm: Callable[[Path], None]) -> None:
    harm(store / name)
    if name.endswith("0.json"):  # the note is of no more use to a store that is complete
        assert frpt.TargetStore(store).verify(progress=False) == ["shard-000000.safetensors"]
    else:
        with pytest.raises(StoreError):
            read(store)


def forged(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest whose checksum fits."""
    body = json.loads((path / FILE).read_bytes())
    del body["checksum"]
    change(body)
    (path / FILE).write_bytes(dump({**body, "checksum": sha256_of_bytes(dump(body))}))


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "count": lambda body: body.update(count=10**14),
    "count without shards": lambda body: body.update(count=10**14, shards=[]),
    "one huge shard": lambda body: body.update(count=10**14, shard_size=10**14, shards=body["shards"][:1]),
    "shard_size 0": lambda body: body.update(shard_size=0),
    "negative": lambda body: body.update(shard_size=-1),
    "text": lambda body: body.update(count="72"),
    "mode": lambda body: body.update(mode="other"),
    "no layers": lambda body: body.update(layers={}),
    "shape": lambda body: body["layers"]["0"].update(shape=[10**12]),
    "negative shape": lambda body: body["layers"]["0"].update(shape=[-1, -16]),
    "outside": lambda body: body["shards"][0].update(name="../../etc/passwd"),
    "absolute": lambda body: body["shards"][0].update(name="/etc/passwd"),
    "corrected": lambda body: body["shards"][0].update(corrected=10**9),
    "bytes": lambda body: body["shards"][0].update(nbytes=-5),
    "digest": lambda body: body["shards"][0].update(sha256=None),
    "no weights": lambda body: body.update(weights={}),
    "weights": lambda body: body.update(weights=7),
    "a number for a weight": lambda body: body["weights"].update({"2.weight": 7}),
    "a weight is missing": lambda body: body["weights"].pop("2.weight"),
    "frozen": lambda body: body["layers"]["0"].update(frozen=[7, 8]),
    "frozen lists": lambda body: body["layers"]["0"].update(frozen=[["2.weight"]]),
    "upstream": lambda body: body["layers"]["0"].update(upstream=[None]),
    "preset": lambda body: body.update(preset=7),
    "preset without a name": lambda body: body.update(preset={}),
    "embedding": lambda body: body.update(embedding=["nearest"]),
    "embedding without a margin": lambda body: body["embedding"].pop("margin"),
    "embedding of a number": lambda body: body["embedding"].update(how=7),
    "axis": lambda body: body["layers"]["0"]["samples"].update(dim="0"),
    "outer": lambda body: body["layers"]["0"]["samples"].update(outer=0),
    "inner": lambda body: body["layers"]["0"]["samples"].update(inner=None),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_forged_manifest_is_refused(store: Path, lie: str) -> None:
    forged(store, LIES[lie])
    with pytest.raises(StoreError):
        read(store)


def link(file: Path, victim: Path) -> None:
    file.symlink_to(victim)


def folder(file: Path, victim: Path) -> None:
    file.mkdir()


def pipe(file: Path, victim: Path) -> None:
    os.mkfifo(file)


@pytest.mark.parametrize("make", [link, folder, pipe])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_no_lock_file_is_not_followed(tmp_path: Path, make: Callable[[Path, Path], None], rank: int) -> None:
    victim, path = tmp_path / "victim", tmp_path / "store"
    victim.write_text("mine")
    path.mkdir()
    make(path / f"writer-{rank}.lock", victim)
    with pytest.raises(StoreError, match="no lock file"):
        frpt.write_targets(reverser(), data(), "0", path, progress=False)
    assert victim.read_text() == "mine"


def test_a_staged_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "store"
    victim.write_text("mine")
    path.mkdir()
    (path / "manifest.json.0.tmp").symlink_to(victim)
    (path / "shard-000000.safetensors.0.tmp").symlink_to(victim)
    (path / "writer-x.lock").write_text("{}")
    frpt.write_targets(reverser(), data(), "0", path, progress=False)
    assert victim.read_text() == "mine"


def test_a_link_in_the_place_of_a_shard_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    """A directory may come from somebody who wants a file elsewhere written over."""
    victim, path = tmp_path / "victim", tmp_path / "store"
    victim.write_text("mine")
    path.mkdir()
    (path / "shard-000000.safetensors").symlink_to(victim)
    frpt.write_targets(reverser(), data(), "0", path, progress=False)
    assert victim.read_text() == "mine"
    assert not (path / "shard-000000.safetensors").is_symlink()
