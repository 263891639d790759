"""One shard of a target store: a safetensors file with the targets of some samples, and a note that it is finished.

``write.py`` and ``rewrite.py`` write shards, ``store.py`` reads and verifies them.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from frpt.errors import InputError, NonFiniteError, StoreError
from frpt.files.digest import Sha256, label_bytes, sha256_of, sha256_of_bytes
from frpt.files.progress import Progress
from frpt.files.untrusted import open_regular, parse_json
from frpt.reverse.reconstruction import Reconstruction
from frpt.targets.manifest import Manifest, ShardInfo, fits, load_note, note_name, shard_name

CORRECTED = "corrected"
"""The name of the tensor (count,) bool in a shard: which of its samples the label corrects."""


def key_of(layer: str) -> str:
    """The name of a layer's targets in a shard."""
    return f"target.{layer}"


class ShardWriter:
    """One shard while its batches come in. first: digests of its first sample's inputs and label."""

    def __init__(self, manifest: Manifest, number: int, first: tuple[str, str]) -> None:
        self.manifest, self.number, self.first = manifest, number, first
        self.samples = manifest.samples_of(number)
        self._rows: dict[str, list[Tensor]] = {name: [] for name in manifest.layers}
        self._deviations: dict[str, float] = dict.fromkeys(manifest.layers, 0.0)
        self._corrected: list[Tensor] = []
        self._labels = Sha256()

    def add(self, samples: Sequence[int], y: Tensor, reconstructed: dict[str, Reconstruction]) -> None:
        """The next batch: the numbers of its samples, their labels, and the reconstruction at each layer."""
        self._labels.update(b"".join(label_bytes(y)))
        corrected = next(iter(reconstructed.values())).corrected.cpu()
        self._corrected.append(corrected)
        for name, rec in reconstructed.items():
            info = self.manifest.layers[name]
            rows = info.samples.front(rec.target).cpu()
            if tuple(rows.shape[1:]) != info.shape:
                raise InputError(
                    f"{name!r} has shape {tuple(rows.shape[1:])} for samples {samples[0]} to {samples[-1]} and "
                    f"{info.shape} for the example inputs; a store needs inputs of one size"
                )
            index = torch.tensor(samples)
            if self.manifest.mode == "delta":
                rows, index = rows[corrected], index[corrected]
            self._rows[name].append(_converted(rows, info.dtype, name, index))
            self._deviations[name] += float(rec.deviation.cpu()[corrected].sum())

    def finish(self) -> tuple[bytes, ShardInfo]:
        """The bytes of the file, and the note that goes beside it."""
        corrected = torch.cat(self._corrected)
        tensors = {key_of(name): torch.cat(rows) for name, rows in self._rows.items()}
        data = save({CORRECTED: corrected, **tensors})
        count = int(corrected.sum())
        note = ShardInfo(
            name=shard_name(self.number),
            start=self.samples.start,
            count=len(self.samples),
            nbytes=len(data),
            settings=self.manifest.settings_digest,
            sha256=sha256_of_bytes(data),
            labels=self._labels.hexdigest(),
            first_inputs=self.first[0],
            first_label=self.first[1],
            corrected=count,
            deviation={name: total / max(count, 1) for name, total in self._deviations.items()},
        )
        return data, note


class ShardFile:
    """A shard in a memory map. A safetensors file is 8 bytes header length, the header in JSON, the data.

    Args:
        path: The store's directory.
        info: What the shard must be.
        sound: Its bytes were compared with their checksum before; otherwise they are now.
    """

    def __init__(self, path: Path, info: ShardInfo, sound: bool = False) -> None:
        self._where = f"shard {info.name} of the target store {str(path)!r}"
        try:
            with open_regular(path / info.name) as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise self._broken(f"cannot be read ({error})") from error
        if len(self._data) != info.nbytes:
            raise self._broken(f"has {len(self._data)} bytes instead of {info.nbytes}")
        if not sound and hashlib.sha256(self._data).hexdigest() != info.sha256:
            raise self._broken("is damaged: its bytes differ from their checksum")
        self._start = 8 + int.from_bytes(self._data[:8], "little")
        try:
            self._header = parse_json(self._data[8 : self._start])
        except ValueError as error:
            raise self._broken("has no readable header") from error
        if self._start > len(self._data) or not isinstance(self._header, dict):
            raise self._broken("has no readable header")

    def data_of(self, name: str, shape: tuple[int, ...], nbytes: int) -> memoryview:
        """The ``nbytes`` bytes of a tensor of this shape, without a copy."""
        entry = self._header.get(name)
        try:
            there = tuple(entry["shape"]) == shape
            begin, end = entry["data_offsets"]
            inside = 0 <= begin <= end <= len(self._data) - self._start and end - begin == nbytes
        except (KeyError, TypeError, ValueError) as error:
            raise self._broken(f"holds no {name!r} of shape {shape}") from error
        if not there or not inside:
            raise self._broken(f"holds no {name!r} of shape {shape}")
        return memoryview(self._data)[self._start + begin : self._start + end]

    def _broken(self, how: str) -> StoreError:
        return StoreError(
            f"{self._where} {how}. `frpt targets verify` lists damaged shards, frpt.targets.rewrite_damaged writes "
            "them again."
        )


def finished(path: Path, manifest: Manifest, number: int) -> ShardInfo | None:
    """The note of a shard that is there whole; None if it has to be written."""
    note = load_note(path / note_name(shard_name(number)))
    if note is None or not fits(manifest, number, note) or note.settings != manifest.settings_digest:
        return None
    file = path / note.name
    return note if file.is_file() and file.stat().st_size == note.nbytes else None


def damaged_shards(path: Path, manifest: Manifest, progress: bool = True) -> list[str]:
    """Names of the shards that are missing or differ from their checksum in any byte, their notes included."""
    damaged = []
    with Progress("verify", len(manifest.shards), unit="shards", shown=progress) as bar:
        for shard in manifest.shards:
            if not _sound(path, shard):
                damaged.append(shard.name)
            bar.advance()
    return damaged


def _sound(path: Path, shard: ShardInfo) -> bool:
    file = path / shard.name
    note = path / note_name(shard.name)
    if not file.is_file() or load_note(note) != shard or note.read_bytes() != shard.to_text():
        return False
    return sha256_of(file) == shard.sha256


def _converted(rows: Tensor, dtype: torch.dtype, layer: str, index: Tensor) -> Tensor:
    """The rows in the store's dtype. rows are finite; what a shorter dtype makes infinite is refused."""
    out = rows.to(dtype).contiguous()
    if rows.dtype == dtype or bool(torch.isfinite(out).all()):
        return out
    bad = int((~torch.isfinite(out)).nonzero()[0, 0])
    raise NonFiniteError(
        f"{layer!r}: the target of sample {int(index[bad])} reaches {float(rows[bad].abs().max()):.3g}, more than "
        f"{str(dtype).removeprefix('torch.')} can hold. Write the store with dtype='bfloat16' or 'float32'."
    )
