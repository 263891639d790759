"""Softmax and log-softmax: logits up to a shift per slice, the shift nearest to the anchor (Supplement A.5, part 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from frpt.rules.registry import Site, reverses
from frpt.solvers.base import Solution

aten = torch.ops.aten
FLOOR = 1e-12


def _shifted(site: Site, log_target: Tensor, log_forward: Tensor, met: Tensor, dim: int) -> Solution:
    """z = ẑ + d − mean(d) with d = log t − log y: the residual form of z = log t + mean(ẑ − log t)."""
    d = log_target - log_forward
    z = site.anchor + d - d.mean(dim, keepdim=True)
    return site.exact(torch.where(met.all(dim, keepdim=True), site.anchor, z))


@reverses(aten.softmax.int, aten._softmax.default)
def softmax(site: Site, target: Tensor) -> Solution:
    """z = log t + c, c = mean(ẑ − log t) over the slice; t is raised to 1e-12 and normalised first."""
    dim = int(site.args["dim"])
    t = target.clamp_min(FLOOR)
    log_t = torch.log(t / t.sum(dim, keepdim=True))
    return _shifted(site, log_t, torch.log_softmax(site.anchor, dim), target == site.output, dim)


@reverses(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(site: Site, target: Tensor) -> Solution:
    """z = t + c, c = mean(ẑ − t) over the slice; t is normalised by its log-sum-exp first."""
    dim = int(site.args["dim"])
    return _shifted(
        site, torch.log_softmax(target, dim), torch.log_softmax(site.anchor, dim), target == site.output, dim
    )
