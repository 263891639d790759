"""Softmax and log-softmax: logits up to a shift per slice, the shift nearest to the anchor (Supplement A.5, part 4).

z = log t + c,   c = mean(ẑ − log t)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from frpt.rules.registry import Site, reverses
from frpt.solvers.base import Solution

aten = torch.ops.aten
FLOOR = 1e-12
"""Probabilities are raised to this before their logarithm is taken; the paper's (Supplement A.5, part 4)."""


def _shifted(site: Site, d: Tensor, shift: Tensor, met: Tensor, dim: int) -> Solution:
    """z = ẑ + d − shift, the anchor in slices that are met already."""
    return site.exact(torch.where(met.all(dim, keepdim=True), site.anchor, site.anchor + (d - shift)))


@reverses(aten.softmax.int, aten._softmax.default)
def softmax(site: Site, target: Tensor) -> Solution:
    """z = log t + c, c = mean(ẑ − log t) over the slice; t is raised to 1e-12 and normalised first.

    In residual form z = ẑ + d − mean(d), d = log t − log y. Entries below 1e-12 before and after (masked ones) have
    only to stay there: they keep their anchor, unless the rest of the slice sank too low for it, and count in no mean.
    """
    dim, floor = int(site.args["dim"]), math.log(FLOOR)
    log_y = torch.log_softmax(site.anchor, dim)
    log_t = torch.log_softmax(torch.log(target.clamp_min(FLOOR)), dim)
    asleep = (log_y < floor) & (target <= FLOOR)
    d = torch.where(asleep, 0.0, log_t - log_y)
    shift = d.sum(dim, keepdim=True) / (~asleep).sum(dim, keepdim=True)
    d = torch.where(asleep, torch.minimum(shift, floor - log_y), d)
    return _shifted(site, d, shift, target == site.output, dim)


@reverses(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(site: Site, target: Tensor) -> Solution:
    """z = t + c, c = mean(ẑ − t) over the slice; t is normalised by its log-sum-exp first."""
    dim = int(site.args["dim"])
    d = torch.log_softmax(target, dim) - torch.log_softmax(site.anchor, dim)
    return _shifted(site, d, d.mean(dim, keepdim=True), target == site.output, dim)
