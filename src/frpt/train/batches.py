"""Batches in an order that the seed alone decides, each with a random stream of its own.

Called by the training loop (``post``) and, for the first samples, by ``prepare``. A process of several takes its share
of every batch; the shares of all processes together are the batch that a single process would see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from frpt.datasets.pairs import fetch
from frpt.datasets.seeds import seed_all, stream
from frpt.graph.inputs import InputLike, Inputs
from frpt.targets import TargetStore


class MapStyle(Protocol):
    """A data set with a length whose item i is a pair (inputs, label)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class TrainingBatch:
    """One step's share of a process. labels: (k, ...); target: (k, ...) and present: (k,) where targets are on disk.

    weight: what the share counts in the mean over processes; 0 for a process that has no sample left and runs along.
    """

    inputs: Any
    labels: Tensor
    target: Tensor | None
    present: Tensor | None
    weight: float

    def call(self, device: torch.device) -> Inputs:
        """The inputs as the model takes them, on a device."""
        return on_device(Inputs.of(self.inputs), device)


def on_device(inputs: Inputs, device: torch.device) -> Inputs:
    args, kwargs = pytree.tree_map(
        lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, (inputs.args, inputs.kwargs)
    )
    return Inputs(args, kwargs)


def rows_of(inputs: Inputs, rows: Tensor) -> Inputs:
    """Some samples of a batch."""
    args, kwargs = pytree.tree_map(
        lambda leaf: leaf[rows] if isinstance(leaf, Tensor) and inputs.carries_batch(leaf) else leaf,
        (inputs.args, inputs.kwargs),
    )
    return Inputs(args, kwargs)


def as_taken(inputs: Inputs) -> InputLike:
    """Inputs as ``Reverser`` takes them."""
    return inputs.kwargs if not inputs.args else inputs.args


def order(count: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch's samples: a permutation that seed and epoch decide alone."""
    generator = torch.Generator().manual_seed(stream(seed, epoch))
    rows: list[int] = torch.randperm(count, generator=generator).tolist()
    return rows


class Batches(Dataset[TrainingBatch]):
    """Batch number → its share for one process, drawn with the random stream of (seed, epoch, number, rank)."""

    def __init__(
        self,
        dataset: MapStyle,
        rows: Sequence[int],
        batch_size: int,
        key: tuple[int, int],
        rank: int = 0,
        world: int = 1,
        targets: tuple[TargetStore, str] | None = None,
    ) -> None:
        self.dataset, self.rows, self.batch_size = dataset, rows, batch_size
        self.key, self.rank, self.world, self.targets = key, rank, world, targets

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __getitem__(self, number: int) -> TrainingBatch:
        if not 0 <= number < len(self):
            raise IndexError(number)
        together = self.rows[number * self.batch_size : (number + 1) * self.batch_size]
        mine = together[self.rank :: self.world]
        weight = len(mine) * self.world / len(together)
        mine = mine or together[:1]  # a process without a sample runs along with one of weight 0: DDP waits for all
        seed_all(*self.key, number, self.rank)
        inputs, labels = fetch(self.dataset, mine)
        target = present = None
        if self.targets is not None:
            store, layer = self.targets
            target, present = store.read(layer, mine)
        return TrainingBatch(inputs, labels, target, present, weight)

    def loader(self, start: int = 0, workers: int = 0) -> DataLoader[TrainingBatch]:
        """The batches from number ``start`` on."""
        numbers: Any = range(start, len(self))
        return DataLoader(self, batch_size=None, sampler=numbers, num_workers=workers)
