"""Inputs as small pictures and response maps as bytes, within a budget for the whole page. Called by ``content.py``.

Sizes are tried from the largest down until all fit; base64 adds a third, so the budgets keep a page below 15 MB.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from frpt.diagnosis.findings import Array, Response, Specimen

PICTURES = 3_500_000  # bytes for all inputs of the gallery together
MAPS = 3_500_000  # bytes for all response maps together
DRAWINGS = 3_500_000  # bytes for all drawings together, one for each layer of a sample
TOP = 16  # channels shown of a vector

_LOSSLESS = 64  # pixels along the longer side up to which a picture is kept as PNG: JPEG blurs small ones
_SIDES = (256, 192, 160, 128, 96, 64, 48, 32, 24, 16)  # sides of pictures to try
_DRAWN = (480, 400, 320, 256, 192, 128, 96)  # sides of drawings to try
_CELLS = (32, 24, 16, 12, 8, 6, 4)  # sides of maps to try


def inputs(gallery: Sequence[Specimen]) -> list[dict[str, Any] | None]:
    """The inputs of the gallery, as ``encoded`` makes them."""
    return encoded([s.image for s in gallery], PICTURES)


def encoded(images: Sequence[Array | None], budget: int) -> list[dict[str, Any] | None]:
    """A data URL and the original size for every image; the largest side that keeps all of them in the budget."""
    for side in _SIDES:
        found = [None if image is None else picture(image, side) for image in images]
        if sum(len(p[1]) for p in found if p is not None) <= budget:
            break
    return [
        None if p is None or image is None else {"url": _url(*p), "size": image.shape[:2]}
        for p, image in zip(found, images, strict=True)
    ]


def drawings(gallery: Sequence[Specimen]) -> list[dict[str, dict[str, Any]]]:
    """The same for what was drawn of samples, by layer: flat colours and sharp lines, so that all are PNG."""
    for side in _DRAWN:
        found = [{layer: _drawing(image, side) for layer, image in s.drawings.items()} for s in gallery]
        if sum(len(data) for by_layer in found for data in by_layer.values()) <= DRAWINGS:
            break
    return [
        {n: {"url": _url("image/png", data), "size": s.drawings[n].shape[:2]} for n, data in by_layer.items()}
        for by_layer, s in zip(found, gallery, strict=True)
    ]


def _drawing(image: Array, side: int) -> bytes:
    shown = Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8))
    shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    shown.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def responses(gallery: Sequence[Specimen]) -> list[dict[str, dict[str, Any]]]:
    """By sample and layer, the three maps as 8-bit base64, or a vector's largest channels; within the budget, too."""
    shapes = [r.forward.shape for s in gallery for r in s.responses.values() if r.kind != "vector"]
    sizes = {side: 3 * sum(math.prod(_fitting(shape, side)) for shape in shapes) for side in _CELLS}
    side = next((side for side, size in sizes.items() if size <= MAPS), _CELLS[-1])
    return [{name: response(r, side) for name, r in s.responses.items()} for s in gallery]


def picture(image: Array, side: int) -> tuple[str, bytes]:
    """(mime type, bytes) of an (h, w, 3) image of at most ``side``: PNG if it is small as it is, JPEG otherwise."""
    shown = Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8)).convert("RGB")
    lossless = max(shown.size) <= min(side, _LOSSLESS)
    shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    if lossless:
        shown.save(stream, "PNG", optimize=True)
        return "image/png", stream.getvalue()
    shown.save(stream, "JPEG", quality=82, optimize=True)
    return "image/jpeg", stream.getvalue()


def response(r: Response, side: int) -> dict[str, Any]:
    """maps: forward, reconstructed and difference, row by row, one after the other; or channels with three values."""
    three = (r.forward, r.reconstructed, r.difference)
    if r.kind == "vector":
        values = [np.nan_to_num(np.asarray(v, dtype=float).ravel()) for v in three]
        order = np.argsort(-np.abs(values[2]), kind="stable")[:TOP]
        return {"kind": "vector", "channels": order, "values": [v[order] for v in values], "of": len(values[2])}
    maps = [shrink(v, side) for v in three]
    data = b"".join(np.rint(np.clip(m, 0, 1) * 255).astype(np.uint8).tobytes() for m in maps)
    return {"kind": r.kind, "size": maps[0].shape, "maps": base64.b64encode(data).decode("ascii")}


def shrink(values: Array, side: int) -> Array:
    """Values over positions as (h, w) of at most ``side``, by means over areas; one axis is a row, NaN is 0."""
    grid = np.nan_to_num(np.asarray(values, dtype=np.float32), posinf=1.0, neginf=0.0)
    grid = grid[None, :] if grid.ndim == 1 else grid.reshape(-1, *grid.shape[-2:]).mean(0)
    h, w = _fitting(grid.shape, side)
    if (h, w) == grid.shape:
        return grid
    return np.asarray(Image.fromarray(grid).resize((w, h), Image.Resampling.BOX))


def _fitting(shape: tuple[int, ...], side: int) -> tuple[int, int]:
    """(h, w) of a map of this shape with at most side × side cells."""
    h, w = (1, *shape)[-2:]
    return min(h, side), min(w, side * side if h == 1 else side)


def _url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"
