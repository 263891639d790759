"""A convolution on a torus: there it is circulant, and the Fourier transform leaves one small matrix per frequency.

    y = S C E x

E lays the map x on a torus large enough that windows which leave it meet zeros only, C is the circular
convolution, S cuts the outputs out. A stride s is folded away first (polyphase): s positions become s channels. Used by
``per_frequency``, ``woodbury`` and ``choose``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from frpt.solvers.conv.operator import Convolution
from frpt.solvers.linear.svd import singular_values, truncation

Side = Literal["inputs", "outputs"]


def fitting(conv: Convolution, margin: Literal["least", "padded", "none"] = "least") -> tuple[int, ...]:
    """The torus for a convolution, in coarse positions per axis.

    margin: "least" zeros that keep windows apart (both ends share them), "padded" the paper's grid of h + 2p positions,
    "none" the map's own grid (or that of its outputs, where they are more), on which windows wrap around. Padding that
    is not toroidal is taken for zeros.
    """
    g, sizes = conv.geometry, []
    for h, m, s, e, (before, after) in zip(
        conv.fine[1:], conv.coarse[1:], g.stride, g.extent(conv.kernel), g.padding, strict=True
    ):
        used = max((m - 1) * s - before + e - h, 0)  # padding after the map that some window reaches
        room = {"least": max(before, used), "padded": before + after, "none": 0}[margin]
        need = h if g.mode == "circular" and conv.toroidal else h + room
        sizes.append(max(m, -(-need // s)))
    return tuple(sizes)


class Torus:
    """A on a torus of ``size`` coarse positions. Grids: (s, g, c, *size), c folded channels of one group.

    Spectra are laid out by frequency, half of them as the maps are real: (f, g, c, s).
    """

    def __init__(self, conv: Convolution, size: Sequence[int]) -> None:
        self.conv = conv
        self.size = tuple(size)
        self.groups = conv.geometry.groups
        self.half = (*self.size[:-1], self.size[-1] // 2 + 1)
        self.frequencies = math.prod(self.half)
        self._axes = tuple(range(3, 3 + conv.rank))
        self._fine: Side = "outputs" if conv.geometry.transposed else "inputs"

    def channels(self, side: Side) -> int:
        """Folded channels of one group."""
        if side == self._fine:
            return self.conv.fine[0] // self.groups * math.prod(self.conv.geometry.stride)
        return self.conv.coarse[0] // self.groups

    @property
    def symbol_bytes(self) -> int:
        """Of one complex matrix per frequency."""
        complex_size = 2 * self.conv.weight.element_size()
        return self.frequencies * self.groups * self.channels("inputs") * self.channels("outputs") * complex_size

    @property
    def pair_bytes(self) -> int:
        """Of one complex matrix per frequency between all channels of both sides."""
        channels = self.channels("inputs") + self.channels("outputs")
        return self.frequencies * self.groups * channels**2 * 2 * self.conv.weight.element_size()

    @property
    def system_bytes(self) -> int:
        """What a solve by frequencies needs for one sample: a few grids and spectra on either side."""
        channels = self.groups * (self.channels("inputs") + self.channels("outputs"))
        return 6 * channels * math.prod(self.size) * self.conv.weight.element_size()

    def grid(self, side: Side, x: Tensor) -> Tensor:
        """Lay maps on the torus. x: (s, *inputs) or (s, *outputs)."""
        if side != self._fine:
            widths = [(0, q - m) for q, m in zip(self.size, x.shape[2:], strict=True)]
            return _zero_padded(x, widths).reshape(len(x), self.groups, -1, *self.size)
        stride = self.conv.geometry.stride
        widths = [(0, q * s - h) for q, s, h in zip(self.size, stride, x.shape[2:], strict=True)]
        x = _zero_padded(x, widths).unflatten(1, (self.groups, -1))
        if set(stride) == {1}:
            return x
        x = x.reshape(*x.shape[:3], *[n for q, s in zip(self.size, stride, strict=True) for n in (q, s)])
        rank = self.conv.rank
        phases, places = [4 + 2 * a for a in range(rank)], [3 + 2 * a for a in range(rank)]
        return x.permute(0, 1, 2, *phases, *places).flatten(2, 2 + rank)

    def maps(self, side: Side, grid: Tensor) -> Tensor:
        """The maps again, cut out of grids."""
        stride, rank = self.conv.geometry.stride, self.conv.rank
        shape = self.conv.fine if side == self._fine else self.conv.coarse
        if side == self._fine and set(stride) != {1}:
            grid = grid.unflatten(2, (-1, *stride))
            pairs = [axis for a in range(rank) for axis in (3 + rank + a, 3 + a)]
            grid = grid.permute(0, 1, 2, *pairs)
            grid = grid.reshape(*grid.shape[:3], *[q * s for q, s in zip(self.size, stride, strict=True)])
        grid = grid.flatten(1, 2)
        for axis, length in enumerate(shape[1:]):
            grid = grid.narrow(axis + 2, 0, length)
        return grid

    def spectrum(self, grid: Tensor) -> Tensor:
        """Unitary Fourier transform of grids: (f, g, c, s)."""
        half: Tensor = torch.fft.rfftn(grid, dim=self._axes, norm="ortho")
        return half.flatten(3).permute(3, 1, 2, 0)

    def inverse(self, spectrum: Tensor) -> Tensor:
        """Grids of a spectrum: (s, g, c, *size)."""
        grid: Tensor = torch.fft.irfftn(
            spectrum.permute(3, 1, 2, 0).unflatten(3, self.half), s=self.size, dim=self._axes, norm="ortho"
        )
        return grid

    def symbol(self, part: slice = slice(None)) -> Tensor:
        """The matrices of A at some of the frequencies: (f, g, outputs, inputs), complex."""
        taps, phases = self._taps
        waves = torch.exp(2j * math.pi * (self._places[part] @ taps.mT))  # (f, t)
        weight = self.conv.weight.unflatten(0, (self.groups, -1)).flatten(3)  # (g, o, i, t)
        matrix = torch.stack(
            [
                torch.einsum("goit,ft->fgoi", weight[..., phases == p].to(waves.dtype), waves[:, phases == p])
                for p in range(math.prod(self.conv.geometry.stride))
            ],
            -1,
        ).flatten(3)
        return matrix.mH if self.conv.geometry.transposed else matrix

    @cached_property
    def _taps(self) -> tuple[Tensor, Tensor]:
        """Where every tap reads: coarse shift (t, rank) and phase (t,) of its offset from the window's place."""
        g, device = self.conv.geometry, self.conv.weight.device
        shifts, phases = [], []
        for tap in product(*map(range, self.conv.kernel)):
            offsets = [t * d - p[0] for t, d, p in zip(tap, g.dilation, g.padding, strict=True)]
            shifts.append([o // s for o, s in zip(offsets, g.stride, strict=True)])
            phase = 0
            for o, s in zip(offsets, g.stride, strict=True):
                phase = phase * s + o % s
            phases.append(phase)
        return torch.tensor(shifts, dtype=self.conv.weight.dtype, device=device), torch.tensor(phases, device=device)

    @cached_property
    def _places(self) -> Tensor:
        """Every frequency as cycles per position: (f, rank)."""
        dtype, device = self.conv.weight.dtype, self.conv.weight.device
        lines = [torch.arange(n, dtype=dtype, device=device) / q for n, q in zip(self.half, self.size, strict=True)]
        return torch.stack([m.flatten() for m in torch.meshgrid(*lines, indexing="ij")], -1)

    def chunks(self, bytes_per_frequency: int, budget: int) -> Iterator[slice]:
        """All frequencies, as many at a time as the budget holds."""
        step = max(1, budget // max(bytes_per_frequency, 1))
        for first in range(0, self.frequencies, step):
            yield slice(first, min(first + step, self.frequencies))

    @property
    def seam_size(self) -> int:
        """Positions of a group's grids, on both sides together, that hold no entry of the map."""
        places = math.prod(self.size)
        channels = self.channels("inputs") + self.channels("outputs")
        return channels * places - (math.prod(self.conv.fine) + math.prod(self.conv.coarse)) // self.groups

    @cached_property
    def singular_values(self) -> Tensor:
        """Of A at up to 256 frequencies spread over the spectrum, largest first: (f, g, k)."""
        step = max(1, self.frequencies // 256)
        return singular_values(self.symbol(slice(None, None, step)))

    @property
    def deficient(self) -> bool:
        """A row or column too many at every frequency: filters that are zero or repeat each other."""
        values = self.singular_values
        cut = truncation(values, self.channels("inputs"), self.channels("outputs"))[..., 0]
        return bool((values[..., -1] <= 10 * cut).all(0).any())  # ten times: the symbol itself is rounded

    @property
    def sigma_max(self) -> float:
        return float(self.singular_values.max())

    @property
    def condition(self) -> float:
        """Largest over smallest singular value over the frequencies; at most 1/ε."""
        values = self.singular_values
        tiny = torch.finfo(values.dtype)
        return 1 / max(float(values.min()) / max(float(values.max()), tiny.tiny), tiny.eps)

    def gap(self, side: Side) -> Tensor:
        """Positions of a group's grid that hold no entry of the map, as flat indices into (c, *size)."""
        shape = self.conv.inputs if side == "inputs" else self.conv.outputs
        ones = torch.ones(1, *shape, dtype=torch.bool, device=self.conv.weight.device)
        return (~self.grid(side, ones)[0, 0]).flatten().nonzero().squeeze(1)


def _zero_padded(x: Tensor, widths: Sequence[tuple[int, int]]) -> Tensor:
    flat = [w for pair in reversed(widths) for w in pair]
    return F.pad(x, flat) if any(flat) else x
