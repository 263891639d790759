"""Which layer is named: intervals against scipy's bootstrap, ties, few errors, sound networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import bootstrap

from frpt.diagnosis.findings import Array
from frpt.diagnosis.ranking import CLEAR, Ranking, Refits
from frpt.diagnosis.report.verdict import verdict
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


def test_without_a_loss_there_is_no_fault() -> None:
    none = np.zeros(10)
    found = Refits(none, {"a": none, "b": none}).ranked()
    assert [f.share for f in found.faults.values()] == [0.0, 0.0]
    assert found.suspects == ()
