"""Protocols of post-training: what a network is post-trained on, in what batches, and how it was pretrained.

The paper's text leaves most of this open. "paper" follows the paper's code; "clean" is ours: the images as they are,
from a network whose learning rate went down to zero. ``Workbench`` makes one from the options of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from frpt.errors import OptionError

CLEAN, DRAWN = "clean", "drawn"
COSINE, PLATEAU = "cosine", "plateau"
AFTER, BEFORE = "after", "before"


@dataclass(frozen=True)
class Protocol:
    """images: "clean" as they are; "drawn": one augmented draw, the same for all epochs, arms and seeds.

    schedule: of the pretraining: "cosine" down to zero without augmentation (``Recipe``), or "plateau" on fresh draws,
    the best epoch on the test split chosen (``PlateauRecipe``). smoothing: of labels in pretraining; None: the
    recipe's. batch_size, rates: of post-training. features: whether l_R of a SimpleCNN is the value "after" or "before"
    its activation. whole: the frozen part is in train mode as well.
    """

    name: str
    images: str = CLEAN
    schedule: str = COSINE
    smoothing: float | None = None
    batch_size: int = 64
    rates: tuple[float, ...] = (1e-4,)
    features: str = AFTER
    whole: bool = False

    def __post_init__(self) -> None:
        for name, choices in {"images": (CLEAN, DRAWN), "schedule": (COSINE, PLATEAU)}.items():
            if getattr(self, name) not in choices:
                raise OptionError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.smoothing is not None and not 0 <= self.smoothing < 1:
            raise OptionError(f"smoothing must be within [0, 1), got {self.smoothing}")
        if self.batch_size < 1 or not self.rates or min(self.rates) <= 0:
            raise OptionError(f"batch size and rates must be positive, got {self.batch_size} and {self.rates}")

    @property
    def plain(self) -> bool:
        """Whether runs differ from ours in batch size and rate at most, so that one table of runs holds them."""
        return self.images == CLEAN and self.features == AFTER and not self.whole

    @property
    def label(self) -> str:
        """For folders: the name, and the images where they are not the protocol's own."""
        usual = PROTOCOLS[self.name].images == self.images
        return self.name if usual else f"{self.name}-{self.images}-images"

    def __str__(self) -> str:
        images = "images as they are" if self.images == CLEAN else "one frozen augmented draw of the images"
        rates = " and ".join(f"{rate:g}" for rate in self.rates)
        where = "" if self.features == AFTER else ", l_R before activations"
        mode = ", whole model in train mode" if self.whole else ""
        return f"protocol {self.name}: {images}, batches of {self.batch_size}, rate {rates}{where}{mode}"


PROTOCOLS = {
    "clean": Protocol("clean"),
    "paper": Protocol("paper", DRAWN, PLATEAU, 0.1, 256, (1e-4,), BEFORE, True),
}


def protocol_of(name: str, changes: Mapping[str, object]) -> Protocol:
    """The protocol of that name, with those changes that are not None or empty."""
    if name not in PROTOCOLS:
        raise OptionError(f"unknown protocol {name!r}: there are {', '.join(PROTOCOLS)}")
    given = {key: value for key, value in changes.items() if value not in (None, ())}
    return replace(PROTOCOLS[name], **given)  # type: ignore[arg-type]
