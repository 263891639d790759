"""Frames hold what the diagnosis holds, under names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from frpt.common.text import percent
from frpt.diagnosis import Diagnosis, diagnose, tables
from frpt.diagnosis.trust import advise
from tests.diagnosis.small import LAYERS, NAMES, diagnosis


@pytest.fixture(scope="module")
def d() -> Diagnosis:
    return diagnosis()


def test_layers(d: Diagnosis) -> None:
    frame = tables.layers(d)
    assert list(frame.layer) == list(LAYERS)
    assert list(frame["rank"]) == [2, 3, 1]
    assert list(frame.trusted) == [True, True, False]
    assert list(frame["shape"]) == ["6", "10x8", "16x4x5"]
    assert list(frame.sensitivity) == [f.sensitivity for f in d.layers]
    assert list(frame.trust) == [f.wins * max(0.0, 1 - f.sensitivity) for f in d.layers]
    few = tables.layers(replace(d, ranking=("head",)))
    assert few["rank"][0] == 1
    assert few["rank"].isna().tolist() == [False, True, True]


def test_units(d: Diagnosis) -> None:
    frame = tables.units(d)
    assert len(frame) == len(d.units)
    for i, unit in enumerate(d.units):
        row = frame.iloc[i]
        assert all(row[k] == v or (row[k] != row[k] and v != v) for k, v in vars(unit).items())


def test_classes(d: Diagnosis) -> None:
    frame = tables.classes(d)
    assert len(frame) == 12
    row = frame[(frame.layer == "encoder.3") & (frame["class"] == "café <3")].iloc[0]
    assert (row.class_id, row.samples, row.corrected) == (3, 3, 2)
    assert row.deviation == d.layers[1].by_class[3]
    assert frame[frame["class"] == "deer"].deviation.isna().all()


def test_samples(d: Diagnosis) -> None:
    frame = tables.samples(d)
    assert len(frame) == 12
    row = frame[frame["index"] == 25].iloc[0]
    assert (row.label, row.predicted, row.label_id, row.predicted_id, row.corrected) == ("dog", "café <3", 1, 3, True)
    assert row["deviation/stage2"] == d.samples.deviation[5, 2]
    assert row["closed/head"] == d.samples.closed[5, 0]


def test_channels(d: Diagnosis) -> None:
    frame = tables.channels(d)
    sums = frame.groupby(["layer", "class_id"]).share.sum()
    assert sums["stage2", -1] == pytest.approx(1)
    assert sums["stage2", 2] == 0
    rows = frame[(frame.layer == "head") & (frame["class"] == "dog")]
    np.testing.assert_array_equal(rows.share, d.layers[0].channels_by_class[1])
    assert list(rows.channel) == list(range(6))


def test_pairs(d: Diagnosis) -> None:
    frame = tables.pairs(d)
    assert list(frame.layer) == list(LAYERS)
    assert set(frame.label) == {"cat"}
    assert set(frame.predicted) == {"dog"}
    shares = d.pairs[0].channels["stage2"]
    last = frame.iloc[2]
    assert shares[last.channel] == last.share == shares.max()


def test_without_classes(d: Diagnosis) -> None:
    none = replace(d.samples, label=np.full(12, -1), predicted=np.full(12, -1))
    plain = replace(d, class_names=(), pairs=(), samples=none)
    assert len(tables.classes(plain)) == len(tables.pairs(plain)) == 0
    assert set(tables.samples(plain).label) == {""}
    assert set(tables.channels(plain).class_id) == {-1}


def test_csv_reads_back(d: Diagnosis, tmp_path: Path) -> None:
    written = tables.write_csv(d, tmp_path / "new" / "folder")
    names = ["layers", "units", "classes", "samples", "channels", "pairs"]
    assert [p.name for p in written] == [f"{n}.csv" for n in names]
    for path in written:
        made, back = getattr(tables, path.stem)(d), pd.read_csv(path)
        assert list(back.columns) == list(made.columns)
        for name in made.select_dtypes("number").columns:
            np.testing.assert_allclose(back[name].astype(float), made[name].astype(float))
    back = pd.read_csv(written[3])
    assert set(back.label) == set(NAMES)


def test_of_a_regression_nothing_wins(tmp_path: Path) -> None:
    """Tables, page, figure and advice speak of what is closed and met."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).eval()
    x = torch.randn(30, 3)
    with torch.no_grad():
        y = model(x) + 0.3
    d = diagnose(model, TensorDataset(x, y), at=["0"], gallery=0, progress=False)
    page = d.to_html(tmp_path / "r.html").read_text("utf-8").split('<script type="application/json"')[0]
    axis = d.plot("trust").axes[0].get_xlabel()
    for said in (str(d), repr(d), page, axis, advise(d.layers, True).reason):
        assert "wins" not in said
    assert "in std. deviations" in page
    assert "which post-training takes as its" in page
    closed = next(f for f in d.layers if f.name == "0").closed
    assert "closed" in repr(d)
    assert percent(closed) in repr(d)
