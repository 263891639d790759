"""TargetStore: targets on disk, read through memory maps; what ``write_targets`` returns and training reads from."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from frpt.common.text import percent
from frpt.errors import InputError, StoreError, StoreMismatchError
from frpt.files.progress import Progress
from frpt.reverser import Reverser
from frpt.targets.differences import dataset_differences, label_differences, layer_differences
from frpt.targets.manifest import LayerInfo, Manifest, load_manifest
from frpt.targets.shards import CORRECTED, ShardFile, damaged_shards, key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Overview:
    """What a store holds, in words: some lines, then a table with a row per layer."""

    lines: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class TargetStore:
    """The targets of a data set on disk. Opening reads the manifest only; shards are mapped when they are first read.

    At that moment a shard's bytes are compared with their checksum, once; forked DataLoader workers tell each other
    which ones were found sound. A store can be pickled, too: each process maps the files for itself.

    Args:
        path: The directory that ``frpt.write_targets`` wrote to.
        partial: Also take a store that other writers have yet to complete; reading it before that raises.

    Raises:
        StoreError: There is no store, it is damaged, or (unless ``partial``) it is incomplete.

    Example:
        >>> store = frpt.TargetStore(store.path)
        >>> store.count, store.mode, list(store.layers)
        (72, 'delta', ['0'])
        >>> targets, present = store.read("0", [0, 1, 2, 3])
        >>> targets.shape, present.tolist()
        (torch.Size([4, 16]), [True, False, False, False])
    """

    def __init__(self, path: str | Path, *, partial: bool = False) -> None:
        self.path = Path(path)
        self.manifest: Manifest = load_manifest(self.path)
        self._reset()
        if not partial:
            self._require_complete()

    @property
    def layers(self) -> dict[str, LayerInfo]:
        """Layer → the shape and dtype of its targets, and the weights before and after it."""
        return self.manifest.layers

    @property
    def mode(self) -> str:
        """ "dense": a target for every sample; "delta": for corrected samples only, the others' is their anchor."""
        return self.manifest.mode

    @property
    def count(self) -> int:
        """Number of samples."""
        return self.manifest.count

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        state = f"{self.manifest.corrected} corrected" if self.manifest.complete else "incomplete"
        layers = ", ".join(f"{name!r} {info.shape}" for name, info in self.layers.items())
        return f"TargetStore({str(self.path)!r}: {self.count} samples, {state}, {self.mode}; layers {layers})"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        if not self.complete:
            return f"<p>{escape(repr(self))}</p>"
        shown = self.overview()
        lines = "".join(f"<p>{escape(line)}</p>" for line in (f"Target store {self.path}", *shown.lines))
        head = "".join(f"<th>{escape(name)}</th>" for name in shown.columns)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in shown.rows)
        return f"{lines}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def overview(self) -> Overview:
        """Samples, size, how the targets were made, and a row for each layer; `frpt targets info` prints it."""
        manifest, how = self.manifest, self.manifest.embedding
        dense = self.count * sum(4 * info.nbytes // info.dtype.itemsize for info in self.layers.values())
        share = percent(manifest.corrected / self.count)
        margin = "" if how["margin"] is None else f", margin {how['margin']}"
        lines = (
            f"{self.count} samples, {manifest.corrected} corrected ({share}), {manifest.mode}, "
            f"{len(manifest.shards)} shards, {self.nbytes:,} bytes ({percent(self.nbytes / dense)} of dense "
            "float32)",
            f"preset {manifest.preset['name']}, embedding {how['how']}{margin}",
        )
        rows = tuple(
            (
                name,
                f"({', '.join(map(str, ('b', *info.shape)))})",
                str(info.dtype).removeprefix("torch."),
                f"{manifest.mean_deviation(name):.4g}",
                str(len(info.frozen)),
                str(len(info.upstream)),
            )
            for name, info in self.layers.items()
        )
        columns = ("layer", "shape", "dtype", "mean deviation", "weights after", "weights before")
        return Overview(lines, columns, rows)

    @property
    def complete(self) -> bool:
        """Whether every shard is there, looked up again until it is."""
        if not self.manifest.complete:
            self.manifest = load_manifest(self.path)
            self._reset()
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
        """What is on disk for some samples; ``TargetDataset`` gives the targets of all samples instead.

        Args:
            layer: One of ``layers``.
            index: (k,) numbers of samples, from 0, in any order.

        Returns:
            (targets, present). targets: (k, *shape) float32, the samples on axis 0. present: (k,) bool, False where a
            delta store holds no target because it is the sample's anchor; such a row is zeros and must not be used.

        Raises:
            InputError: A number is out of range.
            StoreMismatchError: The store has no such layer.
            StoreError: The store is incomplete or damaged.
        """
        rows, samples = self._layer(layer), self._checked(index)
        if self.mode == "dense":
            present = np.ones(len(samples), dtype=bool)
            shards, places = np.divmod(samples, self.manifest.shard_size)
        else:
            present = self._corrected_samples()[samples]
            shards = np.where(present, samples // self.manifest.shard_size, -1)
            places = np.where(present, self._delta_rows()[samples], 0)
        return rows.gather(shards, places), torch.from_numpy(present)

    def check(
        self,
        rev: Reverser,
        *,
        dataset: Any = None,
        dataset_length: int | None = None,
        labels: Any = None,
        at: str | Sequence[str] | None = None,
    ) -> None:
        """Refuse, with every difference named, what the store was not written for.

        Args:
            rev: The Reverser whose model shall be trained: layers, shapes and weights have to be the store's.
            dataset: Its length is compared, inputs of some samples, and labels: all where the data set gives many
                samples in one call, as a ``TensorDataset`` does, else those of the same samples.
            dataset_length: The length alone.
            labels: (n, ...) all labels.
            at: The layers that will be used; by default all of the store's.

        Raises:
            StoreMismatchError: With the list of differences.
        """
        layers = [at] if isinstance(at, str) else list(self.layers if at is None else at)
        differences = layer_differences(self.manifest, rev, layers)
        if dataset is not None:
            self._require_complete()
            differences += dataset_differences(self.manifest, dataset, [], rev.model)
        if dataset_length is not None and dataset_length != self.count:
            differences.append(f"it has targets for {self.count} samples, the data set has {dataset_length}")
        if labels is not None:
            self._require_complete()
            differences += label_differences(self.manifest, labels)
        if differences:
            raise StoreMismatchError(self.path, differences)

    def verify(self, progress: bool = True) -> list[str]:
        """Read every byte of the store.

        Args:
            progress: Show a progress bar.

        Returns:
            The names of the shards whose bytes are not what was written; ``frpt.targets.rewrite_damaged`` mends them.
        """
        self._require_complete()
        return damaged_shards(self.path, self.manifest, progress)

    def check_shards(self, progress: bool = True) -> None:
        """Compare with their checksums all shards that were not read yet; afterwards nothing is left to compare.

        Args:
            progress: Show a progress bar.

        Raises:
            StoreError: A shard is damaged; it is named.
        """
        self._require_complete()
        with Progress("checking targets", len(self.manifest.shards), unit="shards", shown=progress) as bar:
            for number in range(len(self.manifest.shards)):
                self._shard(number)
                bar.advance()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "manifest": self.manifest, "sound": bytes(self._sound)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.manifest = state["path"], state["manifest"]
        self._reset()
        self._sound[:] = state["sound"]

    def _reset(self) -> None:
        self._layers: dict[str, _Rows] = {}
        self._files: dict[int, ShardFile] = {}
        self._sound = mmap.mmap(-1, max(len(self.manifest.shards), 1))  # a byte a shard, shared with forked processes
        self._corrected: NDArray[np.bool_] | None = None
        self._rows: NDArray[np.int64] | None = None

    def _require_complete(self) -> None:
        if not self.complete:
            total = self.manifest.shard_count
            there = len(list(self.path.glob("shard-*.safetensors")))
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
        samples = np.asarray(index, dtype=np.int64)
        if samples.ndim != 1:
            raise InputError(f"index must be a sequence of sample numbers, got the shape {samples.shape}")
        if len(samples) and samples.view(np.uint64).max() >= self.count:  # a negative number is a large unsigned one
            bad = samples[(samples < 0) | (samples >= self.count)]
            raise InputError(f"sample {bad[0]} is out of range: the store has samples 0 to {self.count - 1}")
        return samples

    def _shard(self, shard: int) -> ShardFile:
        if shard not in self._files:
            self._files[shard] = ShardFile(self.path, self.manifest.shards[shard], sound=bool(self._sound[shard]))
            self._sound[shard] = 1
        return self._files[shard]

    def _corrected_samples(self) -> NDArray[np.bool_]:
        if self._corrected is None:
            self._require_complete()
            parts = [self._shard(i).data_of(CORRECTED, (s.count,), s.count) for i, s in enumerate(self.manifest.shards)]
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
            shard = self.store.manifest.shards[new]
            rows = shard.count if self.store.mode == "dense" else shard.corrected
            shape = (rows, *self.info.shape)
            maps[new] = self.store._shard(new).data_of(key_of(self.layer), shape, rows * size)
        starts = (places * size).tolist()
        data = bytearray().join([maps[n][a : a + size] for n, a in zip(numbers, starts, strict=True)])
        shape = (len(numbers), *self.info.shape)
        if not data:
            return torch.zeros(shape)
        return torch.frombuffer(data, dtype=self.info.dtype).view(shape).float()
