"""Labelled samples: read in batches and in order, checked to be the same at every look.

Called by target stores, references, diagnoses and half-done training runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, TensorDataset

from frpt.common.checks import check_whole
from frpt.datasets.pairs import CollateFn, Pairs, fetch, pair, pairs_of, shapes_of, unequal_batches, whole_batches
from frpt.datasets.seeds import seed_all
from frpt.errors import DataError
from frpt.files.digest import Sha256, label_bytes, sha256_of_item, sha256_of_json, sha256_of_labels

_LOOKS = 16
"""Samples that are looked at twice, to see random augmentation (chosen, not measured)."""
_DIGESTED = 1024
"""Samples that tell a data set from another, or that are digested in one call (chosen: some seconds of decoding)."""
_BATCH_BYTES = 64 * 2**20
"""Inputs and features of a batch, in float32; solvers keep several times as much beside them (chosen, not measured)."""


class LabelledSamples:
    """Pairs (inputs, label) of a data set, a loader or, where ``once`` allows it, a stream.

    Args:
        dataset: what ``pairs_of`` takes.
        workers: processes that load; a loader's own by default.
        device: where inputs go.
        collate_fn: makes batches of items.
        model: that the inputs are for.
        labelled: whether labels are needed.
        once: a stream may be read once and held.
        most: samples of a stream that are read at most.
    """

    def __init__(
        self,
        dataset: Any,
        workers: int = 0,
        device: torch.device | None = None,
        *,
        collate_fn: CollateFn | None = None,
        model: nn.Module | None = None,
        labelled: bool = True,
        once: bool = False,
        most: int | None = None,
    ) -> None:
        check_whole("workers", workers, 0)
        self.dataset = pairs_of(
            dataset, collate_fn=collate_fn, model=model, labelled=labelled, once=once, most=most
        )  # fmt: skip
        self.workers = workers or (dataset.num_workers if isinstance(dataset, DataLoader) else 0)
        self.device = device
        self.count = len(self.dataset)
        self._shapes: list[tuple[int, ...]] | None = None

    def item(self, index: int) -> tuple[Any, Any]:
        """One sample: (inputs, label)."""
        return pair(self.dataset[index], index)

    def check_stable(self) -> None:
        """Look at a few samples twice: targets on disk fit only inputs that stay what they are."""
        if found := self.changing():
            index, what = found
            raise DataError(
                f"the {what} of sample {index} changed between two looks: targets on disk fit only a data set that "
                "stays the same. Switch random augmentation off, or post-train with online targets."
            )

    def changing(self) -> tuple[int, str] | None:
        """Of a few samples the first that is another at the second look, and whether "inputs" or "label" is."""
        for index in spread(self.count, _LOOKS):
            (x, y), (again, label) = self.item(index), self.item(index)
            if sha256_of_item(x) != sha256_of_item(again):
                return index, "inputs"
            if label_bytes([y]) != label_bytes([label]):
                return index, "label"
        return None

    def labels_of(self, shard: range) -> str | None:
        """sha256 of the labels of a shard's samples; None where the data set does not give many in one call."""
        if whole_batches(self.dataset) is None:
            return None
        tensors = self.dataset.tensors if type(self.dataset) is TensorDataset else None
        digest = Sha256()
        for start in range(shard.start, shard.stop, _DIGESTED):
            part = range(start, min(start + _DIGESTED, shard.stop))
            labels = fetch(self.dataset, part)[1] if tensors is None else tensors[1][part.start : part.stop]
            digest.update(b"".join(label_bytes(labels)))
        return digest.hexdigest()

    def first_of(self, shard: range) -> tuple[str, str]:
        """sha256 of the inputs and of the label of a shard's first sample."""
        x, y = self.item(shard.start)
        return sha256_of_item(x), sha256_of_labels([y])

    def batches(self, groups: Sequence[Sequence[int]], batch_size: int) -> Iterator[tuple[Sequence[int], Any, Tensor]]:
        """(samples, inputs, labels) of each group in order, in batches that stay within a group."""
        parts = [g[i : i + batch_size] for g in groups for i in range(0, len(g), batch_size)]
        for part, (x, y) in zip(parts, self._read(parts), strict=True):
            shapes = shapes_of(x, len(part))
            self._shapes = shapes if self._shapes is None else self._shapes
            if shapes != self._shapes:
                raise unequal_batches(self._shapes, shapes, part[0])
            yield part, self._placed(x), y

    def _read(self, parts: Sequence[Sequence[int]]) -> Iterable[tuple[Any, Tensor]]:
        if self.workers == 0:
            return (fetch(self.dataset, part) for part in parts)
        return DataLoader(
            _Parts(self.dataset, parts),
            batch_size=None,
            num_workers=self.workers,
            generator=torch.Generator(),  # else the loader draws its seed from the user's random numbers
        )

    def _placed(self, x: Any) -> Any:
        def place(leaf: Any) -> Any:
            return leaf.to(self.device) if isinstance(leaf, Tensor) else leaf

        return x if self.device is None else pytree.tree_map(place, x)


def whole_set(given: Any, model: nn.Module) -> tuple[Any, Any]:
    """(inputs, labels) of all samples of a data set, a loader or a stream, as one batch; such a pair itself."""
    if isinstance(given, tuple) and len(given) == 2:
        return given[0], given[1]
    samples = LabelledSamples(given, model=model, once=True)
    _, x, y = next(iter(samples.batches([range(samples.count)], samples.count)))
    return x, y


class _Parts(Dataset[tuple[Any, Tensor]]):
    """Batch k of a data set, for processes that load."""

    def __init__(self, dataset: Any, parts: Sequence[Sequence[int]]) -> None:
        self.dataset, self.parts = dataset, parts

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> tuple[Any, Tensor]:
        return fetch(self.dataset, self.parts[number])


def digest_of_data(dataset: Any) -> str:
    """sha256 of samples and labels, for telling one data set from another.

    Of all of them where the data set gives many in one call (a ``TensorDataset``), else of up to 1,024, spread evenly.
    A sample is drawn twice from the same random stream; if it differs all the same (augmentation with a generator
    of its own), only its label counts.
    """
    pairs = _digests(dataset, spread(len(dataset), _DIGESTED))
    return sha256_of_json([str(len(dataset)), *(f"{x} {y}" for x, y in pairs)])


def digests_of_data(dataset: Any, few: Sequence[int]) -> tuple[str, str]:
    """sha256 of the samples' inputs, and of their labels, for saying which of both differs.

    Of all of them where the data set gives many in one call (a ``TensorDataset``), else of the few.
    """
    pairs = list(_digests(dataset, few))
    return sha256_of_json([x for x, _ in pairs]), sha256_of_json([y for _, y in pairs])


def _digests(dataset: Any, few: Sequence[int]) -> Iterator[tuple[str | None, str | None]]:
    """Of the inputs and labels of samples, or of some together; None for what is another at the second look."""
    count = len(dataset)
    together = whole_batches(dataset)
    if together is not None:
        for start in range(0, count, _DIGESTED):
            yield _digest_twice(together, list(range(start, min(start + _DIGESTED, count))))
        return
    pairs = dataset if isinstance(dataset, Pairs) else Pairs(dataset)
    for index in few:
        yield _digest_twice(lambda rows: pairs[rows[0]], [index])


def _digest_twice(look: Callable[[list[int]], Any], rows: list[int]) -> tuple[str | None, str | None]:
    looks = []
    for _ in range(2):
        seed_all(rows[0])
        inputs, labels = pair(look(rows), rows[0])
        looks.append((sha256_of_item(inputs), sha256_of_item(labels)))
    (x, y), (again, label) = looks
    return x if x == again else None, y if y == label else None


def spread(count: int, most: int) -> list[int]:
    """Up to ``most`` numbers below ``count``, evenly spaced, the first and the last among them."""
    few = min(count, most)
    return sorted({round(i * (count - 1) / max(few - 1, 1)) for i in range(few)})


def sample_bytes(samples: LabelledSamples, shapes: Iterable[tuple[int, ...]]) -> int:
    """Of a sample's inputs and its features of some shapes, in float32."""
    inputs = [leaf for leaf in pytree.tree_leaves(samples.item(0)[0]) if isinstance(leaf, Tensor)]
    return max(1, sum(t.nbytes for t in inputs) + sum(4 * prod(shape) for shape in shapes))


def fitting_batch(samples: LabelledSamples, shapes: Iterable[tuple[int, ...]], most: int = 2048) -> int:
    """A power of two, up to 2048 or ``most`` (at least 64): about 64 MiB of inputs and features."""
    fitting = min(max(_BATCH_BYTES // sample_bytes(samples, shapes), 16), 2048, max(most, 64))
    return 1 << (int(fitting).bit_length() - 1)
