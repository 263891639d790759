"""Normalisations. With stored statistics they are diagonal; with the input's own, only a direction comes back.

y = γ (z − mean)/√(var + ε) + β:   z = mean(ẑ) + c u,   u ∝ (t − β)/γ,   c nearest to the anchor
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from frpt.rules.arithmetic import scaled
from frpt.rules.registry import Call, Site, reverses
from frpt.solvers.base import Solution

aten = torch.ops.aten


def _normalised(call: Call) -> bool:
    """The output is the normalised tensor, not one of the statistics that native ops return beside it."""
    return call.pick in (None, 0)


def _uses_running_statistics(call: Call) -> bool:
    training = call.args.get("training", call.args.get("use_input_stats", False))
    return _normalised(call) and not training and call.args.get("running_var") is not None


@reverses(
    aten.batch_norm.default,
    aten._native_batch_norm_legit_no_training.default,
    aten.instance_norm.default,
    slots=("input",),
    when=_uses_running_statistics,
)
def batch_norm(site: Site, target: Tensor) -> Solution:
    """y = γ (z − mean)/√(var + ε) + β:  δ = r √(var + ε)/γ, the anchor where γ = 0 (paper III-D b)."""
    variance = site.tensor("running_var")
    assert variance is not None
    scale = torch.rsqrt(variance + float(site.args["eps"]))
    gamma = site.tensor("weight")
    scale = scale if gamma is None else scale * gamma
    return scaled(site, target - site.output, scale.reshape(1, -1, *[1] * (target.dim() - 2)))


def _along(z: Tensor, t: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, centred: bool) -> Tensor:
    """Direction from the target, scale and shift nearest to the anchor. z, t, γ, β: (rows, k) or broadcastable.

        u = (t − β)/γ, centred;   z = μ + c u,   μ = mean(ẑ),   c = ⟨ẑ − μ, u⟩/⟨u, u⟩

    c stays positive and large against √ε, for the output to reach the target; entries with γ = 0 keep their anchor.
    """
    mean = z.mean(-1, keepdim=True) if centred else torch.zeros_like(z[..., :1])
    z0 = z - mean
    forward = z0 * torch.rsqrt(z0.square().mean(-1, keepdim=True) + eps)
    gamma = torch.ones_like(z) if gamma is None else gamma.expand_as(z)
    n = (t if beta is None else t - beta) / torch.where(gamma == 0, 1.0, gamma)
    n = torch.where(gamma == 0, forward, n)
    u = n - n.mean(-1, keepdim=True) if centred else n
    tiny = torch.finfo(z.dtype).tiny
    power = u.square().mean(-1, keepdim=True).clamp_min(tiny)
    own = (z0.square().mean(-1, keepdim=True) / power).sqrt()  # the scale that keeps the anchor's spread
    nearest = (z0 * u).mean(-1, keepdim=True) / power
    least = torch.minimum(10 * (eps / power).sqrt(), own)
    c = torch.where(nearest > 0, torch.maximum(nearest, least), own)
    c = torch.where(own > 0, c, 10 * (eps / power).sqrt())
    value = torch.where(u.abs().amax(-1, keepdim=True) > 0, mean + c * u, z)
    return torch.where(gamma == 0, z, value)


def _paper_scale(z: Tensor, t: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float) -> Tensor:
    """z = u √(ε/(1 − q)) + mean(ẑ − u…), q = mean(u²) < 1: the paper's III-D c. z, t: (rows, k)."""
    gamma = torch.ones_like(z) if gamma is None else gamma.expand_as(z)
    n = (t if beta is None else t - beta) / torch.where(gamma == 0, 1.0, gamma)
    n = torch.where(gamma == 0, 0.0, n)
    u = n - n.mean(-1, keepdim=True)
    q = u.square().mean(-1, keepdim=True)
    largest = 1 - 1e-6
    u = torch.where(q > largest, u * (largest / q.clamp_min(1e-30)).sqrt(), u)
    u = u * (eps / (1 - q.clamp_max(largest))).sqrt()
    return u + (z - u).mean(-1, keepdim=True)


def _rows(site: Site, t: Tensor) -> Tensor:
    k = math.prod(int(s) for s in site.args["normalized_shape"])
    return t.reshape(-1, k)


def _affine(site: Site) -> tuple[Tensor | None, Tensor | None]:
    gamma, beta = site.tensor("weight"), site.tensor("bias")
    return (None if gamma is None else gamma.flatten()), (None if beta is None else beta.flatten())


@reverses(aten.layer_norm.default, aten.native_layer_norm.default, slots=("input",), when=_normalised)
def layer_norm(site: Site, target: Tensor) -> Solution:
    """y = γ (z − mean)/√(var + ε) + β over the last axes: direction from t, scale and shift nearest to the anchor."""
    gamma, beta = _affine(site)
    z, t = _rows(site, site.anchor), _rows(site, target)
    value = _along(z, t, gamma, beta, float(site.args["eps"]), centred=True)
    return _unless_met(site, value.reshape(site.anchor.shape), _rows(site, target == site.output))


@reverses(aten.layer_norm.default, aten.native_layer_norm.default, slots=("input",), when=_normalised, preset="paper")
def paper_layer_norm(site: Site, target: Tensor) -> Solution:
    """The paper's rule: scale √(ε/(1 − q)) from the target alone, shift nearest to the anchor."""
    gamma, beta = _affine(site)
    value = _paper_scale(_rows(site, site.anchor), _rows(site, target), gamma, beta, float(site.args["eps"]))
    return site.exact(value.reshape(site.anchor.shape))


@reverses(aten.rms_norm.default, slots=("input",))
def rms_norm(site: Site, target: Tensor) -> Solution:
    """y = γ z/√(mean(z²) + ε): direction from the target, scale nearest to the anchor."""
    gamma, _ = _affine(site)
    eps = site.args["eps"]
    eps = torch.finfo(site.active.dtype).eps if eps is None else float(eps)
    value = _along(_rows(site, site.anchor), _rows(site, target), gamma, None, eps, centred=False)
    return _unless_met(site, value.reshape(site.anchor.shape), _rows(site, target == site.output))


@reverses(aten.group_norm.default, aten.native_group_norm.default, slots=("input",), when=_normalised)
def group_norm(site: Site, target: Tensor) -> Solution:
    """layer_norm over the channels of a group and all positions, γ and β per channel. z: (b, c, *space)."""
    groups = int(site.args.get("num_groups") or site.args["group"])
    batch, _, *space = site.anchor.shape
    positions = math.prod(space)

    def rows(t: Tensor) -> Tensor:
        return t.reshape(batch * groups, -1)

    def spread(w: Tensor | None) -> Tensor | None:
        if w is None:
            return None
        return w.reshape(groups, -1, 1).expand(-1, -1, positions).reshape(groups, -1).repeat(batch, 1)

    gamma, beta = spread(site.tensor("weight")), spread(site.tensor("bias"))
    value = _along(rows(site.anchor), rows(target), gamma, beta, float(site.args["eps"]), centred=True)
    return _unless_met(site, value.reshape(site.anchor.shape), rows(target == site.output))


def _unless_met(site: Site, value: Tensor, met: Tensor) -> Solution:
    """The anchor wherever a whole normalised row already has its target. met: (rows, k)."""
    keep = met.all(-1, keepdim=True).expand_as(met).reshape(value.shape)
    return site.exact(torch.where(keep, site.anchor, value))
