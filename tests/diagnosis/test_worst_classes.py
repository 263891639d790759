"""Which class goes wrong most: the rule against scipy's intervals and chance, the sentence, the table, the page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn
from torch.utils.data import TensorDataset

from frpt.diagnosis import Diagnosis, diagnose
from frpt.diagnosis.report.page_tables import classes_table
from frpt.diagnosis.report.verdict import verdict
from frpt.diagnosis.report.worst_classes import Shares, standing_out
from frpt.graph.names import OUTPUT
from tests.diagnosis import made


def shares(samples: list[int], wrong: list[int]) -> Shares:
    return Shares(np.array(samples), np.array(wrong))


def counted(wrong: list[int], samples: int = 40) -> Diagnosis:
    """A diagnosis with so many wrong samples of each of the ten classes."""
    label = np.repeat(np.arange(10), samples)
    corrected = np.concatenate([np.arange(samples) < w for w in wrong])
    d = made.diagnosis(samples=len(label))
    table = dataclasses.replace(d.samples, label=label, corrected=corrected)
    return dataclasses.replace(d, samples=table)


def test_a_class_stands_out_where_its_interval_lies_above_that_of_the_others() -> None:
    """The same by scipy's exact intervals, and no class without samples, without others or without a difference."""
    for wrong in range(41):
        found = standing_out(shares([40, 40, 40, 0], [3, wrong, 5, 0]))
        level = 1 - 0.05 / 3
        low = binomtest(wrong, 40).proportion_ci(level).low
        high = binomtest(8, 80).proportion_ci(level).high
        assert (found[:1] == [1]) == (low > high), wrong
    assert standing_out(shares([30], [30])) == []
    assert standing_out(shares([0, 30], [0, 30])) == []
    assert standing_out(shares([30, 30], [30, 30])) == []
    assert standing_out(shares([], [])) == []
    assert standing_out(shares([2, 200], [2, 60])) == []  # all of two samples is no proof


def test_a_few_classes_can_stand_out_and_the_first_three_are_named() -> None:
    samples = [100] * 10
    assert standing_out(shares(samples, [5, 90, 5, 60, 5, 5, 5, 5, 5, 5])) == [1, 3]
    assert len(standing_out(shares(samples, [80, 90, 70, 60, 95, 5, 5, 5, 5, 5]))) == 3


def test_chance_names_a_class_in_less_than_one_of_twenty_networks() -> None:
    g = np.random.default_rng(0)
    named = [standing_out(Shares(np.full(50, 30), g.binomial(30, 0.3, 50))) for _ in range(400)]
    assert sum(map(bool, named)) < 20


def test_the_verdict_names_the_class() -> None:
    d = counted([4, 4, 4, 4, 4, 4, 4, 36, 4, 4])
    assert "Class horse goes wrong most: 36 of its 40 samples (90.0 %), against 10.0 % of all other samples." in str(d)
    most = "Most of what is wrong is of class horse: 36 of its 40 samples (90.0 %), against 1.1 % of all other samples."
    assert most in str(counted([0, 0, 0, 4, 0, 0, 0, 36, 0, 0]))
    alike = str(counted([4] * 10))
    assert "wrong most" not in alike
    assert "Most of what" not in alike
    two = "The classes horse and cat go wrong most: 38 of 40 (95.0 %) and 34 of 40 (85.0 %) of their samples, against"
    assert two in str(counted([10, 10, 10, 34, 10, 10, 10, 38, 10, 10]))
    fact = next(f for f in verdict(d).facts if f.label == "goes wrong most")
    assert (fact.value, fact.note) == ("horse", "36 of its 40 samples")
    nameless = dataclasses.replace(d, class_names=tuple("" if c == 7 else str(c) for c in range(10)))
    assert "Class 7 goes wrong most" in str(nameless)


def test_the_table_has_the_largest_share_first_and_says_so(tmp_path: Path) -> None:
    """Then the largest deviation; not the deviation alone."""
    d = counted([4, 12, 4, 4, 4, 4, 4, 36, 4, 4])
    table = classes_table(d)
    assert table.caption == "Classes, largest share wrong first"
    assert [r.cells[0].text for r in table.rows[:2]] == ["horse", "car"]
    rest = [d.class_names.index(r.cells[0].text) for r in table.rows[2:]]
    moved = np.stack([f.by_class for f in d.layers], 1).mean(1)[rest]
    assert list(moved) == sorted(moved, reverse=True)
    assert "share wrong" in d.to_html(tmp_path / "r.html").read_text("utf-8")


@pytest.mark.parametrize("at", [["0"], [OUTPUT]])
def test_how_far_features_move_is_said_of_an_inner_layer(at: list[str]) -> None:
    """A fault in the output's own layer: the sentence is about the first inner layer of the ranking, or left out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)).eval()
    x = torch.randn(200, 6)
    with torch.no_grad():
        y = model(x).argmax(1)
        model[2].bias += torch.tensor([1.0, 0.0, -0.5])
    d = diagnose(model, TensorDataset(x, y), at=at, gallery=0, progress=False)
    d = dataclasses.replace(d, ranking=tuple(sorted(d.ranking, key=lambda name: name != OUTPUT)))
    assert d.ranking[0] == OUTPUT
    moved = [s for s in verdict(d).sentences if s.startswith("The features of")]
    assert [s.split()[3] for s in moved] == (["0"] if at == ["0"] else [])
