"""At most one live writer for each set of files in a directory.

Called by ``write_targets`` and rewriting for shards of a target store, and by training for a half-done run.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from frpt.errors import StoreBusyError, StoreError
from frpt.files.atomic import refused
from frpt.files.untrusted import open_regular, parse_json

_HELD: dict[tuple[str, int, int], int] = {}
"""(store, rank, process) → world, of the locks this process holds: the system grants a process its own lock twice."""
_GUARD = threading.Lock()
_LONGEST = 4096
"""Bytes of a lock file that are read: a host name has 255 at most."""
_NAME = re.compile(r"writer-(\d{1,9})\.lock")


class WriterLock:
    """The right to write shards i with i mod world = rank, for the time of a ``with`` block.

    A file names process and host. The system's own lock on it ends with the process, however that dies, so that what
    a dead process of this host has left is taken over. The file of another host has to be removed by hand.
    """

    def __init__(self, path: Path, rank: int, world: int) -> None:
        self.path, self.rank, self.world = path, rank, world
        self.file = path / f"writer-{rank}.lock"
        self._key = (os.path.realpath(path), rank, os.getpid())
        self._descriptor = -1

    def __enter__(self) -> WriterLock:
        with _GUARD:
            if self._key in _HELD:
                raise _busy(self.file, _me(self.rank, _HELD[self._key]))
            _HELD[self._key] = self.world
        try:
            self._descriptor = self._acquire()
            self._refuse_other_worlds()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _acquire(self) -> int:
        """Open and lock the file; again where its last owner removed it between the two."""
        import fcntl

        while True:
            try:
                # a link in the place of the file would have another file signed, and emptied first
                descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            except OSError as error:
                raise _no_lock(self.file, error) from error
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise _no_lock(self.file, None)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                owner = _parse(os.pread(descriptor, _LONGEST, 0))  # closing the file again would end the lock
                if owner.get("host", socket.gethostname()) != socket.gethostname():
                    raise _busy(self.file, owner)
                if self._is_current(descriptor):
                    self._sign(descriptor)
                    return descriptor
            except (BlockingIOError, PermissionError) as error:
                owner = _parse(os.pread(descriptor, _LONGEST, 0))
                os.close(descriptor)
                raise _busy(self.file, owner) from error
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.fstat(descriptor).st_ino == os.stat(self.file).st_ino
        except FileNotFoundError:
            return False

    def _sign(self, descriptor: int) -> None:
        data = json.dumps(_me(self.rank, self.world)).encode()
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, data, 0)
            os.fsync(descriptor)
        except OSError as error:
            self.file.unlink(missing_ok=True)
            raise refused(self.file, error, len(data)) from error

    def _refuse_other_worlds(self) -> None:
        """Ranks counted against another number of writers own other shards: theirs and ours overlap."""
        mine = os.path.realpath(self.path)
        for file in sorted(self.path.glob("writer-*.lock")):
            name = _NAME.fullmatch(file.name)
            if name is None:
                continue  # none of ours
            rank = int(name[1])
            world = _HELD.get((mine, rank, os.getpid()))
            if world is not None:
                owner = _me(rank, world)
            else:
                owner = _read(file)
            if owner and owner["world"] != self.world and _may_live(owner):
                raise _busy(file, owner)

    def _release(self) -> None:
        if self._descriptor >= 0:
            self.file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1
        _HELD.pop(self._key, None)


def _me(rank: int, world: int) -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "rank": rank, "world": world}


def _read(file: Path) -> dict[str, Any]:
    try:
        with open_regular(file, os.O_RDONLY | os.O_NOFOLLOW) as stream:
            return _parse(stream.read(_LONGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _no_lock(file, error) from error


def _parse(data: bytes) -> dict[str, Any]:
    """What a lock file says; nothing where its owner has not signed yet."""
    try:
        owner = parse_json(data or b"{}")
    except ValueError:
        return {}
    if not isinstance(owner, dict) or not isinstance(owner.get("host"), str):
        return {}
    numbers = [owner.get(name) for name in ("pid", "rank", "world")]
    return owner if all(type(n) is int and 0 <= n < 2**31 for n in numbers) else {}


def _may_live(owner: dict[str, Any]) -> bool:
    if owner["host"] != socket.gethostname():
        return True
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _busy(file: Path, owner: dict[str, Any]) -> StoreError:
    who = (
        f"process {owner['pid']} on {owner['host']} as writer {owner['rank']} of {owner['world']}"
        if owner
        else "another process"
    )
    return StoreBusyError(
        f"{str(file.parent)!r} is being written by {who}. Wait for it, or take another directory; if that process is "
        f"gone, remove {file.name}."
    )


def _no_lock(file: Path, error: Exception | None) -> StoreError:
    """A link, a directory or a pipe in the place of a lock file; or the disk refuses."""
    if isinstance(error, OSError) and not (file.is_symlink() or file.exists()):
        return refused(file, error)
    return StoreError(
        f"{str(file)!r} is no lock file of frpt, but a link, a directory or something else; it was not followed. "
        "Remove it, or take another directory."
    )
