"""Writing targets: shard by shard, resumable at any moment, by one writer or several."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from frpt.datasets.source import Source, fitting_batch, spread
from frpt.errors import InputError, NonFiniteError, OptionError, StoreMismatchError
from frpt.files.atomic import create_atomic, refused, sweep, write_atomic
from frpt.files.digest import label_bytes, options_of, weights_of
from frpt.files.lock import WriterLock
from frpt.files.progress import WriteProgress
from frpt.reverse.reconstruction import Reconstruction
from frpt.reverser import Reverser
from frpt.solvers.variation import Variations, check_known
from frpt.targets.differences import changed_data, layer_differences, setting_differences
from frpt.targets.manifest import (
    DTYPES,
    FILE,
    LayerInfo,
    Manifest,
    Mode,
    ShardInfo,
    load_manifest,
    load_note,
    note_name,
    shard_name,
)
from frpt.targets.store import CORRECTED, TargetStore, key_of

_SHARD_BYTES = 64 * 2**20
_SHARD_BATCHES = 64
_LEAST_SHARDS = 8
_LOOK = 1024


def write_targets(
    rev: Reverser,
    dataset: Any,
    at: str | Sequence[str],
    store: str | Path,
    *,
    mode: Literal["auto", "dense", "delta"] = "auto",
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    batch_size: int | None = None,
    shard_size: int | None = None,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    progress: bool = True,
    reference: Variations | None = None,
) -> TargetStore:
    """Reconstruct the targets of a whole data set into a directory; called again, it goes on where it was stopped.

    dataset: map-style, items (inputs, label). mode: "dense" keeps every sample's target, "delta" only those of
    corrected samples (the others' is their anchor), "auto" takes delta where that is at most half the size.
    batch_size: samples reconstructed together, by default up to 2048 as their size allows: together they cost less.
    reference: how features vary, instead of the Reverser's own.
    Of several writers, each with its ``rank`` of ``world``, the last one done completes the store.
    """
    layers = [at] if isinstance(at, str) else list(at)
    if reference is not None:
        reference.check(rev)
        check_known(reference, layers)
        rev = rev.measured_by(reference)
    _check_options(layers, mode, dtype, batch_size, shard_size, rank, world)
    source = Source(dataset, workers, device_of(rev))
    path = Path(store)
    for layer in layers:
        rev.plan(layer)
    source.check_stable()
    begun = load_manifest(path) if (path / FILE).exists() else None
    together = batch_size or (begun.batch_size if begun is not None else None)
    together = together or fitting_batch(source, map(rev.sample_shape, layers), source.count // _LEAST_SHARDS)
    chosen = _mode(rev, source, mode, together, begun)
    wanted = describe(rev, source.count, layers, chosen, dtype, together, shard_size)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(path, error) from error
    with WriterLock(path, rank, world):
        sweep(path, rank, world)
        manifest = _begin(path, rev, wanted, mode, rank)
        _write_missing(path, rev, source, manifest, rank, world, progress)
        _complete(path, manifest, rank)
    return TargetStore(path, partial=True)


def describe(
    rev: Reverser, count: int, layers: Sequence[str], mode: Mode, dtype: str, batch_size: int, shard_size: int | None
) -> Manifest:
    """The manifest of a store not begun yet."""
    infos = {
        name: LayerInfo(
            rev.sample_shape(name),
            DTYPES[dtype],
            rev.batch_axis(name),
            tuple(rev.frozen(name)),
            tuple(rev.upstream(name)),
        )
        for name in layers
    }
    size = shard_size or _shard_size(count, sum(info.nbytes for info in infos.values()), batch_size)
    weights = weights_of(rev.model, [n for info in infos.values() for n in (*info.frozen, *info.upstream)])
    blocks = rev.blocks if isinstance(rev.blocks, str) else ",".join(rev.blocks)
    reference = None if rev.reference is None else rev.reference.digest
    preset = {**options_of(rev.preset), "blocks": blocks, "output": rev.output, "reference": reference}
    return Manifest(count, mode, batch_size, size, infos, weights, preset, options_of(rev.embedder))


def write_shard(
    path: Path, rev: Reverser, source: Source, manifest: Manifest, shards: Sequence[int], rank: int = 0
) -> Iterator[tuple[ShardInfo | None, list[Reconstruction]]]:
    """Write shards one after the other; yields every batch's reconstructions, and a shard's note once it is there."""
    layers = sorted(manifest.layers)
    pending = iter(shards)
    part: _Part | None = None
    for samples, x, y in source.batches([manifest.samples_of(s) for s in shards], manifest.batch_size):
        if part is None:
            part = _Part(manifest, next(pending), source)
        found = rev.reconstruct(x, y, at=layers)
        part.add(samples, y, found)
        note = None
        if samples[-1] == part.samples[-1]:
            data, note = part.finish()
            if manifest.complete and note.labels != manifest.shards[part.shard].labels:
                raise StoreMismatchError(
                    path, [f"labels of samples {note.start} to {samples[-1]} are not the data set's"]
                )
            write_atomic(path / note.name, data, rank)
            write_atomic(path / note_name(note.name), note.to_text(), rank)
            part = None
        yield note, list(found.values())


class _Part:
    """One shard while its batches come in."""

    def __init__(self, manifest: Manifest, shard: int, source: Source) -> None:
        self.manifest, self.shard = manifest, shard
        self.samples = manifest.samples_of(shard)
        self.first = source.first_of(self.samples)
        self.rows: dict[str, list[Tensor]] = {name: [] for name in manifest.layers}
        self.moved: dict[str, float] = dict.fromkeys(manifest.layers, 0.0)
        self.corrected: list[Tensor] = []
        self.labels = hashlib.sha256()

    def add(self, samples: Sequence[int], y: Tensor, found: dict[str, Reconstruction]) -> None:
        self.labels.update(b"".join(label_bytes(y)))
        corrected = next(iter(found.values())).corrected.cpu()
        self.corrected.append(corrected)
        for name, rec in found.items():
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
            self.rows[name].append(_converted(rows, info.dtype, name, index))
            self.moved[name] += float(rec.deviation.cpu()[corrected].sum())

    def finish(self) -> tuple[bytes, ShardInfo]:
        corrected = torch.cat(self.corrected)
        tensors = {key_of(name): torch.cat(rows) for name, rows in self.rows.items()}
        data = save({CORRECTED: corrected, **tensors})
        count = int(corrected.sum())
        note = ShardInfo(
            name=shard_name(self.shard),
            start=self.samples.start,
            count=len(self.samples),
            nbytes=len(data),
            settings=self.manifest.settings_digest,
            sha256=hashlib.sha256(data).hexdigest(),
            labels=self.labels.hexdigest(),
            first_inputs=self.first[0],
            first_label=self.first[1],
            corrected=count,
            deviation={name: moved / max(count, 1) for name, moved in self.moved.items()},
        )
        return data, note


def finished(path: Path, manifest: Manifest, shard: int) -> ShardInfo | None:
    """The note of a shard that is there whole; None if it has to be written."""
    note = load_note(path / note_name(shard_name(shard)))
    if note is None or note.name != shard_name(shard) or note.settings != manifest.settings_digest:
        return None
    file = path / note.name
    return note if file.exists() and file.stat().st_size == note.nbytes else None


def device_of(rev: Reverser) -> torch.device | None:
    first = next(chain(rev.model.parameters(), rev.model.buffers()), None)
    return None if first is None else first.device


def _begin(path: Path, rev: Reverser, wanted: Manifest, mode: str, rank: int) -> Manifest:
    """The manifest the store has, or the one it gets now; refused where the two do not agree."""
    if create_atomic(path / FILE, wanted.to_text(), rank):
        return wanted
    stored = load_manifest(path)
    compared = replace(wanted, mode=stored.mode) if mode == "auto" else wanted
    found = setting_differences(stored, compared) or layer_differences(stored, rev, list(wanted.layers))
    if found:
        raise StoreMismatchError(path, found)
    return stored


def _write_missing(
    path: Path, rev: Reverser, source: Source, manifest: Manifest, rank: int, world: int, progress: bool
) -> None:
    mine = range(rank, manifest.shard_count, world)
    notes = {s: finished(path, manifest, s) for s in mine}
    done = [note for note in notes.values() if note is not None]
    changed = changed_data(source, done)
    if changed:
        raise StoreMismatchError(path, changed)
    missing = [s for s in mine if notes[s] is None]
    total = sum(len(manifest.samples_of(s)) for s in mine)
    with WriteProgress(total, sum(n.count for n in done), shown=progress) as bar:
        for _, batch in write_shard(path, rev, source, manifest, missing, rank):
            bar.update(batch[0].corrected, [rec.deviation for rec in batch])


def _complete(path: Path, manifest: Manifest, rank: int) -> None:
    """Write the final manifest if no shard is missing. Whoever comes second writes the same bytes again."""
    notes = [finished(path, manifest, s) for s in range(manifest.shard_count)]
    shards = tuple(note for note in notes if note is not None)
    if len(shards) == manifest.shard_count and shards != manifest.shards:
        write_atomic(path / FILE, replace(manifest, shards=shards).to_text(), rank)


def _mode(rev: Reverser, source: Source, mode: Mode | Literal["auto"], batch_size: int, begun: Manifest | None) -> Mode:
    """ "auto": what the store has begun with, or a look at up to 1024 samples, one forward pass each."""
    if mode != "auto":
        return mode
    if begun is not None:
        return begun.mode
    looked = spread(source.count, _LOOK)
    corrected = sum(
        int(rev.reconstruct(x, y, at="out").corrected.sum()) for _, x, y in source.batches([looked], batch_size)
    )
    return "delta" if 2 * corrected <= len(looked) else "dense"


def _shard_size(count: int, sample_bytes: int, batch_size: int) -> int:
    """Whole batches: about 64 MiB of dense targets, at most 64 batches, and eight shards where samples suffice."""
    batches = min(
        _SHARD_BYTES // (sample_bytes * batch_size), _SHARD_BATCHES, -(-count // (_LEAST_SHARDS * batch_size))
    )
    return batch_size * max(1, batches)


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


def _check_options(
    layers: Sequence[str], mode: str, dtype: str, batch_size: int | None, shard_size: int | None, rank: int, world: int
) -> None:
    if not layers or len(set(layers)) != len(layers):
        raise OptionError(f"at must name one layer or several different ones, got {layers!r}")
    if mode not in ("auto", "dense", "delta"):
        raise OptionError(f"mode must be auto, dense or delta, got {mode!r}")
    if dtype not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    counts = (
        ("batch_size", 1 if batch_size is None else batch_size),
        ("shard_size", shard_size or 1),
        ("world", world),
    )
    for name, value in counts:
        if not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be a positive integer, got {value!r}")
    if not 0 <= rank < world:
        raise OptionError(f"rank must be at least 0 and below world={world}, got {rank}")
