"""What is written is what reconstruct returns; what does not belong together is refused."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import frpt
from frpt.errors import DataError, InputError, NonFiniteError, OptionError, StoreError, StoreMismatchError
from frpt.targets import write
from tests.models import Planner, SequenceFirst
from tests.targets.common import COUNT, contents, data, labelled, model, reverser

QUIET: dict[str, Any] = {"progress": False, "batch_size": 10, "shard_size": 25}


@pytest.fixture(scope="module")
def rev() -> frpt.Reverser:
    return reverser()


@pytest.fixture(scope="module")
def stores(rev: frpt.Reverser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, frpt.TargetStore]:
    path = tmp_path_factory.mktemp("stores")
    return {
        mode: frpt.write_targets(rev, data(), ["0", "2"], path / mode, mode=mode, **QUIET)  # type: ignore[arg-type]
        for mode in ("dense", "delta")
    }


def reference(rev: frpt.Reverser, at: str) -> tuple[Tensor, Tensor]:
    """Targets and corrected samples by one plain loop over the same batches."""
    targets, corrected = [], []
    for start in range(0, COUNT, 25):
        part = data()[start : start + 25]
        for i in range(0, len(part), 10):
            x, y = zip(*part[i : i + 10], strict=True)
            rec = rev.reconstruct(torch.stack(x), torch.tensor(y), at=at)
            targets.append(rec.target)
            corrected.append(rec.corrected)
    return torch.cat(targets), torch.cat(corrected)


@pytest.mark.parametrize("at", ["0", "2"])
def test_reading_returns_the_reconstructions_in_any_order(
    rev: frpt.Reverser, stores: dict[str, frpt.TargetStore], at: str
) -> None:
    targets, corrected = reference(rev, at)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    dense, present = stores["dense"].read(at, order)
    assert torch.equal(dense, targets[order])
    assert present.all()
    delta, present = stores["delta"].read(at, order.tolist())
    assert torch.equal(present, corrected[order])
    assert torch.equal(delta[present], targets[order][present])
    assert not delta[~present].any()
    assert torch.equal(stores["delta"].corrected, corrected)
    assert 0 < corrected.sum() < COUNT
    assert stores["delta"].layers[at].shape == tuple(targets.shape[1:])
    assert len(stores["dense"]) == stores["dense"].count == COUNT


def test_reading_nothing_and_out_of_range(stores: dict[str, frpt.TargetStore]) -> None:
    targets, present = stores["delta"].read("0", [])
    assert targets.shape == (0, 16)
    assert present.shape == (0,)
    for bad in ([COUNT], [-1], torch.tensor([0, COUNT + 3])):
        with pytest.raises(InputError, match="out of range"):
            stores["dense"].read("0", bad)
    with pytest.raises(StoreMismatchError, match="no layer 'x'; it has 0, 2"):
        stores["dense"].read("x", [0])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_short_dtypes_halve_the_disk_and_round_to_nearest(
    rev: frpt.Reverser, stores: dict[str, frpt.TargetStore], tmp_path: Path, dtype: Any, tolerance: float
) -> None:
    store = frpt.write_targets(rev, data(), "0", tmp_path, mode="dense", dtype=dtype, **QUIET)
    short, _ = store.read("0", range(COUNT))
    exact, _ = stores["dense"].read("0", range(COUNT))
    assert short.dtype == torch.float32
    assert torch.equal(short, exact.to(getattr(torch, dtype)).float())
    assert store.layers["0"].nbytes == 32
    assert not torch.equal(short, exact)
    assert torch.allclose(short, exact, rtol=tolerance, atol=0)


def test_targets_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 4)).eval()
    torch.manual_seed(0)
    x = torch.randn(12, 6)
    x[7] *= 1e7
    items = labelled(net, x, every=1)
    with pytest.raises(NonFiniteError, match=r"'0': the target of sample 7 .*bfloat16"):
        frpt.write_targets(reverser(net), items, "0", tmp_path, mode="dense", dtype="float16", progress=False)
    store = frpt.write_targets(
        reverser(net), items, "0", tmp_path / "b", mode="dense", dtype="bfloat16", progress=False
    )
    assert store.read("0", [7])[0].isfinite().all()


def test_delta_takes_a_tenth_of_dense_where_the_network_is_mostly_right(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 4)).eval()
    items = labelled(net, torch.randn(400, 3, 8, 8), every=20)
    rev = frpt.Reverser(net, torch.zeros(2, 3, 8, 8))
    store = frpt.write_targets(rev, items, "1", tmp_path, progress=False)
    assert store.mode == "delta"
    assert int(store.corrected.sum()) == 20
    on_disk = sum(len(data) for data in contents(tmp_path).values())
    assert on_disk <= 400 * 1024 * 4 / 10


def test_auto_takes_dense_where_most_samples_are_corrected_and_stays_with_it(tmp_path: Path) -> None:
    rev, items = reverser(margin=50.0), data()
    store = frpt.write_targets(rev, items, "2", tmp_path, **QUIET)
    assert store.mode == "dense"
    assert frpt.write_targets(rev, items, "2", tmp_path, **QUIET).mode == "dense"
    with pytest.raises(StoreMismatchError, match="mode is 'dense' in the store, 'delta' now"):
        frpt.write_targets(rev, items, "2", tmp_path, mode="delta", **QUIET)


def test_check_names_every_difference(stores: dict[str, frpt.TargetStore], rev: frpt.Reverser) -> None:
    store = stores["delta"]
    labels = torch.tensor([y for _, y in data()])
    store.check(rev, dataset_length=COUNT, labels=labels, at=["0", "2"])
    store.check(rev, labels=labels.int().tolist(), at="2")
    store.check(reverser(margin=3.0))  # the weights are the same: how targets were embedded is no difference
    other = model()
    with torch.no_grad():
        other[4].bias[1] += 1e-6
    with pytest.raises(StoreMismatchError, match=r"frozen part after '2' has other values in 4\.bias\n") as caught:
        store.check(reverser(other), at="2")
    assert "upstream" not in str(caught.value)
    other = model()
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-6
    with pytest.raises(StoreMismatchError, match=r"upstream part before '2'.* other values in 0\.weight") as caught:
        store.check(reverser(other), at="2")
    assert "frozen" not in str(caught.value)
    with pytest.raises(StoreMismatchError, match="no layer '1'; it has '0', '2'"):
        store.check(rev, at=["1"])
    wrong = labels.clone()
    wrong[30] = (wrong[30] + 1) % 4
    with pytest.raises(StoreMismatchError, match="labels of samples 25 to 49") as caught:
        store.check(rev, dataset_length=COUNT + 1, labels=wrong)
    assert "72 samples, the data set has 73" in str(caught.value)
    assert len(caught.value.differences) == 2
    with pytest.raises(StoreMismatchError, match="72 samples, there are 5 labels"):
        store.check(rev, labels=labels[:5])


def test_check_refuses_another_architecture(stores: dict[str, frpt.TargetStore]) -> None:
    wider = nn.Sequential(nn.Linear(6, 17), nn.ReLU(), nn.Linear(17, 12), nn.Linear(12, 4)).eval()
    with pytest.raises(StoreMismatchError) as caught:
        stores["dense"].check(reverser(wider), at="0")
    assert "(16,) in the store and (17,) in the model" in str(caught.value)
    assert "lacks 4.bias, 4.weight" in str(caught.value)
    assert "has 3.bias, 3.weight, which the store does not know" in str(caught.value)


def test_going_on_with_other_settings_or_data_is_refused(rev: frpt.Reverser, tmp_path: Path) -> None:
    items = data()
    frpt.write_targets(rev, items, "0", tmp_path, mode="dense", **QUIET)
    before = contents(tmp_path)
    options: dict[str, Any] = {"mode": "dense", **QUIET}
    for change, words in [
        ({"batch_size": 5}, "batch_size is 10 in the store, 5 now"),
        ({"shard_size": 24}, "shard_size is 25 in the store, 24 now"),
        ({"dtype": "float16"}, "dtype is 'float32' in the store, 'float16' now"),
    ]:
        with pytest.raises(StoreMismatchError, match=words):
            frpt.write_targets(rev, items, "0", tmp_path, **{**options, **change})
    with pytest.raises(StoreMismatchError, match="layers 0, not 0, 2"):
        frpt.write_targets(rev, items, ["0", "2"], tmp_path, **options)
    with pytest.raises(StoreMismatchError, match=r"embedding\.margin is None in the store, 0\.5 now"):
        frpt.write_targets(reverser(margin=0.5), items, "0", tmp_path, **options)
    with pytest.raises(StoreMismatchError, match=r"preset\.composite\.limits\.iterations is 25 in the store, 20 now"):
        frpt.write_targets(reverser(preset="paper"), items, "0", tmp_path, **options)
    with pytest.raises(StoreMismatchError, match="count is 72 in the store, 71 now"):
        frpt.write_targets(rev, items[:-1], "0", tmp_path, **options)
    moved = [*items[1:], items[0]]
    with pytest.raises(StoreMismatchError, match="inputs of sample 25"):
        frpt.write_targets(rev, moved, "0", tmp_path, **options)
    assert contents(tmp_path) == before


def test_a_data_set_that_changes_between_looks_is_refused(rev: frpt.Reverser, tmp_path: Path) -> None:
    class Augmented(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            x, y = super().__getitem__(index)
            return (x + 0.01 * torch.randn(6) if index > 30 else x), y

    with pytest.raises(DataError, match=r"inputs of sample 3\d changed between two looks"):
        frpt.write_targets(rev, Augmented(data()), "0", tmp_path / "s", progress=False)
    assert not (tmp_path / "s").exists()


def test_data_sets_that_are_not_pairs_in_a_row_are_refused(rev: frpt.Reverser, tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(data())

    triple = TensorDataset(torch.zeros(4, 6), torch.zeros(4), torch.zeros(4))
    for bad, words in [
        (Stream(), "map-style"),
        (iter(data()), "map-style"),
        ([], "empty"),
        (triple, "sample 0 of the data set is 3 things, not a pair"),
        ([{"x": torch.zeros(6)}], "sample 0 of the data set is a dict with .x., and no label"),
    ]:
        with pytest.raises(InputError, match=words):
            frpt.write_targets(rev, bad, "0", tmp_path, progress=False)


def test_options_out_of_range_are_refused(rev: frpt.Reverser, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"mode": "sparse"}, {"dtype": "int8"}, {"batch_size": 0}, {"shard_size": -1}, {"rank": 2, "world": 2},
        {"at": []}, {"at": ["0", "0"]}, {"workers": -1}, {"rank": "0"},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(OptionError):
            frpt.write_targets(rev, data(), **{"at": "0", "store": tmp_path, "progress": False, **change})


def test_several_inputs_and_regression_targets(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Planner().eval()
    images, status, path = torch.randn(9, 3, 8, 8), torch.randn(9, 4), torch.randn(9, 8, 3)
    items = [({"image": i, "status": s}, p) for i, s, p in zip(images, status, path, strict=True)]
    rev = frpt.Reverser(net, {"image": images[:2], "status": status[:2]})
    store = frpt.write_targets(rev, items, "backbone", tmp_path, batch_size=9, progress=False)
    rec = rev.reconstruct({"image": images, "status": status}, path, at="backbone")
    assert store.mode == "dense"
    assert torch.equal(store.read("backbone", range(9))[0], rec.target)
    store.check(rev, labels=path, dataset_length=9)
    with pytest.raises(StoreMismatchError, match="labels of samples 0 to 8"):
        store.check(rev, labels=path + 1e-5)


def test_a_layer_that_keeps_its_samples_on_another_axis(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = SequenceFirst().eval(), torch.randn(6, 7, 4)
    rev = frpt.Reverser(net, x[:2])
    y = (net(x).argmax(1) + 1) % 3
    at = "encoder"
    store = frpt.write_targets(rev, list(zip(x, y, strict=True)), at, tmp_path, batch_size=6, progress=False)
    target = rev.batch_axis(at).front(rev.reconstruct(x, y, at=at).target)
    assert torch.equal(store.read(at, [5, 2])[0], target[[5, 2]])


def test_data_loader_workers_get_their_own_maps(stores: dict[str, frpt.TargetStore]) -> None:
    store = stores["dense"]
    store.read("0", [0])
    again = pickle.loads(pickle.dumps(store))
    assert torch.equal(again.read("0", range(COUNT))[0], store.read("0", range(COUNT))[0])
    loaded = through_workers(frpt.TargetDataset(data(), store, "0"))
    assert torch.equal(loaded[2], store.read("0", range(COUNT))[0])
    assert loaded[3].all()


def through_workers(joined: frpt.TargetDataset) -> tuple[Tensor, ...]:
    """All samples as a shuffling DataLoader with two processes has them, put back into order."""
    assert len(joined) == COUNT
    loader = DataLoader(joined, batch_size=16, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(3))
    columns = [torch.cat(parts) for parts in zip(*loader, strict=True)]
    inputs = torch.stack([x for x, _ in data()])
    place = (inputs[:, None] == columns[0][None]).all(2).float().argmax(1)
    assert columns[1][place].tolist() == [y for _, y in data()]
    return tuple(column[place] for column in columns)


@pytest.mark.parametrize("at", ["0", ["2", "0"]])
def test_a_delta_store_gives_every_sample_its_target(
    stores: dict[str, frpt.TargetStore], at: str | list[str], tmp_path: Path
) -> None:
    """The anchor for samples that need no correction: the same as a dense store has, but for rounding."""
    layers = [at] if isinstance(at, str) else at
    rev = reverser()
    joined = frpt.TargetDataset(data(), stores["delta"], at, rev=rev)
    with torch.no_grad():
        rev.model[0].weight.mul_(2)  # training goes on; the anchors are those of the start
    items = joined.__getitems__(range(COUNT))
    assert torch.equal(torch.stack([item[3] for item in items]), stores["delta"].corrected)
    for layer in layers:
        targets = torch.stack([item[2] if isinstance(at, str) else item[2][layer] for item in items])
        dense, _ = stores["dense"].read(layer, range(COUNT))
        torch.testing.assert_close(targets, dense, rtol=1e-6, atol=1e-6)
        corrected = stores["delta"].corrected
        assert torch.equal(targets[corrected], dense[corrected])
        assert (targets.flatten(1).norm(dim=1) > 0).all()
    single = joined[1][2] if isinstance(at, str) else joined[1][2][layers[0]]
    torch.testing.assert_close(single, stores["dense"].read(layers[0], [1])[0][0], rtol=1e-6, atol=1e-6)


def test_data_loader_workers_compute_anchors_too(stores: dict[str, frpt.TargetStore]) -> None:
    loaded = through_workers(frpt.TargetDataset(data(), stores["delta"], "0", rev=reverser()))
    dense, _ = stores["dense"].read("0", range(COUNT))
    torch.testing.assert_close(loaded[2], dense, rtol=1e-6, atol=1e-6)
    assert torch.equal(loaded[3], stores["delta"].corrected)


def test_a_delta_store_without_its_model_is_refused(stores: dict[str, frpt.TargetStore]) -> None:
    store = stores["delta"]
    lacking = COUNT - int(store.corrected.sum())
    with pytest.raises(StoreError, match=rf"of 72 samples {lacking} have none.* Pass rev=.* or write .*mode='dense'"):
        frpt.TargetDataset(data(), store, "0")
    other = reverser()
    with torch.no_grad():
        other.model[0].weight[0, 0] += 1e-6
    with pytest.raises(StoreMismatchError, match=r"other values in 0\.weight"):
        frpt.TargetDataset(data(), store, "0", rev=other)


def test_anchors_of_several_inputs_and_of_samples_on_another_axis(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = SequenceFirst().eval(), torch.randn(6, 7, 4)
    y = net(x).argmax(1)
    y[0] = (y[0] + 1) % 3
    rev, items = frpt.Reverser(net, x[:2]), list(zip(x, y, strict=True))
    store = frpt.write_targets(rev, items, "encoder", tmp_path, mode="delta", progress=False)
    joined = frpt.TargetDataset(items, store, "encoder", rev=rev)
    anchors = rev.batch_axis("encoder").front(rev.values(x, ["encoder"])[0]["encoder"])
    torch.testing.assert_close(torch.stack([joined[i][2] for i in range(1, 6)]), anchors[1:])
    net = Planner().eval()
    images, status = torch.randn(4, 3, 8, 8), torch.randn(4, 4)
    inputs = {"image": images, "status": status}
    with torch.no_grad():
        path = net(**inputs)
    pairs = [({"image": i, "status": s}, p) for i, s, p in zip(images, status, path, strict=True)]
    rev = frpt.Reverser(net, inputs)
    store = frpt.write_targets(rev, pairs, "backbone", tmp_path / "planner", mode="delta", progress=False)
    joined = frpt.TargetDataset(pairs, store, "backbone", rev=rev)
    anchors = rev.values(inputs, ["backbone"])[0]["backbone"]
    torch.testing.assert_close(torch.stack([joined[i][2] for i in range(4)]), anchors, rtol=1e-4, atol=1e-5)


def test_what_it_prints(stores: dict[str, frpt.TargetStore]) -> None:
    store = stores["delta"]
    count = int(store.corrected.sum())
    shown = f"72 samples, {count} corrected, delta; layers '0' (16,), '2' (12,))"
    assert repr(store) == f"TargetStore({str(store.path)!r}: {shown}"
    joined = frpt.TargetDataset(data(), stores["dense"], ["0", "2"])
    assert repr(joined) == f"TargetDataset(72 samples with targets at '0', '2' from {stores['dense']!r})"
    page = store._repr_html_()
    for words in (f"{count} corrected", "<th>mean deviation</th>", "<td>(b, 12)</td>", str(store.path)):
        assert words in page


def test_items_with_targets_of_several_layers(stores: dict[str, frpt.TargetStore]) -> None:
    joined = frpt.TargetDataset(data(), stores["dense"].path, ["0", "2"])
    x, y, target, present = joined[-1]
    assert torch.equal(x, data()[-1][0])
    assert y == data()[-1][1]
    assert bool(present)
    assert {name: tuple(t.shape) for name, t in target.items()} == {"0": (16,), "2": (12,)}
    assert torch.equal(target["2"], stores["dense"].read("2", [COUNT - 1])[0][0])
    assert len(list(joined)) == COUNT  # iteration ends by IndexError


def test_joining_the_wrong_data_set_is_refused(stores: dict[str, frpt.TargetStore]) -> None:
    store = stores["dense"]
    with pytest.raises(StoreMismatchError, match="72 samples, the data set has 71"):
        frpt.TargetDataset(data()[1:], store, "0")
    with pytest.raises(StoreMismatchError, match="no layer '4'"):
        frpt.TargetDataset(data(), store, "4")
    relabelled = [(x, (y + 1) % 4) for x, y in data()]
    with pytest.raises(StoreMismatchError, match="label of sample 25 is another"):
        frpt.TargetDataset(relabelled, store, "0")
    with pytest.raises(StoreMismatchError, match="inputs of sample 25 are others"):
        frpt.TargetDataset([(x + 1, y) for x, y in data()], store, "0")
    x, y = tensors().tensors
    y[40] = (y[40] + 1) % 4
    with pytest.raises(StoreMismatchError, match="labels of samples 25 to 49"):
        frpt.TargetDataset(TensorDataset(x, y), store, "0")


def tensors() -> TensorDataset:
    """The samples as two tensors."""
    return TensorDataset(torch.stack([x for x, _ in data()]), torch.tensor([y for _, y in data()]))


class Augmented(list[Any]):
    """Samples whose inputs are others at every look."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.01 * torch.randn(6), y


def test_inputs_are_compared_where_they_stay_what_they_are(stores: dict[str, frpt.TargetStore]) -> None:
    state = torch.get_rng_state()
    frpt.TargetDataset(Augmented(data()), stores["dense"], "0")
    assert torch.equal(torch.get_rng_state(), state)
    texts = [(f"text {i}", y) for i, (_, y) in enumerate(data())]
    frpt.TargetDataset(texts, stores["dense"], "0")  # what a loader's collate_fn makes of them is not known here


@pytest.mark.parametrize("rank", [0, 1], ids=["its own shards", "those of another"])
def test_going_on_with_other_labels_or_inputs_is_refused(rev: frpt.Reverser, tmp_path: Path, rank: int) -> None:
    x, y = tensors().tensors
    options: dict[str, Any] = {"mode": "dense", "world": 2, **QUIET}
    frpt.write_targets(rev, tensors(), "0", tmp_path, rank=0, **options)
    before = contents(tmp_path)
    relabelled, moved = y.clone(), x.clone()
    relabelled[60], moved[50] = (y[60] + 1) % 4, x[50] + 1
    with pytest.raises(StoreMismatchError, match="labels of samples 50 to 71"):
        frpt.write_targets(rev, TensorDataset(x, relabelled), "0", tmp_path, rank=rank, **options)
    with pytest.raises(StoreMismatchError, match="inputs of sample 50"):
        frpt.write_targets(rev, TensorDataset(moved, y), "0", tmp_path, rank=rank, **options)
    assert contents(tmp_path) == before


def test_writers_at_once_with_different_labels_make_no_store(
    rev: frpt.Reverser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = tensors().tensors
    options: dict[str, Any] = {"mode": "dense", "world": 2, **QUIET}
    shards = write.write_shards

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(write, "write_shards", shards)
        frpt.write_targets(rev, TensorDataset(x, (y + 1) % 4), "0", tmp_path, rank=0, **options)
        return shards(*given)

    monkeypatch.setattr(write, "write_shards", meanwhile)
    with pytest.raises(StoreMismatchError, match="labels of samples 0 to 24"):
        frpt.write_targets(rev, tensors(), "0", tmp_path, rank=1, **options)
    assert not frpt.TargetStore(tmp_path, partial=True).complete


def test_what_is_no_store_or_an_unfinished_one_is_refused(rev: frpt.Reverser, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a target store"):
        frpt.TargetStore(tmp_path / "nothing")
    frpt.write_targets(rev, data(), "0", tmp_path, rank=0, world=2, **QUIET)
    with pytest.raises(StoreError, match="incomplete: 2 of 3 shards"):
        frpt.TargetStore(tmp_path)
    waiting = frpt.TargetStore(tmp_path, partial=True)
    with pytest.raises(StoreError, match="incomplete"):
        waiting.read("0", [0])
    assert not waiting.complete
    frpt.write_targets(rev, data(), "0", tmp_path, rank=1, world=2, **QUIET)
    assert waiting.read("0", [0])[0].shape == (1, 16)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(StoreError, match="format version 2, this frpt reads 1"):
        frpt.TargetStore(tmp_path)


def test_writing_leaves_the_model_and_the_random_numbers_alone(tmp_path: Path) -> None:
    net, items = model(), data()
    state, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    frpt.write_targets(reverser(net), items, "0", tmp_path, **QUIET)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_the_progress_bar_says_how_it_goes(
    rev: frpt.Reverser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frpt.write_targets(rev, data(), "0", tmp_path, batch_size=4, shard_size=20)
    shown = capsys.readouterr().err
    assert re.fullmatch(r"targets: 72 samples in .* s, .*samples/s, .* % corrected, deviation [\d.e-]+\n", shown)
