"""Memories, references and patches on disk: damaged or hostile files are refused with the error of their kind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import frpt
from frpt.errors import FrptError, MemoryMismatchError, PatchError, ReferenceMismatchError
from tests.faults.damage import HOSTILE, flips
from tests.train.toys import blobs, network, reverser

FILES = ["memory/memory.json", "memory/memory.safetensors", "reference/reference.json",
         "reference/reference.safetensors", "patch.safetensors"]  # fmt: skip
ERRORS: dict[str, type[FrptError]] = {
    "memory": MemoryMismatchError,
    "reference": ReferenceMismatchError,
    "patch.safetensors": PatchError,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    frpt.remember(reverser(), blobs(), progress=False).save(folder / "memory")
    frpt.Reference.fit(reverser(), blobs(), ["3"], progress=False).save(folder / "reference")
    frpt.Patch.between(network(), moved()).save(folder / "patch.safetensors")
    return folder


def moved() -> torch.nn.Module:
    other = network()
    with torch.no_grad():
        other[2].weight.add_(0.1)
    return other


@pytest.fixture
def kept(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "kept"))


def load(kept: Path, kind: str) -> object:
    """What the file is for: a memory or reference that fits the network, a patched network."""
    if kind == "memory":
        memory = frpt.Memory.load(kept / kind)
        memory.check(network())
        return memory
    if kind == "reference":
        reference = frpt.Reference.load(kept / kind)
        reference.check(reverser())
        return reference
    return frpt.apply(network(), kept / kind)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_hostile_files_are_refused(kept: Path, name: str, harm: Callable[[Path], None]) -> None:
    kind = name.partition("/")[0]
    load(kept, kind)
    harm(kept / name)
    with pytest.raises(ERRORS[kind]):
        load(kept, kind)


@pytest.mark.parametrize("name", ["memory/memory.safetensors", "reference/reference.safetensors"])
def test_flipped_bits_in_tensors_are_noticed(kept: Path, name: str) -> None:
    kind = name.partition("/")[0]
    for _ in flips(kept / name, 30):
        with pytest.raises(ERRORS[kind]):
            load(kept, kind)


@pytest.mark.parametrize("name", ["memory/memory.json", "reference/reference.json", "patch.safetensors"])
def test_flipped_bits_in_facts_are_noticed(kept: Path, name: str) -> None:
    kind, sound = name.partition("/")[0], said(kept / name)
    noticed = 0
    for _ in flips(kept / name, 60):
        try:
            load(kept, kind)
        except ERRORS[kind]:
            noticed += 1
        else:  # the last of 17 digits: another spelling of the same number
            assert said(kept / name) == sound
    assert noticed > 50


def said(file: Path) -> dict[str, object]:
    """The facts in a file, as they are read."""
    if file.suffix == ".json":
        facts: dict[str, object] = json.loads(file.read_bytes())
        return facts
    with safe_open(str(file), "pt") as tensors:
        texts = {name: text for name, text in tensors.metadata().items() if text.startswith("{")}
        whole = {name: tensors.get_tensor(name).tolist() for name in tensors.keys()}  # noqa: SIM118
    return {**{name: json.loads(text) for name, text in texts.items()}, **whole}
