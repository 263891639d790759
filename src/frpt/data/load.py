"""Data sets by name, from a local folder or the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from frpt.data.decode import cache_folder, cached, decode_all, keep
from frpt.data.digits import digits
from frpt.data.images import Images
from frpt.data.records import Location, Records, locate, open_records
from frpt.data.sets import Info, check_split, info_of
from frpt.errors import DatasetError, OptionError

DATA = "FRPT_DATA"


def load(
    name: str = "digits",
    split: str = "train",
    folder: str | Path | None = None,
    size: int | None = None,
    *,
    normalize: bool = True,
    memory: bool | None = None,
) -> Images:
    """A split ("train" or "test") of digits, mnist, cifar10, cifar100, imagenette, imagewoof or tiny-imagenet.

    folder: holds the data set's parquet files or class folders, itself or in a folder of its name; by default FRPT_DATA
    is looked at, then the hub. size: of the images, where it shall not be the paper's. normalize: per channel, by the
    data set's mean and deviation; else pixels are in [0, 1].
    memory: decoded once, kept as uint8, cached on disk (FRPT_CACHE), as is usual for the small sets; False decodes at
    every look.
    """
    info, split = info_of(name), check_split(split)
    if size is not None and size < 1:
        raise OptionError(f"size must be positive, got {size}")
    pixels = info.size if size is None else size
    if name == "digits":
        return _digits(info, split, pixels, normalize)
    location = _location(info, split, folder)
    if memory is None:
        memory = info.small
    if not memory:
        records = open_records(info, split, location, cache_folder())
        return Images(info, split, pixels, _labels(info, records), records, normalize)
    source = "hub" if location is None else location.key()
    file = cache_folder() / "images" / f"{name}-{split}-{pixels}-{source}.safetensors"
    held = cached(file)
    if held is None:
        records = open_records(info, split, location, cache_folder())
        labels = _labels(info, records)
        held = decode_all(records, range(len(labels)), info, pixels), labels
        keep(file, *held)
    return Images(info, split, pixels, held[1], held[0], normalize)


def _location(info: Info, split: str, folder: str | Path | None) -> Location | None:
    """Where the split is on disk. A folder that was passed must hold it; FRPT_DATA may."""
    if folder is not None:
        found = locate(info, split, Path(folder))
        if found is None:
            raise DatasetError(
                f"there is no {split} split of {info.name} in {str(folder)!r}: neither parquet files such as "
                f"{info.name}/{split}-00000-of-00001.parquet nor class folders in {info.name}/{split}"
            )
        return found
    root = os.environ.get(DATA)
    return locate(info, split, Path(root), itself=False) if root else None


def _labels(info: Info, records: Records) -> Tensor:
    labels = torch.tensor(list(records.labels), dtype=torch.int64)
    if len(labels) == 0:
        raise DatasetError(f"this split of {info.name} is empty")
    if labels.min() < 0 or labels.max() >= info.classes:
        raise DatasetError(
            f"labels of {info.name} are {int(labels.min())} to {int(labels.max())}, not 0 to {info.classes - 1}"
        )
    return labels


def _digits(info: Info, split: str, size: int, normalize: bool) -> Images:
    if size != info.size:
        raise OptionError(f"the embedded digits are {info.size} × {info.size}; leave size out, or load mnist")
    x, y = digits()[0 if split == "train" else 1]
    return Images(info, split, size, y, (x * 255).round().to(torch.uint8), normalize)
