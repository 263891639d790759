"""Pooling and interpolation: averages by least squares axis by axis, maxima by the smallest change per window.

y = (A₁ ⊗ … ⊗ A_d) a:   a = â + A⁺ r;      y_j = max of a over window j:   see ``_maxima``
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from frpt.rules.registry import Call, Site, reverses
from frpt.rules.windows import adaptive_windows, average_matrix, windows
from frpt.solvers.base import Solution
from frpt.solvers.linear.structured import Separable

aten = torch.ops.aten


def spatial_axes(call: Call) -> int:
    """1, 2 or 3, from the op's name."""
    name = call.op._schema.name
    return next(k for k in (1, 2, 3) if f"{k}d" in name)


def _axes(value: Any, rank: int, default: int | None = None) -> list[int]:
    if value is None or (not isinstance(value, int) and len(value) == 0):
        value = default
    if isinstance(value, int):
        return [value] * rank
    values = [int(v) for v in value]
    return values * rank if len(values) == 1 else values


def separable(site: Site, target: Tensor, make: Callable[[], list[Tensor]]) -> Solution:
    """y = (A₁ ⊗ … ⊗ A_d) a over the spatial axes, every channel its own system:  a = â + A⁺ r."""
    rank = spatial_axes(site)
    prepared = Separable([m.to(site.anchor) for m in make()])

    def split(a: Tensor) -> Tensor:
        return a.reshape(-1, *a.shape[a.dim() - rank :])

    return site.linear(prepared, split(target - site.output), split, lambda s: s.reshape(site.anchor.shape))


@reverses(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(site: Site, target: Tensor) -> Solution:
    """A uniform offset per window, A⁺ r where windows overlap; uncovered entries keep their anchor (paper III-D d)."""
    rank = spatial_axes(site)
    kernel = _axes(site.args["kernel_size"], rank)
    stride = [s or k for s, k in zip(_axes(site.args["stride"], rank, 0), kernel, strict=True)]
    padding = _axes(site.args["padding"], rank)
    divisor = site.args.get("divisor_override")
    space, out = site.anchor.shape[-rank:], target.shape[-rank:]

    def factors() -> list[Tensor]:
        matrices = [
            average_matrix(n, m, k, s, p, bool(site.args["count_include_pad"]))
            for n, m, k, s, p in zip(space, out, kernel, stride, padding, strict=True)
        ]
        if divisor:  # Σ/divisor instead of the mean
            matrices = [(m > 0).to(m.dtype) for m in matrices]
            matrices[0] = matrices[0] / divisor
        return matrices

    return separable(site, target, factors)


ADAPTIVE_AVERAGE = (
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
)


@reverses(*ADAPTIVE_AVERAGE)
def adaptive_avg_pool(site: Site, target: Tensor) -> Solution:
    """A uniform offset per window, A⁺ r where windows overlap."""
    rank = spatial_axes(site)
    sizes = zip(site.anchor.shape[-rank:], target.shape[-rank:], strict=True)
    return separable(site, target, lambda: [adaptive_windows(n, m)[1] for n, m in sizes])


@reverses(*ADAPTIVE_AVERAGE, preset="paper")
def paper_adaptive_avg_pool(site: Site, target: Tensor) -> Solution:
    """The pooled target broadcast over its window (nearest-neighbour), as the paper's code does."""
    rank = spatial_axes(site)
    lead = target.shape[: target.dim() - rank]
    space = site.anchor.shape[-rank:]
    flat = target.reshape(1, -1, *target.shape[-rank:])
    return site.exact(F.interpolate(flat, size=list(space)).reshape(*lead, *space))


@reverses(
    aten.upsample_linear1d.default,
    aten.upsample_bilinear2d.default,
    aten.upsample_bilinear2d.vec,
    aten.upsample_trilinear3d.default,
)
def upsample_linear(site: Site, target: Tensor) -> Solution:
    """Interpolation is a small matrix along every axis:  a = â + A⁺ r."""
    rank = spatial_axes(site)
    align = bool(site.args["align_corners"])
    scales = _scales(site, rank)

    def factors() -> list[Tensor]:
        matrices = []
        for n, m, scale in zip(site.anchor.shape[-rank:], target.shape[-rank:], scales, strict=True):
            units = torch.eye(n, dtype=torch.float64).unsqueeze(0)  # (1, unit, position)
            matrices.append(aten.upsample_linear1d.default(units, [m], align, scale)[0].mT.contiguous())
        return matrices

    return separable(site, target, factors)


def _scales(site: Site, rank: int) -> list[float | None]:
    given = site.args.get("scale_factors")
    if given:
        return [float(s) for s in given]
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[rank]
    return [site.args.get(n) for n in names]


MAX_POOLS = (
    aten.max_pool1d.default,
    aten.max_pool2d.default,
    aten.max_pool3d.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
)


@reverses(*MAX_POOLS, when=lambda call: call.pick in (None, 0))
def max_pool(site: Site, target: Tensor) -> Solution:
    """Values above the target are clipped; where the maximum is below it, the largest entry that may be is raised."""
    rank = spatial_axes(site)
    kernel = _axes(site.args["kernel_size"], rank)
    stride = [s or k for s, k in zip(_axes(site.args["stride"], rank, 0), kernel, strict=True)]
    padding, dilation = _axes(site.args["padding"], rank), _axes(site.args["dilation"], rank)
    index = windows(site.anchor.shape[-rank:], target.shape[-rank:], kernel, stride, padding, dilation)
    return _maxima(site, target, index.to(target.device))


@reverses(
    aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
    when=lambda call: call.pick in (None, 0),
)
def adaptive_max_pool(site: Site, target: Tensor) -> Solution:
    """max_pool with the adaptive windows."""
    rank = spatial_axes(site)
    per_axis = [adaptive_windows(n, m)[0] for n, m in zip(site.anchor.shape[-rank:], target.shape[-rank:], strict=True)]
    return _maxima(site, target, _product(per_axis, site.anchor.shape[-rank:]).to(target.device))


def _product(per_axis: list[Tensor], space: torch.Size) -> Tensor:
    """Windows of a plane from windows along its axes. Each: (m, k) positions, −1 for none. Result: (Πm, Πk)."""
    index = per_axis[0]
    for axis, size in zip(per_axis[1:], space[1:], strict=True):
        a, b = index[:, None, :, None], axis[None, :, None, :]
        both = torch.where((a >= 0) & (b >= 0), a * size + b, -1)
        index = both.reshape(index.shape[0] * axis.shape[0], -1)
    return index


def _maxima(site: Site, target: Tensor, index: Tensor) -> Solution:
    """Smallest change with max over window j equal to t_j. index: (windows, entries), −1 where a window hangs over.

    An entry may be at most u_i = min of t_j over its windows: what is above is lowered to u_i. A window whose maximum
    then falls short raises, of the entries with the largest u_i, the one that is largest already. Without overlap this
    is the minimum-L2 change; with it, consistent wherever consistency is possible.
    """
    rank = spatial_axes(site)
    space = site.anchor.shape[-rank:]
    a = site.anchor.reshape(-1, math.prod(space))
    t = target.reshape(len(a), -1)
    spare = a.shape[1]  # one entry more, for positions outside
    place = torch.where(index < 0, spare, index)
    bound = torch.full((len(a), spare + 1), torch.inf, dtype=a.dtype, device=a.device)
    spread = t[:, :, None].expand(-1, -1, place.shape[1]).reshape(len(a), -1)
    bound = bound.scatter_reduce(1, place.flatten().expand(len(a), -1), spread, "amin")
    outside = torch.full((len(a), 1), -torch.inf, dtype=a.dtype, device=a.device)
    lowered = torch.cat([torch.minimum(a, bound[:, :-1]), outside], 1)
    bound[:, -1] = -torch.inf
    u, v = bound[:, place], lowered[:, place]  # (planes, windows, entries)
    best = u.amax(-1, keepdim=True)
    chosen = torch.where(u == best, torch.cat([a, outside], 1)[:, place], -torch.inf).argmax(-1, keepdim=True)
    position = place.expand(len(a), -1, -1).gather(2, chosen).squeeze(-1)
    short = v.amax(-1) < torch.minimum(t, best.squeeze(-1))
    raised = torch.where(short, torch.minimum(t, best.squeeze(-1)), -torch.inf)
    value = lowered.scatter_reduce(1, position, raised, "amax")[:, :-1]
    return site.exact(value.reshape(site.anchor.shape))
