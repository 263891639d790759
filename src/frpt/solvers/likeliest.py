"""The likeliest feature in which the label wins, where it is known how the feature varies.

    ã = â + t ‖μ_y − â‖ ((1 − p) (μ_y − â)/‖μ_y − â‖ + p Σg/‖Σg‖),   g = ∇ log p_y(â)
    t = d/(d + m (1 − η) max(1, η₀/η))

towards the mean μ_y of the label's features, a little along what the network asks for in the feature's own variation,
and as far as what the label lacks (d) says, beside the lead m by which right samples win; farther where features are
little else than their class, less far where classes explain little of them (η: the share of the variance between
classes). Where the label does not win at ã yet, the nearest feature to ã in which it does, in the metric Σ⁻¹; where
there is none to be had, the nearest to the anchor. Called by ``frpt.reverse.whole_path``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import per_system
from frpt.solvers.contest import Contest
from frpt.solvers.nearest import NearestWinning, Winning
from frpt.solvers.variation import Variation


@dataclass(frozen=True)
class LikeliestWinning:
    """A guess from the label's mean and one gradient, and SQP steps from there where the label does not win yet.

    Args:
        pull: p, the share of the first step that goes along the gradient, the rest to the label's mean. Chosen by
            ``benchmarks/restore.py``, whose docstring says on which cases.
        telling: η₀, the share of a feature's variance between classes under which a label's mean says less, and less is
            gone to it. Chosen by ``benchmarks/restore.py`` too.
        gain: ``NearestWinning.gain`` of the steps from ã: it is a guess, and the last percents are not worth it.
        patience: ``NearestWinning.patience`` of these steps.
        looks: ``NearestWinning.looks`` of these steps.

    Raises:
        OptionError: a number is not positive.

    Example:
        >>> import frpt
        >>> frpt.LikeliestWinning(pull=0.2).telling
        0.1
    """

    pull: float = 0.1
    telling: float = 0.1
    gain: float = 0.1
    patience: int = 1
    looks: int = 2

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def solve(self, contest: Contest, variation: Variation, nearest: NearestWinning) -> Winning:
        """The likeliest winning feature of every sample; the anchor where there is none."""
        contest = replace(contest, metric=variation)
        guess, wins = contest.anchor.clone(), torch.zeros_like(contest.label, dtype=torch.bool)
        for rows in nearest.chunks(contest):
            guess[rows], wins[rows] = _guess(contest.part(rows), variation, self)
        ones = torch.ones_like(contest.label)
        guessed = Winning(guess, ~wins, ones, 2 * ones)
        rest = (~wins).nonzero().squeeze(1)
        if len(rest) == 0:
            return guessed
        coarse = replace(nearest, gain=self.gain, patience=self.patience, looks=self.looks, ascent=None)
        more = coarse.solve(replace(contest.part(rest), anchor=guess[rest]))
        lost = (~more.wins).nonzero().squeeze(1)
        if len(lost):  # from ã there is no way: the least change of the anchor itself
            more = more.put(lost, nearest.solve(replace(contest.part(rest[lost]), metric=None)))
        value = torch.where(per_system(more.wins, guess), more.value, contest.anchor[rest])
        return guessed.put(rest, replace(more, value=value))


def _guess(contest: Contest, variation: Variation, options: LikeliestWinning) -> tuple[Tensor, Tensor]:
    """(ã, whether the label wins there); the anchor for labels of which nothing is known."""
    anchor, everyone = contest.anchor, torch.arange(len(contest.label), device=contest.label.device)
    with torch.enable_grad():
        point = anchor.detach().requires_grad_(True)
        scores = contest.fn(point, everyone)
        (g,) = torch.autograd.grad(scores.log_softmax(1).gather(1, contest.label[:, None]).sum(), point)
    lacks = (contest.margin - contest.leads(scores.detach(), everyone).amin(1)).clamp_min(0.0)
    share = max(variation.between, 1e-3)
    usual = variation.lead * (1 - share) * max(1.0, options.telling / share)
    far = lacks / (lacks + max(usual, torch.finfo(anchor.dtype).tiny))
    known, means = variation.class_means(contest.label)
    way = means.to(anchor) - anchor.flatten(1)
    length = torch.linalg.vector_norm(way, dim=1, keepdim=True)
    asked = variation.spread(g.flatten(1).nan_to_num(0.0, 0.0, 0.0))
    step = (1 - options.pull) * way + options.pull * length * _unit(asked)
    guess = contest.within.clamp(anchor.flatten(1) + far[:, None] * step, anchor.flatten(1)).reshape(anchor.shape)
    guess = torch.where(per_system(known, anchor), guess, anchor)
    with torch.no_grad():
        lead = contest.leads(contest.fn(guess, everyone), everyone).amin(1)
    return guess, known & contest.wins(lead, everyone)


def _unit(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / length.clamp_min(torch.finfo(rows.dtype).tiny)
