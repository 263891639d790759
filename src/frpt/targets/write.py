"""Writing targets: shard by shard, resumable at any moment, by one writer or several.

Called by users, ``frpt.post_train`` and `frpt targets write`; ``rewrite.py`` writes single shards with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from frpt.common.text import percent
from frpt.datasets.labelled import LabelledSamples, fitting_batch, spread
from frpt.datasets.pairs import CollateFn
from frpt.errors import OptionError, StoreMismatchError
from frpt.files.atomic import create_atomic, refused, sweep, write_atomic
from frpt.files.digest import options_of, weights_of
from frpt.files.lock import WriterLock
from frpt.files.progress import Progress
from frpt.reverse.reconstruction import Reconstruction
from frpt.reverser import Layer, Reverser, layer_names
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
    note_name,
)
from frpt.targets.shards import ShardWriter, finished
from frpt.targets.store import TargetStore

_SHARD_BYTES = 64 * 2**20
"""Of dense targets in a shard, about: few files, and little work lost by an interruption (chosen, not measured)."""
_SHARD_BATCHES = 64
"""Batches in a shard at most: what an interruption loses where targets are small."""
_LEAST_SHARDS = 8
"""Shards where samples suffice, so that several writers have something to share."""
_LOOK = 1024
"""Samples that mode="auto" looks at: the share that is corrected is then known to about 1.5 %."""
_LATEST = 0.1
"""Weight of the latest batch in the deviation that the progress bar shows."""


def write_targets(
    rev: Reverser,
    dataset: Any,
    at: Layer | Sequence[Layer],
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
    collate_fn: CollateFn | None = None,
) -> TargetStore:
    """Reconstruct the targets of a whole data set into a directory; called again, it goes on where it was stopped.

    Of several writers, each with its ``rank`` of ``world``, the last one done completes the store.

    Args:
        rev: The Reverser to reconstruct with.
        dataset: Map-style, with items (inputs, label) or dicts with a label that are the same at every look; or a
            ``DataLoader`` of such a data set, whose collate_fn is taken over, and not its order. No stream.
        at: The layer, or several.
        store: The directory; it is made where it does not exist.
        mode: "dense" keeps every sample's target, "delta" only those of corrected samples (the others' is their
            anchor), "auto" takes delta where that is at most half the size.
        dtype: Of the targets on disk; they are read as float32.
        batch_size: Samples reconstructed together, by default up to 2048 as their size allows: together they cost less.
        shard_size: Samples in a file; by default about 64 MiB of them.
        workers: Processes that load samples.
        rank: Which of several writers this is.
        world: How many writers there are.
        progress: Show a progress bar.
        reference: How features vary, instead of the Reverser's own.
        collate_fn: Makes a batch (inputs, labels), or a dict, of a list of items.

    Returns:
        The store, opened. It is complete unless other writers are not done.

    Raises:
        StoreMismatchError: The directory holds a store of other weights, options, layers or data.
        StoreBusyError: Another process writes the same shards.
        DataError: The data set changes between two looks, e.g. by random augmentation.
        StoreError: The disk refuses; what was finished stays.

    Example:
        >>> store = frpt.write_targets(rev, dataset, at="0", store=folder / "targets", progress=False)
        >>> store
        TargetStore('...targets': 72 samples, 18 corrected, delta; layers '0' (16,))
        >>> frpt.write_targets(rev, dataset, at="0", store=folder / "targets", progress=False).complete  # nothing to do
        True
    """
    layers = layer_names(rev.model, at)
    if reference is not None:
        reference.check(rev)
        check_known(reference, layers)
        rev = rev.measured_by(reference)
    _check_options(layers, mode, dtype, batch_size, shard_size, workers, rank, world)
    samples = LabelledSamples(dataset, workers, device_of(rev), collate_fn=collate_fn, model=rev.model)
    path = Path(store)
    for layer in layers:
        rev.plan(layer)
    samples.check_stable()
    begun = load_manifest(path) if (path / FILE).exists() else None
    together = batch_size or (begun.batch_size if begun is not None else None)
    together = together or fitting_batch(samples, map(rev.sample_shape, layers), samples.count // _LEAST_SHARDS)
    chosen = _mode(rev, samples, mode, together, begun)
    planned = describe(rev, samples.count, layers, chosen, dtype, together, shard_size)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(path, error) from error
    with WriterLock(path, rank, world):
        sweep(path, rank, world)
        manifest = _begin(path, rev, planned, mode, rank)
        _write_missing(path, rev, samples, manifest, rank, world, progress)
        _complete(path, samples, manifest, rank, world)
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


def write_shards(
    path: Path, rev: Reverser, samples: LabelledSamples, manifest: Manifest, numbers: Sequence[int], rank: int = 0
) -> Iterator[tuple[ShardInfo | None, list[Reconstruction]]]:
    """Write shards one after the other; yields every batch's reconstructions, and a shard's note once it is there."""
    layers = sorted(manifest.layers)
    pending = iter(numbers)
    shard: ShardWriter | None = None
    for rows, x, y in samples.batches([manifest.samples_of(number) for number in numbers], manifest.batch_size):
        if shard is None:
            number = next(pending)
            shard = ShardWriter(manifest, number, samples.first_of(manifest.samples_of(number)))
        reconstructed = rev.reconstruct(x, y, at=layers)
        shard.add(rows, y, reconstructed)
        note = None
        if rows[-1] == shard.samples[-1]:
            data, note = shard.finish()
            if manifest.complete and note.labels != manifest.shards[shard.number].labels:
                raise StoreMismatchError(path, [f"labels of samples {note.start} to {rows[-1]} are not the data set's"])
            write_atomic(path / note.name, data, rank, links=False)
            write_atomic(path / note_name(note.name), note.to_text(), rank, links=False)
            shard = None
        yield note, list(reconstructed.values())


class WriteProgress:
    """A progress bar over samples, with the share that is corrected and how far their targets are from the anchors."""

    def __init__(self, total: int, done: int, shown: bool) -> None:
        self._bar = Progress("targets", total, done=done, shown=shown)
        self._seen = self._corrected = 0
        self._deviation: float | None = None

    def __enter__(self) -> WriteProgress:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def update(self, batch: Sequence[Reconstruction]) -> None:
        """One more batch: its reconstruction at each layer."""
        corrected = batch[0].corrected
        self._seen += len(corrected)
        self._corrected += int(corrected.sum())
        if bool(corrected.any()):
            now = sum(float(rec.deviation[corrected].mean()) for rec in batch) / len(batch)
            before = now if self._deviation is None else self._deviation
            self._deviation = (1 - _LATEST) * before + _LATEST * now
        deviation = "" if self._deviation is None else f", deviation {self._deviation:.3g}"
        self._bar.advance(len(corrected), f"{percent(self._corrected / self._seen)} corrected{deviation}")


def device_of(rev: Reverser) -> torch.device | None:
    """Where the model is; None for a model without weights."""
    first = next(chain(rev.model.parameters(), rev.model.buffers()), None)
    return None if first is None else first.device


def _begin(path: Path, rev: Reverser, planned: Manifest, mode: str, rank: int) -> Manifest:
    """The manifest the store has, or the one it gets now; refused where the two do not agree."""
    if create_atomic(path / FILE, planned.to_text(), rank):
        return planned
    stored = load_manifest(path)
    compared = replace(planned, mode=stored.mode) if mode == "auto" else planned
    differences = setting_differences(stored, compared) or layer_differences(stored, rev, list(planned.layers))
    if differences:
        raise StoreMismatchError(path, differences)
    return stored


def _write_missing(
    path: Path, rev: Reverser, samples: LabelledSamples, manifest: Manifest, rank: int, world: int, progress: bool
) -> None:
    mine = range(rank, manifest.shard_count, world)
    notes = {s: finished(path, manifest, s) for s in range(manifest.shard_count)}
    _check_data(path, samples, [note for note in notes.values() if note is not None])
    done = [note for s in mine if (note := notes[s]) is not None]
    missing = [s for s in mine if notes[s] is None]
    total = sum(len(manifest.samples_of(s)) for s in mine)
    with WriteProgress(total, sum(n.count for n in done), shown=progress) as bar:
        for _, batch in write_shards(path, rev, samples, manifest, missing, rank):
            bar.update(batch)


def _complete(path: Path, samples: LabelledSamples, manifest: Manifest, rank: int, world: int) -> None:
    """Write the final manifest if no shard is missing. Whoever comes second writes the same bytes again."""
    notes = [finished(path, manifest, s) for s in range(manifest.shard_count)]
    shards = tuple(note for note in notes if note is not None)
    if len(shards) == manifest.shard_count and shards != manifest.shards:
        _check_data(path, samples, [shard for s, shard in enumerate(shards) if s % world != rank])
        write_atomic(path / FILE, replace(manifest, shards=shards).to_text(), rank, links=False)


def _check_data(path: Path, samples: LabelledSamples, shards: Sequence[ShardInfo]) -> None:
    if shards and (changed := changed_data(samples, shards)):
        raise StoreMismatchError(path, changed)


def _mode(
    rev: Reverser, samples: LabelledSamples, mode: Mode | Literal["auto"], batch_size: int, begun: Manifest | None
) -> Mode:
    """ "auto": what the store has begun with, or a look at up to 1024 samples, one forward pass each."""
    if mode != "auto":
        return mode
    if begun is not None:
        return begun.mode
    looked = spread(samples.count, _LOOK)
    corrected = sum(
        int(rev.reconstruct(x, y, at="out").corrected.sum()) for _, x, y in samples.batches([looked], batch_size)
    )
    return "delta" if 2 * corrected <= len(looked) else "dense"


def _shard_size(count: int, sample_bytes: int, batch_size: int) -> int:
    """Whole batches: about 64 MiB of dense targets, at most 64 batches, and eight shards where samples suffice."""
    batches = min(
        _SHARD_BYTES // (sample_bytes * batch_size), _SHARD_BATCHES, -(-count // (_LEAST_SHARDS * batch_size))
    )
    return batch_size * max(1, batches)


def _check_options(
    layers: Sequence[str], mode: str, dtype: str, batch_size: int | None, shard_size: int | None, workers: int,
    rank: int, world: int,
) -> None:  # fmt: skip
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
    if not isinstance(workers, int) or workers < 0:
        raise OptionError(f"workers must be a whole number of at least 0, got {workers!r}")
    if not isinstance(rank, int) or not 0 <= rank < world:
        raise OptionError(f"rank must be a whole number of at least 0 and below world={world}, got {rank!r}")
