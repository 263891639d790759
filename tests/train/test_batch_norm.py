"""Batch norm of the trained part: in eval mode by default, or in train mode with a warning that has the figure."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import BatchNormWarning, OptionError
from frpt.graph.inputs import Inputs
from frpt.train.frozen import moved_by_statistics


def network() -> nn.Sequential:
    """Batch norm before and behind layer 3, whose running statistics are not those of the data."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    )
    return model.eval()


def data() -> TensorDataset:
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(48, 5, generator=g), torch.randint(3, (48,), generator=g))


def statistics(model: nn.Module, path: str) -> torch.Tensor:
    found = model.get_submodule(path).running_mean
    assert isinstance(found, torch.Tensor)
    return found


def train(batch_norm: str, c_rec: float = 0.3) -> nn.Module:
    return frpt.post_train(
        network(), data(), at="3", c_rec=c_rec, epochs=1, batch_size=16, lr=1e-3, batch_norm=batch_norm, progress=False
    ).model  # type: ignore[arg-type]


def test_by_default_statistics_stay_and_weights_are_trained() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BatchNormWarning)
        model = frpt.post_train(
            network(), data(), at="3", c_rec=0.3, epochs=1, batch_size=16, lr=1e-3, progress=False
        ).model
    same = train("eval").state_dict()
    assert all(torch.equal(t, same[name]) for name, t in model.state_dict().items())
    start = network()
    for path in ("1", "4"):
        assert torch.equal(statistics(model, path), statistics(start, path))
    assert not torch.equal(model.get_submodule("1").weight, start.get_submodule("1").weight)  # type: ignore[arg-type]
    assert torch.equal(model.get_submodule("4").weight, start.get_submodule("4").weight)  # type: ignore[arg-type]


def test_in_train_mode_they_move_and_the_figure_is_told() -> None:
    start, (x, _) = network(), data().tensors
    taken = x[torch.linspace(0, 47, 16).round().long()]
    with torch.no_grad():
        still = start[:4](taken)
        start[1].train()
        share = float((start[:4](taken) - still).norm() / still.norm())
    with pytest.warns(BatchNormWarning, match=r"moves its features by \d+(\.\d)? %") as told:
        model = train("train")
    said = float(str(told[0].message).split(" % of")[0].split()[-1])
    assert said == pytest.approx(100 * share, rel=0.5)
    assert not torch.equal(statistics(model, "1"), statistics(network(), "1"))
    assert torch.equal(statistics(model, "4"), statistics(network(), "4"))


def test_without_targets_or_batch_norm_nothing_is_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BatchNormWarning)
        train("train", c_rec=0)
        plain = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        frpt.post_train(plain, data(), at="1", c_rec=0.3, epochs=1, progress=False)


def test_measuring_leaves_the_model_as_it_is() -> None:
    model, (x, _) = network(), data().tensors
    before = {name: t.clone() for name, t in model.state_dict().items()}
    assert moved_by_statistics(model, "3", Inputs.of(x)) > 0.05
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not any(m.training for m in model.modules())


def test_another_mode_is_refused() -> None:
    with pytest.raises(OptionError, match="batch_norm"):
        frpt.Training(batch_norm="off")  # type: ignore[arg-type]


@pytest.mark.parametrize("c_rec", [0.0, 0.3])
def test_a_last_batch_of_one_sample_is_refused_where_it_has_no_statistics(c_rec: float) -> None:
    x, y = data().tensors
    options: dict[str, Any] = {"at": "3", "c_rec": c_rec, "epochs": 1, "progress": False, "lr": 1e-3}
    with pytest.raises(OptionError, match="of 33 samples in batches of 16, a batch has a single sample"):
        frpt.post_train(network(), (x[:33], y[:33]), batch_size=16, batch_norm="train", **options)
    with pytest.raises(OptionError, match="single sample"):
        frpt.post_train(network(), (x[:33], y[:33]), batch_size=16, whole_train=True, **options)
    frpt.post_train(network(), (x[:33], y[:33]), batch_size=16, **options)
    frpt.post_train(network(), (x[:34], y[:34]), batch_size=16, batch_norm="train", **{**options, "c_rec": 0})
    torch.manual_seed(0)
    maps = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    images = torch.randn(5, 1, 5, 5)  # several positions a sample: their statistics exist
    frpt.post_train(maps, (images, y[:5]), batch_size=4, batch_norm="train", **{**options, "at": "2", "c_rec": 0})
