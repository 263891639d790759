"""Activations: the nearest preimage of the target, after projecting it onto the attainable range (Supplement A.5).

argmin |z − ẑ|  subject to  f(z) = t′,   t′ the attainable value nearest to t,   entry by entry
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from frpt.rules.registry import Call, Site, reverses
from frpt.rules.roots import Function, invert_valley
from frpt.solvers.base import Solution
from frpt.solvers.linear.structured import Diagonal

aten = torch.ops.aten
PAPER_EPS = 1e-6
"""How far off the ends of an open range the paper clips (Supplement A.5, part 1; B.1.2)."""


def _clip(site: Site, target: Tensor, low: float, high: float, eps: float | None = None) -> Tensor:
    """The target inside the open range (low, high): ``eps`` off its ends, or as near to them as the forward value."""
    eps = site.eps if eps is None else eps
    span = high - low if high - low < float("inf") else 1.0
    lowest = site.output.clamp(max=low + eps * span)
    highest = site.output.clamp(min=high - eps * span)
    return torch.minimum(torch.maximum(target, lowest), highest)


def _below_one(t: Tensor) -> float:
    """The largest number below 1 in t's precision."""
    return 1 - torch.finfo(t.dtype).eps / 2


def _nearest(site: Site, *roots: Tensor) -> Tensor:
    """Of several preimages the one nearest to the anchor; the first wins a tie."""
    best = roots[0]
    for root in roots[1:]:
        best = torch.where((root - site.anchor).abs() < (best - site.anchor).abs(), root, best)
    return best


def _keeping(site: Site, target: Tensor, value: Tensor) -> Solution:
    """``value``, but the anchor where the (clipped) target is the forward value."""
    return site.exact(torch.where(target == site.output, site.anchor, value))


@reverses(aten.relu.default, elementwise=True)
def relu(site: Site, target: Tensor) -> Solution:
    """Nearest z to the anchor with relu(z) = max(t, 0):  z = t where t > 0, min(z_hat, 0) elsewhere."""
    return site.exact(torch.where(target > 0, target, site.anchor.clamp_max(0)))


def _clamped(site: Site, target: Tensor, low: float, high: float) -> Solution:
    """Nearest z with clip(z, low, high) = clip(t, low, high): inside z = t, at an end the half-line beyond it."""
    z = site.anchor
    inner = torch.where(target <= low, z.clamp_max(low), target)
    return site.exact(torch.where(target >= high, z.clamp_min(high), inner))


@reverses(aten.relu6.default, elementwise=True)
def relu6(site: Site, target: Tensor) -> Solution:
    """min(max(z, 0), 6):  z = t inside (0, 6), min(z_hat, 0) below, max(z_hat, 6) above."""
    return _clamped(site, target, 0.0, 6.0)


@reverses(aten.hardtanh.default, elementwise=True)
def hardtanh(site: Site, target: Tensor) -> Solution:
    """clip(z, lo, hi):  z = t inside, min(z_hat, lo) below, max(z_hat, hi) above."""
    return _clamped(site, target, float(site.args["min_val"]), float(site.args["max_val"]))


def _has_numbers(call: Call) -> bool:
    return not any(isinstance(call.args.get(k), Tensor) for k in ("min", "max"))


@reverses(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, when=_has_numbers, elementwise=True)
def clamp(site: Site, target: Tensor) -> Solution:
    """clip(z, lo, hi), either end open:  z = t inside, the nearest point of the half-line at an end."""
    low, high = site.args.get("min"), site.args.get("max")
    infinity = float("inf")
    return _clamped(site, target, -infinity if low is None else float(low), infinity if high is None else float(high))


@reverses(aten.hardsigmoid.default, elementwise=True)
def hardsigmoid(site: Site, target: Tensor) -> Solution:
    """clip(z/6 + 1/2, 0, 1):  z = 6t − 3 inside, min(z_hat, −3) at 0, max(z_hat, 3) at 1."""
    z = site.anchor
    inner = torch.where(target <= 0, z.clamp_max(-3), 6 * target - 3)
    return site.exact(torch.where(target >= 1, z.clamp_min(3), inner))


@reverses(aten.leaky_relu.default, elementwise=True, when=lambda call: float(call.args["negative_slope"]) >= 0)
def leaky_relu(site: Site, target: Tensor) -> Solution:
    """z = t where t ≥ 0, t/s elsewhere; s = 0 is relu.  A diagonal map, so that a tiny slope goes through the gate."""
    slope = float(site.args["negative_slope"])
    if slope == 0:
        return relu(site, target)
    split = site.axes.input.front
    preimage = torch.where(target >= 0, target, target / slope)
    # residual form: with scale 1 or s by the branch of the solution, a = â + (t − scale·â)/scale
    scale = torch.ones_like(target).masked_fill(preimage < 0, slope)
    return site.linear(Diagonal(split(scale)), split(target - scale * site.anchor), split, site.axes.input.back)


@reverses(aten.leaky_relu.default, elementwise=True, preset="paper")
def paper_leaky_relu(site: Site, target: Tensor) -> Solution:
    """z = t where t ≥ 0, t/0.5 elsewhere: the paper's fixed denominator, exact for slope 0.5 only."""
    if float(site.args["negative_slope"]) == 0:
        return relu(site, target)
    return site.exact(torch.where(target >= 0, target, target / 0.5))


@reverses(aten.prelu.default, elementwise=True, slots=("self",))
def prelu(site: Site, target: Tensor) -> Solution:
    """max(z, 0) + s_c min(z, 0), a slope for each channel c (axis 1) or one for all.

    s > 0: z = t where t ≥ 0, t/s elsewhere.  s = 0 is relu.  s < 0: two branches over t ≥ 0, z = t and z = t/s, the
    nearer one; t < 0 is out of reach and goes to z = 0.  A diagonal map, so that a tiny slope goes through the gate.
    """
    weight, anchor = site.tensor("weight"), site.anchor
    assert weight is not None
    slope = weight.reshape(1, -1, *[1] * (anchor.dim() - 2)) if anchor.dim() > 1 else weight
    slope = slope.expand_as(anchor)
    t = torch.where(slope < 0, target.clamp_min(0), target)
    other = t / torch.where(slope == 0, 1.0, slope)
    below = torch.where(slope < 0, (other - anchor).abs() < (t - anchor).abs(), t < 0) & (slope != 0)
    flat = (slope == 0) & (t <= 0)
    scale, wanted = torch.where(below, slope, 1.0), torch.where(flat, anchor.clamp_max(0), t)
    split = site.axes.input.front
    return site.linear(Diagonal(split(scale)), split(wanted - scale * anchor), split, site.axes.input.back)


@reverses(aten.tanh.default, elementwise=True)
def tanh(site: Site, target: Tensor) -> Solution:
    """z = artanh(t), t clipped into (−1, 1)."""
    t = _clip(site, target, -1, 1)
    end = _below_one(t)
    return _keeping(site, t, torch.atanh(t.clamp(-end, end)))


@reverses(aten.sigmoid.default, elementwise=True)
def sigmoid(site: Site, target: Tensor) -> Solution:
    """z = log(t / (1 − t)), t clipped into (0, 1)."""
    t = _clip(site, target, 0, 1)
    return _keeping(site, t, torch.logit(t, eps=1e-300 if t.dtype == torch.float64 else 1e-30))


@reverses(aten.tanh.default, elementwise=True, preset="paper")
def paper_tanh(site: Site, target: Tensor) -> Solution:
    """z = artanh(t), t clipped to [−1 + 1e-6, 1 − 1e-6]."""
    return site.exact(torch.atanh(target.clamp(-1 + PAPER_EPS, 1 - PAPER_EPS)))


@reverses(aten.sigmoid.default, elementwise=True, preset="paper")
def paper_sigmoid(site: Site, target: Tensor) -> Solution:
    """z = log(t / (1 − t)), t clipped to [1e-6, 1 − 1e-6]."""
    return site.exact(torch.logit(target.clamp(PAPER_EPS, 1 - PAPER_EPS)))


@reverses(aten.log_sigmoid.default, elementwise=True)
def log_sigmoid(site: Site, target: Tensor) -> Solution:
    """t = −log(1 + e^−z):  z = t − log(1 − e^t), t clipped below 0."""
    t = _clip(site, target, -float("inf"), 0)
    return _keeping(site, t, t - torch.log(-torch.expm1(t.clamp_max(-1e-300))))


@reverses(aten.softplus.default, elementwise=True)
def softplus(site: Site, target: Tensor) -> Solution:
    """t = log(1 + e^βz)/β:  z = t + log(1 − e^−βt)/β, t clipped above 0; z = t where βt exceeds the threshold."""
    beta, threshold = float(site.args["beta"]), float(site.args["threshold"])
    t = _clip(site, target, 0, float("inf"))
    curved = t + torch.log(-torch.expm1(-beta * t.clamp_min(1e-300))) / beta
    return _keeping(site, t, torch.where(curved * beta > threshold, t, curved))


@reverses(aten.elu.default, elementwise=True, when=lambda call: min(map(float, _elu_constants(call))) > 0)
def elu(site: Site, target: Tensor) -> Solution:
    """t = s·z above 0, s·α(e^{c z} − 1) below:  z = t/s, or log(1 + t/(sα))/c, t clipped above −sα."""
    alpha, scale, inner = map(float, _elu_constants(site))
    t = _clip(site, target, -alpha * scale, float("inf"))
    below = torch.log1p((t / (alpha * scale)).clamp_min(-_below_one(t))) / inner
    return _keeping(site, t, torch.where(t > 0, t / scale, below))


def _elu_constants(call: Call) -> tuple[float, float, float]:
    return call.args["alpha"], call.args["scale"], call.args["input_scale"]


@reverses(aten.celu.default, elementwise=True, when=lambda call: float(call.args["alpha"]) > 0)
def celu(site: Site, target: Tensor) -> Solution:
    """t = z above 0, α(e^{z/α} − 1) below:  z = α log(1 + t/α), t clipped above −α."""
    alpha = float(site.args["alpha"])
    t = _clip(site, target, -alpha, float("inf"))
    return _keeping(site, t, torch.where(t > 0, t, alpha * torch.log1p((t / alpha).clamp_min(-_below_one(t)))))


@reverses(aten.selu.default, elementwise=True)
def selu(site: Site, target: Tensor) -> Solution:
    """t = λz above 0, λα(e^z − 1) below:  z = t/λ, or log(1 + t/(λα)), t clipped above −λα."""
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    t = _clip(site, target, -alpha * scale, float("inf"))
    below = torch.log1p((t / (alpha * scale)).clamp_min(-_below_one(t)))
    return _keeping(site, t, torch.where(t > 0, t / scale, below))


@reverses(aten.hardswish.default, elementwise=True)
def hardswish(site: Site, target: Tensor) -> Solution:
    """z·relu6(z + 3)/6:  z = t above 3, (−3 ± √(9 + 24t))/2 between −3/8 and 3 (nearest root), z ≤ −3 or 0 at t = 0."""
    t = target.clamp_min(-0.375)
    root = torch.sqrt((9 + 24 * t).clamp_min(0))
    upper, lower = (-3 + root) / 2, (-3 - root) / 2
    z = torch.where(t < 0, _nearest(site, upper, lower), torch.where(t < 3, upper, t))
    flat = _nearest(site, torch.zeros_like(t), site.anchor.clamp_max(-3))
    return site.exact(torch.where(t == 0, flat, z))


def _valley(site: Site, target: Tensor, bottom: float, f: Function, log_left: Function) -> Solution:
    """Both preimages of a function with one minimum, the nearer one chosen; targets below it go to the bottom."""
    left, right = invert_valley(target, f, log_left, bottom)
    z = torch.where(target < 0, _nearest(site, right, left), right)
    return site.exact(z)


@reverses(aten.gelu.default, elementwise=True)
def gelu(site: Site, target: Tensor) -> Solution:
    """z·Φ(z), or its tanh form: nearest root of the two branches around the minimum at −0.7518 (tanh: −0.7525)."""
    if site.args["approximate"] == "tanh":

        def f(z: Tensor) -> Tensor:
            return F.gelu(z, approximate="tanh")

        def log_left(z: Tensor) -> Tensor:
            inner = 0.7978845608028654 * (z + 0.044715 * z**3)
            return torch.log(-z) + F.logsigmoid(2 * inner)

        return _valley(site, target, -0.7524614220710163, f, log_left)
    return _valley(site, target, -0.7517915246935645, F.gelu, lambda z: torch.log(-z) + torch.special.log_ndtr(z))


@reverses(aten.silu.default, elementwise=True)
def silu(site: Site, target: Tensor) -> Solution:
    """z·sigmoid(z): nearest root of the two branches around the minimum at −1.2785."""
    return _valley(site, target, -1.2784645427610738, F.silu, lambda z: torch.log(-z) + F.logsigmoid(z))


@reverses(aten.mish.default, elementwise=True)
def mish(site: Site, target: Tensor) -> Solution:
    """z·tanh(softplus(z)): nearest root of the two branches around the minimum at −1.1924."""

    def log_left(z: Tensor) -> Tensor:
        return torch.log(-z) + torch.log(torch.tanh(F.softplus(z)))

    return _valley(site, target, -1.1924312145154467, F.mish, log_left)
