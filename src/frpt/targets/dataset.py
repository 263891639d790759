"""A data set joined to its targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from frpt.datasets.source import map_style_length, spread
from frpt.errors import StoreMismatchError
from frpt.files.digest import sha256_of_labels
from frpt.targets.store import TargetStore

_LOOKS = 16


class TargetDataset(Dataset[tuple[Any, ...]]):
    """Sample i with its target: (inputs, label, target, present).

    target: a tensor, or with several layers a dict of them. present: bool, False where the target is the sample's
    anchor (delta stores; target is zero then). A data set of another length, or with other labels, is refused.
    """

    def __init__(self, dataset: Any, store: str | Path | TargetStore, at: str | Sequence[str]) -> None:
        self.dataset = dataset
        self.store = store if isinstance(store, TargetStore) else TargetStore(store)
        self.at = at if isinstance(at, str) else tuple(at)
        self._check()

    def __len__(self) -> int:
        return self.store.count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} is out of range: the data set has {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Several samples by one read of the store; DataLoader asks for batches this way."""
        several = getattr(self.dataset, "__getitems__", None)
        items = several(list(indices)) if several is not None else [self.dataset[i] for i in indices]
        targets, present = self._targets(indices)
        return [(*item, target, there) for item, target, there in zip(items, targets, present, strict=True)]

    def _targets(self, indices: Sequence[int]) -> tuple[Iterable[Any], Tensor]:
        if isinstance(self.at, str):
            return self.store.read(self.at, indices)
        present = torch.ones(len(indices), dtype=torch.bool)
        rows: list[dict[str, Tensor]] = [{} for _ in indices]
        for layer in self.at:
            values, present = self.store.read(layer, indices)
            for row, value in zip(rows, values, strict=True):
                row[layer] = value
        return rows, present

    def _check(self) -> None:
        store, found = self.store, []
        length = map_style_length(self.dataset)
        for layer in [self.at] if isinstance(self.at, str) else self.at:
            if layer not in store.layers:
                found.append(f"it has no layer {layer!r}; it has {', '.join(map(repr, store.layers))}")
        if length != store.count:
            found.append(f"it has targets for {store.count} samples, the data set has {length}")
        else:
            for i in spread(len(store.manifest.shards), _LOOKS):
                shard = store.manifest.shards[i]
                if sha256_of_labels([self.dataset[shard.start][1]]) != shard.first_label:
                    found.append(f"sample {shard.start} has another label than in the store")
        if found:
            raise StoreMismatchError(store.path, found)
