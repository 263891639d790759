"""post_train: the matched reference bit for bit, what is trained on, what is measured, what is refused."""

from __future__ import annotations

import csv
import inspect
import json
import random
import threading
import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import frpt
from frpt.errors import (
    DataError,
    FrptError,
    InputError,
    LabelError,
    NonFiniteError,
    OptionError,
    PartialError,
    StoreError,
)
from frpt.reverser import ReverserOptions
from frpt.train.batches import order
from frpt.train.metrics import accuracy, metric_of
from frpt.train.result import RunLog
from frpt.train.training import ShortOptions, TrainingOptions
from tests.models import Outputs, Planner
from tests.train.toys import Mixed, blobs, network, parameters, reverser

AT = "3"


def train(
    model: nn.Module | frpt.Reverser | None = None, data: Any = None, at: str = AT, **options: Any
) -> frpt.Result:
    options = {"epochs": 2, "batch_size": 20, "progress": False, "lr": 1e-2, **options}
    if model is None:
        model = network() if options.get("targets") == "online" else reverser()
    return frpt.post_train(model, blobs() if data is None else data, at, **options)


@pytest.mark.parametrize("at", ["3", "6"])
def test_without_strength_it_is_plain_adamw_bit_for_bit(at: str) -> None:
    data, model = blobs(), network()
    x, y = data.tensors
    trained = list(model[: int(at) + 1].parameters())
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=5e-2)
    for epoch in range(2):
        for rows in torch.tensor(order(len(data), 11, epoch)).split(20):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    assert torch.equal(parameters(train(at=at, c_rec=0, seed=11).model), parameters(model))


def test_the_frozen_part_follows_train_where_it_is_asked_to() -> None:
    torch.manual_seed(0)
    model = Mixed().eval()
    data = TensorDataset(torch.randn(40, 6), torch.arange(40) % 4)
    apart, whole = (
        train(model, data, "body", c_rec=0, whole_train=choice).model for choice in (False, True)
    )  # fmt: skip
    assert torch.equal(apart.tail[0].running_mean, model.tail[0].running_mean)
    assert not torch.equal(whole.tail[0].running_mean, model.tail[0].running_mean)
    assert torch.equal(whole.head.weight, model.head.weight)
    assert not whole.training
    with pytest.raises(OptionError, match="whole_train"):
        frpt.Training(whole_train=1)  # type: ignore[arg-type]


def test_the_loss_is_task_plus_weighted_distance_to_the_reconstruction() -> None:
    data, model, start = blobs(), network(), network()
    x, y = data.tensors
    target = frpt.Reverser(start, x).reconstruct(x, y, at=AT).target
    optimizer = torch.optim.AdamW(model[:4].parameters(), lr=1e-2, weight_decay=5e-2)
    balance = frpt.LossBalance(0.7)
    for epoch in range(2):
        for rows in torch.tensor(order(len(data), 0, epoch)).split(20):
            feature = model[:4](x[rows])
            task = F.cross_entropy(model[4:](feature), y[rows])
            optimizer.zero_grad()
            balance(task, F.mse_loss(feature, target[rows])).backward()
            optimizer.step()
    result = train(c_rec=0.7)
    assert torch.allclose(parameters(result.model), parameters(model), atol=1e-5)
    assert result.targets == "offline"
    assert not torch.allclose(parameters(result.model), parameters(train(c_rec=0).model), atol=1e-3)


def test_dense_and_delta_stores_and_the_ones_written_on_the_way_agree(tmp_path: Path) -> None:
    rev, data = reverser(), blobs()
    written = [frpt.write_targets(rev, data, AT, tmp_path / m, mode=m, progress=False) for m in ("dense", "delta")]  # type: ignore[arg-type]
    assert 0 < int(written[1].corrected.sum()) < len(data)
    found = [parameters(train(targets=t).model) for t in (*written, str(tmp_path / "dense"))]
    kept = train(store=tmp_path / "kept")
    for other in [*found[1:], parameters(kept.model)]:
        assert torch.allclose(other, found[0], atol=1e-5)
    assert frpt.TargetStore(tmp_path / "kept").count == len(data)


def test_anchors_are_the_starting_models_features_and_need_no_labels_to_be_right() -> None:
    data = blobs()
    still = train(targets="anchor", c_rec=1.0, epochs=1, batch_size=48)
    assert still.history[0].rec_loss == 0
    assert still.history[0].weight == 10
    assert still.history[0].distance == 0
    wrong = TensorDataset(data.tensors[0], (data.tensors[1] + 1) % 4)
    free, held = (train(data=wrong, targets="anchor", c_rec=c, epochs=6) for c in (0.01, 1.0))
    assert held.last.rec_loss is not None
    assert held.last.rec_loss < free.last.rec_loss  # type: ignore[operator]


def test_online_targets_come_from_the_feature_of_the_step() -> None:
    data, model = blobs(), network()
    x, y = data.tensors
    optimizer = torch.optim.AdamW(model[:4].parameters(), lr=1e-2, weight_decay=5e-2)
    balance = frpt.LossBalance(0.5)
    rev = frpt.Reverser(model, x[:2], preset="online", margin=0.2)
    for step, rows in enumerate(torch.tensor(order(len(data), 0, 0)).split(20)):
        feature = model[:4](x[rows])
        task = F.cross_entropy(model[4:](feature), y[rows])
        loss = task
        if step % 2 == 0:
            target = rev.reconstruct_from(x[rows], y[rows], AT, feature).target
            loss = balance(task, F.mse_loss(feature, target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    result = train(targets="online", c_rec=0.5, epochs=1, every=2, margin=0.2)
    assert result.last.closed is not None
    assert 0 < result.last.closed <= 1
    assert torch.equal(parameters(result.model), parameters(model))


class Noisy(Dataset[tuple[Tensor, int]]):
    """Random augmentation, by all three generators."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x, y = blobs()[i]
        return x + 0.1 * torch.randn(6) + 0.1 * float(np.random.rand()) + 0.1 * random.random(), int(y)


def test_augmented_data_work_online_and_are_refused_offline() -> None:
    first, again = (train(data=Noisy(), targets="online", val=blobs(20, 1)) for _ in range(2))
    assert torch.equal(parameters(first.model), parameters(again.model))
    workers = train(data=Noisy(), targets="online", workers=1, epochs=1)
    assert torch.equal(parameters(workers.model), parameters(train(data=Noisy(), targets="online", epochs=1).model))
    with pytest.raises(DataError, match="online"):
        train(data=Noisy())


def test_the_model_the_frozen_part_and_the_random_state_stay() -> None:
    model, (x, y) = Mixed().train(), blobs().tensors
    model.tail.eval()
    before = parameters(model).clone(), [m.training for m in model.modules()], torch.get_rng_state()
    flags = [p.requires_grad for p in model.parameters()]
    result = train(model, TensorDataset(x, y), "body", targets="anchor", val=blobs(20, 1), batch_norm="train")
    assert torch.equal(parameters(model), before[0])
    assert [m.training for m in model.modules()] == before[1] == [m.training for m in result.model.modules()]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert (
        [p.requires_grad for p in model.parameters()] == flags == [p.requires_grad for p in result.model.parameters()]
    )
    assert not any("train" in m.__dict__ or m._forward_hooks for m in (*model.modules(), *result.model.modules()))
    for name, value in result.model.state_dict().items():
        same = torch.equal(value, model.state_dict()[name])
        assert same == name.startswith(("tail", "head")), name


def test_what_is_measured(tmp_path: Path) -> None:
    data, val, start = blobs(), blobs(40, seed=3), network()
    result = train(data=data, val=val, epochs=3, log_dir=tmp_path)
    x, y = val.tensors
    right = [(m(x).argmax(1) == y) for m in (start, result.model)]
    assert result.start == pytest.approx(float(right[0].float().mean()))
    assert result.last.metric == pytest.approx(float(right[1].float().mean()))
    assert result.last.fixed == int((right[1] & ~right[0]).sum())
    assert result.last.broken == int((right[0] & ~right[1]).sum())
    assert result.best.metric == max(row.metric for row in result.history)  # type: ignore[type-var]
    frame = result.to_pandas()
    assert list(frame["epoch"]) == [1, 2, 3]
    assert frame["weight"].between(1e-5, 10).all()
    with (tmp_path / "epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(r["task_loss"]) for r in rows] == [r.task_loss for r in result.history]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
    assert len(str(result).splitlines()) == 6 + result.at_bound
    assert len(repr(result).splitlines()) == 1
    assert result._repr_html_().count("<tr>") == 4


def test_a_weight_at_its_bound_is_said_and_makes_larger_strengths_equal() -> None:
    half, full = (train(targets="anchor", c_rec=c, lr=1e-5) for c in (0.5, 1.0))
    assert half.at_bound
    assert full.at_bound
    assert all(torch.equal(a, b) for a, b in zip(half.model.parameters(), full.model.parameters(), strict=True))
    assert "lambda was at its upper bound of 10 in every step" in str(half)
    plain = train(c_rec=0)
    assert not plain.at_bound
    assert "bound" not in str(plain)


def test_results_are_saved_without_pickle(tmp_path: Path) -> None:
    result = train(c_rec=0, val=blobs(20, 1))
    result.save(tmp_path / "run")
    again = network()
    again.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert torch.equal(parameters(again), parameters(result.model))
    summary = json.loads((tmp_path / "run" / "result.json").read_text())
    assert summary["history"][1]["metric"] == result.last.metric
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["model.safetensors", "result.json"]
    with pytest.raises(StoreError, match="could not be written"):
        result.save(tmp_path / "run" / "result.json")


def test_regression_with_keyword_inputs() -> None:
    torch.manual_seed(0)
    model = Planner().eval()
    items = [({"image": torch.randn(3, 8, 8), "status": torch.randn(4)}, torch.randn(8, 3)) for _ in range(12)]
    result = train(model, items, "backbone", batch_size=5, val=items[:6], metric="ade", epochs=1)
    batch = torch.utils.data.default_collate(items[:6])
    with torch.no_grad():
        away = (result.model(**batch[0]) - batch[1])[..., :2].norm(dim=-1)
    assert result.last.metric == pytest.approx(float(away.mean()), rel=1e-5)
    assert not result.higher
    assert metric_of("fde", batch[1]).values(result.model(**batch[0]), batch[1])[0].tolist() == pytest.approx(
        away[:, -1].tolist(), rel=1e-5
    )
    assert train(model, items, "backbone", val=items, c_rec=0, epochs=1).metric == "mse"


def test_replaced_parts() -> None:
    def hinge(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.multi_margin_loss(outputs, labels)

    def share(outputs: Tensor, labels: Tensor) -> float:
        return float((outputs.argmax(1) == labels).float().mean())

    rates: list[float] = []

    def schedule(optimizer: torch.optim.Optimizer, steps: int) -> Any:
        assert steps == 6
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates.append(0.5**step) or 0.5**step)  # type: ignore[func-returns-value]

    model = Outputs("scores").eval()
    result = train(
        model, at="body", output="scores", c_rec=0, task_loss=hinge, metric=share, val=blobs(40, 3),
        optimizer=lambda p: torch.optim.SGD(p, 0.1), schedule=schedule,
    )  # fmt: skip
    assert len(rates) == 7
    assert result.metric == "share"
    assert result.last.fixed is None
    x, y = blobs(40, 3).tensors
    assert result.last.metric == pytest.approx(share(result.model(x)["scores"], y), abs=1e-6)


def test_top_k_and_labels_per_position() -> None:
    outputs = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    labels = torch.tensor([1, 0])
    assert accuracy(outputs, labels, 2).tolist() == [1, 0]
    tokens = torch.randn(2, 5, 3)
    wanted = tokens.argmax(-1)
    wanted[0, 0] = (wanted[0, 0] + 1) % 3
    wanted[0, 1] = -100
    assert accuracy(tokens, wanted).tolist() == [0.75, 1]


def test_a_small_epoch_and_a_batch_of_one() -> None:
    result = train(data=blobs(21), batch_size=20, val=blobs(3, 2))
    assert result.last.samples_per_second > 0


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(blobs())


REFUSED = [
    ({"c_rec": 1.2}, OptionError, "c_rec"),
    ({"c_rec": -1}, OptionError, "c_rec"),
    ({"epochs": 0}, OptionError, "epochs"),
    ({"metric": "f1"}, OptionError, "top<k>"),
    ({"targets": "onlin"}, OptionError, "no target store"),
    ({"data": Stream()}, InputError, "map-style"),
    ({"data": torch.utils.data.DataLoader(Stream())}, InputError, "DataLoader over a stream"),
    ({"data": TensorDataset(torch.randn(4, 6))}, InputError, "pair"),
    ({"data": []}, InputError, "empty"),
    ({"val": Stream()}, InputError, "validation set"),
    ({"val": TensorDataset(torch.randn(4, 6), torch.tensor([0, 1, 4, 9]))}, LabelError, r"validation set.*\[4, 9\]"),
    ({"data": TensorDataset(torch.randn(4, 6), torch.tensor([0, 1, 4, 9])), "c_rec": 0}, LabelError, r"\[4, 9\]"),
    ({"at": "4/linear"}, FrptError, "4"),
    ({"lr": 1e20, "c_rec": 0, "epochs": 9}, NonFiniteError, "Lower the learning rate"),
    ({"optimizer": 3}, OptionError, "optimizer must be a function"),
    ({"task_loss": partial(F.cross_entropy, reduction="none")}, OptionError, r"task_loss= returned the shape \(\d+,\)"),
    ({"task_loss": lambda outputs, labels: 1.0}, OptionError, "task_loss= returned a float"),
    ({"task_loss": lambda outputs, labels: None}, OptionError, "task_loss= returned a NoneType"),
    ({"task_loss": lambda outputs, labels: torch.tensor(1.0)}, OptionError, "a number without a gradient"),
    ({"metric": lambda outputs, labels: None, "val": blobs(8)}, OptionError, "returned a NoneType"),
    ({"metric": lambda outputs, labels: float("nan"), "val": blobs(8)}, NonFiniteError, "is NaN for 1 of 1 values"),
    ({"precision": "foo"}, OptionError, "lightning-fabric refuses .*'foo'"),
    ({"accelerator": "foo"}, OptionError, "lightning-fabric refuses accelerator='foo'"),
    ({"devices": 0}, OptionError, "devices must be a whole number of at least 1"),
    ({"targets": 5}, OptionError, "targets='5' is no target store"),
    ({"optimizer": torch.optim.LBFGS}, OptionError, "LBFGS, whose step.. needs a closure"),
    (
        {"val": TensorDataset(torch.randn(4, 5), torch.arange(4))},
        InputError,
        r"samples of the validation set, \(4, 5\)",
    ),
    ({"log_dir": __file__}, StoreError, "no directory"),
    ({"store": __file__}, StoreError, "no directory"),
    ({"partial": __file__}, PartialError, "no directory"),
    ({"lr": float("inf")}, OptionError, "lr must be a finite number"),
    ({"weight_decay": float("nan")}, OptionError, "weight_decay must be a finite number"),
]


@pytest.mark.parametrize(("options", "kind", "words"), REFUSED)
def test_bad_input_is_refused_with_a_reason(
    options: dict[str, Any], kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "c_rec" not in options:
        monkeypatch.setattr("frpt.train.prepare.write_targets", lambda *_, **__: pytest.fail("targets were written"))
    with pytest.raises(kind, match=words):
        train(**options)
    model = reverser().model
    assert torch.equal(parameters(model), parameters(network()))
    assert not any(m._forward_hooks for m in model.modules())


def test_a_loss_is_tried_without_being_called_itself() -> None:
    class Counts:
        calls = 0

        def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
            self.calls += 1
            return F.cross_entropy(outputs, labels)

    loss = Counts()
    train(task_loss=loss, epochs=1)
    assert loss.calls == 3
    with pytest.raises(OptionError, match="task_loss= returned a float"):
        train(task_loss=lambda outputs, labels: 1.0, c_rec=0)


def test_weights_that_the_last_step_breaks_are_not_returned_and_not_saved(tmp_path: Path) -> None:
    def breaks(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels) + (outputs - outputs.detach()).sum().sqrt()  # its gradient is infinite

    options: dict[str, Any] = {"c_rec": 0, "batch_size": 48, "epochs": 1, "partial": tmp_path}
    for val in (None, blobs(20, 1)):
        with pytest.raises(NonFiniteError, match=r"'0\.weight' holds NaN or infinity in epoch 1, after step 1"):
            train(task_loss=breaks, val=val, **options)
    with pytest.raises(NonFiniteError, match="after step 1"):
        train(task_loss=breaks, **{**options, "batch_size": 20, "partial_steps": 1})
    assert not list(tmp_path.glob("state-*"))


def test_a_reverser_of_ones_own_says_it_all() -> None:
    rev = frpt.Reverser(network(), blobs()[:2][0], margin=0.5)
    own = train(rev, epochs=1)
    assert torch.equal(parameters(own.model), parameters(train(network(), margin=0.5, epochs=1).model))
    with pytest.raises(OptionError, match="belong to the Reverser"):
        train(rev, margin=0.5)


def test_options_are_the_fields_of_training_and_of_the_reverser() -> None:
    assert list(TrainingOptions.__annotations__) == [f.name for f in fields(frpt.Training)]
    made_by = set(inspect.signature(frpt.Reverser).parameters) - {"model", "example_inputs", "kwargs"}
    assert set(ReverserOptions.__annotations__) == made_by
    own = set(inspect.signature(frpt.post_train).parameters)
    assert not own & set(ShortOptions.__annotations__)
    training = frpt.Training(epochs=1, batch_size=20, lr=1e-2)
    whole = frpt.post_train(reverser(), blobs(), AT, targets="anchor", training=training, progress=False)
    assert torch.equal(parameters(whole.model), parameters(train(targets="anchor", epochs=1).model))
    replaced = train(targets="anchor", training=frpt.Training(epochs=7), epochs=1)
    assert torch.equal(parameters(whole.model), parameters(replaced.model))


@pytest.mark.parametrize(
    ("name", "nearest"), [("epoch", "'epochs'"), ("margins", "'margin'"), ("batchsize", "batch_size")]
)
def test_unknown_options_are_refused_with_the_nearest_known(name: str, nearest: str) -> None:
    for call in (frpt.post_train, frpt.compare):
        with pytest.raises(OptionError, match=nearest):
            call(network(), blobs(), AT, val=blobs(), **{name: 1})
    with pytest.raises(OptionError, match="'preset'"):
        frpt.diagnose(network(), blobs(), pre_set="paper")
    with pytest.raises(OptionError, match=r"frpt\.Training"):
        frpt.post_train(network(), blobs(), AT, training={"epochs": 3})


def test_a_layer_may_be_given_as_its_module() -> None:
    model = network()
    result = train(model, at=model[3], c_rec=0, epochs=1)
    assert result.at == AT
    with frpt.FeatureTap(model, model[3]) as tap:
        model(blobs(2).tensors[0])
        assert torch.equal(tap[AT], tap.value)


def test_a_store_of_another_model_is_refused(tmp_path: Path) -> None:
    rev = reverser()
    frpt.write_targets(rev, blobs(), AT, tmp_path, progress=False)
    other = network()
    with torch.no_grad():
        other[0].weight[0, 0] += 1
    with pytest.raises(frpt.errors.StoreMismatchError, match=r"0\.weight"):
        train(other, targets=tmp_path)
    with pytest.raises(frpt.errors.StoreMismatchError, match="48 samples"):
        train(data=blobs(40), targets=tmp_path)


def test_a_store_of_other_labels_or_inputs_is_refused(tmp_path: Path) -> None:
    frpt.write_targets(reverser(), blobs(), AT, tmp_path, progress=False)
    x, y = blobs().tensors
    others = y.clone()
    others[1] = (y[1] + 1) % 4
    for data, words in (((x, others), "labels of samples 0 to"), ((x + 1, y), "inputs of sample 0")):
        with pytest.raises(frpt.errors.StoreMismatchError, match=words):
            train(data=TensorDataset(*data), targets=tmp_path)
        with pytest.raises(frpt.errors.StoreMismatchError, match=words):
            frpt.compare(network(), data, AT, targets=tmp_path, val=blobs(20, 1), epochs=1, progress=False)
    assert train(data=Noisy(), targets=tmp_path, epochs=1).last.rec_loss  # augmented: only labels are compared


def test_logs_that_hang_are_not_waited_for_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's queue, interrupted while it is locked, would wait without end."""

    class Board:
        closed = threading.Event()

        def close(self) -> None:
            self.closed.wait(60)

    monkeypatch.setattr("frpt.train.result._CLOSING", 0.2)
    log = RunLog("run", 1, 8, tmp_path, False, True)
    log.__enter__()
    log._board = Board()
    begun = time.monotonic()
    log.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert time.monotonic() - begun < 10
    Board.closed.set()


def test_nan_in_the_validation_set_is_its_own() -> None:
    (x, y), before = blobs(40, 3).tensors, torch.get_rng_state()
    dirty = TensorDataset(x.index_put((torch.tensor(39), torch.tensor(2)), torch.tensor(torch.nan)), y)
    with pytest.raises(NonFiniteError, match=r"validation set \(val=\): input tensor 0 holds 1 NaN"):
        train(val=dirty, targets="anchor")
    numbers = TensorDataset(x, torch.full((40, 4), torch.inf))
    with pytest.raises(NonFiniteError, match=r"labels of the validation set \(val=\) hold NaN or infinity"):
        train(data=TensorDataset(*blobs().tensors[:1], torch.zeros(48, 4)), val=numbers, targets="anchor")
    with pytest.raises(NonFiniteError, match="the data set: input tensor 0 holds 1 NaN"):
        train(data=dirty, targets="anchor", c_rec=0)
    assert torch.equal(before, torch.get_rng_state())


def one_argument(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ConstantLR(optimizer)


def test_functions_that_cannot_be_called_as_they_will_be() -> None:
    schedule: Any = one_argument
    with pytest.raises(OptionError, match=r"schedule= is called with \(optimizer, steps\), and one_argument\(optim"):
        frpt.Training(schedule=schedule)
    loss: Any = lambda outputs: outputs.mean()  # noqa: E731
    with pytest.raises(OptionError, match=r"task_loss= is called with \(outputs, labels\)"):
        train(task_loss=loss)
    with pytest.raises(OptionError, match=r"schedule= returned a NoneType, which has no step\(\)"):
        train(schedule=lambda optimizer, steps: None)
    frpt.Training(
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR, task_loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    )


def test_float16_is_named() -> None:
    x, y = blobs().tensors
    model, data = network().half(), TensorDataset(x.half(), y)
    for options in ({"targets": "anchor"}, {"c_rec": 0}, {}):
        with pytest.raises(OptionError, match=r"weights to train are float16.*model\.float\(\)"):
            train(model, data, **options)
    with pytest.raises(OptionError, match="weights to train are float16"):
        frpt.compare(model, data, AT, val=data, seeds=[0], progress=False)
    with pytest.raises(NonFiniteError, match=r"diverged\. The weights that are trained are float16"):
        train(model, data, targets="anchor", optimizer=lambda p: torch.optim.AdamW(p, 1e-2), epochs=9)
    slow = train(model, data, targets="anchor", optimizer=lambda p: torch.optim.SGD(p, 1e-2))
    assert 0 < slow.last.task_loss < 9
    assert train(network().bfloat16(), TensorDataset(x.bfloat16(), y), targets="anchor").last.task_loss < 9


def test_a_loss_that_wants_whole_batches_is_given_them() -> None:
    """The trial before targets are written has a few samples; what the loss makes of them is no reason to refuse it."""
    sizes: list[int] = []

    def hardest(out: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(out, y, reduction="none").topk(16).values
        sizes.append(len(out))
        return each.mean()

    frpt.post_train(
        network(), blobs(64), "1", epochs=1, batch_size=32, task_loss=hardest,
        progress=False,
    )  # fmt: skip
    assert sizes == [32, 32]
