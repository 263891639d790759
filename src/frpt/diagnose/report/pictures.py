"""Inputs as small pictures and response maps as bytes, within a budget for the whole page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from frpt.diagnose.diagnosis import Array, Response, Specimen

PICTURES = 4_500_000
"""Bytes for all inputs together."""
MAPS = 4_500_000
"""Bytes for all response maps together."""
TOP = 16
"""Channels shown of a vector."""

_LOSSLESS = 64
_SIDES = (256, 192, 160, 128, 96, 64, 48, 32, 24, 16)
_CELLS = (32, 24, 16, 12, 8, 6, 4)

T = TypeVar("T")


def inputs(gallery: Sequence[Specimen]) -> list[dict[str, Any] | None]:
    """A data URL and the original size for every input; the largest side that keeps all of them in the budget."""

    def encode(side: int) -> tuple[list[tuple[str, bytes] | None], int]:
        all_ = [None if s.image is None else picture(s.image, side) for s in gallery]
        return all_, sum(len(p[1]) for p in all_ if p is not None)

    found = _largest(_SIDES, encode, PICTURES)
    return [
        None if p is None or s.image is None else {"url": _url(*p), "size": s.image.shape[:2]}
        for p, s in zip(found, gallery, strict=True)
    ]


def responses(gallery: Sequence[Specimen]) -> list[dict[str, dict[str, Any]]]:
    """By sample and layer, the three maps as 8-bit base64, or a vector's largest channels."""

    def encode(side: int) -> tuple[list[dict[str, dict[str, Any]]], int]:
        all_ = [{name: response(r, side) for name, r in s.responses.items()} for s in gallery]
        return all_, sum(len(r.get("maps", "")) for sample in all_ for r in sample.values()) * 3 // 4

    return _largest(_CELLS, encode, MAPS)


def picture(image: Array, side: int) -> tuple[str, bytes]:
    """(mime type, bytes) of an (h, w, 3) image of at most ``side``: PNG if small, JPEG otherwise."""
    found = Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8)).convert("RGB")
    found.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    if max(found.size) <= _LOSSLESS:
        found.save(stream, "PNG", optimize=True)
        return "image/png", stream.getvalue()
    found.save(stream, "JPEG", quality=82, optimize=True)
    return "image/jpeg", stream.getvalue()


def response(found: Response, side: int) -> dict[str, Any]:
    """maps: forward, reconstructed and difference, row by row, one after the other; or channels with three values."""
    three = (found.forward, found.reconstructed, found.difference)
    if found.kind == "vector":
        values = [np.nan_to_num(np.asarray(v, dtype=float).ravel()) for v in three]
        order = np.argsort(-np.abs(values[2]), kind="stable")[:TOP]
        return {"kind": "vector", "channels": order, "values": [v[order] for v in values], "of": len(values[2])}
    maps = [shrink(v, side) for v in three]
    data = b"".join(np.rint(np.clip(m, 0, 1) * 255).astype(np.uint8).tobytes() for m in maps)
    return {"kind": found.kind, "size": maps[0].shape, "maps": base64.b64encode(data).decode("ascii")}


def shrink(values: Array, side: int) -> Array:
    """Values over positions as (h, w) of at most ``side``, by means over areas; one axis is a row, NaN is 0."""
    grid = np.nan_to_num(np.asarray(values, dtype=np.float32), posinf=1.0, neginf=0.0)
    grid = grid[None, :] if grid.ndim == 1 else grid.reshape(-1, *grid.shape[-2:]).mean(0)
    h, w = grid.shape
    limit = side * side if h == 1 else side
    size = (min(w, limit), min(h, side))
    if size == (w, h):
        return grid
    return np.asarray(Image.fromarray(grid).resize(size, Image.Resampling.BOX))


def _largest(sides: Sequence[int], encode: Callable[[int], tuple[T, int]], budget: int) -> T:
    """What the first side within the budget gives, or the last side."""
    for side in sides:
        found, size = encode(side)
        if size <= budget:
            break
    return found


def _url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"
