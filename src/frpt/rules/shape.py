"""Ops that only move numbers: every output entry is one input entry, or nothing of it.

y_j = a_{i(j)}:   a_i = â_i + mean of r_j over the j that read entry i,  the minimum-norm least-squares answer
"""

from __future__ import annotations

import torch
from torch import Tensor

from frpt.rules.registry import Call, Site, reverses
from frpt.solvers.base import Solution
from frpt.solvers.linear.dense import Dense
from frpt.solvers.linear.structured import Diagonal

aten = torch.ops.aten


@reverses(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.alias.default,
    aten.detach.default,
    aten.dropout.default,
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.device,
    when=lambda call: not call.args.get("train", False) and call.active.is_floating_point(),
)
def reshape(site: Site, target: Tensor) -> Solution:
    """The same numbers in the same order:  a = t in the shape of the anchor."""
    return site.exact(target.reshape(site.anchor.shape))


@reverses(aten.permute.default)
def permute(site: Site, target: Tensor) -> Solution:
    """Axes back in their places."""
    dims = [d % target.dim() for d in site.args["dims"]]
    inverse = sorted(range(len(dims)), key=dims.__getitem__)
    return site.exact(target.permute(inverse))


@reverses(aten.transpose.int)
def transpose(site: Site, target: Tensor) -> Solution:
    """Two axes exchanged again."""
    return site.exact(target.transpose(site.args["dim0"], site.args["dim1"]))


@reverses(aten.t.default)
def t(site: Site, target: Tensor) -> Solution:
    """The transpose of the transpose."""
    return site.exact(target.t())


def _constant_index(call: Call) -> bool:
    return call.slot in ("self", "tensors", "input")


@reverses(
    aten.select.int,
    aten.slice.Tensor,
    aten.narrow.default,
    aten.index.Tensor,
    aten.index_select.default,
    aten.gather.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.unbind.int,
    aten.cat.default,
    aten.stack.default,
    aten.expand.default,
    aten.repeat.default,
    aten.constant_pad_nd.default,
    aten.pad.default,
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.roll.default,
    aten.flip.default,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.channel_shuffle.default,
    aten.native_channel_shuffle.default,
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest3d.default,
    aten.diagonal.default,
    aten.unfold.default,
    when=_constant_index,
)
def gather(site: Site, target: Tensor) -> Solution:
    """Found by sending the entries' positions through the op itself: once as they are, once all moved by n."""
    n = site.anchor.numel()
    positions = torch.arange(n, dtype=torch.float64, device=target.device).reshape(site.anchor.shape)
    as_double = _in_double(site)
    here, moved = as_double.forward(positions), as_double.forward(positions + n)
    reads = (moved - here == n).flatten()
    index = here.flatten()[reads].long()
    residual = (target - site.output).flatten()[reads]
    total = torch.zeros(n, dtype=target.dtype, device=target.device).index_add_(0, index, residual)
    count = torch.zeros_like(total).index_add_(0, index, torch.ones_like(residual))
    return _spread(site, total, count)


def _spread(site: Site, total: Tensor, count: Tensor) -> Solution:
    """a_i = â_i + Σr/count. As a diagonal map of scale √count, so that ranges and the gate apply."""
    split, weight = site.axes.input.front, count.sqrt()
    pulled = torch.where(count > 0, total / weight.clamp_min(1.0), 0.0)
    prepared = Diagonal(split(weight.reshape(site.anchor.shape)))
    return site.linear(prepared, split(pulled.reshape(site.anchor.shape)), split, site.axes.input.back)


def _in_double(site: Site) -> Call:
    """The call with its tensor lists in double, for cat and stack to take positions beside them."""
    args = dict(site.args)
    if site.item is not None:
        args[site.slot] = [v.double() for v in args[site.slot]]
    return Call(site.op, args, site.slot, site.item, site.pick, site.where)


@reverses(aten.mean.dim, aten.mean.default)
def mean(site: Site, target: Tensor) -> Solution:
    """A uniform offset per averaged slice:  a = â + r."""
    return _reduction(site, target, site.anchor.numel() // max(target.numel(), 1))


@reverses(aten.sum.dim_IntList, aten.sum.default)
def sum(site: Site, target: Tensor) -> Solution:
    """A uniform offset per summed slice of n entries:  a = â + r/n."""
    return _reduction(site, target, 1)


def _reduction(site: Site, target: Tensor, divisor: int) -> Solution:
    """y = Σa/d over a slice of n:  each system one slice, a row (1/d, …, 1/d)."""
    dims = site.args.get("dim")
    rank = site.anchor.dim()
    axes = sorted({d % rank for d in dims}) if dims else list(range(rank))
    kept = [d for d in range(rank) if d not in axes]
    order = kept + axes
    inverse = sorted(range(rank), key=order.__getitem__)
    sizes = [site.anchor.shape[d] for d in order]
    n = site.anchor.numel() // max(target.numel(), 1)
    row = torch.full((1, n), 1.0 / divisor, dtype=target.dtype, device=target.device)
    return site.linear(
        site.prepared("dense", row, Dense),
        (target - site.output).reshape(-1, 1),
        lambda a: a.permute(order).reshape(-1, n),
        lambda rows: rows.reshape(sizes).permute(inverse),
    )
