"""What people keep samples in: every form gives the same answers as plain pairs, or says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import frpt
from frpt.datasets import pairs
from frpt.datasets.labelled import LabelledSamples
from frpt.datasets.pairs import pairs_of
from frpt.errors import InputError, LabelError
from tests.train.toys import blobs, network, reverser, small_bert

X, Y = blobs().tensors


class Dicts(Dataset[dict[str, Any]]):
    """As Hugging Face's are: lists of numbers, a text, a label."""

    def __init__(self, label: str = "label", name: str = "input") -> None:
        self.label, self.name = label, name

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(X):
            raise IndexError(index)
        return {self.name: X[index].tolist(), "text": "some words", self.label: int(Y[index])}


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Pairs one after the other, and no length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


def rows_to_batch(items: list[Any]) -> dict[str, Tensor]:
    """A collator, which renames, as Hugging Face's do."""
    return {
        "input": torch.tensor([item["input"] for item in items]),
        "labels": torch.tensor([item["label"] for item in items]),
    }


def numpy_pairs() -> list[tuple[Any, Any]]:
    return [(x.numpy(), int(y)) for x, y in zip(X, Y, strict=True)]


FORMS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "tensors": lambda: (blobs(), {}),
    "a pair of tensors": lambda: ((X, Y), {}),
    "list of pairs": lambda: (list(zip(X, Y, strict=True)), {}),
    "arrays": lambda: (numpy_pairs(), {}),
    "dicts": lambda: (Dicts(), {}),
    "dicts of another name": lambda: (Dicts("labels", "pixel_values"), {}),
    "loader": lambda: (DataLoader(blobs(), batch_size=7, shuffle=True), {}),
    "loader of dicts": lambda: (DataLoader(Dicts(), batch_size=7, collate_fn=rows_to_batch), {}),
    "collate_fn": lambda: (Dicts(), {"collate_fn": rows_to_batch}),
}
STREAMS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "stream": lambda: (Stream(), {}),
    "loader of a stream": lambda: (DataLoader(Stream(), batch_size=5), {}),
    "iterator": lambda: (iter(blobs()), {}),
    "generator of dicts": lambda: ((item for item in Dicts()), {}),
    "generator and collate_fn": lambda: ((item for item in Dicts()), {"collate_fn": rows_to_batch}),
}


@pytest.fixture(scope="module")
def plain() -> frpt.Diagnosis:
    return frpt.diagnose(reverser(), blobs(), ["3"], gallery=2, batch_size=16, progress=False)


@pytest.mark.parametrize("form", [*FORMS, *STREAMS])
def test_a_diagnosis_takes_it(form: str, plain: frpt.Diagnosis) -> None:
    data, options = {**FORMS, **STREAMS}[form]()
    found = frpt.diagnose(reverser(), data, ["3"], gallery=2, batch_size=16, progress=False, **options)
    assert found.score == plain.score
    assert (found.samples.deviation == plain.samples.deviation).all()
    assert [s.index for s in found.gallery] == [s.index for s in plain.gallery]


@pytest.mark.parametrize("form", [*FORMS, *STREAMS])
def test_a_memory_and_a_reference_take_it(form: str) -> None:
    data, options = {**FORMS, **STREAMS}[form]()
    memory = frpt.remember(reverser(), data if form != "a pair of tensors" else data[0], progress=False, **options)
    assert memory.samples == len(X)
    assert memory.scale == frpt.remember(reverser(), X, progress=False).scale
    data, options = {**FORMS, **STREAMS}[form]()
    reference = frpt.Reference.fit(reverser(), data, ["3"], progress=False, **options)
    assert reference.digest == frpt.Reference.fit(reverser(), blobs(), ["3"], progress=False).digest


@pytest.mark.parametrize("form", FORMS)
def test_training_and_targets_take_it(form: str, tmp_path: Path) -> None:
    data, options = FORMS[form]()
    plain = frpt.write_targets(reverser(), blobs(), "3", tmp_path / "plain", mode="dense", progress=False)
    store = frpt.write_targets(
        reverser(), data, "3", tmp_path / "store", mode="dense", batch_size=plain.manifest.batch_size, progress=False,
        **options,
    )  # fmt: skip
    every = range(len(X))
    assert torch.equal(store.read("3", every)[0], plain.read("3", every)[0])
    wanted = frpt.post_train(
        reverser(), blobs(), "3", targets=plain, val=blobs(), epochs=1, batch_size=7, lr=1e-2, progress=False
    )
    got = frpt.post_train(
        reverser(), data, "3", targets=store, val=data, epochs=1, lr=1e-2, progress=False, **options,
        **({} if form.startswith("loader") else {"batch_size": 7}),  # a loader's own
    )  # fmt: skip
    assert got.last.metric == wanted.last.metric
    assert got.last.rec_loss == pytest.approx(wanted.last.rec_loss, rel=1e-5)
    joined = frpt.TargetDataset(data, store, "3", **options)[5]
    assert torch.equal(joined[2], plain.read("3", [5])[0][0])


@pytest.mark.parametrize("form", ["loader of dicts", "stream", "list of pairs"])
def test_a_repair_keeps_what_is_in_it(form: str) -> None:
    data, _ = {**FORMS, **STREAMS}[form]()
    wrong = (network()(X).argmax(1) != Y).nonzero()[:2, 0]
    fixes = [frpt.repair(reverser(), X[wrong], Y[wrong], keep=keep) for keep in ((X, Y), data)]
    assert fixes[0].kept is not None
    assert fixes[1].kept is not None
    assert fixes[0].kept.count == fixes[1].kept.count == len(X) // 2
    assert fixes[0].strength == fixes[1].strength


def test_compare_takes_a_loader() -> None:
    loader = DataLoader(Dicts(), batch_size=12, collate_fn=rows_to_batch)
    done = frpt.compare(reverser(), loader, "3", seeds=[0], val=loader, targets="online", epochs=1, progress=False)
    assert len(done.arms) == 3


@pytest.mark.parametrize("work", ["write_targets", "post_train", "compare", "val", "TargetDataset"])
def test_a_stream_is_refused_where_samples_are_asked_for_again(work: str, tmp_path: Path) -> None:
    rev = reverser()
    calls: dict[str, Callable[[], object]] = {
        "write_targets": lambda: frpt.write_targets(rev, Stream(), "3", tmp_path, progress=False),
        "post_train": lambda: frpt.post_train(rev, Stream(), "3", targets="online", progress=False),
        "compare": lambda: frpt.compare(rev, Stream(), "3", val=blobs(), progress=False),
        "val": lambda: frpt.post_train(rev, blobs(), "3", val=DataLoader(Stream()), progress=False),
        "TargetDataset": lambda: frpt.TargetDataset(Stream(), tmp_path, "3"),
    }
    if work == "TargetDataset":
        frpt.write_targets(rev, blobs(), "3", tmp_path, mode="dense", progress=False)
    with pytest.raises(InputError, match="is a stream; read it into a list first"):
        calls[work]()


def test_a_stream_without_end_is_read_as_far_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        return ((X[i % len(X)], Y[i % len(X)]) for i in count())

    found = frpt.diagnose(reverser(), endless(), ["3"], samples=len(X), gallery=0, progress=False)
    assert len(found.samples.index) == len(X)
    assert frpt.remember(reverser(), endless(), samples=20, progress=False).samples == 20
    monkeypatch.setattr(pairs, "_HELD_BYTES", 10_000)
    with pytest.raises(InputError, match="goes on: pass samples="):
        frpt.diagnose(reverser(), endless(), ["3"], progress=False)


@pytest.mark.parametrize(("size", "workers"), [(8, 0), (7, 0), (8, 1)])  # batches of one size, an uneven last one
def test_the_iterator_of_a_loader_is_refused(size: int, workers: int) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=size, num_workers=workers)
    for work in (
        lambda: frpt.diagnose(network(), iter(loader), at=["0"], gallery=0, progress=False),
        lambda: frpt.remember(network(), iter(loader), progress=False),
        lambda: frpt.post_train(network(), blobs(), "0", val=iter(loader), epochs=1, progress=False),
    ):
        with pytest.raises(InputError, match=r"gives batches.*pass the DataLoader itself"):
            work()


def test_a_stream_that_was_used_up_is_named() -> None:
    used = iter(blobs())
    list(used)
    with pytest.raises(InputError, match=r"empty.*used up"):
        frpt.remember(reverser(), used, progress=False)


def test_old_inputs_need_no_labels() -> None:
    wanted = frpt.remember(reverser(), X, progress=False).scale
    for data in (list(X), TensorDataset(X), [{"input": row} for row in X], (row for row in X)):
        assert frpt.remember(reverser(), data, progress=False).scale == wanted


def test_a_loader_gives_the_samples_that_its_sampler_chooses() -> None:
    some = [3, 40, 7]
    for loader in (
        DataLoader(blobs(), sampler=SubsetRandomSampler(some)),
        DataLoader(blobs(), batch_sampler=BatchSampler(some, 2, False)),
    ):
        taken = LabelledSamples(loader)
        assert taken.count == 3
        assert torch.equal(taken.item(1)[0], X[7])
    assert LabelledSamples(DataLoader(blobs(), sampler=WeightedRandomSampler(Y.double() + 1, 5))).count == len(X)
    with pytest.raises(InputError, match="samples or batches"):
        LabelledSamples(DataLoader(blobs(), batch_size=None))


def test_a_loaders_workers_and_the_random_state(plain: frpt.Diagnosis) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    loader = DataLoader(Dicts(), batch_size=16, shuffle=True, num_workers=1, collate_fn=rows_to_batch)
    assert LabelledSamples(loader).workers == 1
    found = frpt.diagnose(reverser(), loader, ["3"], gallery=0, batch_size=16, progress=False)
    assert found.score == plain.score
    assert torch.equal(torch.rand(1), wanted)


UNFIT: list[tuple[Any, type[Exception], str]] = [
    ([(torch.zeros(4), 0), (torch.zeros(6), 1)], InputError, r"sample 0 .*\(4,\), sample 1 of \(6,\).*collate_fn="),
    ([{"input": [0.0] * n, "label": 0} for n in (6, 6, 5)], InputError, r"sample 2 of \(5,\).*padding='max_length'"),
    ([{"input": [0.0] * 6}] * 2, InputError, "no label among them.*collate_fn="),
    ([{"ids": [0.0] * 6, "mask": [1] * 6, "label": 0}] * 2, InputError, "the model takes input: none of these"),
    ([(torch.zeros(6), "cat")] * 2, LabelError, "encode class names as ids"),
    ([(object(), 0)] * 2, InputError, "hold int, object: turn them into tensors"),
    ({"train": blobs()}, InputError, r"no data set but a dict.*data\['train'\]"),
    (torch.zeros(4, 6), InputError, "a Tensor is neither"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "kind", "words"), UNFIT)
def test_what_makes_no_batch_is_named(data: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        frpt.diagnose(reverser(), data, ["3"], progress=False)


def test_batches_padded_each_to_its_own_length_are_named() -> None:
    class Longest(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1)

    def pad(items: list[Any]) -> tuple[Tensor, Tensor]:
        width = max(items)
        return torch.stack([torch.ones(width, 3) for _ in items]), torch.tensor([0] * len(items))

    samples = LabelledSamples([2, 2, 5], collate_fn=pad, model=Longest())
    with pytest.raises(InputError, match=r"\(2, 3\) in the first batch and \(5, 3\).*sample 2.*Pad all samples"):
        list(samples.batches([range(3)], 2))


def test_labels_that_a_language_model_would_shift_are_refused() -> None:
    item = {"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]}
    with pytest.raises(LabelError, match="shifted, the next token at each place"):
        pairs_of([item]).collated([0])
    shifted = {"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, -100]}
    assert pairs_of([shifted]).collated([0])[1].tolist() == [[6, 7, 8, -100]]


@pytest.mark.parametrize("given", [(X.numpy(), Y.numpy()), (X, Y.numpy())])
def test_a_pair_of_numpy_arrays_is_named(given: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match=r"an ndarray: pass tensors .* \(torch.from_numpy\(x\)"):
        frpt.diagnose(network(), given, progress=False)


def test_articles_fit() -> None:
    with pytest.raises(InputError, match="an iterator is a stream"):
        pairs_of(iterator())
    with pytest.raises(InputError, match="sample 0 of the data set is an ndarray"):
        pairs_of([X[0].numpy()])[0]


class iterator:  # noqa: N801
    """By its name, as Python's own are."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


def test_hugging_face_data_sets_and_models() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets are an extra")
    pytest.importorskip("transformers", reason="transformers are for development only")
    model = small_bert()
    ids = torch.randint(1, 30, (24, 6))
    columns = {
        "text": ["words"] * 24, "idx": list(range(24)), "input_ids": ids.tolist(),
        "attention_mask": torch.ones_like(ids).tolist(), "label": (ids[:, 0] % 3).tolist(),
    }  # fmt: skip
    made = datasets.Dataset.from_dict(columns)
    at = "bert.encoder.layer.0"
    plain = [({"input_ids": i, "attention_mask": torch.ones_like(i)}, int(i[0] % 3)) for i in ids]
    rev = frpt.Reverser(model, {"input_ids": ids[:2], "attention_mask": torch.ones_like(ids[:2])})
    wanted = frpt.diagnose(rev, plain, [at], gallery=0, progress=False)
    for data in (made, made.with_format("torch"), made.to_iterable_dataset(), DataLoader(made.with_format("torch"))):
        found = frpt.diagnose(rev, data, [at], gallery=0, progress=False)
        assert (found.samples.deviation == wanted.samples.deviation).all()
    trained = frpt.post_train(rev, made, at, targets="anchor", epochs=1, val=made, progress=False)
    assert trained.last.metric is not None
    with pytest.raises(InputError, match=r"data\['train'\]"):
        frpt.diagnose(rev, datasets.DatasetDict({"train": made}), [at], progress=False)
