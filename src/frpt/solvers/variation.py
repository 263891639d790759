"""How a feature varies: a structured covariance, the mean of each class, and by how much right samples win.

    Σ = variance · F₁ ⊗ F₂ ⊗ …     one factor for each axis of the feature: channels, rows, columns; tokens, width

so that Σ of a 64 × 56 × 56 map is three small matrices. As a metric (M = Σ⁻¹) it measures in standard deviations of the
feature itself; the mean of a class says what a label's features look like. Made by ``frpt.Reference``, used by
``likeliest`` and ``blocks.reach``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from frpt.errors import OptionError


@dataclass(frozen=True, eq=False)
class Variation:
    """One layer's features, samples first.

    mean: (*shape). factors: per axis (d, d), or (d,) for a long one, each with a mean diagonal of 1. variance: of an
    entry, the mean over all. classes: (c,), ids of the classes with a mean; means: (c, *shape). lead: by how much right
    samples win, the median; 0 where none does or labels are no classes. between: the share of the variance that lies
    between the classes, 0 to 1. shrink: share of every factor that is replaced by its mean variance, so that the metric
    exists where samples are few; from 0.01 to 0.1 it hardly matters.
    """

    mean: Tensor
    factors: tuple[Tensor, ...]
    variance: float
    classes: Tensor
    means: Tensor
    lead: float
    between: float
    shrink: float = 0.05

    def spread(self, rows: Tensor) -> Tensor:
        """Σ times each row. rows: (..., n)."""
        return self.variance * self._along(rows, self._shrunk)

    def norm(self, d: Tensor) -> Tensor:
        """√(dᵀ Σ⁻¹ d) of every row: (k,), in double. d: (k, n)."""
        length: Tensor = torch.linalg.vector_norm(self.whiten(d), dim=1, dtype=torch.float64)
        return length

    def whiten(self, d: Tensor) -> Tensor:
        """Σ^(-½) times each row."""
        return self._along(d, self._inverse_roots) / math.sqrt(self.variance)

    def colour(self, z: Tensor) -> Tensor:
        """Σ^½ times each row: the inverse of ``whiten``."""
        return self._along(z, self._roots) * math.sqrt(self.variance)

    def class_means(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(known, means): which labels have a mean, (k,), and it, (k, n); zeros for the others."""
        if len(self.classes) == 0:
            return torch.zeros_like(labels, dtype=torch.bool), self.mean.new_zeros(len(labels), self.mean.numel())
        place = torch.searchsorted(self.classes, labels).clamp_max(len(self.classes) - 1)
        known = self.classes[place] == labels
        means = self.means.flatten(1)[place]
        return known, torch.where(known[:, None], means, 0.0)

    def to(self, like: Tensor) -> Variation:
        """On the device, and in the precision, of a feature."""
        if self.mean.device == like.device and self.mean.dtype == like.dtype:
            return self
        return Variation(
            self.mean.to(like), tuple(f.to(like) for f in self.factors), self.variance, self.classes.to(like.device),
            self.means.to(like), self.lead, self.between, self.shrink,
        )  # fmt: skip

    def _along(self, rows: Tensor, factors: tuple[Tensor, ...]) -> Tensor:
        """A factor along each axis of every row."""
        x = rows.reshape(-1, *self.mean.shape)
        for axis, factor in enumerate(factors, 1):
            before, d, behind = x.shape[:axis].numel(), x.shape[axis], x.shape[axis + 1 :].numel()
            if d == 1 or factor.dim() == 1:
                x = x * factor.reshape(-1, *[1] * (x.dim() - axis - 1))
            elif behind == 1:
                x = (x.reshape(before, d) @ factor).reshape(x.shape)
            else:
                x = (factor.mT @ x.reshape(before, d, behind)).reshape(x.shape)
        return x.reshape(rows.shape)

    @cached_property
    def _shrunk(self) -> tuple[Tensor, ...]:
        s = self.shrink
        return tuple((1 - s) * f + s * (torch.eye(len(f)).to(f) if f.dim() == 2 else 1) for f in self.factors)

    @cached_property
    def _roots(self) -> tuple[Tensor, ...]:
        return tuple(_power(f, 0.5, self.shrink) for f in self._shrunk)

    @cached_property
    def _inverse_roots(self) -> tuple[Tensor, ...]:
        return tuple(_power(f, -0.5, self.shrink) for f in self._shrunk)


class Variations(Protocol):
    """What is known of several layers (``frpt.Reference``)."""

    @property
    def digest(self) -> str:
        """Of everything that decides what a reconstruction makes of it."""
        ...

    def of(self, layer: str) -> Variation | None:
        """Of one layer; None if nothing is known of it."""
        ...

    def check(self, rev: Any) -> None:
        """Refuse a network that it does not belong to."""
        ...


def check_known(reference: Variations, layers: Sequence[str]) -> None:
    """Refuse layers that a reference knows nothing of; the output needs none."""
    for layer in layers:
        if layer != "out" and reference.of(layer) is None:
            raise OptionError(f"the reference knows nothing of {layer!r}: fit it at this layer too, or leave it out")


class Gatherer:
    """Sums over batches from which the variation of a feature is made; nothing but sums is kept.

    longest: entries along an axis up to which they have a covariance (32 MiB of sums at 2,048); along a longer axis
    each has its variance only. fewest: samples of a class from which on its mean says more than the samples.
    """

    def __init__(self, shape: torch.Size, longest: int = 2048, fewest: int = 3) -> None:
        self.shape, self.count, self.fewest = shape, 0, fewest
        self.total = torch.zeros(shape, dtype=torch.float64)
        self.squares = [torch.zeros((d, d) if d <= longest else (d,), dtype=torch.float64) for d in shape]
        self.by_class: dict[int, tuple[int, Tensor]] = {}

    def add(self, features: Tensor, labels: Tensor | None) -> None:
        """features: (b, *shape). labels: (b,) class ids, negative where there is none."""
        x = features.detach().double().cpu()
        self.count += len(x)
        self.total += x.sum(0)
        for axis, squares in enumerate(self.squares, 1):
            rows = x.movedim(axis, 0).flatten(1)
            squares += rows @ rows.T if squares.dim() == 2 else rows.square().sum(1)
        for label in [] if labels is None else labels.unique().tolist():
            if label >= 0:
                mine = x[labels == label]
                seen, total = self.by_class.get(label, (0, torch.zeros((), dtype=torch.float64)))
                self.by_class[label] = (seen + len(mine), total + mine.sum(0))

    def variation(self, lead: float) -> Variation:
        """What the sums say."""
        mean = self.total / self.count
        factors = []
        for axis, squares in enumerate(self.squares):
            rows = mean.movedim(axis, 0).reshape(len(squares), -1)
            inside = rows @ rows.T if squares.dim() == 2 else rows.square().sum(1)
            centred = (squares - self.count * inside) / max(self.count, 1)
            centred = (centred + centred.mT) / 2 if centred.dim() == 2 else centred.clamp_min(0.0)
            diagonal = centred.diagonal() if centred.dim() == 2 else centred
            factors.append(centred / diagonal.mean().clamp_min(1e-30))
            power = float(diagonal.sum())  # of the whole feature, whatever the axis
        variance = max(power / mean.numel(), 1e-30)
        known = sorted(label for label, (seen, _) in self.by_class.items() if seen >= self.fewest)
        means = [self.by_class[label][1] / self.by_class[label][0] for label in known]
        counts = [self.by_class[label][0] for label in known]
        between = _between(means, counts, mean, variance * mean.numel())
        return Variation(
            mean.float(), tuple(f.float() for f in factors), variance, torch.tensor(known, dtype=torch.int64),
            torch.stack(means).float() if means else torch.zeros(0, *self.shape), lead, between,
        )  # fmt: skip


def _between(means: list[Tensor], counts: list[int], mean: Tensor, total: float) -> float:
    """The share of a feature's variance that lies between the classes, less what means of few samples owe to chance.

    ‖μ_c − μ‖² is too large by the variance within the class over its number of samples: B = (b − T/n)/(1 − 1/n) with
    the raw mean square b, the total variance T and the mean number n.
    """
    if not means:
        return 0.0
    raw = sum(n * float((m - mean).square().sum()) for m, n in zip(means, counts, strict=True)) / sum(counts)
    each = sum(counts) / len(counts)
    return min(max((raw - total / each) / ((1 - 1 / each) * total), 0.0), 1.0)


def _power(factor: Tensor, exponent: float, shrink: float) -> Tensor:
    """A power of a positive definite factor, shrunk: its least eigenvalue is at least about ``shrink``."""
    if factor.dim() == 1:
        return factor.clamp_min(0.5 * shrink).pow(exponent)
    values, vectors = torch.linalg.eigh(factor.double())
    power: Tensor = vectors * values.clamp_min(0.5 * shrink).pow(exponent) @ vectors.mT
    return power.to(factor)
