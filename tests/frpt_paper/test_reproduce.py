"""Whole experiments on a few digits: killed and resumed, in one process and in several, from the command line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from frpt.cli.main import app
from frpt.errors import CheckpointError, DatasetError, OptionError
from frpt_paper import EXPERIMENTS, ReproduceOptions, RunsTable, reproduce
from frpt_paper.experiments.workbench import Workbench
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT
from frpt_paper.runs.lab import Lab
from frpt_paper.runs.pretraining import Recipe

runner = CliRunner(env={"COLUMNS": "250"})
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.frpt_paper.killed"]
"""A process of its own: other threads than this one's round otherwise when a network is pretrained."""


def measured(out: Path) -> pd.DataFrame:
    """The table of runs without their times."""
    frame = RunsTable(out / "runs.csv").frame()
    return frame.drop(columns=["seconds", "wall"]).sort_values(["job", "row"], ignore_index=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([*COMMAND, str(out), "1"], cwd=ROOT, check=True, capture_output=True)
    return out


def test_a_killed_sweep_resumes_to_the_same_table(undisturbed: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path), "1"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    table = RunsTable(tmp_path / "runs.csv")
    deadline = time.monotonic() + 120
    while not table.done() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    ended = table.done()
    assert 0 < len(ended) < 6
    first = table.path.read_bytes()
    first = first[: first.rfind(b"\n") + 1]
    subprocess.run([*COMMAND, str(tmp_path), "1"], cwd=ROOT, check=True, capture_output=True)
    assert table.path.read_bytes().startswith(first)  # what had ended was not run again
    assert measured(tmp_path).equals(measured(undisturbed))
    for name in ("table-fr-pt-default.md", "arms.csv", "paired-fr-pt-default.tex"):
        assert (tmp_path / "mnist" / name).read_text() == (undisturbed / "mnist" / name).read_text()


def test_an_experiment_takes_over_the_runs_of_another(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "out")
    before = RunsTable(undisturbed / "runs.csv").done()
    options = ReproduceOptions(
        tmp_path / "out", samples=(120, 60), seeds=2, epochs=2, layers=("2",), c_rec=(0.3,), presets=("default",),
        pretrain=1,
    )  # fmt: skip
    reproduce("embedding", options)
    frame = RunsTable(tmp_path / "out" / "runs.csv").frame()
    new = frame[~frame["job"].isin(before)]
    assert new.groupby("embed")["job"].nunique().to_dict() == {"max_assign": 2, "one_hot": 2}
    shown = pd.read_csv(tmp_path / "out" / "embedding" / "embedding.csv")
    assert set(shown["embed"]) == {BACKPROP, "nearest", "max_assign", "one_hot"}


def test_runs_and_their_controls(undisturbed: Path) -> None:
    frame = RunsTable(undisturbed / "runs.csv").frame()
    assert frame.groupby("arm")["job"].nunique().to_dict() == {ANCHOR: 2, BACKPROP: 2, FRPT: 2}
    assert frame["epoch"].tolist() == [1, 2] * 6
    order = list(zip(frame["seed"], frame["c_rec"], frame["preset"], strict=True))
    assert order == sorted(order)  # of a seed, what may decide others first
    assert (((frame["metric"] - frame["start"]) * 60).round() == frame["fixed"] - frame["broken"]).all()
    assert frame[frame["arm"] == BACKPROP]["rec_loss"].isna().all()
    assert frame[frame["arm"] == FRPT]["rec_loss"].gt(0).all()
    assert frame["checkpoint"].nunique() == 1
    assert len(list((undisturbed / "checkpoints").glob("*.safetensors"))) == 1
    assert {p.name for p in (undisturbed / "targets").glob("*/*")} == {"2-anchor", "2-default-nearest"}


def test_checkpoints_are_made_once_and_must_be_there(tmp_path: Path) -> None:
    lab, seen = Lab(tmp_path, train=100, test=50), []

    def starts(epochs: int = 3) -> list[int]:
        found = lab.starting_models("digits", "simple_cnn", Recipe(epochs), keep=[1], each=lambda e, a: seen.append(e))
        return [s.epoch for s in found]

    assert starts() == [1, 3]
    assert starts() == [1, 3]
    assert seen == [1, 2, 3]
    assert starts(2) == [1, 2]
    for file in lab.checkpoints.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(CheckpointError, match="delete"):
        starts()
    with pytest.raises(OptionError, match="epochs 1 to 3"):
        lab.starting_models("digits", "simple_cnn", Recipe(3), keep=[4])


@pytest.mark.parametrize("name", ["embedding", "maturity", "geometry", "deviation", "adaptation", "runtime"])
def test_every_figure_at_a_very_small_scale(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "runtime":
        monkeypatch.setattr("frpt_paper.experiments.conv_solvers.SOLVERS", ("cg", "fft_padded"))
    if name == "adaptation":
        monkeypatch.setattr("frpt_paper.experiments.adaptation.KINDS", {"noise": None})
        monkeypatch.setattr("frpt_paper.experiments.adaptation.SIZES", {"small": (40,)})
    strengths = {"embedding": (0.3,), "maturity": (0.1,), "geometry": (0.3,)}.get(name, ())
    seeds = 2 if name in ("embedding", "geometry", "adaptation") else 1  # these compare seed by seed
    chosen = ReproduceOptions(
        tmp_path, samples=(200, 50), seeds=seeds, epochs=1, pretrain=2, c_rec=strengths, presets=("default",),
        layers={"geometry": ("2",), "adaptation": ("1",)}.get(name, ()),
    )  # fmt: skip
    report = reproduce(name, chosen)
    files = {p.name for p in (tmp_path / name).iterdir()}
    assert {"report.md", *(f"{t.name}.{e}" for t in report.tables for e in ("md", "tex", "csv"))} <= files
    assert any(f.endswith(".png") for f in files)
    assert all(len(t.rows) for t in report.tables)


def test_the_command_line(undisturbed: Path, tmp_path: Path) -> None:
    listed = runner.invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in EXPERIMENTS)
    numbers = tmp_path / "numbers.csv"
    numbers.write_text(
        "dataset,model,l_R,c_rec,metric,mean,std\nMNIST,SimpleCNN,2,0.0,mean,50,1\nMNIST,SimpleCNN,2,0.3,mean,49,1\n"
    )
    arguments = [
        "reproduce",
        "mnist",
        "--out",
        str(undisturbed),
        "--samples",
        "120,60",
        "--seeds",
        "2",
        "--epochs",
        "2",
    ]
    arguments += ["--at", "2", "--c-rec", "0.3", "--preset", "default", "--pretrain", "1", "--compare", str(numbers)]
    before = (undisturbed / "runs.csv").read_bytes()
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "beside the numbers" in result.output
    assert "-1.00 [" in result.output
    assert (undisturbed / "runs.csv").read_bytes() == before  # nothing was missing


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["navsim"], "not public"),
        (["mnits"], "did you mean mnist"),
        ([], "--list"),
        (["mnist", "--scale", "huge"], "small, paper"),
        (["mnist", "--c-rec", "a"], "numbers"),
        (["mnist", "--samples", "3"], "2000,1000"),
        (["mnist", "--compare", "nowhere.csv"], "nowhere.csv"),
        (["mnist", "--at", "7", "--samples", "50,20", "--pretrain", "1"], "no l_R '7'"),
        (["mnist", "--model", "mlp"], "unknown model"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = runner.invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_navsim_says_what_is_needed() -> None:
    with pytest.raises(DatasetError, match="metric cache"):
        reproduce("navsim")


def test_scales(tmp_path: Path) -> None:
    small, whole = (Workbench("x", ReproduceOptions(tmp_path, scale=s), None) for s in ("small", "paper"))  # type: ignore[arg-type]
    assert small.lab("cifar10").train == 2000
    assert whole.lab("cifar10").train is None
    assert list(whole.seeds(2, 10)) == list(range(10))
    with pytest.raises(OptionError, match="epochs"):
        ReproduceOptions(epochs=0)
