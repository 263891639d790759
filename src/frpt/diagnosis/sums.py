"""Sums over batches: what a diagnosis keeps of a data set. Features are never kept, only numbers per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from frpt.common.batch import BatchAxis
from frpt.diagnosis.axes import Axes
from frpt.diagnosis.findings import Array, SampleTable
from frpt.reverse.reconstruction import Reconstruction

_PAIRS = 4096
"""Confused pairs of classes kept apart; of more classes than that gives, those that turn up first."""


class LayerTally:
    """One layer, over the samples that need a correction. Shares of ‖a* − â‖² per channel, class and position."""

    def __init__(self, where: Axes, samples: BatchAxis, classes: int) -> None:
        self.where, self.samples = where, samples
        self.by_class = np.zeros((classes, where.channels))
        self.per_class = np.zeros(classes)
        self.channels = np.zeros(where.channels)
        self.positions = np.zeros(where.sites)
        self.pairs: dict[tuple[int, int], Array] = {}
        self.count = 0

    def add(self, rec: Reconstruction, labels: Tensor | None, predicted: Tensor | None) -> None:
        """One batch. labels, predicted: (b,) class ids, or None."""
        rows = rec.corrected.nonzero().squeeze(1)
        if len(rows) == 0:
            return
        channels, positions = self.shares(rec, rows)
        self.channels += channels.sum(0).cpu().numpy()
        if self.positions.size:
            self.positions += positions.sum(0).reshape(self.positions.shape).cpu().numpy()
        self.count += len(rows)
        if labels is not None and predicted is not None:
            self._add_classes(labels.to(rows.device)[rows].cpu().numpy(), predicted[rows].cpu().numpy(), channels)

    def _add_classes(self, ids: Array, predicted: Array, channels: Tensor) -> None:
        shares = channels.cpu().numpy()
        np.add.at(self.by_class, ids, shares)
        np.add.at(self.per_class, ids, 1)
        pairs, of = np.unique(np.stack([ids, predicted], 1), axis=0, return_inverse=True)
        sums = np.zeros((len(pairs), shares.shape[1]))
        np.add.at(sums, of.reshape(-1), shares)
        for (label, taken), total in zip(pairs.tolist(), sums, strict=True):
            if (label, taken) in self.pairs:
                self.pairs[label, taken] += total
            elif len(self.pairs) < _PAIRS:
                self.pairs[label, taken] = total.copy()

    def shares(self, rec: Reconstruction, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(k, channels) and (k, positions) of some samples, each summing to one."""
        moved = self.samples.take(rec.target, rows) - self.samples.take(rec.anchor, rows).to(rec.target)
        power = self.where.split(self.samples.front(moved)).double().square()
        power = power.reshape(len(rows), self.where.channels, -1)
        power = power / power.sum((1, 2), keepdim=True).clamp_min(1e-300)
        return power.sum(2), power.sum(1)

    def state(self) -> dict[str, Array]:
        """The sums, to go on from later."""
        held = {"by_class": self.by_class, "per_class": self.per_class, "channels": self.channels}
        keys = np.array(list(self.pairs), dtype=np.int64).reshape(-1, 2)
        sums = np.stack([*self.pairs.values()]) if self.pairs else np.zeros((0, len(self.channels)))
        more = {"positions": self.positions, "count": np.array([self.count]), "pairs": keys, "pair_sums": sums}
        return {**held, **more}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.by_class, self.per_class = state["by_class"].copy(), state["per_class"].copy()
        self.channels, self.positions = state["channels"].copy(), state["positions"].copy()
        self.count = int(state["count"][0])
        keys = [(int(a), int(b)) for a, b in state["pairs"]]
        self.pairs = dict(zip(keys, state["pair_sums"].copy(), strict=True))

    def mean_channels(self) -> Array:
        return self.channels / max(self.count, 1)

    def mean_by_class(self) -> Array:
        return self.by_class / np.maximum(self.per_class, 1)[:, None]

    def mean_of_pair(self, label: int, predicted: int) -> Array:
        total = self.pairs.get((label, predicted), np.zeros(len(self.channels)))
        share: Array = total / max(total.sum(), 1e-300)
        return share

    def mean_positions(self) -> Array:
        return self.positions / max(self.count, 1)


class SampleTally:
    """Numbers per sample, in arrays made once for all ``count``.

    Small arrays kept of every batch, among large ones that come and go, would split the heap further and further.
    """

    def __init__(self, layers: Sequence[str], count: int) -> None:
        self.layers, self.count = list(layers), count
        self._columns: dict[str, Array] = {}
        self._filled = 0

    def add(
        self,
        index: Sequence[int],
        labels: Tensor | None,
        predicted: Tensor | None,
        values: Tensor,
        found: Mapping[str, Reconstruction],
    ) -> None:
        """labels, predicted: (b,) class ids, None where there are none. values: (b,), the sample's score."""
        none = torch.full((len(index),), -1)
        recs = [found[name] for name in self.layers]
        row = {
            "index": torch.as_tensor(list(index)),
            "label": none if labels is None else labels,
            "predicted": none if predicted is None else predicted,
            "corrected": recs[0].corrected,
            "deviation": torch.stack([r.deviation.float() for r in recs], 1),
            "reference_deviation": torch.stack([_in_reference(r) for r in recs], 1),
            "wins": torch.stack([r.wins for r in recs], 1),
            "closed": torch.stack([r.closed.float() for r in recs], 1),
            "value": values,
        }
        self.extend({name: value.cpu().numpy() for name, value in row.items()})

    def __len__(self) -> int:
        return self._filled

    def state(self) -> dict[str, Array]:
        """All rows, to go on from later."""
        return {name: column[: self._filled] for name, column in self._columns.items()}

    def extend(self, columns: Mapping[str, Array]) -> None:
        """Rows after those that are here already."""
        first, last = self._filled, self._filled + len(columns["index"])
        for name, rows in columns.items():
            if name not in self._columns:
                self._columns[name] = np.empty((self.count, *rows.shape[1:]), rows.dtype)
            self._columns[name][first:last] = rows
        self._filled = last

    @property
    def score(self) -> float:
        return float(np.nanmean(self.state()["value"]))

    def table(self) -> SampleTable:
        return SampleTable(**{name: rows for name, rows in self.state().items() if name != "value"})


def _in_reference(rec: Reconstruction) -> Tensor:
    """The deviation in the reference's metric: (b,), NaN without one."""
    found = rec.reference_deviation
    return torch.full_like(rec.deviation, torch.nan).float() if found is None else found.float()
