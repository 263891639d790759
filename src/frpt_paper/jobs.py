"""Independent runs, and the grid l_R × c_rec × seed with its matched controls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from frpt.errors import OptionError

BACKPROP, ANCHOR, FRPT, ONLINE = "back-propagation", "anchor-only", "FR-PT", "FR-PT online"
ARMS = (ANCHOR, FRPT)
RECONSTRUCTED = (FRPT, ONLINE)


@dataclass(frozen=True)
class Job:
    """One post-training run. l_r: the paper's name of the layer; arm: back-propagation (c_rec = 0), anchor-only, FR-PT.

    FR-PT's targets are written once, those of "FR-PT online" reconstructed at every step.
    preset, embed: of the reconstruction, "" where there is none. checkpoint: which pretrained model it starts from.
    """

    dataset: str
    model: str
    l_r: str
    c_rec: float
    seed: int
    arm: str = FRPT
    preset: str = "default"
    embed: str = "nearest"
    checkpoint: str = ""
    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e-4

    def __post_init__(self) -> None:
        known = (BACKPROP, *ARMS, ONLINE)
        if self.arm not in known:
            raise OptionError(f"unknown arm {self.arm!r}: there are {', '.join(known)}")
        if (self.c_rec == 0) != (self.arm == BACKPROP) or self.c_rec < 0:
            raise OptionError(f"c_rec must be 0 for {BACKPROP} and positive otherwise, got {self.c_rec} for {self.arm}")

    @property
    def key(self) -> str:
        """A digest of everything that decides the run's numbers."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def grid(
    dataset: str,
    model: str,
    *,
    l_r: Iterable[str],
    c_rec: Iterable[float],
    seeds: Iterable[int],
    arms: Iterable[str] = ARMS,
    presets: Iterable[str] = ("default",),
    embeds: Iterable[str] = ("nearest",),
    checkpoint: str = "",
    epochs: int = 10,
    batch_size: int = 64,
    lr: float = 1e-4,
) -> list[Job]:
    """Every layer with every strength, seed by seed, the earliest seeds first.

    Back-propagation (c_rec = 0) knows neither preset nor embedding, anchor-only neither: each is run once per layer,
    strength and seed. A c_rec of 0 among the strengths is that control, which is always there.
    """
    layers, strengths = list(l_r), [c for c in c_rec if c != 0]
    arms, presets, embeds = list(arms), list(presets), list(embeds)
    found: list[Job] = []
    for seed in seeds:
        for layer in layers:
            plans = [(0.0, BACKPROP, "", "")]
            for c in strengths:
                for arm in arms:
                    ways = [(p, e) for p in presets for e in embeds] if arm in RECONSTRUCTED else [("", "")]
                    plans += [(c, arm, preset, embed) for preset, embed in ways]
            found += [
                Job(dataset, model, layer, c, seed, arm, preset, embed, checkpoint, epochs, batch_size, lr)
                for c, arm, preset, embed in plans
            ]
    return found
