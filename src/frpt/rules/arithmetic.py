"""Arithmetic with side inputs at their forward value, and elementwise powers, roots, logarithms.

y = s ∘ a + const:  a = â + Σ s r / Σ s²  over what each entry of a was broadcast to,  r = t − Φ(â)
"""

from __future__ import annotations

import torch
from torch import Tensor

from frpt.rules.activation import _clip, _keeping, _nearest
from frpt.rules.registry import Call, Site, reverses
from frpt.solvers.base import Solution
from frpt.solvers.linear.structured import Diagonal

aten = torch.ops.aten


def scaled(site: Site, residual: Tensor, scale: Tensor | float) -> Solution:
    """y = s∘a + const, a broadcast where it is smaller:  δ = Σ s r / Σ s² over what each entry of a was spread to.

    Entries with s = 0 say nothing about a: they keep their anchor.
    """
    s = torch.as_tensor(scale, dtype=residual.dtype, device=residual.device).expand_as(residual)
    weight = (s * s).sum_to_size(site.anchor.shape).sqrt()
    pulled = (s * residual).sum_to_size(site.anchor.shape)
    pulled = torch.where(weight > 0, pulled / torch.where(weight > 0, weight, 1.0), 0.0)
    split = site.axes.input.front
    return site.linear(Diagonal(split(weight)), split(pulled), split, site.axes.input.back)


def _number(value: Tensor | float, site: Site) -> Tensor | float:
    return value.to(site.anchor.dtype) if isinstance(value, Tensor) else float(value)


@reverses(aten.add.Tensor, aten.add.Scalar)
def add(site: Site, target: Tensor) -> Solution:
    """y = a + α·b:  δ = r, or r/α for the second operand."""
    return scaled(site, target - site.output, 1.0 if site.slot == "self" else float(site.args["alpha"]))


@reverses(aten.sub.Tensor, aten.sub.Scalar)
def sub(site: Site, target: Tensor) -> Solution:
    """y = a − α·b:  δ = r, or −r/α for the second operand."""
    return scaled(site, target - site.output, 1.0 if site.slot == "self" else -float(site.args["alpha"]))


@reverses(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(site: Site, target: Tensor) -> Solution:
    """y = b − α·a:  δ = −r/α."""
    return scaled(site, target - site.output, -float(site.args["alpha"]) if site.slot == "self" else 1.0)


@reverses(aten.mul.Tensor, aten.mul.Scalar)
def mul(site: Site, target: Tensor) -> Solution:
    """y = a·s:  δ = r/s, the anchor where s = 0."""
    other = site.args["other" if site.slot == "self" else "self"]
    return scaled(site, target - site.output, _number(other, site))


@reverses(aten.div.Tensor, aten.div.Scalar, slots=("self",))
def div(site: Site, target: Tensor) -> Solution:
    """y = a/s:  δ = r·s."""
    return scaled(site, target - site.output, 1 / _number(site.args["other"], site))


@reverses(aten.neg.default)
def neg(site: Site, target: Tensor) -> Solution:
    """y = −a:  δ = −r."""
    return scaled(site, target - site.output, -1.0)


@reverses(aten.exp.default, elementwise=True)
def exp(site: Site, target: Tensor) -> Solution:
    """z = log t, t clipped above 0."""
    t = _clip(site, target, 0, float("inf"))
    return _keeping(site, t, torch.log(t.clamp_min(torch.finfo(t.dtype).tiny)))


@reverses(aten.log.default, elementwise=True)
def log(site: Site, target: Tensor) -> Solution:
    """z = e^t."""
    return site.exact(torch.exp(target))


@reverses(aten.sqrt.default, elementwise=True)
def sqrt(site: Site, target: Tensor) -> Solution:
    """z = t², t clipped at 0."""
    return site.exact(target.clamp_min(0).square())


def _positive_power(call: Call) -> bool:
    return isinstance(call.args["exponent"], int | float) and float(call.args["exponent"]) > 0


@reverses(aten.pow.Tensor_Scalar, slots=("self",), when=_positive_power, elementwise=True)
def pow(site: Site, target: Tensor) -> Solution:
    """z^p = t, p > 0:  ±t^{1/p} nearest to the anchor for even p, sign(t)|t|^{1/p} for odd p, t^{1/p} ≥ 0 otherwise."""
    p = float(site.args["exponent"])
    if p % 2 == 1:
        return site.exact(torch.sign(target) * target.abs().pow(1 / p))
    root = target.clamp_min(0).pow(1 / p)
    return site.exact(_nearest(site, root, -root) if p % 2 == 0 else root)
