"""Whatever people keep samples in, as pairs (inputs, label) that can be asked for by number, alone or as a batch.

Map-style data sets, ``DataLoader``s, items that are dicts (Hugging Face ``datasets``), a ``collate_fn`` of one's own;
and streams, which are read once and held. Called by ``labelled.py`` and the training loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from frpt.common.text import kind_of
from frpt.datasets.seeds import own_random
from frpt.errors import InputError, LabelError

CollateFn = Callable[[list[Any]], Any]
"""Items of a data set → one batch: (inputs, labels), or a dict with the labels among its values."""
_LABELS = ("labels", "label", "label_ids", "targets", "target", "y")
"""Names under which dicts have their labels, as the first of them that is there; Hugging Face's come first."""
_HELD_BYTES = 4 * 2**30
"""Of a stream that is held in memory, at most (chosen: half of a small machine)."""


class Pairs(Dataset[tuple[Any, Any]]):
    """Samples of a map-style data set as pairs (inputs, label).

    Args:
        dataset: the data set; its items are pairs, or dicts with the label among their values.
        collate_fn: makes batches of its items; by default torch's own, for items of equal shape.
        takes: names of the inputs that the model takes; others in a dict are left out. None: not known.
        rows: which samples, by their number in the data set; all by default.
        labelled: False where labels are not looked at, and need not be there.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: CollateFn | None = None,
        takes: frozenset[str] | None = None,
        rows: Sequence[int] | None = None,
        labelled: bool = True,
    ) -> None:
        self.dataset, self.collate_fn, self.takes, self.rows, self.labelled = dataset, collate_fn, takes, rows, labelled

    def __len__(self) -> int:
        return len(self.dataset) if self.rows is None else len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.collate_fn is not None:
            return _split_rows(*self.collated([index]))[0]
        return self._pair(self.dataset[self._row(index)], index)

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Any, Any]]:
        """Several samples by one read, where the data set has a way to give them so."""
        if self.collate_fn is not None:
            return [self[number] for number in numbers]
        return [self._pair(item, n) for n, item in zip(numbers, self._items(numbers), strict=True)]

    def collated(self, numbers: Sequence[int]) -> tuple[Any, Tensor]:
        """Some samples as one batch: (inputs, labels)."""
        if self.collate_fn is None:
            return collate(self.__getitems__(numbers), numbers)
        inputs, labels = self._pair(self.collate_fn(self._items(numbers)), numbers[0], "collate_fn= returned")
        return inputs, as_label_tensor(labels, numbers[0])

    def _items(self, numbers: Sequence[int]) -> list[Any]:
        rows = [self._row(number) for number in numbers]
        many = getattr(self.dataset, "__getitems__", None)
        return list(many(rows)) if callable(many) else [self.dataset[row] for row in rows]

    def _row(self, index: int) -> int:
        return index if self.rows is None else self.rows[index]

    def _pair(self, item: Any, index: int, what: str = "") -> tuple[Any, Any]:
        what = what or f"sample {index} of the data set is"
        if isinstance(item, Mapping):
            return split_dict(item, what, self.takes, self.labelled)
        if isinstance(item, tuple | list) and len(item) == 2:
            return _tensors(item[0]) if isinstance(item[0], Mapping) else item[0], item[1]
        if not self.labelled and not isinstance(item, list):
            return item[0] if isinstance(item, tuple) and len(item) == 1 else item, 0
        shape = f"{len(item)} things" if isinstance(item, tuple | list) else kind_of(item)
        raise InputError(
            f"{what} {shape}, not a pair (inputs, label) or a dict; inputs may be a tensor, a tuple or a dict of "
            "tensors. A collate_fn= may bring items into that form."
        )


def pairs_of(
    dataset: Any,
    *,
    collate_fn: CollateFn | None = None,
    model: nn.Module | None = None,
    labelled: bool = True,
    once: bool = False,
    most: int | None = None,
    what: str = "data set",
) -> Any:
    """The samples of a data set, a loader or a stream, as something with a length and pairs for each number.

    Args:
        dataset: what the user has.
        collate_fn: of the user's; a loader has its own.
        model: that the inputs are for: where items are dicts, it says which of their values it takes.
        labelled: whether labels are needed.
        once: one pass suffices, so that a stream may be held in memory; else it is refused.
        most: samples of a stream that are read at most.
        what: it is called in errors.

    Returns:
        The data set itself where it gives whole batches by itself, else ``Pairs``.
    """
    if isinstance(dataset, Pairs) or (collate_fn is None and whole_batches(dataset) is not None):
        check_length(dataset, what)
        return dataset
    takes = None if model is None else inputs_taken(model)
    if isinstance(dataset, tuple) and len(dataset) == 2 and all(isinstance(part, Tensor) for part in dataset):
        if len(dataset[0]) != len(dataset[1]):
            raise InputError(
                f"the {what} has {len(dataset[0])} inputs and {len(dataset[1])} labels: there must be as many of both"
            )
        return pairs_of(TensorDataset(*dataset), collate_fn=collate_fn, model=model)
    if isinstance(dataset, tuple) and len(dataset) == 2 and any(isinstance(part, np.ndarray) for part in dataset):
        raise InputError(
            f"the {what} is a pair of {' and '.join(map(kind_of, dataset))}: pass tensors of the types that the "
            "network takes, for example (torch.from_numpy(x).float(), torch.from_numpy(y))"
        )
    if isinstance(dataset, _BaseDataLoaderIter):
        raise InputError(
            f"the {what} is iter(DataLoader), which gives batches, and cannot say how many of what size: pass the "
            "DataLoader itself"
        )
    if is_stream(dataset):
        if not once:
            raise InputError(
                f"the {what} must be map-style, with a length and an item for each number: samples are asked for again "
                f"and in another order. {_name(dataset)} is a stream; read it into a list first, for example "
                "list(itertools.islice(stream, 10_000))."
            )
        return _held(dataset, collate_fn, takes, labelled, most)
    rows = None
    if isinstance(dataset, DataLoader):
        collate_fn = collate_fn or _own_collate(dataset)
        dataset, rows = dataset.dataset, _rows_of(dataset)
    check_length(dataset if rows is None else rows, what)
    return Pairs(dataset, collate_fn, takes, rows, labelled)


def fetch(dataset: Any, rows: Sequence[int]) -> tuple[Any, Tensor]:
    """Samples by number, collated: (inputs, labels). dataset: ``Pairs``, or a map-style data set of pairs."""
    if (together := whole_batches(dataset)) is not None:
        inputs, labels = pair(together(list(rows)), rows[0])
        return inputs, as_label_tensor(labels, rows[0])
    return (dataset if isinstance(dataset, Pairs) else Pairs(dataset)).collated(list(rows))


def whole_batches(dataset: Any) -> Callable[[list[int]], Any] | None:
    """rows -> (inputs, labels), collated, where a data set gives many samples in one call; None where it does not."""
    if callable(own := getattr(dataset, "__getbatch__", None)):
        batch_of: Callable[[list[int]], Any] = own
        return batch_of
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return lambda rows: tuple(tensor[torch.tensor(rows)] for tensor in dataset.tensors)
    return None


def pair(
    item: Any, index: int, takes: frozenset[str] | None = None, what: str = "", labelled: bool = True
) -> tuple[Any, Any]:
    """(inputs, label) of an item of a data set, or of a batch; anything else is refused. what: its name in errors."""
    return Pairs([], None, takes, None, labelled)._pair(item, index, what)


def is_stream(dataset: Any) -> bool:
    """Whether samples come one after the other, and not by number."""
    if isinstance(dataset, DataLoader):
        return is_stream(dataset.dataset)
    by_number = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not by_number)


def check_length(dataset: Any, what: str = "data set") -> None:
    """Refuse what has no order or no samples."""
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, Mapping):
        raise InputError(
            f"{_name(dataset)} with {', '.join(map(repr, list(dataset)[:4]))} is no {what} but a dict: pass one of "
            "its values, e.g. data['train']"
        )
    if not indexed or isinstance(dataset, Tensor | str):
        raise InputError(
            f"the {what} must be map-style, with a length and (inputs, label) for each number, or a DataLoader of such "
            f"a data set; {_name(dataset)} is neither"
        )
    if len(dataset) == 0:
        raise InputError(f"the {what} is empty; pass at least one sample")


def inputs_taken(model: nn.Module) -> frozenset[str] | None:
    """The names of a model's inputs; None where it takes any."""
    parameters = inspect.signature(model.forward).parameters
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = frozenset(name for name, p in parameters.items() if p.kind in kinds)
    return names if names or all(p.kind != inspect.Parameter.VAR_KEYWORD for p in parameters.values()) else None


def split_dict(
    item: Mapping[str, Any], what: str, takes: frozenset[str] | None, labelled: bool = True
) -> tuple[Any, Any]:
    """(inputs, label) of a dict: what the model takes by name, or the only value there is beside the label."""
    found = next((name for name in _LABELS if name in item), None)
    if found is None and labelled:
        raise InputError(
            f"{what} a dict with {', '.join(map(repr, item))}, and no label among them: call it one of "
            f"{', '.join(_LABELS)}, or pass collate_fn=, a function of a list of items that returns (inputs, labels)"
        )
    label = 0 if found is None else _tensor(item[found])
    rest = {name: _tensor(value) for name, value in item.items() if name != found and not isinstance(value, str)}
    inputs = rest if takes is None else {name: value for name, value in rest.items() if name in takes}
    if not inputs and len(rest) == 1:
        return next(iter(rest.values())), label
    if not inputs:
        raise InputError(
            f"{what} a dict with {', '.join(map(repr, item))}, and the model takes {', '.join(sorted(takes or ()))}: "
            "none of these. Rename them, or pass collate_fn=, a function of a list of items that returns (inputs, "
            "labels)"
        )
    _refuse_copied_ids(inputs, label, what)
    return inputs, label


def _refuse_copied_ids(inputs: Mapping[str, Any], label: Any, what: str) -> None:
    """Labels of Hugging Face's language models are the input ids: those models shift them, and we do not."""
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or not isinstance(label, Tensor) or label.shape != ids.shape or label.dim() == 0:
        return
    counted = label != -100
    if bool((label == ids)[counted].all()) and 2 * int(counted.sum()) > label.numel():
        raise LabelError(
            f"{what} a dict whose labels are its own input_ids, which language models of Hugging Face shift inside "
            "their loss. Here a label is what the output at the same place should say: pass labels that are shifted, "
            "the next token at each place and -100 at the last."
        )


def collate(pairs: list[tuple[Any, Any]], rows: Sequence[int]) -> tuple[Any, Tensor]:
    """One batch of pairs of equal shapes; others are named, with what to do."""
    try:
        inputs, labels = default_collate(pairs)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        raise InputError(_unequal(pairs, rows) or _unfit(pairs[0], rows[0], error)) from error
    return inputs, as_label_tensor(labels, rows[0])


def as_label_tensor(labels: Any, first: int) -> Tensor:
    """Labels as a tensor; class names and the like are refused."""
    if isinstance(labels, Tensor):
        return labels
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabelError(
            f"labels must be numbers or tensors, sample {first} of the data set has {kind_of(labels)}"
            f"{f' of {type(labels[0]).__name__}' if isinstance(labels, list | tuple) and labels else ''}; encode class "
            "names as ids"
        ) from error


def shapes_of(inputs: Any, count: int) -> list[tuple[int, ...]]:
    """The shapes of one sample's tensors, of a batch of ``count``."""
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    return [tuple(t.shape[1:]) if t.dim() and t.shape[0] == count else tuple(t.shape) for t in leaves]


def unequal_batches(one: list[tuple[int, ...]], other: list[tuple[int, ...]], first: int) -> InputError:
    """Batches that differ in a sample's shape, as they do when each is padded to its own longest sample."""
    shown = [", ".join(map(str, shapes)) for shapes in (one, other)]
    return InputError(
        f"samples have the shape {shown[0]} in the first batch and {shown[1]} in the one that begins with sample "
        f"{first}: features could not be compared. Pad all samples to one length (of a tokenizer: "
        "padding='max_length'; of a collator: pad_to_multiple_of=), or crop them."
    )


def _unequal(pairs: list[tuple[Any, Any]], rows: Sequence[int]) -> str:
    """The first two samples of different shapes, in words; "" where all have the same."""
    for part, what in ((0, "inputs"), (1, "labels")):
        shapes = [[tuple(t.shape) for t in pytree.tree_leaves(p[part]) if isinstance(t, Tensor)] for p in pairs]
        other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
        if other is not None:
            one, two = (", ".join(map(str, shapes[i])) or "none" for i in (0, other))
            return (
                f"sample {rows[0]} has {what} of the shape {one}, sample {rows[other]} of {two}: samples of different "
                "sizes make no batch. Pad or crop them all to one size, in the data set or by collate_fn= "
                "(for text: the tokenizer with padding='max_length', or a collator that pads to one length)."
            )
    return ""


def _unfit(item: tuple[Any, Any], row: int, error: Exception) -> str:
    kinds = sorted({type(leaf).__name__ for leaf in pytree.tree_leaves(item) if not isinstance(leaf, Tensor)})
    return (
        f"samples from number {row} on make no batch: {error}. Their items hold {', '.join(kinds) or 'tensors'}: turn "
        "them into tensors in the data set (a transform), or pass collate_fn=, a function of a list of items that "
        "returns (inputs, labels)."
    )


def _tensors(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tensor(value) for name, value in item.items()}


def _tensor(value: Any) -> Any:
    """Lists of numbers as a tensor: torch's own collate would take a list for several inputs."""
    if isinstance(value, np.ndarray | np.generic) or (isinstance(value, list) and value):
        try:
            return torch.as_tensor(value)
        except (
            TypeError,
            ValueError,
            RuntimeError,
        ):  # texts, or rows of different lengths: refused where batches are made
            return value
    return value


def _own_collate(loader: DataLoader[Any]) -> CollateFn | None:
    own = loader.collate_fn
    return None if own is default_collate else own


def _rows_of(loader: DataLoader[Any]) -> list[int] | None:
    """Which samples a loader gives, in the order of the data set; None for all of them."""
    if loader.batch_sampler is None:
        raise InputError(
            "a DataLoader with batch_size=None does not say whether it gives samples or batches: pass the data set "
            "itself, or a loader with a batch size"
        )
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, SubsetRandomSampler):
        return sorted(set(map(int, sampler.indices)))
    if isinstance(sampler, SequentialSampler | RandomSampler | WeightedRandomSampler | DistributedSampler):
        return None
    with own_random():
        return sorted({int(row) for batch in loader.batch_sampler for row in batch})


def _held(
    stream: Any, collate_fn: CollateFn | None, takes: frozenset[str] | None, labelled: bool, most: int | None
) -> Pairs:
    """The samples of a stream, read once."""
    reader = Pairs([], None, takes, None, labelled)
    if isinstance(stream, DataLoader):
        if stream.batch_size is None:
            _rows_of(stream)
        batches = (reader._pair(batch, 0, "the loader's batch is") for batch in _read(stream))
        items: Iterator[Any] = (row for batch in batches for row in _split_rows(*batch))
    else:
        items = _read(stream)
    held, size = [], 0
    for item in items:
        held.append(item)
        size += sum(int(getattr(leaf, "nbytes", 8)) for leaf in pytree.tree_leaves(item))
        if most is not None and len(held) >= most:
            break
        if size > _HELD_BYTES:
            raise InputError(
                f"the stream has given {len(held):,} samples, {size / 2**30:.0f} GiB, and goes on: pass samples=, how "
                "many of it to look at"
            )
    if not held:
        raise InputError("the data set is empty; pass at least one sample, and no iterator that was used up before")
    return Pairs(held, None if isinstance(stream, DataLoader) else collate_fn, takes, None, labelled)


def _read(stream: Iterable[Any]) -> Iterator[Any]:
    if isinstance(stream, DataLoader) and stream.generator is None:  # it would draw a seed from the user's numbers
        with own_random():
            iterator = iter(stream)
        yield from iterator
    else:
        yield from stream


def _split_rows(inputs: Any, labels: Any) -> list[tuple[Any, Any]]:
    """The samples of a batch."""
    labels = as_label_tensor(labels, 0)
    leaves = pytree.tree_leaves(inputs)
    count = next((len(t) for t in leaves if isinstance(t, Tensor) and t.dim()), len(labels))

    def row(leaf: Any, i: int) -> Any:
        return leaf[i] if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == count else leaf

    several = labels.dim() > 0 and len(labels) == count
    return [
        (pytree.tree_map(lambda leaf, i=i: row(leaf, i), inputs), labels[i] if several else labels)
        for i in range(count)
    ]


def _name(dataset: Any) -> str:
    return kind_of(dataset) if not isinstance(dataset, DataLoader) else "a DataLoader over a stream"
