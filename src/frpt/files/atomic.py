"""Files and directories that appear whole or not at all: written beside their place, flushed, then renamed.

Called by whatever writes to disk: target stores, references, half-done diagnoses, training states, reports, caches.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from frpt.errors import StoreError

_LONGEST_NAME = 200
"""Characters of a name that a staged file keeps: file systems allow 255 bytes, and an owner and a suffix follow."""


_KINDS = {
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link to itself",
}  # fmt: skip


@contextlib.contextmanager
def staged(path: Path, owner: int | None = None, links: bool = True) -> Iterator[Path]:
    """A name beside ``path`` for a file or a directory that takes its place once the block has ended.

    If the block fails, what was written is removed and ``path`` stays as it was. A killed process leaves a file that
    ends in ``.tmp``; ``sweep`` removes those of an owner.

    Args:
        path: Where the file or directory shall be in the end; what is there is replaced. A device, a pipe or a socket
            is not: that is an OSError before the block begins.
        owner: A number that tells writers apart, by default the process id.
        links: A link stays, and what it leads to is replaced; False replaces the link itself, as in directories that
            another may have filled to have a file elsewhere written over.
    """
    path = _place(path, links)
    part = path.with_name(f"{path.name[:_LONGEST_NAME]}.{os.getpid() if owner is None else owner}.tmp")
    _remove(part)
    try:
        yield part
        for file in [*part.iterdir(), part] if part.is_dir() else [part]:
            sync(file)
        if part.is_dir() and _is_folder(path):
            shutil.rmtree(path)  # a directory cannot be renamed onto one that holds something
        os.replace(part, path)
        sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(part)
        raise


def write_atomic(file: Path, data: bytes, rank: int = 0, links: bool = True) -> None:
    """Replace a file by ``data``; the reader sees the old file or the new one. ``rank`` tells several writers apart.

    links: as in ``staged``.
    """
    try:
        with staged(file, rank, links) as part:
            part.write_bytes(data)
    except OSError as error:
        raise refused(file, error, len(data)) from error


def make_folder(path: str | Path) -> Path:
    """A directory, made if it is not there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(folder, error) from error
    return folder


def check_folder(path: str | Path) -> None:
    """Refuse a directory that could not be made or written to, before any work for it; nothing is made."""
    folder = Path(path).absolute()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise refused(folder, NotADirectoryError(errno.ENOTDIR, f"{there} is no directory"))
    try:
        tempfile.TemporaryFile(dir=there).close()  # of no name; what rights say is not what every file system does
    except OSError as error:
        raise refused(folder, error) from error


def check_file(path: str | Path) -> None:
    """Refuse a file that could not be written, before any work for it; nothing is made.

    Its directory may be missing, as long as it could be made.
    """
    try:
        place = _place(Path(path))
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory; name a file")
    except OSError as error:
        raise refused(Path(path), error) from error
    check_folder(place.parent)


def create_atomic(file: Path, data: bytes, rank: int = 0) -> bool:
    """Like ``write_atomic``, but the first writer wins; False if the file was there already."""
    part = file.with_name(f"{file.name}.{rank}.tmp")
    try:
        _remove(part)  # a link there would be written through
        part.write_bytes(data)
        sync(part)
        os.link(part, file)
        sync(file.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise refused(file, error, len(data)) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return True


def sweep(path: Path, rank: int, world: int) -> None:
    """Remove what a killed writer of this rank, or of one that no longer exists, has left half-written."""
    for file in path.glob("*.tmp"):
        owner = file.name.split(".")[-2]
        if not _is_folder(file) and (owner == str(rank) or (owner.isdecimal() and int(owner) >= world)):
            file.unlink(missing_ok=True)


def refused(file: Path, error: OSError, size: int = 0) -> StoreError:
    """What the disk said, and that the work done so far is safe."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk is full: {file.name} ({size:,} bytes) could not be written to {str(file.parent)!r}. What was "
            "written before is safe; free some space and make the same call again."
        )
    return StoreError(
        f"{str(file)!r} could not be written: {error.strerror or error}. What was written before is safe; "
        "once the cause is gone, make the same call again."
    )


def sync(path: Path) -> None:
    """Have the disk keep what was written to a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _place(path: Path, links: bool = True) -> Path:
    """Where a link leads, in the end; refused where something is there that is neither a file nor a directory."""
    if path.is_symlink() and not links:
        return path
    place = Path(os.path.realpath(path)) if path.is_symlink() else path
    try:
        mode = os.lstat(place).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return place
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'no file')}, which is left as it is")
    return place


def _is_folder(path: Path) -> bool:
    """Whether it is a directory itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
