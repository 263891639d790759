"""Where a step's target features come from: a store, the starting model, or a reconstruction at that moment."""

from __future__ import annotations

from copy import deepcopy
from typing import Protocol

import torch
from torch import Tensor, nn

from frpt.common.batch import BatchAxis
from frpt.graph.inputs import Inputs
from frpt.reverser import Reverser
from frpt.train.data import as_taken, rows_of
from frpt.train.tap import FeatureTap


class Source(Protocol):
    """Says what the layer should produce for a batch. All features: samples first, (k, ...).

    closed: of the last batch's corrected samples, the share of the output's residual their targets close.
    """

    closed: float | None

    def target(
        self, call: Inputs, labels: Tensor, feature: Tensor, stored: Tensor | None, present: Tensor | None
    ) -> Tensor: ...


class Anchor:
    """The starting model's own feature, without any label: plain self-distillation."""

    closed: float | None = None

    def __init__(self, start: nn.Module, at: str, samples: BatchAxis) -> None:
        self.start = deepcopy(start).eval().requires_grad_(False)
        self.tap = FeatureTap(self.start, at)
        self.samples = samples

    def feature(self, call: Inputs) -> Tensor:
        """â of the starting model: (k, ...); the forward pass ends at the layer."""
        with torch.no_grad():
            return self.samples.front(self.tap.run_to(self.start, *call.args, **call.kwargs))

    def target(
        self, call: Inputs, labels: Tensor, feature: Tensor, stored: Tensor | None, present: Tensor | None
    ) -> Tensor:
        return self.feature(call)


class Stored:
    """Targets from a store; rows that a delta store does not hold are the starting model's features."""

    closed: float | None = None

    def __init__(self, anchor: Anchor | None) -> None:
        self.anchor = anchor

    def target(
        self, call: Inputs, labels: Tensor, feature: Tensor, stored: Tensor | None, present: Tensor | None
    ) -> Tensor:
        assert stored is not None
        assert present is not None
        target = stored.to(feature.device, feature.dtype)
        if self.anchor is None or bool(present.all()):
            return target
        rows = (~present).nonzero().squeeze(1).to(feature.device)
        return target.index_copy(0, rows, self.anchor.feature(rows_of(call, rows)).to(target.dtype))


class Online:
    """Reconstructed from the feature of this very step, through the frozen part with its prepared factors."""

    def __init__(self, rev: Reverser, at: str, samples: BatchAxis) -> None:
        self.rev, self.at, self.samples = rev, at, samples
        self.closed: float | None = None

    def target(
        self, call: Inputs, labels: Tensor, feature: Tensor, stored: Tensor | None, present: Tensor | None
    ) -> Tensor:
        value = self.samples.back(feature.detach())
        found = self.rev.reconstruct_from(as_taken(call), labels, self.at, value)
        self.closed = float(found.closed[found.corrected].mean()) if bool(found.corrected.any()) else None
        return self.samples.front(found.target)
