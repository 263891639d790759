"""A data set joined to its targets, for a training loop of your own; ``frpt.post_train`` reads the store itself."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, default_collate

from frpt.datasets.pairs import CollateFn, pairs_of
from frpt.errors import StoreError, StoreMismatchError
from frpt.reverser import Reverser
from frpt.targets.differences import dataset_differences
from frpt.targets.store import TargetStore
from frpt.targets.write import device_of


class TargetDataset(Dataset[tuple[Any, ...]]):
    """Sample i with its target: (inputs, label, target, present).

    target is a float32 tensor of the layer's shape for one sample, or with several layers a dict of them. It is always
    the target: a sample that needs no correction has its anchor, what the layer produced when the store was written.

    present says where the target comes from: True from the disk, False if it is the anchor, computed now. A dense store
    holds every target. A delta store holds those of corrected samples only, and no anchors: for one, pass ``rev``. The
    dataset then keeps a copy of its model, so that anchors stay what they were while you train the original, and makes
    one forward pass over a batch's samples that have no target on disk. DataLoader workers run it too, as forked
    processes: keep the model of ``rev`` on the CPU for them.

    Args:
        dataset: The data set that the store was written for, as ``write_targets`` takes it.
        store: The store, or its directory.
        at: One layer of the store, or several.
        rev: A Reverser on the model the store was written with; needed for a delta store only.
        collate_fn: Makes a batch (inputs, labels), or a dict, of a list of the data set's items.

    Raises:
        StoreError: The store is a delta store and ``rev`` is missing, or it is incomplete.
        StoreMismatchError: The data set has another length, other labels or inputs than the store was written for, the
            store has no such layer, or the model of ``rev`` has other weights.

    Example:
        >>> data = frpt.TargetDataset(dataset, store, at="0", rev=rev)
        >>> x, y, target, present = data[0]
        >>> target.shape
        torch.Size([16])
    """

    def __init__(
        self,
        dataset: Any,
        store: str | Path | TargetStore,
        at: str | Sequence[str],
        *,
        rev: Reverser | None = None,
        collate_fn: CollateFn | None = None,
    ) -> None:
        model = None if rev is None else rev.model
        self.dataset = pairs_of(dataset, collate_fn=collate_fn, model=model)
        self.store = store if isinstance(store, TargetStore) else TargetStore(store)
        self.at = at if isinstance(at, str) else tuple(at)
        self._layers = [at] if isinstance(at, str) else list(at)
        differences = dataset_differences(self.store.manifest, self.dataset, self._layers, model)
        if differences:
            raise StoreMismatchError(self.store.path, differences)
        if rev is not None:
            self.store.check(rev, at=self._layers)
        self._start: Reverser | None = None
        if self.store.mode == "delta":
            self._start = _copied(self.store, rev)

    def __len__(self) -> int:
        return self.store.count

    def __repr__(self) -> str:
        layers = ", ".join(map(repr, self._layers))
        return f"TargetDataset({len(self)} samples with targets at {layers} from {self.store!r})"

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} is out of range: the data set has {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Several samples by one read of the store; DataLoader asks for batches this way."""
        several = getattr(self.dataset, "__getitems__", None)
        items = several(list(indices)) if several is not None else [self.dataset[i] for i in indices]
        targets, present = self._targets(indices, [item[0] for item in items])
        rows = [{name: values[i] for name, values in targets.items()} for i in range(len(items))]
        joined = []
        for item, row, there in zip(items, rows, present, strict=True):
            joined.append((*item, row[self.at] if isinstance(self.at, str) else row, there))
        return joined

    def _targets(self, indices: Sequence[int], inputs: Sequence[Any]) -> tuple[dict[str, Tensor], Tensor]:
        """Layer → targets (k, ...), and which of them are on disk, (k,); the others are anchors."""
        stored = {name: self.store.read(name, indices) for name in self._layers}
        present = next(iter(stored.values()))[1]
        targets = {name: values for name, (values, _) in stored.items()}
        absent = (~present).nonzero().flatten()
        if len(absent) == 0:
            return targets, present
        assert self._start is not None  # only a delta store lacks targets
        anchors = _anchors(self._start, default_collate([inputs[i] for i in absent.tolist()]), self._layers)
        return {name: targets[name].index_copy(0, absent, anchors[name]) for name in self._layers}, present


def _copied(store: TargetStore, rev: Reverser | None) -> Reverser:
    """A Reverser of its own on a copy of the model, as it is now."""
    if rev is None:
        lacking = store.count - store.manifest.corrected
        raise StoreError(
            f"the target store {str(store.path)!r} holds the targets of corrected samples only (mode 'delta'): of "
            f"{store.count} samples {lacking} have none, theirs is what the layer produced. Pass rev=, a frpt.Reverser "
            "on the model the store was written with, to have that computed; or write the store with mode='dense'."
        )
    return rev.on(deepcopy(rev.model).eval())


def _anchors(rev: Reverser, inputs: Any, layers: Sequence[str]) -> dict[str, Tensor]:
    """What the layers produce for some samples, on the CPU, samples first."""
    device = device_of(rev)
    placed = pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, inputs)
    values, _ = rev.values(placed, layers)
    return {name: rev.batch_axis(name).front(value).to("cpu", torch.float32) for name, value in values.items()}
