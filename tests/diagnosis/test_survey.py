"""diagnose() against plain loops, on planted faults, interrupted, and on everything that is not a plain classifier."""

from __future__ import annotations

import copy
import dataclasses
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import frpt
from frpt.data.digits import digits
from frpt.diagnosis.examination import Examination
from frpt.errors import OptionError
from frpt.options import PRESETS
from frpt.train.metrics import accuracy
from tests.train.toys import blobs, network

LAYERS = ["stage2", "stage1"]


def fitted(model: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], steps: int = 300) -> None:
    """Trained with a rate that falls to zero."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    model.eval()


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """The MNIST SimpleCNN at rest on digits, and digits it was trained on."""
    (x, y), _ = digits(0)
    torch.manual_seed(0)
    model = frpt.zoo.simple_cnn("mnist")
    fitted(model, x, y, F.cross_entropy, steps=500)
    return model, x, y


@pytest.fixture(scope="module")
def found(trained: tuple[nn.Module, Tensor, Tensor]) -> frpt.Diagnosis:
    model, x, y = trained
    return frpt.diagnose(model, TensorDataset(x[:400], y[:400]), LAYERS, margin=0.1, gallery=6, pairs=3, progress=False)


def plain_reverser(model: nn.Module, x: Tensor, y: Tensor) -> frpt.Reverser:
    """With the reference that a diagnosis fits by itself."""
    reference = frpt.Reference.fit(model, TensorDataset(x, y), at=["stage2", "stage1"], progress=False)
    return frpt.Reverser(model, x[:8], margin=0.1, reference=reference)


def alive() -> tuple[int, int]:
    """How many tensors there are, and the bytes they hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what else is in memory may be deprecated
        tensors = [o for o in gc.get_objects() if type(o) is Tensor]
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
    return len(tensors), sum(storages.values())


def test_nothing_of_a_batch_stays_in_memory(
    trained: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = trained
    seen, add = [], Examination._add

    def counting(self: Examination, *batch: Any) -> None:
        add(self, *batch)
        seen.append(alive())

    monkeypatch.setattr(Examination, "_add", counting)
    gc.disable()  # nothing may wait for the collector
    try:
        data = TensorDataset(x[:400], y[:400])
        frpt.diagnose(model, data, LAYERS, margin=0.1, batch_size=50, gallery=0, progress=False)
    finally:
        gc.enable()
    assert len(seen) == 8
    assert len(set(seen[1:])) == 1, seen


def test_numbers_are_those_of_a_plain_loop(trained: tuple[nn.Module, Tensor, Tensor], found: frpt.Diagnosis) -> None:
    model, x, y = (trained[0], trained[1][:400], trained[2][:400])
    rev = plain_reverser(model, x, y)
    with torch.no_grad():
        predicted = model(x).argmax(1)
    assert [f.name for f in found.layers] == ["out", "stage2", "stage1"]
    assert found.score == pytest.approx(float((predicted == y).float().mean()))
    assert found.confusion.sum() == 400
    assert found.confusion[3, 5] == int(((y == 3) & (predicted == 5)).sum())
    np.testing.assert_array_equal(found.samples.index, np.arange(400))
    for i, f in enumerate(found.layers):
        rec = rev.reconstruct(x, y, at=f.name)
        wrong = rec.corrected
        moved = (rec.target - rec.anchor)[wrong].double()
        away = moved.flatten(1).norm(dim=1) / rec.anchor[wrong].double().flatten(1).norm(dim=1)
        assert f.deviation == pytest.approx(float(away.mean()), rel=1e-3)
        np.testing.assert_allclose(found.samples.deviation[wrong.numpy(), i], away.numpy(), rtol=2e-2, atol=1e-5)
        power = moved.square().reshape(len(moved), moved.shape[1], -1)
        power = power / power.sum((1, 2), keepdim=True)
        np.testing.assert_allclose(f.channels, power.sum(2).mean(0).numpy(), atol=1e-3)
        assert f.wins == 1.0 == float(rec.wins.double().mean())
        if rec.reference_deviation is not None:
            assert f.reference_deviation == pytest.approx(float(rec.reference_deviation[wrong].mean()), rel=1e-3)
        if f.kind == "map":
            np.testing.assert_allclose(f.positions, power.sum(1).mean(0).reshape(f.positions.shape), atol=1e-3)
        for c in range(10):
            mine = y[wrong] == c
            if bool(mine.any()):
                assert f.by_class[c] == pytest.approx(float(away[mine].mean()), rel=1e-2)
                np.testing.assert_allclose(f.channels_by_class[c], power[mine].sum(2).mean(0).numpy(), atol=2e-3)
            else:
                assert np.isnan(f.by_class[c])


def test_pairs_and_gallery_are_the_samples_they_name(
    trained: tuple[nn.Module, Tensor, Tensor], found: frpt.Diagnosis
) -> None:
    model, x, y = trained
    off = found.confusion - np.diag(np.diag(found.confusion))
    first = found.pairs[0]
    assert first.count == off.max() == off[first.label, first.predicted]
    own = (found.samples.label == first.label) & (found.samples.predicted == first.predicted)
    assert first.deviation["stage1"] == pytest.approx(float(found.samples.deviation[own, 2].mean()))
    rev = plain_reverser(model, x[:400], y[:400])
    rec = rev.reconstruct(x[:400][own], y[:400][own], at="stage1")
    power = (rec.target - rec.anchor).double().square().sum((2, 3))
    expected = (power / power.sum(1, keepdim=True)).mean(0).numpy()
    np.testing.assert_allclose(first.channels["stage1"], expected, atol=2e-3)
    assert len(found.gallery) == 6
    assert len({s.label for s in found.gallery}) >= 5, "class by class in turn"
    for s in found.gallery:
        assert found.samples.corrected[s.index]
        assert s.label == int(y[s.index])
        assert s.image is not None
        assert s.image.shape == (28, 28, 3)
        assert set(s.responses) == {"out", "stage2", "stage1"}
        assert s.responses["stage1"].forward.shape == (12, 12)
        assert s.responses["out"].kind == "vector"


def test_without_a_reference_the_answer_is_the_least_change(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = trained
    some = TensorDataset(x[:200], y[:200])
    plain = frpt.diagnose(model, some, LAYERS, reference=False, gallery=0, pairs=0, progress=False)
    own = frpt.diagnose(model, some, LAYERS, gallery=0, pairs=0, progress=False)
    for a, b in zip(plain.layers[1:], own.layers[1:], strict=True):
        assert np.isnan(a.reference_deviation)
        assert np.isfinite(b.reference_deviation)
        assert a.deviation < b.deviation
        assert a.wins == b.wins == 1.0
        assert 0 < b.sensitivity < 1


@pytest.fixture(scope="module")
def walked(trained: tuple[nn.Module, Tensor, Tensor]) -> frpt.Diagnosis:
    """By the paper's preset, which makes its targets op by op; the rules and blocks of the default."""
    model, x, y = trained
    paper = dataclasses.replace(PRESETS["default"], nearest=None)
    data = TensorDataset(x[:400], y[:400])
    return frpt.diagnose(model, data, LAYERS, preset=paper, margin=0.1, gallery=0, pairs=0, progress=False)


def test_units_say_how_far_the_way_back_can_be_trusted(walked: frpt.Diagnosis) -> None:
    assert [u.op for u in walked.units] == ["linear", "view", "max_pool2d", "relu", "conv2d"]
    assert [u.layer for u in walked.units] == ["", "stage2", "", "", "stage1"]
    assert all(u.rho > 0 and u.bound >= u.epsilon >= 0 for u in walked.units)
    view = walked.units[1]
    assert view.rho == pytest.approx(1, rel=1e-3)
    assert walked.units[0].sigma_max >= walked.units[0].sigma_min > 0


def test_no_walk_is_made_for_an_answer_that_is_not_made_by_it(found: frpt.Diagnosis, tmp_path: Path) -> None:
    assert found.units == ()
    assert found.advice.layers[0] == "stage2"
    assert "op by op" not in found.to_html(tmp_path / "report.html").read_text()


def test_singular_values_are_those_of_the_maps(
    trained: tuple[nn.Module, Tensor, Tensor], walked: frpt.Diagnosis
) -> None:
    head = trained[0].get_submodule("classifier.1").weight.detach().double()
    values = torch.linalg.svdvals(head)
    assert walked.units[0].sigma_max == pytest.approx(float(values.max()), rel=1e-6)
    assert walked.units[0].sigma_min == pytest.approx(float(values.min()), rel=1e-6)
    kernel = trained[0].get_submodule("stage2.0").weight.detach().double()
    symbol = torch.fft.fft2(kernel, s=(12, 12)).permute(2, 3, 0, 1)
    largest = float(torch.linalg.svdvals(symbol).max())
    assert walked.units[4].sigma_max == pytest.approx(largest, rel=1e-6)


def plant(model: nn.Module, layer: str, g: torch.Generator) -> nn.Module:
    """The weights of one layer moved by noise of 0.7 times their own norm."""
    planted = copy.deepcopy(model)
    with torch.no_grad():
        for p in planted.get_submodule(layer).parameters():
            if p.dim() > 1:
                noise = torch.randn(p.shape, generator=g)
                p += 0.7 * p.norm() / noise.norm() * noise
    return planted


def test_a_planted_fault_is_named_first(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    """Its layer, or the one after it, in at least 9 of 10 random plants."""
    model, x, y = trained
    order, g = ["stage1", "stage2", "out"], torch.Generator().manual_seed(1)
    hits = 0
    for _ in range(10):
        place = int(torch.randint(3, (1,), generator=g))
        planted = plant(model, ["stage1", "stage2", "classifier"][place], g)
        d = frpt.diagnose(planted, TensorDataset(x[:600], y[:600]), LAYERS, gallery=0, progress=False)
        hits += order.index(d.ranking[0]) in (place, place + 1)
    assert hits >= 9


def test_a_sound_network_has_no_layer_that_stands_out(found: frpt.Diagnosis) -> None:
    assert max(f.fault for f in found.layers) < 0.1


def test_an_interrupted_diagnosis_goes_on(
    trained: tuple[nn.Module, Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = trained
    data = TensorDataset(x[:200], y[:200])
    whole = frpt.diagnose(model, data, LAYERS, gallery=0, batch_size=50, progress=False)
    add, file = Examination._add, tmp_path / "diagnosis"
    seen: list[int] = []

    def stops(self: Examination, part: list[int], *rest: object) -> None:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(len(part))
        add(self, part, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Examination, "_add", stops)
    with pytest.raises(KeyboardInterrupt):
        frpt.diagnose(model, data, LAYERS, gallery=0, batch_size=50, partial=file, progress=False)
    assert file.exists()
    seen.append(0)
    with pytest.raises(OptionError, match="another diagnosis; what differs: layers"):
        frpt.diagnose(model, data, ["stage2"], gallery=0, batch_size=50, partial=file, progress=False)
    later: list[int] = []
    monkeypatch.setattr(
        Examination, "_add", lambda self, part, *rest: (later.append(part[0]), add(self, part, *rest))[1]
    )
    again = frpt.diagnose(model, data, LAYERS, gallery=0, batch_size=50, partial=file, progress=False)
    assert later == [100, 150], "the first two batches are not looked at again"
    assert not file.exists()
    np.testing.assert_array_equal(again.samples.deviation, whole.samples.deviation)
    for a, b in zip(again.layers, whole.layers, strict=True):
        np.testing.assert_allclose(a.channels_by_class, b.channels_by_class, rtol=1e-12)
    assert str(again) == str(whole)


@pytest.mark.parametrize("whole", [True, False], ids=["tensors", "items"])
def test_an_interrupted_diagnosis_does_not_go_on_with_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    model, data, file = network(), blobs(), tmp_path / "diagnosis"
    x, y = data.tensors
    others, moved = y.clone(), x.clone()
    others[20], moved[20] = (y[20] + 1) % 4, x[20] + 1

    def diagnosed(x: Tensor, y: Tensor, net: nn.Module = model, **options: Any) -> frpt.Diagnosis:
        set_of = TensorDataset(x, y)
        data: Any = set_of if whole else [set_of[i] for i in range(len(set_of))]
        return frpt.diagnose(net, data, ["3"], gallery=0, batch_size=16, partial=file, progress=False, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Examination, "_add", interrupted(Examination._add))
        with pytest.raises(KeyboardInterrupt):
            diagnosed(x, y)
    for inputs, labels, words in ((x, others, "labels"), (moved, y, "samples"), (moved, others, "labels, samples")):
        with pytest.raises(OptionError, match=f"what differs: {words}[.]"):
            diagnosed(inputs, labels)
    smooth = nn.Sequential(*(nn.ELU() if isinstance(part, nn.ReLU) else part for part in model))
    with pytest.raises(OptionError, match=r"what differs: ops of the network[.]"):
        diagnosed(x, y, smooth)
    state = torch.get_rng_state()
    diagnosed(x, y, loss="mse")  # of the ranking, which comes after what is saved
    assert torch.equal(torch.get_rng_state(), state)
    assert not file.exists()


def interrupted(add: Callable[..., None]) -> Callable[..., None]:
    """The second time it is called."""
    calls: list[int] = []

    def stops(self: Examination, *batch: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        add(self, *batch)

    return stops


@pytest.mark.parametrize("stage", ["trust", "ranked", "gallery"])
def test_a_diagnosis_stopped_after_the_pass_does_not_repeat_it(
    stage: str, trained: tuple[nn.Module, Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = trained
    data, file = TensorDataset(x[:100], y[:100]), tmp_path / "diagnosis"
    whole = frpt.diagnose(model, data, LAYERS, gallery=2, progress=False)

    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Examination, stage, stops)
        with pytest.raises(KeyboardInterrupt):
            frpt.diagnose(model, data, LAYERS, gallery=2, partial=file, progress=False)
    assert file.exists()
    with monkeypatch.context() as patch:
        patch.setattr(Examination, "_add", stops)
        again = frpt.diagnose(model, data, LAYERS, gallery=2, partial=file, progress=False)
    assert str(again) == str(whole)
    assert not file.exists()


class Two(nn.Module):
    """An image and a vector in, a trajectory out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.side = nn.Conv2d(1, 4, 5, stride=3), nn.Linear(3, 8)
        self.mix, self.head = nn.Linear(4 * 8 * 8, 8), nn.Linear(8, 6)

    def forward(self, image: Tensor, status: Tensor) -> Tensor:
        z = self.mix(F.relu(self.conv(image)).flatten(1))
        return self.head(torch.tanh(z) * torch.sigmoid(self.side(status))).unflatten(1, (3, 2))


class Pairs(Dataset[tuple[tuple[Tensor, Tensor], Tensor]]):
    def __init__(self, count: int) -> None:
        g = torch.Generator().manual_seed(0)
        self.image, self.status = torch.randn(count, 1, 28, 28, generator=g), torch.randn(count, 3, generator=g)
        self.y = torch.randn(count, 3, 2, generator=g)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (self.image[i], self.status[i]), self.y[i]


def test_regression_with_two_inputs() -> None:
    torch.manual_seed(0)
    model, data = Two().eval(), Pairs(40)
    d = frpt.diagnose(model, data, ["mix", "conv"], gallery=3, progress=False)
    with torch.no_grad():
        error = (model(data.image, data.status) - data.y).square().mean()
    assert d.score_name == "mse"
    assert d.score == pytest.approx(float(error), rel=1e-5)
    assert d.class_names == ()
    assert d.pairs == ()
    assert d.samples.corrected.all()
    assert len(d.gallery) == 3
    assert "mse" in str(d)
    assert d.to_pandas("samples").shape[0] == 40


def test_ignored_labels_count_nowhere(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = trained
    some = y[:60].clone()
    some[::3] = -100
    d = frpt.diagnose(model, TensorDataset(x[:60], some), LAYERS, gallery=0, progress=False)
    with torch.no_grad():
        right = (model(x[:60]).argmax(1) == some)[some >= 0]
    assert d.confusion.sum() == 40
    assert d.score == pytest.approx(float(right.double().mean()))
    assert not d.samples.corrected[::3].any()


class PerPixel(nn.Module):
    """Scores for each of 3 classes at 3 places: which axis has the classes cannot be told."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x))).unflatten(1, (3, 3))


def test_labels_at_several_places_with_some_ignored() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 5), torch.randint(3, (40, 3))
    y[::5] = -100
    d = frpt.diagnose(PerPixel().eval(), TensorDataset(x, y), ["a"], class_dim=1, gallery=2, progress=False)
    assert d.score_name == "accuracy"
    assert not d.samples.corrected[::5].any()
    assert all(np.isfinite(f.fault) for f in d.layers)
    assert max(f.fault for f in d.layers) > 0, "an untrained network is far from rest"


def test_without_a_mistake_there_is_nothing_to_correct(
    trained: tuple[nn.Module, Tensor, Tensor], tmp_path: Path
) -> None:
    model, x, _ = trained
    with torch.no_grad():
        y = model(x[:60]).argmax(1)
    d = frpt.diagnose(model, TensorDataset(x[:60], y), LAYERS, progress=False)
    assert d.score == 1
    assert not d.samples.corrected.any()
    assert all(f.deviation == 0 for f in d.layers)
    assert d.gallery == ()
    assert "No sample needs a correction" in str(d)
    assert d.to_html(tmp_path / "report.html").stat().st_size > 0


def test_layers_are_found_and_samples_spread(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = trained
    d = frpt.diagnose(model, TensorDataset(x, y), samples=50, gallery=0, progress=False)
    assert [f.name for f in d.layers] == ["out", "stage2", "stage1"]
    assert [f.depth for f in d.layers] == sorted(f.depth for f in d.layers)
    assert len(d.samples) == 50
    assert d.samples.index[-1] == len(x) - 1


def test_the_model_is_left_alone(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    model = copy.deepcopy(trained[0]).train()
    before = copy.deepcopy(model.state_dict())
    keys = set(model.__dict__)
    frpt.diagnose(model, TensorDataset(trained[1][:40], trained[2][:40]), LAYERS, progress=False)
    assert model.training
    assert all(m.training for m in model.modules())
    assert set(model.__dict__) == keys
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"class_names": ["a", "b"]}, "one name for each class"),
        ({"at": ["stage1", "stage1"]}, "twice"),
        ({"gallery": -1}, "gallery"),
        ({"samples": 0}, "samples"),
        ({"layouts": {"stage1": "sideways"}}, "channels_first"),
        ({"layouts": {"stage7": "channels_last"}}, "stage7"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"std": [0.2, 0.0]}, "std must be finite and above 0"),
        ({"mean": float("nan")}, "mean must be finite"),
        ({"workers": -1}, "workers must be a whole number"),
    ],
)
def test_bad_options_are_named(
    trained: tuple[nn.Module, Tensor, Tensor], options: dict[str, object], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        frpt.diagnose(trained[0], TensorDataset(trained[1][:20], trained[2][:20]), progress=False, **options)  # type: ignore[arg-type]


def test_figures_and_tables_by_name(found: frpt.Diagnosis, tmp_path: Path) -> None:
    sample = found.gallery[0].index
    for figure, *of in (("deviation",), ("trust",), ("channels", "stage1"), ("responses", sample)):
        path = tmp_path / f"{figure}.png"
        found.plot(str(figure), *of, path=path)
        assert path.stat().st_size > 1000
    with pytest.raises(OptionError, match="deviation"):
        found.plot("deviations")
    with pytest.raises(OptionError, match="layer"):
        found.plot("channels")
    with pytest.raises(OptionError, match="layers"):
        found.to_pandas("layer")
    assert [p.name for p in found.to_csv(tmp_path / "csv")][:2] == ["layers.csv", "units.csv"]


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_tie_is_not_right_for_the_accuracy_as_for_the_label(outputs: int) -> None:
    """Where every class ties no label wins: all samples need a correction, and none is counted as right."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, outputs)).eval()
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.zero_()
    x, y = torch.randn(40, 3), torch.arange(40) % max(outputs, 2)
    d = frpt.diagnose(model, TensorDataset(x, y), ["0"], gallery=0, progress=False)
    assert d.samples.corrected.all()
    assert d.score == 0
    assert float(accuracy(model(x), y).sum()) == 0


def test_accuracy_without_ties_is_that_of_the_largest_score() -> None:
    g = torch.Generator().manual_seed(0)
    out, y = torch.randn(6, 5, 7, generator=g), torch.randint(-1, 5, (6, 7), generator=g)
    y[y < 0] = -100
    plain = torch.stack([(o.argmax(0) == label)[label >= 0].double().mean() for o, label in zip(out, y, strict=True)])
    torch.testing.assert_close(accuracy(out, y), plain)
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Conv1d(5, 5, 1)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(5)[:, :, None])
        model[1].bias.zero_()
    d = frpt.diagnose(model, TensorDataset(out, y), ["1"], gallery=0, reference=False, progress=False)
    assert d.score == pytest.approx(float(plain.mean()))
