"""A map-style data set of labelled samples: read in batches and in order, checked to be the same at every look.

Called by target stores, references, diagnoses and half-done training runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from frpt.datasets.seeds import seed_all
from frpt.errors import DataError, InputError
from frpt.files.digest import label_bytes, sha256_of_item, sha256_of_json, sha256_of_labels

_LOOKS = 16
"""Samples that are looked at twice, to see random augmentation (chosen, not measured)."""
_DIGESTED = 1024
"""Samples that tell a data set from another, or that are digested in one call (chosen: some seconds of decoding)."""
_BATCH_BYTES = 64 * 2**20
"""Inputs and features of a batch, in float32; solvers keep several times as much beside them (chosen, not measured)."""


class LabelledSamples:
    """A map-style data set of pairs (inputs, label). workers: processes that load; device: where inputs go."""

    def __init__(self, dataset: Any, workers: int = 0, device: torch.device | None = None) -> None:
        self.dataset, self.workers, self.device = dataset, workers, device
        self.count = map_style_length(dataset)

    def item(self, index: int) -> tuple[Any, Any]:
        """One sample: (inputs, label)."""
        return pair(self.dataset[index], index)

    def check_stable(self) -> None:
        """Look at a few samples twice: targets on disk fit only inputs that stay what they are."""
        for index in spread(self.count, _LOOKS):
            (x, y), (again, label) = self.item(index), self.item(index)
            same = sha256_of_item(x) == sha256_of_item(again)
            if not same or label_bytes([y]) != label_bytes([label]):
                what = "inputs" if not same else "label"
                raise DataError(
                    f"the {what} of sample {index} changed between two looks: targets on disk fit only a data set that "
                    "stays the same. Switch random augmentation off, or post-train with online targets."
                )

    def first_of(self, shard: range) -> tuple[str, str]:
        """sha256 of the inputs and of the label of a shard's first sample."""
        x, y = self.item(shard.start)
        return sha256_of_item(x), sha256_of_labels([y])

    def batches(self, groups: Sequence[Sequence[int]], batch_size: int) -> Iterator[tuple[Sequence[int], Any, Tensor]]:
        """(samples, inputs, labels) of each group in order, in batches that stay within a group."""
        parts = [g[i : i + batch_size] for g in groups for i in range(0, len(g), batch_size)]
        if self.workers == 0 and (together := whole_batches(self.dataset)) is not None:
            for part in parts:
                x, y = pair(together(list(part)), part[0])
                yield part, self._placed(x), torch.as_tensor(y)
            return
        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=[list(p) for p in parts],
            num_workers=self.workers,
            generator=torch.Generator(),  # else the loader draws its seed from the user's random numbers
        )
        for part, batch in zip(parts, loader, strict=True):
            x, y = pair(batch, part[0])
            yield part, self._placed(x), torch.as_tensor(y)

    def _placed(self, x: Any) -> Any:
        def place(leaf: Any) -> Any:
            return leaf.to(self.device) if isinstance(leaf, Tensor) else leaf

        return x if self.device is None else pytree.tree_map(place, x)


def digest_of_data(dataset: Any) -> str:
    """sha256 of samples and labels, for telling one data set from another.

    Of all of them where the data set gives many in one call (a ``TensorDataset``), else of up to 1,024, spread evenly.
    A sample is drawn twice from the same random stream; if it differs all the same (augmentation with a generator
    of its own), only its label counts.
    """
    count = map_style_length(dataset)
    together = whole_batches(dataset)
    found = [str(count)]
    if together is not None:
        for start in range(0, count, _DIGESTED):
            found.append(_digest_twice(together, list(range(start, min(start + _DIGESTED, count)))))
    else:
        found += [_digest_twice(lambda rows: dataset[rows[0]], [index]) for index in spread(count, _DIGESTED)]
    return sha256_of_json(found)


def _digest_twice(look: Callable[[list[int]], Any], rows: list[int]) -> str:
    looks = []
    for _ in range(2):
        seed_all(rows[0])
        inputs, labels = pair(look(rows), rows[0])
        looks.append((sha256_of_item(inputs), sha256_of_item(labels)))
    (x, y), (again, label) = looks
    return f"{x if x == again else None} {y if y == label else None}"


def whole_batches(dataset: Any) -> Callable[[list[int]], Any] | None:
    """rows -> (inputs, labels), collated, where a data set gives many samples in one call; None where it does not."""
    if callable(own := getattr(dataset, "__getbatch__", None)):
        batch_of: Callable[[list[int]], Any] = own
        return batch_of
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return lambda rows: tuple(tensor[torch.tensor(rows)] for tensor in dataset.tensors)
    return None


def map_style_length(dataset: Any) -> int:
    """The number of samples; a data set without order or without samples is refused."""
    if (
        isinstance(dataset, IterableDataset)
        or not hasattr(dataset, "__getitem__")
        or not hasattr(dataset, "__len__")
        or isinstance(dataset, Mapping)
    ):
        raise InputError(
            f"targets on disk need a map-style data set, with __len__ and __getitem__; {type(dataset).__name__} is not "
            "one. Read it into a list, or post-train with online targets."
        )
    if len(dataset) == 0:
        raise InputError("the data set is empty; pass at least one sample")
    return len(dataset)


def pair(item: Any, index: int) -> tuple[Any, Any]:
    """(inputs, label) of an item of a data set; anything else is refused."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        shape = f"{len(item)} things" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
        raise InputError(
            f"sample {index} of the data set is {shape}, not a pair (inputs, label); "
            "inputs may be a tensor, a tuple or a dict of tensors"
        )
    return item[0], item[1]


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
