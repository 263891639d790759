"""Data sets by name, from a local folder or the Hugging Face hub. Called by users and the paper's experiments."""

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
"""The environment variable that names a folder with data sets."""


def load(
    name: str = "digits",
    split: str = "train",
    folder: str | Path | None = None,
    size: int | None = None,
    *,
    normalize: bool = True,
    memory: bool | None = None,
) -> Images:
    """A data set of labelled images by its name.

    Args:
        name: digits, mnist, cifar10, cifar100, imagenette, imagewoof or tiny-imagenet.
        split: "train" or "test".
        folder: Holds the data set's parquet files or class folders, itself or in a folder of its name. By default the
            environment variable FRPT_DATA names it; without that, or if it is not there, the Hugging Face hub is asked.
        size: Of the images in pixels, where it shall not be the paper's.
        normalize: Per channel, by the data set's mean and deviation; else pixels are in [0, 1].
        memory: True decodes once, keeps uint8 and caches it on disk (FRPT_CACHE); False decodes at every look. By
            default True for the sets of small images.

    Returns:
        A map-style data set with items (image (c, size, size) float32, class id).

    Raises:
        OptionError: There is no such data set or split.
        DatasetError: The data is not there, or cannot be read.

    Example:
        >>> test = frpt.data.load("digits", "test")
        >>> len(test), test[0][0].shape
        (1000, torch.Size([1, 28, 28]))
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
    decoded = cached(file, "pixels", "labels")
    if decoded is None:
        records = open_records(info, split, location, cache_folder())
        labels = _labels(info, records)
        decoded = decode_all(records, range(len(labels)), info, pixels), labels
        keep(file, pixels=decoded[0], labels=labels)
    return Images(info, split, pixels, decoded[1], decoded[0], normalize)


def _location(info: Info, split: str, folder: str | Path | None) -> Location | None:
    """Where the split is on disk. A folder that was passed must hold it; FRPT_DATA may."""
    if folder is not None:
        location = locate(info, split, Path(folder))
        if location is None:
            raise DatasetError(
                f"there is no {split} split of {info.name} in {str(folder)!r}: neither parquet files such as "
                f"{info.name}/{split}-00000-of-00001.parquet nor class folders in {info.name}/{split}"
            )
        return location
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
