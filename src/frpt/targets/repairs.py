"""Writing damaged shards again, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from frpt.datasets.source import Source
from frpt.errors import StoreMismatchError
from frpt.files.atomic import sweep, write_atomic
from frpt.files.lock import WriterLock
from frpt.files.progress import WriteProgress
from frpt.reverser import Reverser
from frpt.targets.differences import changed_data, layer_differences, setting_differences
from frpt.targets.manifest import FILE
from frpt.targets.store import TargetStore
from frpt.targets.verify import bad_shards
from frpt.targets.write import describe, device_of, write_shard


def repair(
    rev: Reverser, dataset: Any, store: str | Path | TargetStore, *, workers: int = 0, progress: bool = True
) -> list[str]:
    """Write the damaged shards of a store again, and no others; returns their names.

    rev and dataset: what the store was written with; anything else is refused.
    """
    opened = store if isinstance(store, TargetStore) else TargetStore(store)
    path, manifest = opened.path, TargetStore(opened.path).manifest
    source = Source(dataset, workers, device_of(rev))
    dtype = str(next(iter(manifest.layers.values())).dtype).removeprefix("torch.")
    wanted = describe(
        rev, source.count, list(manifest.layers), manifest.mode, dtype, manifest.batch_size, manifest.shard_size
    )
    found = setting_differences(manifest, wanted) or layer_differences(manifest, rev, list(manifest.layers))
    with WriterLock(path, 0, 1):
        sweep(path, 0, 1)
        bad = bad_shards(path, manifest, progress)
        numbers = [i for i, s in enumerate(manifest.shards) if s.name in bad]
        found += changed_data(source, [manifest.shards[i] for i in numbers]) if not found else []
        if found:
            raise StoreMismatchError(path, found)
        shards = list(manifest.shards)
        total = sum(shards[i].count for i in numbers)
        with WriteProgress(total, 0, shown=progress and bool(numbers)) as bar:
            for note, batch in write_shard(path, rev, source, manifest, numbers):
                bar.update(batch[0].corrected, [rec.deviation for rec in batch])
                if note is not None:
                    shards[note.start // manifest.shard_size] = note
        if shards != list(manifest.shards):  # another machine may round differently
            write_atomic(path / FILE, replace(manifest, shards=tuple(shards)).to_text())
    return bad
