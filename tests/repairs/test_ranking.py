"""Which layer is named: intervals against scipy's bootstrap, ties, few errors, sound networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.diagnosis.findings import Array
from frpt.diagnosis.report.verdict import verdict
from frpt.repairs.ranking import CLEAR, Ranking, Refits, refit
from tests.diagnosis.small import diagnosis


def losses(seed: int = 0, count: int = 300) -> Array:
    return np.random.default_rng(seed).exponential(size=count)


def said(found: Ranking) -> str:
    """The verdict on the small diagnosis, whose three layers get these faults."""
    d = diagnosis()
    names = dict(zip((f.name for f in d.layers), found.faults, strict=True))
    layers = tuple(
        replace(f, fault=fault.share, fault_interval=(fault.low, fault.high))
        for f, fault in zip(d.layers, found.faults.values(), strict=True)
    )
    back = {new: old for old, new in names.items()}
    told = replace(
        d, layers=layers, ranking=tuple(back[n] for n in found.faults), suspects=tuple(back[n] for n in found.suspects)
    )
    return " ".join(verdict(told).sentences)


def test_intervals_are_those_of_scipys_bootstrap() -> None:
    before = losses()
    after = before * np.random.default_rng(1).uniform(0, 1, len(before))
    fault = Refits(before, {"a": after}).ranked().faults["a"]
    theirs = bootstrap(
        (before, after), lambda b, a, axis: 1 - a.sum(axis) / b.sum(axis), paired=True, vectorized=True,
        method="percentile", n_resamples=2000, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert fault.share == pytest.approx(1 - after.sum() / before.sum())
    assert (fault.low, fault.high) == pytest.approx((theirs.low, theirs.high), abs=6e-3)


def test_a_layer_far_ahead_is_named() -> None:
    before = losses()
    found = Refits(before, {"a": 0.9 * before, "b": 0.4 * before, "c": before}).ranked()
    assert tuple(found.faults) == ("b", "a", "c")
    assert found.suspects == ("b",)
    assert "The fault is most likely in" in said(found)


def test_a_tie_names_no_layer() -> None:
    """10.5 % and 10.5 %: both are named, none is called the likeliest."""
    before = losses()
    g = np.random.default_rng(3)
    after = {n: before * (0.895 + 0.1 * g.standard_normal(len(before))) for n in "ab"}
    found = Refits(before, {**after, "c": before}).ranked()
    assert set(found.suspects) == {"a", "b"}
    text = said(found)
    assert "No single layer stands out" in text
    assert "most likely in" not in text


def test_a_small_lead_is_none_however_many_samples() -> None:
    """93 % and 91 %, on a thousand samples that all say so: others make up for a fault nearly as well."""
    before = losses(count=1000)
    found = Refits(before, {"a": 0.07 * before, "b": 0.09 * before, "c": 0.5 * before}).ranked()
    assert found.suspects == ("a", "b")
    assert "do not tell the fault of" in said(found)


def test_if_all_layers_take_back_as_much_none_is_suspected() -> None:
    before = losses()
    found = Refits(before, {"a": 0.10 * before, "b": 0.12 * before, "c": 0.14 * before}).ranked()
    assert found.suspects == ()
    text = said(found)
    assert "do not tell which one carries a fault" in text
    assert "90.0 %" in text
    assert "86.0 %" in text


@pytest.mark.parametrize("kink", [nn.ReLU(), nn.PReLU()])
def test_filters_of_zeros_are_found(kink: nn.Module) -> None:
    """Behind a ReLU they have no slope at all."""
    torch.manual_seed(0)
    x = torch.randn(400, 8)
    net = nn.Sequential(nn.Linear(8, 24), kink, nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
    with torch.no_grad():
        net[4].weight *= 10
        y = net(x).argmax(1)
        net[0].weight[:16], net[0].bias[:16] = 0, 0
    rev = frpt.Reverser(net, x[:8])
    found = refit(rev, [(x[:200], y[:200])], [(x[200:], y[200:])], ["out", "3", "1"]).ranked()
    assert next(iter(found.faults)) == "1"


def test_a_few_errors_name_no_layer() -> None:
    """Three samples carry the loss, and one of them is what the better layer takes back."""
    before = np.full(400, 1e-3)
    before[:3] = 5.0
    better, other = before.copy(), before.copy()
    better[0], other[1] = 0.0, 3.0
    found = Refits(before, {"a": better, "b": other, "c": before}).ranked()
    assert len(found.suspects) != 1
    assert "No single layer stands out" in said(found)


def test_a_sound_network_has_no_suspects() -> None:
    before = losses()
    found = Refits(before, {"a": 0.97 * before, "b": 0.99 * before, "c": before}).ranked()
    assert found.faults["a"].high < CLEAR
    assert found.suspects == ()
    assert "No single layer stands out" in said(found)


def test_refits_that_all_failed_say_nothing() -> None:
    before = losses()
    found = Refits(before, {"a": before, "b": before, "c": before}).ranked()
    text = said(found)
    assert "did not lower the loss" in text
    assert "is the best of them" not in text


def test_without_a_loss_there_is_no_fault() -> None:
    none = np.zeros(10)
    found = Refits(none, {"a": none, "b": none}).ranked()
    assert [f.share for f in found.faults.values()] == [0.0, 0.0]
    assert found.suspects == ()


def ending(last: nn.Module | None) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    with torch.no_grad():
        net[2].weight *= 8  # confident, so that probabilities saturate
    return (net if last is None else net.append(last)).eval()


def diagnosed(net: nn.Module, y: Tensor, loss: str | None = None) -> frpt.Diagnosis:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
    return frpt.diagnose(net, TensorDataset(x, y), ["1"], loss=loss, reference=False, gallery=0, progress=False)


LABELS = torch.randint(4, (200,), generator=torch.Generator().manual_seed(2))


def test_a_final_softmax_changes_no_fault() -> None:
    plain, soft = (diagnosed(ending(last), LABELS) for last in (None, nn.Softmax(1)))
    assert [f.fault for f in soft.layers] == pytest.approx([f.fault for f in plain.layers], rel=1e-4)
    assert soft.suspects == plain.suspects
    assert "before the final softmax" in str(soft)
    assert plain.loss == "the cross-entropy"


def test_a_final_sigmoid_is_the_binary_loss_of_the_logits() -> None:
    many = torch.nn.functional.one_hot(LABELS, 4).float()
    by_id, by_share = (diagnosed(ending(nn.Sigmoid()), y) for y in (LABELS, many))
    plain = diagnosed(ending(None), many, "bce")
    for other in (by_share, plain):
        assert [f.fault for f in other.layers] == pytest.approx([f.fault for f in by_id.layers], rel=1e-4)
    assert by_id.loss == "the binary cross-entropy of the values before the final sigmoid"


def test_an_output_without_axes_but_the_batch() -> None:
    """The same diagnosis as of the output (b, 1)."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).eval()
    y = torch.randn(200)
    column, flat = diagnosed(net, y[:, None]), diagnosed(nn.Sequential(*net, nn.Flatten(0)).eval(), y)
    assert flat.score_name == "mse"
    assert flat.score == pytest.approx(column.score)
    for a, b in zip(flat.layers, column.layers, strict=True):
        assert (a.fault, a.deviation, a.closed) == pytest.approx((b.fault, b.deviation, b.closed), rel=1e-4)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(frpt.errors.OptionError, match="cross_entropy"):
        diagnosed(ending(None), LABELS, "hinge")
