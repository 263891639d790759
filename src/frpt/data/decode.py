"""Image files to uint8 pixels of one size, in parallel; and the cache of what was decoded. Called by ``load``."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from frpt.data.records import Records, needed
from frpt.data.sets import Info
from frpt.errors import DatasetError
from frpt.files.atomic import staged

_TOGETHER = 32
"""Images that one thread decodes at a time: enough that handing them out costs nothing (chosen, not measured)."""


def decode(data: bytes, info: Info, size: int, what: str) -> Tensor:
    """An image file → (c, size, size) uint8: resized and, for large images, cut out of the centre."""
    images = needed("PIL.Image")
    try:
        with images.open(io.BytesIO(data)) as opened:
            image = opened.convert("L" if info.channels == 1 else "RGB")
    except (OSError, ValueError) as error:  # what Pillow raises for files that are no images, or cut off
        raise DatasetError(f"{what} is not a readable image: {error}. Fetch the data again.") from error
    if info.crop:
        short = round(size * 256 / 224)
        scale = short / min(image.size)
        width, height = (max(short, round(n * scale)) for n in image.size)
        image = image.resize((width, height), images.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    elif image.size != (size, size):
        image = image.resize((size, size), images.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image).reshape(size, size, info.channels)).permute(2, 0, 1).contiguous()


def decode_all(records: Records, rows: Iterable[int], info: Info, size: int) -> Tensor:
    """(n, c, size, size) uint8, in the order of ``rows``, by as many threads as there are processors."""
    numbers = list(rows)
    needed("PIL.Image")
    out = torch.empty(len(numbers), info.channels, size, size, dtype=torch.uint8)

    def some(start: int) -> None:
        rows = numbers[start : start + _TOGETHER]
        for place, (row, data) in enumerate(zip(rows, records.encoded(rows), strict=True), start):
            out[place] = decode(data, info, size, f"image {row} of {info.name}")

    starts = range(0, len(numbers), _TOGETHER)
    if len(starts) == 1:
        some(0)
        return out
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(some, starts):
            pass
    return out


def cache_folder() -> Path:
    """FRPT_CACHE, or frpt in the platform's folder for caches."""
    chosen = os.environ.get("FRPT_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "frpt"


def cached(file: Path, *names: str) -> tuple[Tensor, ...] | None:
    """The tensors of these names from a cache file; None where there is none, or a damaged one."""
    if not file.is_file():
        return None
    try:
        tensors = load_file(file)
        return tuple(tensors[name] for name in names)
    except (SafetensorError, OSError, KeyError):
        return None


def keep(file: Path, **tensors: Tensor) -> None:
    """Write a cache file, whole or not at all; a disk that refuses costs the cache, not the data."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with staged(file) as part:
            save_file(tensors, part)
    except (OSError, SafetensorError) as error:
        warnings.warn(f"images are not cached in {str(file.parent)!r}: {error}", stacklevel=3)
