"""Writing damaged shards of a target store again, and no others: `frpt targets verify --rewrite`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from frpt.datasets.labelled import LabelledSamples
from frpt.datasets.pairs import CollateFn
from frpt.errors import StoreMismatchError
from frpt.files.atomic import sweep, write_atomic
from frpt.files.lock import WriterLock
from frpt.reverser import Reverser
from frpt.targets.differences import changed_data, layer_differences, setting_differences
from frpt.targets.manifest import FILE
from frpt.targets.shards import damaged_shards
from frpt.targets.store import TargetStore
from frpt.targets.write import WriteProgress, describe, device_of, write_shards


def rewrite_damaged(
    rev: Reverser,
    dataset: Any,
    store: str | Path | TargetStore,
    *,
    workers: int = 0,
    progress: bool = True,
    collate_fn: CollateFn | None = None,
) -> list[str]:
    """Reconstruct the damaged shards of a store again; the others are read, never written.

    Args:
        rev: The Reverser the store was written with: the same weights and options.
        dataset: The data set it was written for.
        store: The store, or its directory.
        workers: Processes that load samples.
        progress: Show progress bars.
        collate_fn: Makes a batch of a list of items, as it was when the store was written.

    Returns:
        The names of the shards that were written again; none where the store is sound.

    Raises:
        StoreMismatchError: The Reverser or the data set is not what the store was written with.
        StoreBusyError: Another process is writing the store.

    Example:
        >>> (store.path / "shard-000000.safetensors").write_bytes(b"damaged")
        7
        >>> frpt.targets.rewrite_damaged(rev, dataset, store, progress=False)
        ['shard-000000.safetensors']
        >>> store.verify(progress=False)
        []
    """
    path = store.path if isinstance(store, TargetStore) else Path(store)
    manifest = TargetStore(path).manifest
    samples = LabelledSamples(dataset, workers, device_of(rev), collate_fn=collate_fn, model=rev.model)
    dtype = str(next(iter(manifest.layers.values())).dtype).removeprefix("torch.")
    planned = describe(
        rev, samples.count, list(manifest.layers), manifest.mode, dtype, manifest.batch_size, manifest.shard_size
    )
    differences = setting_differences(manifest, planned) or layer_differences(manifest, rev, list(manifest.layers))
    with WriterLock(path, 0, 1):
        sweep(path, 0, 1)
        damaged = damaged_shards(path, manifest, progress)
        numbers = [i for i, shard in enumerate(manifest.shards) if shard.name in damaged]
        if not differences:
            differences = changed_data(samples, [manifest.shards[i] for i in numbers])
        if differences:
            raise StoreMismatchError(path, differences)
        shards = list(manifest.shards)
        total = sum(shards[i].count for i in numbers)
        with WriteProgress(total, 0, shown=progress and bool(numbers)) as bar:
            for note, batch in write_shards(path, rev, samples, manifest, numbers):
                bar.update(batch)
                if note is not None:
                    shards[note.start // manifest.shard_size] = note
        if shards != list(manifest.shards):  # another machine may round differently
            write_atomic(path / FILE, replace(manifest, shards=tuple(shards)).to_text(), links=False)
    return damaged
