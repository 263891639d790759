"""The likeliest feature in which the label wins, where it is known how the feature varies.

    ã = â + t ‖μ_y − â‖ ((1 − p) (μ_y − â)/‖μ_y − â‖ + p Σg/‖Σg‖),   g = ∇ log p_y(â)
    t = d/(d + m (1 − η) max(1, η₀/η))

towards the mean μ_y of the label's features, a little along what the network asks for in the feature's own variation,
and as far as what the label lacks (d) says, beside the lead m by which right samples win; farther where features are
little else than their class, less far where classes explain little of them (η: the share of the variance between
classes). Where the label does not win at ã yet, the nearest feature to ã in which it does, in the metric Σ⁻¹; where
none is found, the nearest to the anchor. Called by ``frpt.reverse.whole_path``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from frpt.options import NearestOptions
from frpt.solvers import nearest
from frpt.solvers.nearest import Contest, Winner
from frpt.solvers.variation import Variation


def solve(contest: Contest, variation: Variation, options: NearestOptions) -> Winner:
    """The likeliest winning feature of every sample; the anchor where there is none."""
    contest = replace(contest, metric=variation)
    guess, wins = contest.anchor.clone(), torch.zeros_like(contest.label, dtype=torch.bool)
    for rows in nearest.chunks(contest, options):
        guess[rows], wins[rows] = _guess(contest.part(rows), variation, options)
    ones = torch.ones_like(contest.label)
    rest = (~wins).nonzero().squeeze(1)
    if len(rest) == 0:
        return Winner(guess, wins, 2 * ones, ones)
    coarse = replace(options, gain=0.1, patience=1, looks=2)  # ã is a guess: the last percents are not worth it
    more = nearest.solve(replace(contest.part(rest), anchor=guess[rest]), coarse)
    lost = (~more.wins).nonzero().squeeze(1)
    if len(lost):  # from ã there is no way: the least change of the anchor itself
        plain = nearest.solve(replace(contest.part(rest[lost]), metric=None), options)
        more = Winner(
            more.value.index_copy(0, lost, plain.value),
            more.wins.index_copy(0, lost, plain.wins),
            more.forwards.index_add(0, lost, plain.forwards),
            more.backwards.index_add(0, lost, plain.backwards),
        )
    value = torch.where(_over(more.wins, guess), more.value, contest.anchor[rest])
    return Winner(
        guess.index_copy(0, rest, value),
        wins.index_copy(0, rest, more.wins),
        (2 * ones).index_add(0, rest, more.forwards),
        ones.index_add(0, rest, more.backwards),
    )


def _guess(contest: Contest, variation: Variation, options: NearestOptions) -> tuple[Tensor, Tensor]:
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
    guess = torch.where(_over(known, anchor), guess, anchor)
    with torch.no_grad():
        lead = contest.leads(contest.fn(guess, everyone), everyone).nan_to_num(-torch.inf).amin(1)
    return guess, known & contest.wins(lead, everyone)


def _unit(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / length.clamp_min(torch.finfo(rows.dtype).tiny)


def _over(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.dim() - 1))
