"""Reading files that may be damaged, or made by somebody to do harm: nothing is waited for, and nothing overflows.

Called by whatever reads what it or another process has left on disk: target stores, half-done runs, references,
memories, patches. Every refusal is an OSError or a ValueError; the callers say in their own words what it means.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor


def open_regular(file: str | Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """A file for reading in bytes; a directory, a pipe or a device is refused, without waiting for one."""
    descriptor = os.open(file, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{Path(file).name} is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(file: str | Path) -> bytes:
    """The bytes of a regular file."""
    with open_regular(file) as stream:
        return stream.read()


def parse_json(data: bytes) -> Any:
    """JSON; what is nested too deeply to be read is refused as well."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def parse_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name, on the CPU; they share the memory of ``data``."""
    try:
        return load(data)
    except (SafetensorError, RuntimeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"its tensors cannot be read: {error}") from error
