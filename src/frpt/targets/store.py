"""TargetStore: targets on disk, read through memory maps."""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from frpt.errors import InputError, StoreError, StoreMismatchError
from frpt.reverser import Reverser
from frpt.targets.differences import label_differences, layer_differences
from frpt.targets.manifest import LayerInfo, Manifest, ShardInfo, load_manifest, shard_name
from frpt.targets.verify import bad_shards

if TYPE_CHECKING:
    from numpy.typing import NDArray

CORRECTED = "corrected"


def key_of(layer: str) -> str:
    """The name of a layer's targets in a shard."""
    return f"target.{layer}"


class TargetStore:
    """The targets of a data set on disk. Opening reads the manifest only; shards are mapped when they are first read.

    It can be pickled and handed to DataLoader workers: each maps the files for itself.
    partial: also take a store that other writers have yet to complete; reading it before that raises.
    """

    def __init__(self, path: str | Path, *, partial: bool = False) -> None:
        self.path = Path(path)
        self.manifest: Manifest = load_manifest(self.path)
        self._reset()
        if not partial:
            self._require_complete()

    @property
    def layers(self) -> dict[str, LayerInfo]:
        return self.manifest.layers

    @property
    def mode(self) -> str:
        """ "dense": a target for every sample; "delta": only for corrected ones."""
        return self.manifest.mode

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.manifest.count

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"TargetStore({str(self.path)!r}: {self.count} samples, {self.mode}, {', '.join(self.layers)})"

    @property
    def complete(self) -> bool:
        """Whether every shard is there, looked up again until it is."""
        if not self.manifest.complete:
            self.manifest = load_manifest(self.path)
        return self.manifest.complete

    @property
    def corrected(self) -> Tensor:
        """(n,) bool: the samples whose prediction the label corrects."""
        return torch.from_numpy(self._corrected_samples().copy())

    @property
    def nbytes(self) -> int:
        """Size of all shards."""
        self._require_complete()
        return sum(shard.nbytes for shard in self.manifest.shards)

    def read(self, layer: str, index: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """(targets, present) of the samples ``index: (k,)``.

        targets: (k, *shape) float32. present: (k,) bool, False where the target is the anchor (delta); the row is zero.
        """
        rows, wanted = self._layer(layer), self._checked(index)
        if self.mode == "dense":
            present = np.ones(len(wanted), dtype=bool)
            shards, places = np.divmod(wanted, self.manifest.shard_size)
        else:
            present = self._corrected_samples()[wanted]
            shards = np.where(present, wanted // self.manifest.shard_size, -1)
            places = np.where(present, self._delta_rows()[wanted], 0)
        return rows.gather(shards, places), torch.from_numpy(present)

    def check(
        self,
        rev: Reverser,
        *,
        dataset_length: int | None = None,
        labels: Any = None,
        at: str | Sequence[str] | None = None,
    ) -> None:
        """Refuse, with every difference named, a model, layers, a data set or labels the store was not written for."""
        layers = [at] if isinstance(at, str) else list(self.layers if at is None else at)
        found = layer_differences(self.manifest, rev, layers)
        if dataset_length is not None and dataset_length != self.count:
            found.append(f"it has targets for {self.count} samples, the data set has {dataset_length}")
        if labels is not None:
            self._require_complete()
            found += label_differences(self.manifest, labels)
        if found:
            raise StoreMismatchError(self.path, found)

    def verify(self, progress: bool = True) -> list[str]:
        """Names of the shards whose bytes are not what was written; every byte is read."""
        self._require_complete()
        return bad_shards(self.path, self.manifest, progress)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.manifest = state["path"], state["manifest"]
        self._reset()

    def _reset(self) -> None:
        self._layers: dict[str, _Rows] = {}
        self._files: dict[int, _Shard] = {}
        self._corrected: NDArray[np.bool_] | None = None
        self._rows: NDArray[np.int64] | None = None

    def _require_complete(self) -> None:
        if not self.complete:
            total = self.manifest.shard_count
            there = sum((self.path / shard_name(s)).exists() for s in range(total))
            raise StoreError(
                f"the target store {str(self.path)!r} is incomplete: {there} of {total} shards are there. Wait for its "
                "writers, or make the same frpt.write_targets call again: it goes on from there."
            )

    def _layer(self, layer: str) -> _Rows:
        if layer not in self._layers:
            if layer not in self.layers:
                raise StoreMismatchError(self.path, [f"it has no layer {layer!r}; it has {', '.join(self.layers)}"])
            self._require_complete()
            self._layers[layer] = _Rows(self, layer)
        return self._layers[layer]

    def _checked(self, index: Sequence[int] | Tensor) -> NDArray[np.int64]:
        wanted = np.asarray(index, dtype=np.int64)
        if wanted.ndim != 1:
            raise InputError(f"index must be a sequence of sample numbers, got the shape {wanted.shape}")
        if len(wanted) and wanted.view(np.uint64).max() >= self.count:  # a negative number is a large unsigned one
            bad = wanted[(wanted < 0) | (wanted >= self.count)]
            raise InputError(f"sample {bad[0]} is out of range: the store has samples 0 to {self.count - 1}")
        return wanted

    def _shard(self, shard: int) -> _Shard:
        if shard not in self._files:
            self._files[shard] = _Shard(self.path, self.manifest.shards[shard])
        return self._files[shard]

    def _corrected_samples(self) -> NDArray[np.bool_]:
        if self._corrected is None:
            self._require_complete()
            parts = [self._shard(s).data_of(CORRECTED, ()) for s in range(self.manifest.shard_count)]
            self._corrected = np.frombuffer(b"".join(parts), np.bool_)
        return self._corrected

    def _delta_rows(self) -> NDArray[np.int64]:
        """Where in its shard a corrected sample's target is: (n,)."""
        if self._rows is None:
            corrected, size = self._corrected_samples(), self.manifest.shard_size
            parts = [np.cumsum(corrected[i : i + size]) - 1 for i in range(0, self.count, size)]
            self._rows = np.concatenate(parts)
        return self._rows


class _Rows:
    """One layer's targets in all shards, mapped shard by shard as they are asked for; shard −1 is a row of zeros."""

    def __init__(self, store: TargetStore, layer: str) -> None:
        self.store, self.layer, self.info = store, layer, store.layers[layer]
        self._maps: dict[int, memoryview] = {-1: memoryview(bytes(self.info.nbytes))}

    def gather(self, shards: NDArray[np.int64], places: NDArray[np.int64]) -> Tensor:
        """(k, *shape) float32: row places[i] of shard shards[i]; slices joined, so that each row is copied once."""
        maps, size, numbers = self._maps, self.info.nbytes, shards.tolist()
        for new in set(numbers) - maps.keys():
            maps[new] = self.store._shard(new).data_of(key_of(self.layer), self.info.shape)
        starts = (places * size).tolist()
        data = bytearray().join([maps[n][a : a + size] for n, a in zip(numbers, starts, strict=True)])
        shape = (len(numbers), *self.info.shape)
        if not data:
            return torch.zeros(shape)
        return torch.frombuffer(data, dtype=self.info.dtype).view(shape).float()


class _Shard:
    """A safetensors file in memory maps: 8 bytes header length, the header in JSON, the data."""

    def __init__(self, path: Path, info: ShardInfo) -> None:
        self.where = f"shard {info.name} of the target store {str(path)!r}"
        try:
            with open(path / info.name, "rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise self._broken(f"cannot be read ({error})") from error
        if len(self.data) != info.nbytes:
            raise self._broken(f"has {len(self.data)} bytes instead of {info.nbytes}")
        length = int.from_bytes(self.data[:8], "little")
        self.start = 8 + length
        try:
            self.header = json.loads(self.data[8 : self.start])
        except ValueError as error:
            raise self._broken("has no readable header") from error

    def data_of(self, name: str, shape: tuple[int, ...]) -> memoryview:
        """The bytes of a tensor (rows, *shape), without a copy."""
        entry = self.header.get(name)
        if not isinstance(entry, dict) or tuple(entry["shape"][1:]) != shape:
            raise self._broken(f"holds no {name!r} of shape {shape}")
        begin, end = entry["data_offsets"]
        return memoryview(self.data)[self.start + begin : self.start + end]

    def _broken(self, how: str) -> StoreError:
        return StoreError(f"{self.where} {how}. `frpt targets verify` lists damage, frpt.targets.repair mends it.")
