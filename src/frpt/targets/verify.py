"""Finding damaged shards."""

from __future__ import annotations

from pathlib import Path

from frpt.files.digest import sha256_of
from frpt.files.progress import verify_progress
from frpt.targets.manifest import Manifest, ShardInfo, load_note, note_name


def bad_shards(path: Path, manifest: Manifest, progress: bool = True) -> list[str]:
    """Names of the shards that are missing or differ from their checksum in any byte, their notes included."""
    found = []
    with verify_progress(progress) as bar:
        task = bar.add_task("verify", total=sum(s.nbytes for s in manifest.shards))
        for shard in manifest.shards:
            if not _sound(path, shard):
                found.append(shard.name)
            bar.update(task, advance=shard.nbytes)
    return found


def _sound(path: Path, shard: ShardInfo) -> bool:
    file = path / shard.name
    note = path / note_name(shard.name)
    if not file.exists() or load_note(note) != shard or note.read_bytes() != shard.to_text():
        return False
    return sha256_of(file) == shard.sha256
