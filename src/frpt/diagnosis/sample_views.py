"""What a reader recognises a sample by: its name, its words, its waveform, its segmentation in the classes' colours.

``survey.py`` asks for names and words, ``responses.py`` for waveforms, ``examination.py`` for segmentations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Subset

from frpt.common.text import counted
from frpt.diagnosis.findings import Array
from frpt.errors import OptionError

Names = Sequence[str] | Callable[[int], str]
"""A name for each sample of the data set, or a function of its index."""
Words = Sequence[str] | Callable[[Sequence[int]], Sequence[str]]
"""A vocabulary, or a function from token ids to their texts, such as a tokenizer's ``convert_ids_to_tokens``."""

_WAVE = 256  # entries from which a line of numbers is drawn as a waveform: fewer are features, not a signal
_WAVE_SIZE = (96, 384)  # pixels
_PANEL = 176  # pixels along the shorter side of each of the three maps of a segmentation
_LEGEND = 12  # classes named below them
_INK, _PAPER, _NONE = (40, 60, 110), (246, 247, 249), (128, 128, 128)


def namer(dataset: Any, given: Names | None) -> Callable[[int], str]:
    """A sample's name by its index; "" where there is none.

    Without ``given``, what the data set knows: a method ``sample_name(i)``, or the file names in ``samples`` or
    ``imgs``, pairs of path and class as torchvision's folders have them; of a ``Subset`` those of the whole.
    """
    if callable(given):
        return lambda i: str(given(i))
    if given is not None:
        return _from_list(given, len(dataset) if isinstance(dataset, Sized) else len(given))
    if isinstance(dataset, DataLoader):
        return namer(dataset.dataset, None)
    if isinstance(dataset, Subset):
        inner, indices = namer(dataset.dataset, None), dataset.indices
        return lambda i: inner(int(indices[i]))
    own = getattr(dataset, "sample_name", None)
    if callable(own):
        return lambda i: str(own(i))
    for attribute in ("samples", "imgs"):
        pairs = getattr(dataset, attribute, None)
        whole = isinstance(pairs, Sequence) and isinstance(dataset, Sized) and len(pairs) == len(dataset)
        if whole and pairs and _is_file(pairs[0]):
            return lambda i: PurePath(pairs[i][0]).name
    return lambda i: ""


def _from_list(given: Sequence[str], count: int) -> Callable[[int], str]:
    if isinstance(given, str) or len(given) != count:
        raise OptionError(
            f"sample_names has {counted(len(given), 'name')}, the data set {counted(count, 'sample')}; pass one for "
            "each"
        )
    return lambda i: str(given[i])


def _is_file(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str | PurePath)


def words_of(x: Any, words: Words | None) -> tuple[str, ...]:
    """The texts of a sample's tokens; () without a vocabulary, or where the input holds no token ids.

    Token ids are the entry ``input_ids``, or the first line of whole numbers; an ``attention_mask`` ends them.
    """
    if words is None:
        return ()
    ids = x.get("input_ids") if isinstance(x, Mapping) else None
    ids = ids if ids is not None else next((leaf for leaf in pytree.tree_leaves(x) if _are_ids(leaf)), None)
    if ids is None:
        return ()
    numbers = [int(i) for i in torch.as_tensor(ids).flatten()]
    mask = x.get("attention_mask") if isinstance(x, Mapping) else None
    if mask is not None:
        kept = torch.as_tensor(mask).flatten().nonzero()
        numbers = numbers[: int(kept.max()) + 1 if len(kept) else 0]
    if callable(words):
        found = [str(text) for text in words(numbers)]
        if len(found) != len(numbers):
            raise OptionError(
                f"tokens gave {len(found)} texts for {len(numbers)} token ids; it has to give one for each, as a "
                "tokenizer's convert_ids_to_tokens does"
            )
        return tuple(found)
    return tuple(str(words[i]) if 0 <= i < len(words) else f"#{i}" for i in numbers)


def _are_ids(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() == 1 and leaf.dtype in (torch.int32, torch.int64)


def waveform(leaf: Any) -> Array | None:
    """(96, 384, 3) uint8, the smallest and the largest value at every column; None if it is no line of numbers.

    leaf: (n,), or (channels, n) with one or two channels, which are drawn over each other.
    """
    if not isinstance(leaf, Tensor | np.ndarray):
        return None
    t = torch.as_tensor(leaf).detach().cpu()
    t = t[None] if t.dim() == 1 else t
    if t.dim() != 2 or t.shape[0] > 2 or t.shape[1] < _WAVE or not t.is_floating_point():
        return None
    height, width = _WAVE_SIZE
    values = t.float().nan_to_num(0.0, 0.0, 0.0).numpy()
    largest = float(np.abs(values).max()) or 1.0
    count = values.shape[1]
    starts = np.arange(width) * count // width
    parts = [values[:, i : max(i + 1, count * (k + 1) // width) + 1] for k, i in enumerate(starts)]  # lines join up
    low, high = (np.array([f(p) for p in parts]) for f in (np.min, np.max))
    rows = np.arange(height)[:, None]
    middle = (height - 1) / 2
    top, bottom = (np.rint(middle - 0.94 * middle * v / largest) for v in (high, low))
    image = np.full((height, width, 3), _PAPER, dtype=np.uint8)
    image[(rows >= top) & (rows <= bottom)] = _INK
    return image


def class_colours(count: int) -> Array:
    """(count, 3) uint8, hues a golden angle apart, so that neighbours differ; the first, often the ground, is grey."""
    hues = (np.arange(count) * 0.61803398875) % 1.0
    colours = np.array([_hue(h) for h in hues], dtype=np.uint8)
    colours[:1] = (70, 70, 78)
    return colours


def _hue(h: float) -> tuple[int, int, int]:
    rgb = Image.new("HSV", (1, 1), (int(255 * h), 200, 235)).convert("RGB").getpixel((0, 0))
    assert isinstance(rgb, tuple)
    return int(rgb[0]), int(rgb[1]), int(rgb[2])


def segmentation(image: Array | None, maps: Mapping[str, Array], names: Sequence[str], ignored: int) -> Array:
    """(h, w, 3) uint8: class maps beside each other, laid over the input, with a legend of the classes in them.

    image: (h, w, 3), None without one. maps: title → (h, w) class ids; ``ignored`` ones are grey.
    """
    colours = class_colours(len(names))
    panels = [_laid_over(image, ids, colours, ignored) for ids in maps.values()]
    seen = np.unique(np.concatenate([ids[ids != ignored].ravel() for ids in maps.values()]))
    legend = [int(c) for c in seen[:_LEGEND] if 0 <= c < len(names)]
    width, height = panels[0].size
    columns = max(1, (len(panels) * (width + 8)) // 150)
    lines = -(-len(legend) // columns) + (len(seen) > _LEGEND)
    sheet = Image.new("RGB", (len(panels) * (width + 8) + 8, 16 + height + 6 + 16 * lines), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for k, (title, panel) in enumerate(zip(maps, panels, strict=True)):
        draw.text((8 + k * (width + 8), 2), title, fill=(30, 30, 30))
        sheet.paste(panel, (8 + k * (width + 8), 16))
    for k, c in enumerate(legend):
        x, y = 8 + 150 * (k % columns), 16 + height + 6 + 16 * (k // columns)
        draw.rectangle((x, y + 2, x + 10, y + 12), fill=tuple(int(v) for v in colours[c]))
        draw.text((x + 15, y + 1), names[c][:21], fill=(30, 30, 30))
    if len(seen) > _LEGEND:
        draw.text((8, 16 + height + 6 + 16 * (lines - 1)), f"and {len(seen) - _LEGEND} more", fill=(90, 90, 90))
    return np.asarray(sheet)


def _laid_over(image: Array | None, ids: Array, colours: Array, ignored: int) -> Image.Image:
    known = (ids >= 0) & (ids < len(colours)) & (ids != ignored)
    painted = np.where(known[..., None], colours[np.where(known, ids, 0)], np.array(_NONE, np.uint8))
    h, w = ids.shape
    scale = _PANEL / min(h, w)
    size = (max(1, min(3 * _PANEL, round(w * scale))), max(1, min(3 * _PANEL, round(h * scale))))
    shown = Image.fromarray(painted.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
    if image is None:
        return shown
    under = Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BILINEAR)
    return Image.blend(under.convert("L").convert("RGB"), shown, 0.55)
