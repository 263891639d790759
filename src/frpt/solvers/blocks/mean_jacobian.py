"""The average derivative of a block that treats every place of a map alike: one small matrix per frequency.

    J ≈ K,  K(f) = E[V(f) U(f)ᴴ],  v = J u for white u
    JᵀJ ≈ G,  G(f) = E[W(f) W(f)ᴴ],  w = Jᵀu for white u;  taps farther than a few places are dropped in both
    p = Kᴴ(KKᴴ + μ)⁻¹ r      instead of a backward pass
    p = (G + ν)⁻¹ Jᵀr        in place of the plain gradient

Learnt once for each unit by ``frpt.reverse``, from the example inputs; used by ``secant``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import per_system, row_norm
from frpt.solvers.blocks.problem import BlockFunction


@dataclass(frozen=True)
class Stationary:
    """inverse: Kᴴ(KKᴴ + μ)⁻¹, (f, 2i, o); metric: (G + ν)⁻¹, (f, 2i, i); real parts above imaginary ones.

    i counts the places that a stride folds into one as channels. explained: the share of a response that K tells.
    """

    inverse: Tensor
    metric: Tensor
    space: tuple[int, ...]
    fold: tuple[int, ...]
    explained: float

    def step(self, r: Tensor) -> Tensor:
        """Kᴴ(KKᴴ + μ)⁻¹ r. r: (k, o, *space) -> (k, c, *in)."""
        return self._back(_times(self.inverse, _spectra(r)))

    def scaled(self, g: Tensor) -> Tensor:
        """(G + ν)⁻¹ g. g: (k, c, *in)."""
        return self._back(_times(self.metric, _spectra(folded(g, self.fold))))

    def _back(self, spectra: Tensor) -> Tensor:
        """(f, i, k) -> (k, c, *in)."""
        half = (*self.space[:-1], self.space[-1] // 2 + 1)
        spectrum = spectra.permute(2, 1, 0).reshape(spectra.shape[2], spectra.shape[1], *half)
        x: Tensor = torch.fft.irfftn(spectrum, s=self.space, dim=tuple(range(2, spectrum.dim())))
        return unfolded(x, self.fold)


@dataclass(frozen=True)
class MeanJacobian:
    """How K and G are learnt.

    Numbers in brackets: the residual that secant steps leave with half and with double the value, relative
    (``benchmarks/halves.py``). [1, 1]: chosen by hand and not critical, as far as the problems there come to it.
    """

    samples: int = 8
    """Most samples they are learnt from. [1.16, 1]"""
    probes: int = 16
    """Random inputs per sample, each one forward pass; the last tests what was learnt from the others.
    [1.07, 0.95]"""
    pulls: int = 4
    """Random outputs per sample that are pulled back, each one pass. [1.09, 0.95]"""
    reach: int = 2
    """Taps kept on either side: what two 3 × 3 convolutions see. [1.08, 1.78]"""
    length: float = 1e-2
    """Size of a probe relative to the feature: long enough to average over kinks. [1, 1]"""
    explained: float = 0.2
    """Share of a fresh probe's response that K has to explain to be of use. [1, 1.74]"""
    ridge: float = 1e-3
    """Least μ, in units of the mean of KKᴴ's diagonal. [1, 1]"""
    damping: float = 0.3
    """ν, in units of the mean of G's diagonal. [1.03, 1.02]"""
    entries: int = 80_000_000
    """Most entries of K, KKᴴ and G over all places: 0.3 GiB in float32 (half the frequencies, as complex numbers)."""

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def learn(self, fn: BlockFunction, anchor: Tensor, output: Tensor, seed: int = 0) -> Stationary | None:
        """From the block's response to white noise around its anchors, (b, c, *in) -> (b, o, *space).

        None where the block is not of that kind: no map with at least two axes before and behind it, no whole stride,
        too large, or an average derivative that explains too little of the response.
        """
        fold = _fold(anchor, output)
        space = tuple(output.shape[2:])
        if fold is None:
            return None
        inputs, outputs = anchor.shape[1] * prod(fold), output.shape[1]
        if prod(space) * (outputs * (inputs + outputs) + inputs**2) > self.entries:
            return None
        generator = torch.Generator().manual_seed(seed)
        block = _Block(fn, anchor[: self.samples], output[: self.samples], fold, generator, self.length)
        if not block.alive:
            return None
        u, v = (torch.cat(probes, 2) for probes in zip(*(block.probe() for _ in range(self.probes - 1)), strict=True))
        response = _near(v @ u.mH / (u.shape[2] * prod(space)), space, self.reach)
        u, v = block.probe()
        power, missed = (float(t.abs().square().sum()) for t in (v, v - response @ u))
        explained = 1 - missed / power if power > 0 else 0.0  # a dead block answers nothing
        if not explained >= self.explained:
            return None
        gram = response @ response.mH
        # what K does not explain of J is spread over all frequencies and channels, like noise
        ridge = max((1 - explained) / explained, self.ridge) * float(gram.diagonal(dim1=-2, dim2=-1).real.mean())
        inverse = torch.linalg.solve(gram + ridge * _eye(gram), response).mH
        metric = self._metric(torch.cat([block.pull() for _ in range(self.pulls)], 2), response, space)
        return Stationary(_stacked(inverse), _stacked(metric), space, fold, explained)

    def _metric(self, pulled: Tensor, response: Tensor, space: tuple[int, ...]) -> Tensor:
        """(G + ν)⁻¹: (f, i, i), shrunk to KᴴK + what K misses, spread evenly, where few pulls tell of many channels.

        pulled: (f, i, b). Dropping taps averages over so many places, and may leave small negative eigenvalues.
        """
        inputs, places = pulled.shape[1], prod(space)
        told = pulled.shape[2] * max(1.0, places / prod(min(n, 2 * self.reach + 1) for n in space))
        G = _near(pulled @ pulled.mH / (pulled.shape[2] * places), space, self.reach)
        known = response.mH @ response
        size, least = (float(t.diagonal(dim1=-2, dim2=-1).real.mean()) for t in (G, known))
        known = known + max(size - least, 0.0) * _eye(known)
        share = told / (told + inputs)
        value, vector = torch.linalg.eigh(share * (G + G.mH) / 2 + (1 - share) * known)
        damped = value.clamp_min(0) + self.damping * size
        metric: Tensor = (vector / damped[:, None, :].to(vector.dtype)) @ vector.mH
        return metric


def _fold(anchor: Tensor, output: Tensor) -> tuple[int, ...] | None:
    """The stride along each axis; None where there is no map before and behind the block, or no whole stride."""
    space = tuple(output.shape[2:])
    if len(space) < 2 or anchor.dim() != output.dim():
        return None
    if any(n % m for n, m in zip(anchor.shape[2:], space, strict=True)):
        return None
    return tuple(n // m for n, m in zip(anchor.shape[2:], space, strict=True))


@dataclass(frozen=True)
class _Block:
    """A block around its anchors: what it answers to white noise, forwards and backwards."""

    fn: BlockFunction
    anchor: Tensor
    output: Tensor
    fold: tuple[int, ...]
    generator: torch.Generator
    length: float

    @property
    def alive(self) -> bool:
        """Whether there are features to probe around, and an output that hangs together with them."""
        return bool((row_norm(self.anchor) > 0).all()) and self._run()[1].requires_grad

    def probe(self) -> tuple[Tensor, Tensor]:
        """(u, J u), as spectra (f, i, b) and (f, o, b)."""
        size = self.anchor[0].numel() ** 0.5
        length = per_system(self.length * row_norm(self.anchor) / size, self.anchor).to(self.anchor.dtype)
        noise = self._noise(self.anchor)
        with torch.no_grad():
            response = (self.fn(self.anchor + length * noise, self._index) - self.output) / length
        return _spectra(folded(noise, self.fold)), _spectra(response)

    def pull(self) -> Tensor:
        """Jᵀu as spectra (f, i, b)."""
        point, out = self._run()
        (pulled,) = torch.autograd.grad(out, point, self._noise(out))
        return _spectra(folded(torch.where(torch.isfinite(pulled), pulled, 0.0), self.fold))

    @property
    def _index(self) -> Tensor:
        return torch.arange(len(self.anchor), device=self.anchor.device)

    def _run(self) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = self.anchor.detach().requires_grad_(True)
            return point, self.fn(point, self._index)

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator).to(like)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def folded(x: Tensor, fold: tuple[int, ...]) -> Tensor:
    """(b, c, *in) -> (b, c·∏fold, *in/fold): the places one output place steps over, as channels."""
    if all(s == 1 for s in fold):
        return x
    split = [n for size, s in zip(x.shape[2:], fold, strict=True) for n in (size // s, s)]
    x = x.reshape(*x.shape[:2], *split)
    rank = len(fold)
    places, within = [2 + 2 * k for k in range(rank)], [3 + 2 * k for k in range(rank)]
    x = x.permute(0, 1, *within, *places)
    return x.flatten(1, 1 + rank)


def unfolded(x: Tensor, fold: tuple[int, ...]) -> Tensor:
    """The inverse of ``folded``."""
    if all(s == 1 for s in fold):
        return x
    rank, space = len(fold), x.shape[2:]
    x = x.reshape(len(x), -1, *fold, *space)
    order = [n for k in range(rank) for n in (2 + rank + k, 2 + k)]
    return x.permute(0, 1, *order).reshape(len(x), -1, *(n * s for n, s in zip(space, fold, strict=True)))


def _spectra(x: Tensor) -> Tensor:
    """(b, c, *space) -> (f, c, b), complex."""
    spectrum: Tensor = torch.fft.rfftn(x, dim=tuple(range(2, x.dim())))
    return spectrum.flatten(2).permute(2, 1, 0).contiguous()


def _stacked(matrices: Tensor) -> Tensor:
    """(f, m, n), complex -> (f, 2m, n)."""
    return torch.cat([matrices.real, matrices.imag], 1)


def _times(stacked: Tensor, spectra: Tensor) -> Tensor:
    """Complex products of small matrices as real ones, which are far faster. (f, 2m, n), (f, n, b) -> (f, m, b)."""
    columns = torch.view_as_real(spectra).flatten(2)
    re, im = (stacked.to(columns.dtype) @ columns).unflatten(2, (-1, 2)).chunk(2, 1)
    return torch.view_as_complex(re) + 1j * torch.view_as_complex(im)


def _near(cross: Tensor, space: tuple[int, ...], reach: int) -> Tensor:
    """The same response without the taps beyond reach. cross: (f, o, i)."""
    axes = tuple(range(len(space)))
    cross = cross.reshape(*space[:-1], space[-1] // 2 + 1, *cross.shape[1:])
    taps = torch.fft.irfftn(cross, s=space, dim=axes)
    for axis, size in enumerate(space):
        place = torch.arange(size, device=taps.device)
        near = torch.minimum(place, size - place) <= reach
        taps = taps * near.reshape(*[-1 if k == axis else 1 for k in range(taps.dim())])
    response: Tensor = torch.fft.rfftn(taps, dim=axes)
    return response.flatten(0, len(space) - 1)
