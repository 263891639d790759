"""Seeded damage to files, and files that somebody has made to do harm.

Used by the tests here and by benchmarks/faults.py.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

DEEP = b"[" * 200_000
"""JSON nested deeper than any reader recurses."""


def flips(file: Path, count: int, seed: int = 0) -> Iterator[int]:
    """Flip one bit after the other, each time in the sound file; yields the bit's number, and mends the file."""
    sound = file.read_bytes()
    drawn = random.Random(seed)
    for _ in range(count):
        bit = drawn.randrange(8 * len(sound))
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        yield bit
    file.write_bytes(sound)


def header_longer_than_the_file(file: Path) -> None:
    """A safetensors header that says it has 2⁶² bytes."""
    file.write_bytes(struct.pack("<Q", 2**62) + b"{}")


def header_with_wild_offsets(file: Path) -> None:
    """A tensor of 10¹⁵ numbers at offsets far outside of the file."""
    entry = {"dtype": "F32", "shape": [10**15], "data_offsets": [0, 4 * 10**15]}
    header = json.dumps({"tensor": entry}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)


def deep_json(file: Path) -> None:
    file.write_bytes(DEEP)


def deep_header(file: Path) -> None:
    file.write_bytes(struct.pack("<Q", len(DEEP)) + DEEP)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def noise(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(5000))


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def pipe(file: Path) -> None:
    """Reading it would wait for ever."""
    file.unlink()
    os.mkfifo(file)


def dangling(file: Path) -> None:
    file.unlink()
    file.symlink_to("/nonexistent/of/frpt")


def endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


HOSTILE: tuple[Callable[[Path], None], ...] = (
    header_longer_than_the_file, header_with_wild_offsets, deep_json, deep_header, empty, noise, directory, pipe,
    dangling, endless,
)  # fmt: skip
