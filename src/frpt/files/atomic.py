"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from frpt.errors import StoreError


def write_atomic(file: Path, data: bytes, rank: int = 0) -> None:
    """Replace a file by ``data``: written beside it, flushed to the disk, then renamed."""
    with _staged(file, data, rank) as staged:
        os.replace(staged, file)
        sync(file.parent)


def create_atomic(file: Path, data: bytes, rank: int = 0) -> bool:
    """Like ``write_atomic``, but the first writer wins; False if the file was there already."""
    with _staged(file, data, rank) as staged:
        try:
            os.link(staged, file)
        except FileExistsError:
            return False
        finally:
            staged.unlink()
        sync(file.parent)
        return True


def sweep(path: Path, rank: int, world: int) -> None:
    """Remove what a killed writer of this rank, or of one that no longer exists, has left half-written."""
    for file in path.glob("*.tmp"):
        owner = file.name.split(".")[-2]
        if owner == str(rank) or (owner.isdigit() and int(owner) >= world):
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def _staged(file: Path, data: bytes, rank: int) -> Iterator[Path]:
    """The data in a temporary file of this rank, safely on the disk."""
    staged = file.with_name(f"{file.name}.{rank}.tmp")
    try:
        with open(staged, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield staged
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise refused(file, error, len(data)) from error


def refused(file: Path, error: OSError, size: int = 0) -> StoreError:
    """What the disk said, and that the work done so far is safe."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk is full: {file.name} ({size:,} bytes) could not be written to {str(file.parent)!r}. Every shard "
            "finished so far is safe; free some space and make the same call again, it goes on from there."
        )
    return StoreError(
        f"{str(file)!r} could not be written: {error.strerror or error}. Every shard finished so far is safe; "
        "once the cause is gone, make the same call again, it goes on from there."
    )


def sync(path: Path) -> None:
    """Have the disk keep what was written to a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
