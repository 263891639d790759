"""Values that no target can be made of, and intervals that nothing is known about, are not passed on."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import LabelError, NonFiniteError, OptionError
from frpt.train.comparison import Difference
from frpt_paper.experiments.workbench import ReproduceOptions
from tests.train.toys import blobs, network

EMBEDDINGS = (frpt.embed.nearest, frpt.embed.max_assign, frpt.embed.one_hot)


def test_a_label_that_half_precision_cannot_hold_is_refused() -> None:
    torch.manual_seed(0)
    half = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).half().eval()
    x = torch.randn(5, 4).half()
    with pytest.raises(LabelError, match=r"float16 can hold \(6\.55e\+04\)"):
        frpt.Reverser(half, x).reconstruct(x, torch.full((5, 3), 7e4), at="1")
    with pytest.raises(LabelError, match="lower the margin"):
        frpt.Reverser(half, x, margin=1e6, embed="max_assign").reconstruct(x, torch.zeros(5).long(), at="1")


@pytest.mark.parametrize("embed", EMBEDDINGS)
def test_embeddings_refuse_what_no_target_is_made_of(embed: object) -> None:
    assert callable(embed)
    scores, labels = torch.zeros(1, 3), torch.tensor([1])
    for margin in (math.nan, math.inf, -math.inf):
        with pytest.raises(OptionError, match="margin must be finite"):
            embed(scores, labels, margin=margin)
    with pytest.raises(LabelError, match="integers"):
        embed(scores, labels + 0j)
    with pytest.raises(LabelError, match="float16"):
        embed(scores.half(), labels, margin=1e6)


def test_complex_regression_targets_are_refused() -> None:
    with pytest.raises(LabelError, match="complex"):
        frpt.embed.regression(torch.zeros(1, 3), torch.zeros(1, 3) + 0j)


@pytest.mark.parametrize("targets", ["online", "anchor"])
@pytest.mark.parametrize("row", [0, 40])
def test_nan_in_the_data_is_blamed_on_the_data(targets: str, row: int) -> None:
    x, y = blobs().tensors
    x = x.clone()
    x[row, 2] = math.nan
    with pytest.raises(NonFiniteError, match=r"input tensor 0 holds 1 NaN.*clean the data"):
        frpt.post_train(network(), TensorDataset(x, y), "3", targets=targets, epochs=1, batch_size=8, progress=False)


def test_equal_differences_have_no_interval() -> None:
    equal = Difference.of([0.5, 0.6], [0.4, 0.5])
    assert math.isnan(Difference.of([0.5, 0.75], [0.25, 0.5]).low)
    assert equal.mean == pytest.approx(0.1)
    assert math.isfinite(Difference.of([0.5, 0.75], [0.25, 0.4]).low)


def test_a_missing_ray_is_said_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="needs Ray"):
        ReproduceOptions(cluster="ray")
