"""The paper's data sets: where they are, their splits, sizes and normalisation. Called by ``load`` and experiments.

The channels' means and deviations are those in common use: MNIST's and CIFAR's over their training images, ImageNet's
for the sets cut out of it, Tiny-ImageNet's over its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from frpt.errors import OptionError

SPLITS = {"train": ("train",), "test": ("test", "valid", "validation", "val")}
"""Split → names it goes by on disk and on the hub. Where the test labels are not public, "test" is validation."""

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_TINY = ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))


@dataclass(frozen=True)
class Info:
    """What is known of a data set.

    counts: samples of train and test. mean, std: per channel, of pixels in [0, 1]. crop: the shorter side is resized to
    size · 256 / 224 and the centre cut out; else images are resized as a whole. small: fits into memory as uint8.
    hub, config: the repository on the Hugging Face hub and its configuration.
    """

    name: str
    channels: int
    size: int
    classes: int
    counts: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hub: str
    config: str | None = None
    crop: bool = False
    small: bool = True


_ALL = (
    Info("digits", 1, 28, 10, (4000, 1000), (0.1307,), (0.3081,), ""),
    Info("mnist", 1, 28, 10, (60_000, 10_000), (0.1307,), (0.3081,), "ylecun/mnist"),
    Info(
        "cifar10", 3, 32, 10, (50_000, 10_000), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "uoft-cs/cifar10"
    ),
    Info(
        "cifar100", 3, 32, 100, (50_000, 10_000), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "uoft-cs/cifar100"
    ),
    Info(
        "imagenette", 3, 224, 10, (9469, 3925), *_IMAGENET, "frgfm/imagenette", "320px",
        crop=True, small=False,
    ),
    Info(
        "imagewoof", 3, 224, 10, (9025, 3929), *_IMAGENET, "frgfm/imagewoof", "320px",
        crop=True, small=False,
    ),
    Info("tiny-imagenet", 3, 64, 200, (100_000, 10_000), *_TINY, "zh-plus/tiny-imagenet", small=False),
)  # fmt: skip
SETS = {info.name: info for info in _ALL}

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "labels")


def info_of(name: str) -> Info:
    """What is known of a data set by its name."""
    if name not in SETS:
        raise OptionError(f"unknown data set {name!r}: there are {', '.join(SETS)}")
    return SETS[name]


def check_split(split: str) -> str:
    """The split, if it is train or test."""
    if split not in SPLITS:
        raise OptionError(f"unknown split {split!r}: there are {', '.join(SPLITS)}")
    return split
