"""Deviation along training against the same numbers worked out one by one; checkpoints that do not fit are refused."""

from __future__ import annotations

import math
import os
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import special
from torch import Tensor
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

import frpt
from frpt.diagnosis.trajectory import Correlation, Trajectory, along_training
from frpt.errors import CaptureError, CheckpointError, OptionError, UnknownLayerError
from tests.models import mlp
from tests.train.toys import blobs, layers, network

AT = ["out", "3"]
QUICK = {"batch_size": 12, "progress": False, "preset": "online"}


def states() -> list[dict[str, Tensor]]:
    """From random weights towards trained ones."""
    torch.manual_seed(3)
    start, end = layers().state_dict(), network().state_dict()
    return [{k: (1 - s) * start[k] + s * end[k] for k in end} for s in (0.0, 0.5, 1.0)]


@pytest.fixture(scope="module")
def found() -> Trajectory:
    return along_training(network(), states(), blobs(24), AT, **QUICK)


def test_scores_and_deviations(found: Trajectory) -> None:
    x, y = blobs(24).tensors
    assert (found.checkpoints, found.layers, found.score_name) == (("0", "1", "2"), ("out", "3"), "accuracy")
    for i, state in list(enumerate(states()))[::2]:
        model = layers().eval()
        model.load_state_dict(state)
        with torch.no_grad():
            wrong = model(x).argmax(1) != y
        assert found.score[i] == pytest.approx(1 - float(wrong.double().mean()))
        rev = frpt.Reverser(model, x[:12], preset="online")
        for j, layer in enumerate(AT):
            rec = rev.reconstruct(x, y, at=layer)
            away = (rec.target - rec.anchor).double().norm(dim=1) / rec.anchor.double().norm(dim=1)
            assert found.deviation[i, j] == pytest.approx(float(away[wrong].mean()), rel=1e-4)
    assert found.score[-1] > found.score[0]


def test_every_kind_of_checkpoint(tmp_path: Path, found: Trajectory) -> None:
    a, b, c = states()
    save_file(a, tmp_path / "epoch-0.safetensors")
    torch.save(b, tmp_path / "epoch-1.pt")
    torch.save({"epoch": 2, "model_state_dict": b}, tmp_path / "epoch-1b.pth")
    (tmp_path / "epoch-2").mkdir()
    save_file(c, tmp_path / "epoch-2" / "model.safetensors")
    files = sorted(tmp_path.iterdir())
    again = along_training(network(), files, blobs(24), AT, **QUICK)
    assert again.checkpoints == ("epoch-0", "epoch-1", "epoch-1b", "epoch-2")
    np.testing.assert_array_equal(again.score, found.score[[0, 1, 1, 2]])
    np.testing.assert_array_equal(again.deviation, found.deviation[[0, 1, 1, 2]])
    module = layers()
    module.load_state_dict(c)
    last = along_training(network(), {"end": module}, blobs(24), "3", **QUICK)
    assert last.checkpoints == ("end",)
    assert last.deviation[0, 0] == found.deviation[2, 1]


def test_the_model_stays_as_it_is() -> None:
    model = network().train()
    before = deepcopy(model.state_dict())
    along_training(model, states()[:1], blobs(8), "3", progress=False)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())


def test_progress_shows_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    along_training(network(), {"epoch-7": states()[2]}, blobs(24), "3", batch_size=8, preset="online")
    shown = capsys.readouterr().err
    assert "epoch-7" in shown
    assert "24 samples in" in shown
    assert "samples/s" in shown


def test_correlations_by_hand() -> None:
    g = np.random.default_rng(0)
    score = g.normal(size=7)
    deviation = np.stack([-score + 0.3 * g.normal(size=7), np.full(7, 0.2), g.normal(size=7)], 1)
    deviation[2, 2] = math.nan
    found = Trajectory(tuple("abcdefg"), ("x", "y", "z"), "accuracy", score, deviation)

    def expected(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
        n, r = len(a), float(np.corrcoef(a, b)[0, 1])
        t = r * math.sqrt((n - 2) / (1 - r * r))
        return r, float(special.betainc((n - 2) / 2, 0.5, (n - 2) / (n - 2 + t * t)))

    def ranks(v: np.ndarray) -> np.ndarray:
        return v.argsort().argsort().astype(float)

    for layer, rows in (("x", range(7)), ("z", [0, 1, 3, 4, 5, 6])):
        a, b = deviation[list(rows), "xyz".index(layer)], score[list(rows)]
        c = found.correlation(layer)
        assert (c.pearson, c.pearson_p) == pytest.approx(expected(a, b))
        assert (c.spearman, c.spearman_p) == pytest.approx(expected(ranks(a), ranks(b)))
    assert all(math.isnan(v) for v in vars(found.correlation("y")).values())
    two = Trajectory(("a", "b"), ("x",), "mse", score[:2], deviation[:2, :1])
    assert all(math.isnan(v) for v in vars(two.correlation("x")).values())
    assert isinstance(two.correlation("x"), Correlation)
    with pytest.raises(UnknownLayerError, match="no layer"):
        found.correlation("w")


def test_text_and_frame(found: Trajectory) -> None:
    text = str(found)
    assert text.splitlines()[1].split() == ["checkpoint", "accuracy", "out", "3"]
    assert "Pearson r" in text
    assert f"{found.deviation[2, 1]:.3g}" in text
    frame = found.to_pandas()
    assert list(frame.columns) == ["checkpoint", "layer", "accuracy", "deviation"]
    assert len(frame) == 6
    row = frame[(frame.checkpoint == "2") & (frame.layer == "3")].iloc[0]
    assert (row.accuracy, row.deviation) == (found.score[2], found.deviation[2, 1])


def test_regression_is_scored_by_mse() -> None:
    torch.manual_seed(0)
    model, x, y = mlp((4, 6, 2)).eval(), torch.randn(6, 4), torch.randn(6, 2)
    found = along_training(model, [model], TensorDataset(x, y), "1", progress=False)
    with torch.no_grad():
        assert found.score[0] == pytest.approx(float((model(x) - y).square().mean()))
    assert found.score_name == "mse"
    assert found.deviation[0, 0] > 0


def test_nothing_to_correct_is_no_deviation() -> None:
    model = network()
    x, _ = blobs(6).tensors
    found = along_training(model, [model], TensorDataset(x, model(x).argmax(1)), "3", progress=False)
    assert found.score[0] == 1
    assert math.isnan(found.deviation[0, 0])
    assert "nan" in str(found)


class Bad:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("run by a pickle",))


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
def test_checkpoints_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = states()[0]
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    (tmp_path / "torn.pt").write_bytes(b"nothing")
    torch.save({"a": Bad()}, tmp_path / "evil.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "weights.bin").write_bytes(b"")
    less = {k: v for k, v in good.items() if k != "2.bias"}
    cases: list[tuple[object, str]] = [
        (tmp_path / "torn.safetensors", r"'torn' .*cannot be read"),
        (tmp_path / "torn.pt", r"'torn' .*cannot be read"),
        (tmp_path / "evil.pt", r"'evil' .*cannot be read"),
        (tmp_path / "list.pt", r"'list' is no state dict: list"),
        (tmp_path / "weights.bin", r"'weights' .*no \.safetensors"),
        (tmp_path / "none.pt", r"'none' .*FileNotFoundError"),
        (less, r"'0' does not fit the model \(Sequential\):\n  - it lacks 2\.bias"),
        ({**good, "9.weight": torch.zeros(1)}, r"it also has 9\.weight"),
        ({**good, "0.bias": torch.zeros(3)}, r"0\.bias has the shape \(3,\), the model's \(10,\)"),
        ({**good, "0.bias": torch.full((10,), math.nan)}, r"0\.bias holds NaN"),
        ({**good, "0.weight": good["0.weight"].to_sparse()}, r"0\.weight is sparse: pass its to_dense\(\)"),
        (
            {**good, "0.weight": torch.quantize_per_tensor(good["0.weight"], 0.1, 0, torch.qint8)},
            r"0\.weight is quantised: pass its dequantize\(\)",
        ),
        (mlp(), "does not fit"),
    ]
    for name in ("pipe.safetensors", "pipe.pt"):
        os.mkfifo(tmp_path / name)
        cases.append((tmp_path / name, "'pipe' .*is no regular file"))
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "model.safetensors")
    cases.append((tmp_path / "run", "'run' .*is no regular file"))
    for checkpoint, message in cases:
        with pytest.raises(CheckpointError, match=message):
            along_training(network(), [checkpoint], blobs(8), "3", progress=False)  # type: ignore[list-item]
    assert "run by a pickle" not in capsys.readouterr().out


def test_options() -> None:
    model = network()
    for checkpoints in ([], model.state_dict(), model, "run/", None, 3):
        with pytest.raises(OptionError, match="checkpoints"):
            along_training(model, checkpoints, blobs(8), "3", progress=False)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="at"):
        along_training(model, [model], blobs(8), [], progress=False)
    with pytest.raises(OptionError, match=r"names a layer twice: \['2', '2'\]"):
        along_training(model, [model], blobs(8), ["2", model[2]], progress=False)
    for size in (1.5, 0, "8"):
        with pytest.raises(OptionError, match="batch_size must be a whole number"):
            along_training(model, [model], blobs(8), "3", batch_size=size, progress=False)  # type: ignore[arg-type]
    with pytest.raises(UnknownLayerError):
        along_training(model, [model], blobs(8), "13", progress=False)


def test_models_and_checkpoints_without_numbers_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"'0.weight' is on the meta device"):
        along_training(deepcopy(network()).to("meta"), states()[:1], blobs(8), "3", **QUICK)
    empty = {k: v.to("meta") for k, v in states()[0].items()}
    with pytest.raises(CheckpointError, match=r"checkpoint 'later' does not fit .*\n.*0.weight is on the meta device"):
        along_training(network(), {"start": states()[0], "later": empty}, blobs(8), "3", **QUICK)


def test_a_pruned_model_is_refused_with_what_to_do() -> None:
    pruned = layers()
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    with pytest.raises(OptionError, match=r"'0.weight' is no weight .*prune.remove"):
        along_training(pruned, [pruned.state_dict()], blobs(8), "3", **QUICK)
    with pytest.raises(CheckpointError, match=r"it lacks 0.weight\n.*it also has 0.weight_orig"):
        along_training(network(), [pruned], blobs(8), "3", **QUICK)
