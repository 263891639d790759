"""What a repair does to the samples that were diagnosed: each is run through the network before and after it.

Samples that were given to the repair are told from the others by the bytes of their inputs: only the others say what it
does to samples that it has not seen. ``repair_part.py`` shows the counts and the samples that changed sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.asked import task_of
from frpt.diagnosis.findings import Findings
from frpt.embed import as_labels
from frpt.files.digest import sha256_of_bytes
from frpt.graph.inputs import Inputs
from frpt.repairs.fix import Fix
from frpt.repairs.nearest_weights import NearestWeights

_TOGETHER = 500  # samples in a pass


@dataclass(frozen=True)
class Recount:
    """count: diagnosed samples, ``given`` of which the repair was given; the rest are the others.

    given_wrong: how many of those given were not right before; of output targets all.

    right_before: how many of the others were right; None for output targets, which are met by degrees. index, labels,
    before, after: of all samples that changed sides, their outputs in both networks. broken: (m,) bool, those of them
    that got worse; the rest of them are fixed. known: (m,) bool, those of them that the repair was given.
    """

    count: int
    given: int
    given_wrong: int
    right_before: int | None
    index: list[int]
    labels: Tensor
    before: Tensor
    after: Tensor
    broken: Tensor
    known: Tensor

    @property
    def others(self) -> int:
        return self.count - self.given

    @property
    def others_broken(self) -> int:
        return int((self.broken & ~self.known).sum())

    @property
    def others_fixed(self) -> int:
        return int((~self.broken & ~self.known).sum())

    def __str__(self) -> str:
        return f"{self._about_given} {self._about_others}".strip()

    @property
    def _about_given(self) -> str:
        if self.given == 0:
            return f"None of the {self.count:,} samples of this diagnosis was given to the repair."
        fixed, lost = (int((side & self.known).sum()) for side in (~self.broken, self.broken))
        were = "was" if self.given == 1 else "were"
        of = "them" if self.given_wrong == self.given else f"the {self.given_wrong:,} that were wrong"
        return (
            f"Of the {self.count:,} samples of this diagnosis {self.given:,} {were} given to the repair, which fixed "
            f"{fixed:,} of {of}{f' and broke {lost:,} of the rest' if lost else ''}."
        )

    @property
    def _about_others(self) -> str:
        if self.others == 0:
            return ""
        start = f"Of the {self.others:,} {'samples' if self.given == 0 else 'others'} it fixed {self.others_fixed:,}"
        if self.right_before is None:
            return (
                f"{start} (90 % of what was missing is gone), and took {self.others_broken:,} farther from their "
                "targets."
            )
        return f"{start} and broke {self.others_broken:,} of the {self.right_before:,} that were right."


def recount(d: Findings, fix: Fix) -> Recount | None:
    """The diagnosed samples counted again; None where the diagnosis has none, or labels of another kind."""
    if d.source is None or len(d.samples) == 0:
        return None
    repaired = set(_digests(fix.inputs))
    right, given, given_wrong, index, kept = 0, 0, 0, [], []
    for rows, x, y in d.source.batches([[int(i) for i in d.samples.index]], _TOGETHER):
        inputs = Inputs.of(x)
        before, after = fix.outputs(inputs)
        labels = as_labels(y).to(before.device)
        if not labels.is_floating_point() and fix.start.embedder.yes_no(before, labels):
            labels = labels.reshape(len(labels), -1).long()
        if task_of(labels) != fix.memory_before.task:
            return None
        known = torch.tensor([digest in repaired for digest in _digests(inputs)], device=before.device)
        met, fixed, broken = _sides(fix, labels, before, after)
        right += int((met & ~known).sum())
        given += int(known.sum())
        given_wrong += int((known & ~met).sum())
        changed = (fixed | broken).nonzero().squeeze(1)
        index += [rows[i] for i in changed.tolist()]
        kept.append([value[changed].cpu() for value in (labels, before, after, broken, known)])
    labels, before, after, broken, known = (torch.cat(column) for column in zip(*kept, strict=True))
    counted = None if fix.memory_before.task == "regression" else right
    return Recount(len(d.samples), given, given_wrong, counted, index, labels, before, after, broken, known)


def _digests(inputs: Inputs) -> list[str]:
    """Of each sample, over all tensors that carry the batch."""
    leaves = [t.detach().cpu().contiguous() for t in inputs.tensors if inputs.carries_batch(t)]
    rows = [leaf.reshape(len(leaf), -1).view(torch.uint8).numpy() for leaf in leaves]
    kinds = str([(str(leaf.dtype), tuple(leaf.shape[1:])) for leaf in leaves]).encode()
    return [sha256_of_bytes(kinds, *(row[i].tobytes() for row in rows)) for i in range(inputs.batch)]


def _sides(fix: Fix, labels: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(which were right, which are fixed, which are broken), by the measures of ``frpt.repair``: (b,) bool each."""
    if labels.is_floating_point():
        was, now = (torch.linalg.vector_norm((out - labels).flatten(1).double(), dim=1) for out in (before, after))
        size = torch.linalg.vector_norm(labels.flatten(1).double(), dim=1)
        share = NearestWeights.kept
        fixed = (now < was) & (now <= (1 - NearestWeights.closed) * was)
        return torch.zeros_like(fixed), fixed, now > (share * size).maximum((1 + share) * was)
    was, now = ((fix.start.embedder.leads(out, labels) > 0).reshape(len(labels), -1).all(1) for out in (before, after))
    return was, ~was & now, was & ~now
