"""Convolutions as linear maps A: any rank, stride, dilation, grouping and padding; transposed ones too (III-B).

    y = A x,   Aᵀ y   the two products that every iterative solver of this room is made of

Made by ``frpt.rules.conv`` from an op's arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

Padding = Literal["zeros", "reflect", "replicate", "circular"]
MODES: tuple[Padding, ...] = ("zeros", "reflect", "replicate", "circular")


@dataclass(frozen=True)
class Geometry:
    """Everything of a convolution but its weight; one entry per spatial axis, padding as (before, after).

    A transposed convolution is the adjoint of the plain one that is described here.
    """

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1
    mode: Padding = "zeros"
    transposed: bool = False

    def extent(self, kernel: Sequence[int]) -> tuple[int, ...]:
        """Input positions a window spans, per axis."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, kernel, strict=True))


class Convolution:
    """A: the convolution without its bias. The plain one maps fine to coarse, the transposed one coarse to fine.

    weight: (c', c/g, *k); fine: (c, *h), coarse: (c', *m), the shapes of one sample on either side. cache: bytes of
    unrolled input that it makes at a time: what stays in the processor's cache is faster.
    8 MiB is the largest that is quick: 16 take twice as long, 64 five times (benchmarks/halves.py).
    """

    def __init__(
        self,
        weight: Tensor,
        geometry: Geometry,
        fine: Sequence[int],
        coarse: Sequence[int],
        cache: int = 8 * 2**20,
    ) -> None:
        self.weight = weight
        self.cache = cache
        self.geometry = geometry
        self.fine = tuple(map(int, fine))
        self.coarse = tuple(map(int, coarse))

    @property
    def inputs(self) -> tuple[int, ...]:
        return self.coarse if self.geometry.transposed else self.fine

    @property
    def outputs(self) -> tuple[int, ...]:
        return self.fine if self.geometry.transposed else self.coarse

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(map(int, self.weight.shape[2:]))

    @property
    def rank(self) -> int:
        return len(self.fine) - 1

    @property
    def reduces(self) -> bool:
        """Case I: no more outputs than inputs."""
        return math.prod(self.outputs) <= math.prod(self.inputs)

    @cached_property
    def reached(self) -> tuple[Tensor, Tensor]:
        """The inputs that some weight reads and the outputs that some weight makes: (*inputs), (*outputs), bool."""
        flat = Convolution((self.weight != 0).to(self.weight.dtype), self.geometry, self.fine, self.coarse)
        ones = [self.weight.new_ones(1, *shape) for shape in (self.outputs, self.inputs)]
        return flat.adjoint(ones[0])[0] > 0, flat.apply(ones[1])[0] > 0

    @property
    def toroidal(self) -> bool:
        """On a large enough torus the map is the circulant one cut out, exactly."""
        g = self.geometry
        around = zip(self.fine[1:], self.coarse[1:], g.stride, strict=True)
        circles = g.mode == "circular" and all(h % s == 0 and m * s <= h for h, m, s in around)
        return g.mode == "zeros" or circles or all(p == (0, 0) for p in g.padding)

    @property
    def disjoint(self) -> bool:
        """No two windows share an input, and none leaves the map: A is block-diagonal, one block per window."""
        g = self.geometry
        apart = all(s >= e for s, e in zip(g.stride, g.extent(self.kernel), strict=True))
        return apart and all(p == (0, 0) for p in g.padding)

    @property
    def system_bytes(self) -> int:
        """What an iterative solve of one sample needs: a few vectors on either side, and one sample unrolled."""
        size = self.weight.element_size()
        unrolled = math.prod(self.coarse[1:]) * self.fine[0] * math.prod(self.kernel)
        return size * (6 * math.prod(self.fine) + 6 * math.prod(self.coarse) + unrolled)

    def apply(self, x: Tensor) -> Tensor:
        """A x. x: (s, *inputs)."""
        return self.up(x) if self.geometry.transposed else self.down(x)

    def adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y. y: (s, *outputs)."""
        return self.down(y) if self.geometry.transposed else self.up(y)

    def down(self, x: Tensor) -> Tensor:
        """Fine to coarse, a few samples at a time."""
        unrolled = x.element_size() * math.prod(self.coarse[1:]) * self.fine[0] * math.prod(self.kernel)
        parts = x.split(max(1, self.cache // unrolled)) if len(x) else (x,)
        done = [self._down(part, self.weight) for part in parts]
        return done[0] if len(done) == 1 else torch.cat(done)

    def _down(self, x: Tensor, weight: Tensor) -> Tensor:
        g, none = self.geometry, [0] * self.rank
        if self._explicit:
            x = self._padded(x)
        out: Tensor = aten.convolution.default(x, weight, None, g.stride, self._own, g.dilation, False, none, g.groups)
        for axis, length in enumerate(self.coarse[1:]):  # output_padding beyond a stride leaves room for more windows
            out = out.narrow(axis + 2, 0, length)
        return out

    def up(self, y: Tensor) -> Tensor:
        """Coarse to fine: the transpose of ``down``."""
        g, none = self.geometry, [0] * self.rank
        pads = g.padding if self._explicit else ((0, 0),) * self.rank
        space = [h + sum(p) for h, p in zip(self.fine[1:], pads, strict=True)]
        like = y.new_empty(len(y), self.fine[0], *space)
        extents = g.extent(self.kernel)
        room = [(h + 2 * p - e) // s + 1 for h, p, e, s in zip(space, self._own, extents, g.stride, strict=True)]
        more = [w for m, n in zip(reversed(y.shape[2:]), reversed(room), strict=True) for w in (0, n - m)]
        y = F.pad(y, more) if any(more) else y
        back: Tensor = aten.convolution_backward.default(
            y, like, self.weight, None, g.stride, self._own, g.dilation, False, none, g.groups, [True, False, False]
        )[0]
        return self._unpadded(back) if self._explicit else back

    @property
    def _explicit(self) -> bool:
        """Whether the padding has to be laid around the input by hand."""
        g = self.geometry
        return any(p[0] != p[1] or (g.mode != "zeros" and p[0] > 0) for p in g.padding)

    @property
    def _own(self) -> list[int]:
        """The padding that the convolution op does itself."""
        return [0 if self._explicit else p[0] for p in self.geometry.padding]

    def _padded(self, x: Tensor) -> Tensor:
        """Padding is a gather along each axis; position ``h`` stands for zero."""
        for axis, index in enumerate(self._sources):
            if self.geometry.mode == "zeros":
                x = torch.cat([x, torch.zeros_like(x.narrow(axis + 2, 0, 1))], axis + 2)
            x = x.index_select(axis + 2, index)
        return x

    def _unpadded(self, y: Tensor) -> Tensor:
        for axis in range(self.rank):
            index, size = self._sources[axis], list(y.shape)
            size[axis + 2] = self.fine[1 + axis] + 1
            y = y.new_zeros(size).index_add(axis + 2, index, y).narrow(axis + 2, 0, self.fine[1 + axis])
        return y

    @cached_property
    def _sources(self) -> list[Tensor]:
        """For every position of the padded map, the input position it shows; ``h`` where it shows zero."""
        pads, mode = self.geometry.padding, self.geometry.mode
        return [_source(h, p, mode).to(self.weight.device) for h, p in zip(self.fine[1:], pads, strict=True)]

    def matrix(self) -> Tensor:
        """A: (outputs, inputs), from the responses to unit inputs."""
        units = torch.eye(math.prod(self.inputs), dtype=self.weight.dtype, device=self.weight.device)
        return self.apply(units.reshape(-1, *self.inputs)).flatten(1).mT.contiguous()

    @cached_property
    def frobenius(self) -> float:
        """‖A‖_F: every tap counts as often as it meets an input (reflected inputs as if they were apart)."""
        ones = torch.ones(1, *self.fine, dtype=self.weight.dtype, device=self.weight.device)
        return math.sqrt(float(self._down(ones, self.weight**2).sum()))

    def windows(self, x: Tensor) -> Tensor:
        """The inputs of every window where windows are disjoint, as a view: (s, c, *m, *k). x: (s, *fine)."""
        g = self.geometry
        for axis, (extent, stride, d) in enumerate(zip(g.extent(self.kernel), g.stride, g.dilation, strict=True)):
            x = x.unfold(axis + 2, extent, stride)[..., ::d].narrow(axis + 2, 0, self.coarse[1 + axis])
        return x


def _source(size: int, pads: tuple[int, int], mode: Padding) -> Tensor:
    position = torch.arange(-pads[0], size + pads[1])
    if mode == "circular":
        return position % size
    if mode == "replicate":
        return position.clamp(0, size - 1)
    if mode == "reflect":
        period = max(2 * (size - 1), 1)
        turned = position.abs() % period
        return torch.minimum(turned, period - turned)
    return torch.where((position < 0) | (position >= size), size, position)
