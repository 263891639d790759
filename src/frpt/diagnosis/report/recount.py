"""What a repair does to the samples that were diagnosed: each is run through the network before and after it.

``repair_part.py`` shows the counts and the samples that changed sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.asked import task_of
from frpt.diagnosis.findings import Findings
from frpt.embed import as_labels
from frpt.graph.inputs import Inputs
from frpt.repairs.fix import Fix
from frpt.repairs.nearest_weights import NearestWeights

_TOGETHER = 500  # samples in a pass


@dataclass(frozen=True)
class Recount:
    """right_before: how many of ``count`` were right; None for output targets, which are met by degrees.

    index, labels, before, after: of the samples that changed sides, their outputs in both networks. broken: (m,) bool,
    those of them that got worse; the others are fixed.
    """

    count: int
    right_before: int | None
    index: list[int]
    labels: Tensor
    before: Tensor
    after: Tensor
    broken: Tensor

    def __str__(self) -> str:
        broke = int(self.broken.sum())
        fixed = len(self.index) - broke
        if self.right_before is None:
            return (
                f"Of the {self.count:,} samples of this diagnosis it fixed {fixed:,} (90 % of what was missing is "
                f"gone), and took {broke:,} farther from their targets."
            )
        return (
            f"Of the {self.count:,} samples of this diagnosis it fixed {fixed:,}, and broke {broke:,} of the "
            f"{self.right_before:,} that were right."
        )


def recount(d: Findings, fix: Fix) -> Recount | None:
    """The diagnosed samples counted again; None where the diagnosis has none, or labels of another kind."""
    if d.source is None or len(d.samples) == 0:
        return None
    right, index, kept = 0, [], []
    for rows, x, y in d.source.batches([[int(i) for i in d.samples.index]], _TOGETHER):
        before, after = fix.outputs(Inputs.of(x))
        labels = as_labels(y).to(before.device)
        if not labels.is_floating_point() and fix.start.embedder.yes_no(before, labels):
            labels = labels.reshape(len(labels), -1).long()
        if task_of(labels) != fix.memory_before.task:
            return None
        met, fixed, broken = _sides(fix, labels, before, after)
        right += met
        changed = (fixed | broken).nonzero().squeeze(1)
        index += [rows[i] for i in changed.tolist()]
        kept.append([value[changed].cpu() for value in (labels, before, after, broken)])
    labels, before, after, broken = (torch.cat(column) for column in zip(*kept, strict=True))
    counted = None if fix.memory_before.task == "regression" else right
    return Recount(len(d.samples), counted, index, labels, before, after, broken)


def _sides(fix: Fix, labels: Tensor, before: Tensor, after: Tensor) -> tuple[int, Tensor, Tensor]:
    """(how many were right, which are fixed, which are broken), by the measures of ``frpt.repair``."""
    if labels.is_floating_point():
        was, now = (torch.linalg.vector_norm((out - labels).flatten(1).double(), dim=1) for out in (before, after))
        size = torch.linalg.vector_norm(labels.flatten(1).double(), dim=1)
        share = NearestWeights.kept
        fixed = (now < was) & (now <= (1 - NearestWeights.closed) * was)
        return 0, fixed, now > (share * size).maximum((1 + share) * was)
    was, now = ((fix.start.embedder.leads(out, labels) > 0).reshape(len(labels), -1).all(1) for out in (before, after))
    return int(was.sum()), ~was & now, was & ~now
