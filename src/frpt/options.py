"""Preset: a complete set of choices, made of the solvers' own options; and the three presets.

Every solver is a frozen dataclass with its numbers as fields, beside its code in ``frpt.solvers``; this module only
puts them together, so it stands above the solvers. Read by ``frpt.rules``, ``frpt.reverse`` and ``frpt.ops``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from frpt.errors import OptionError
from frpt.solvers.ascent import Ascent
from frpt.solvers.blocks.adam import Adam
from frpt.solvers.blocks.composite import COMPOSITE_SOLVERS, Composite
from frpt.solvers.blocks.gauss_newton import GaussNewton
from frpt.solvers.blocks.problem import Limits
from frpt.solvers.blocks.reach import Reach
from frpt.solvers.conv.choose import CONV_SOLVERS, Convolutions
from frpt.solvers.likeliest import LikeliestWinning
from frpt.solvers.linear.bounded import Bounded
from frpt.solvers.linear.gate import Gate
from frpt.solvers.nearest import NearestWinning

__all__ = [
    "COMPOSITE_SOLVERS",
    "CONV_SOLVERS",
    "PRESETS",
    "Ascent",
    "Bounded",
    "Composite",
    "Convolutions",
    "Embedding",
    "Gate",
    "LikeliestWinning",
    "Limits",
    "NearestWinning",
    "Preset",
    "Reach",
    "preset",
]

Embedding = Literal["nearest", "max_assign", "one_hot", "regression"]


@dataclass(frozen=True)
class Preset:
    """A complete set of choices, for ``Reverser(preset=...)`` and ``frpt.ops``.

    Args:
        name: shown in plans, stores and reports.
        embed: how labels become an output target.
        dtype: precision of linear solves and reverse rules, float32 or float64.
        gate: which solutions are refused, and how strongly those are damped.
        conv: how convolutions are solved.
        composite: how blocks of several ops are solved.
        bounded: how linear solves are kept in the range of the op before.
        rules: the registry that is consulted first, before the default rules.
        blocks: where the way back is cut, "finest" or "stages".
        ranges: keep a target inside the range of the op that has to produce it (a ReLU's is never negative).
        nearest: solve the path from the layer to the output as a whole, from the anchor; None: op by op, as the paper
            does.
        likeliest: the same where a reference says how the feature varies.
        reach: the same where the target is an output and not a label that shall win.

    Raises:
        OptionError: ``dtype`` is another.

    Example:
        >>> from dataclasses import replace
        >>> import frpt, torch
        >>> from frpt.options import PRESETS
        >>> mine = replace(PRESETS["paper"], name="mine", dtype=torch.float32, gate=frpt.Gate(magnitude=100.0))
        >>> mine.conv.method
        'fft_padded'
    """

    name: str
    embed: Embedding = "nearest"
    dtype: torch.dtype = torch.float64
    gate: Gate = field(default_factory=Gate)
    conv: Convolutions = field(default_factory=Convolutions)
    composite: Composite = field(default_factory=Composite)
    bounded: Bounded = field(default_factory=Bounded)
    rules: str = "default"
    blocks: str = "finest"
    ranges: bool = True
    nearest: NearestWinning | None = field(default_factory=NearestWinning)
    likeliest: LikeliestWinning = field(default_factory=LikeliestWinning)
    reach: Reach = field(default_factory=Reach)

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise OptionError(f"Preset.dtype must be torch.float32 or torch.float64, got {self.dtype}")


PRESETS = {
    "default": Preset("default"),
    # for every training step: fewer steps, no random starts, a fifth of an output's residual may be left
    "online": Preset(
        "online",
        dtype=torch.float32,
        composite=Composite(limits=Limits(iterations=10)),
        nearest=NearestWinning(steps=8, patience=1, looks=2, probes=0, ascent=None),
        reach=Reach(stop_at=0.2),
    ),
    # all numbers: B.1.2; where the paper's text and its code differ, docs/method.md says which is followed
    "paper": Preset(
        "paper",
        gate=Gate(coefficients="raw"),
        conv=Convolutions(method="fft_padded", fill="zeros"),
        composite=Composite(
            large="adam",
            jacobian_entries=50_000_000,
            jacobian_counts="batch",
            limits=Limits(iterations=20),
            gauss_newton=GaussNewton(damping=0.8, longest_step=10.0),
            adam=Adam(longest_step=10.0),
        ),
        rules="paper",
        blocks="stages",
        ranges=False,
        nearest=None,
    ),
}


def preset(choice: str | Preset) -> Preset:
    """The preset of that name; a ``Preset`` of one's own passes through."""
    if isinstance(choice, Preset):
        return choice
    if choice not in PRESETS:
        raise OptionError(f"unknown preset {choice!r}: there are {', '.join(map(repr, PRESETS))}")
    return PRESETS[choice]
