"""Contest: which class shall win for each sample, by which margin, and how changes of its feature are measured.

    c_j(a) = s_y(a) − s_j(a) − margin ≥ 0 for every class j ≠ y,   ‖a − â‖_M

What ``nearest`` and ``likeliest`` solve; made by ``frpt.reverse`` from a path and its labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from frpt.solvers.base import UNBOUNDED, Range, row_norm
from frpt.solvers.blocks.problem import BlockFunction
from frpt.solvers.linear.gate import Gate


class Metric(Protocol):
    """‖d‖²_M = dᵀM d for samples as rows; M⁻¹ is how the feature varies."""

    def spread(self, rows: Tensor) -> Tensor:
        """M⁻¹ times each row. rows: (..., n)."""
        ...

    def norm(self, d: Tensor) -> Tensor:
        """‖d‖_M: (k,), in double. d: (k, n)."""
        ...


@dataclass(frozen=True)
class Contest:
    """Which class shall win for each sample, by which margin, and where the feature may go.

    fn: (a, rows) -> scores (k, classes) of the samples ``rows: (k,)``. anchor: (b, *in). label, margin: (b,).
    """

    fn: BlockFunction
    anchor: Tensor
    label: Tensor
    margin: Tensor
    gate: Gate
    within: Range = UNBOUNDED
    metric: Metric | None = None
    """None: M = I."""
    repeats: bool = True
    """Whether ``fn`` can be given a sample several times in a pass; a graph of fixed batch size cannot."""

    def part(self, rows: Tensor) -> Contest:
        """The same for the samples ``rows: (k,)`` only."""
        fn = self.fn
        return replace(
            self, fn=lambda a, index: fn(a, rows[index]), anchor=self.anchor[rows], label=self.label[rows],
            margin=self.margin[rows],
        )  # fmt: skip

    def leads(self, scores: Tensor, rows: Tensor) -> Tensor:
        """s_y − s_j for every class j: (k, classes); infinite for the label's own, −∞ where its score overflowed."""
        label = self.label[rows][:, None]
        mine = scores.gather(1, label)
        lead = mine - scores
        return lead.masked_fill(lead.isnan() | ~torch.isfinite(mine), -torch.inf).scatter(1, label, torch.inf)

    def wins(self, lead: Tensor, rows: Tensor) -> Tensor:
        """Whether the least lead is enough: at least the margin, and strictly positive. lead: (k,)."""
        return (lead >= self.margin[rows]) & (lead > 0)

    def distance(self, d: Tensor) -> Tensor:
        """‖d‖_M: (k,), in double. d: (k, n)."""
        return row_norm(d) if self.metric is None else self.metric.norm(d)

    def norms(self) -> Tensor:
        """‖â‖ as the gate measures deviations, at least its floor: (b,)."""
        flat = self.anchor.flatten(1)
        return row_norm(flat).clamp_min(self.gate.floor * flat.shape[1] ** 0.5)
