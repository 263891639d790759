"""Three arms, paired by seed; the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

import frpt
from frpt.cli.main import app
from frpt.errors import OptionError
from frpt.train.comparison import Difference
from tests.train.toys import blobs, network, parameters, reverser


def test_arms_are_the_runs_they_stand_for_and_share_one_reconstruction(tmp_path: Path) -> None:
    data, val, model = blobs(), blobs(40, seed=3), network()
    options = {"epochs": 1, "batch_size": 20, "lr": 1e-2, "progress": False}
    found = frpt.compare(
        model,
        data,
        "3",
        c_rec=0.5,
        seeds=[2, 5],
        val=val,
        store=tmp_path / "kept",
        log_dir=tmp_path / "logs",
        **options,
    )
    arms = [("back-propagation", 0.0, None), ("anchor-only", 0.5, "anchor"), ("FR-PT", 0.5, tmp_path / "kept")]
    for name, c_rec, targets in arms:
        alone = frpt.post_train(reverser(), data, "3", c_rec=c_rec, targets=targets, seed=5, val=val, **options)
        assert torch.equal(parameters(found.arms[name].runs[1].model), parameters(alone.model))
    assert len(list((tmp_path / "logs").glob("*/epochs.csv"))) == 6
    frame = found.to_pandas()
    assert len(frame) == 6
    assert set(frame["arm"]) == {name for name, _, _ in arms}
    assert repr(found).startswith("<Comparison of post-training before '3'")
    assert found._repr_html_().count("<tr>") == 4
    lines = str(found).splitlines()
    assert len(lines) == 6
    assert "2 seeds" in lines[0]
    assert f"{found.difference('FR-PT').mean:+.4f}" in lines[5]
    assert torch.equal(parameters(model), parameters(network()))


def test_the_interval_is_the_paired_t_interval() -> None:
    a, b = [0.91, 0.93, 0.92, 0.95], [0.90, 0.93, 0.90, 0.91]
    found = Difference.of(a, b)
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.std == pytest.approx(torch.tensor(a).sub(torch.tensor(b)).std().item(), rel=1e-5)
    assert math.isnan(Difference.of([1.0], [0.5]).low)
    equal = Difference.of([0.3, 0.4], [0.2, 0.3])  # by the same amount, but for rounding
    assert np.ptp(np.subtract([0.3, 0.4], [0.2, 0.3])) > 0
    assert equal.std == 0
    assert math.isnan(equal.low)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"val": None}, "needs val"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [1, 1]}, "different"),
        ({"seeds": 3}, "whole numbers, at least one, got 3"),
        ({"lr": math.inf}, "lr must be a finite number"),
        ({"targets": 5}, "no target store"),
        ({"optimizer": torch.optim.LBFGS}, "needs a closure"),
        ({"metric": lambda outputs, labels: None}, "returned a NoneType"),
        ({"targets": "anchor"}, "by itself"),
        ({"c_rec": 0}, "by itself"),
    ],
)
def test_refusals(options: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frpt.train.prepare.write_targets", lambda *_, **__: pytest.fail("targets were written"))
    with pytest.raises(OptionError, match=words):
        frpt.compare(network(), blobs(), "3", **{"val": blobs(), **options})  # type: ignore[arg-type]


def split() -> tuple[object, object]:
    return blobs(), blobs(20, 1)


def test_the_command_trains_continues_and_compares(tmp_path: Path) -> None:
    runner = CliRunner(env={"COLUMNS": "200"})
    spec = [
        "train",
        "tests.train.toys:network",
        "--at",
        "3",
        "--data",
        "tests.train.test_comparison:split",
        "--epochs",
        "1",
    ]
    first = runner.invoke(
        app, [*spec, "--targets", "online", "--out", str(tmp_path / "a"), "--partial", str(tmp_path / "c")]
    )
    assert first.exit_code == 0, first.output
    assert "accuracy" in first.output
    summary = json.loads((tmp_path / "a" / "result.json").read_text())
    assert summary["targets"] == "online"
    weights = ["--weights", str(tmp_path / "a" / "model.safetensors")]
    both = runner.invoke(app, [*spec, *weights, "--compare", "--seeds", "1", "--out", str(tmp_path / "b")])
    assert both.exit_code == 0, both.output
    assert "FR-PT" in both.output
    assert (tmp_path / "b" / "comparison.csv").exists()
    bad = runner.invoke(app, [*spec, "--c-rec", "3", "--out", str(tmp_path / "d")])
    assert bad.exit_code == 2
    assert "c_rec" in bad.output
