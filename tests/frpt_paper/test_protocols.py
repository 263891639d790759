"""Protocols: their options, what runs are made from; a frozen draw is the same for every arm and seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import frpt
from frpt.cli.main import app
from frpt.errors import OptionError
from frpt_paper import ReproduceOptions, RunsTable, reproduce
from frpt_paper.experiments.workbench import Workbench
from frpt_paper.runs.augmentation import Draw
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT, PostTrainingJob, ProtocolJob, grid
from frpt_paper.runs.lab import Lab, layer_of
from frpt_paper.runs.pretraining import PlateauRecipe, make_model, plateau_recipe_of, pretrain
from frpt_paper.runs.protocols import PROTOCOLS, protocol_of
from frpt_paper.runs.starting_models import load_model, starting_models


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("protocol")
    options = ReproduceOptions(
        out, samples=(200, 80), seeds=2, epochs=2, layers=("out", "2"), c_rec=(0.3,), protocol="paper", pretrain=2,
        presets=("paper", "default", "reference"), rates=(1e-4, 3e-3), batch_size=50,
    )  # fmt: skip
    reproduce("mnist", options)
    return out


def test_the_paper_protocol_has_a_table_of_its_own(paper: Path) -> None:
    frame = RunsTable(paper / "runs-protocol.csv").frame()
    assert not (paper / "runs.csv").exists()
    assert (frame["images"].unique().item(), frame["features"].unique().item()) == ("drawn", "before")
    assert set(frame["lr"]) == {1e-4, 3e-3}
    assert set(frame["batch_size"]) == {50}
    arms = frame.groupby("l_r")["job"].nunique()
    assert arms.to_dict() == {"2": 2 * 2 * 5, "out": 2 * 2 * 5}
    assert frame["start"].nunique() == 1
    assert {p.name for p in (paper / "targets").glob("*/*")} == {
        f"drawn-before-{layer}-{kind}" for layer in ("2", "out")
        for kind in ("anchor", "paper-nearest", "default-nearest", "reference-nearest")
    }  # fmt: skip


def test_at_the_output_presets_agree_and_are_run_once(paper: Path) -> None:
    frame = RunsTable(paper / "runs-protocol.csv").frame()
    out = frame[(frame["l_r"] == "out") & (frame["arm"] == FRPT)]
    assert out.groupby(["preset", "seed", "lr", "epoch"])["metric"].first().groupby(
        ["seed", "lr", "epoch"]
    ).nunique().max() == 1  # fmt: skip
    made = out.groupby("preset")["wall"].max()
    assert sorted((made > 0).tolist()) == [False, False, True]
    inner = frame[(frame["l_r"] == "2") & (frame["arm"] == FRPT)]
    assert (inner["wall"] > 0).all()


def test_reports_name_the_start_and_the_rates(paper: Path) -> None:
    report = (paper / "mnist-paper" / "report.md").read_text()
    assert "one frozen augmented draw of the images, batches of 50, rate 0.0001 and 0.003" in report
    arms = (paper / "mnist-paper" / "arms.md").read_text()
    assert "− start" in arms
    assert "| rate" in arms


def test_reports_tell_of_targets(paper: Path) -> None:
    data = pd.read_csv(paper / "mnist-paper" / "targets.csv", dtype={"l_r": str}).set_index(["l_r", "preset"])
    assert len(data) == 6
    assert set(data["samples"]) == {200}
    assert data["corrected"].nunique() == 1
    assert 0 < data["corrected"].iloc[0] < 1
    assert data.loc[("out", "default"), "deviation"] == pytest.approx(data.loc[("out", "paper"), "deviation"], rel=1e-3)
    assert data.loc[("2", "default"), "deviation"] < data.loc[("2", "reference"), "deviation"]  # the nearest one


def test_layers_before_activations() -> None:
    model = frpt.zoo.simple_cnn("cifar10")
    assert model.before_activations == {
        "1": "stage1.0", "2": "stage2.0", "3": "stage3.0", "4": "stage4.1", "out": "out",
    }  # fmt: skip
    assert all(
        isinstance(model.get_submodule(name), torch.nn.Conv2d | torch.nn.Linear)
        for name in model.before_activations.values()
        if name != "out"
    )
    job = PostTrainingJob("cifar10", "simple_cnn", "4", 0.3, 0)
    own = ProtocolJob("cifar10", "simple_cnn", "4", 0.3, 0)
    assert (layer_of(model, job), layer_of(model, own)) == ("stage4", "stage4.1")
    assert layer_of(make_model("resnet18", "cifar10"), replace(own, l_r="3")) == "layer3"


def test_what_is_drawn_is_the_same_for_all_jobs(tmp_path: Path) -> None:
    lab = Lab(tmp_path, train=60, test=20)
    jobs = grid("digits", "simple_cnn", l_r=["2"], c_rec=[0.3], seeds=[0, 1], protocol=PROTOCOLS["paper"])
    assert {job.arm for job in jobs} == {BACKPROP, ANCHOR, FRPT}
    sets = [lab.training_set(job) for job in jobs]
    assert all(isinstance(s, Draw) and s is sets[0] for s in sets)
    clean = [replace(job, images="clean") for job in jobs if isinstance(job, ProtocolJob)]
    assert lab.training_set(clean[0]) is lab.split("digits", "train")
    assert lab.table_of(jobs[0]).path != lab.table.path


def test_options_of_a_protocol() -> None:
    paper = protocol_of("paper", {"images": None, "rates": (), "batch_size": None})
    assert paper == PROTOCOLS["paper"]
    assert (paper.images, paper.batch_size, paper.rates, paper.smoothing, paper.label) == (
        "drawn", 256, (1e-4,), 0.1, "paper",
    )  # fmt: skip
    clean = protocol_of("clean", {"rates": (3e-4,), "batch_size": 256})
    assert clean.plain
    assert isinstance(
        grid("mnist", "simple_cnn", l_r=["1"], c_rec=[0.1], seeds=[0], protocol=clean)[0], PostTrainingJob
    )
    assert protocol_of("paper", {"images": "clean"}).label == "paper-clean-images"
    for changes, match in (
        ({"images": "new"}, "images"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"rates": (0.0,)}, "rate"),
    ):
        with pytest.raises(OptionError, match=match):
            protocol_of("paper", changes)
    with pytest.raises(OptionError, match="clean, paper"):
        ReproduceOptions(protocol="text")


def test_recipes_follow_the_protocol(tmp_path: Path) -> None:
    def recipe(**options: object) -> object:
        bench = Workbench("cifar10", ReproduceOptions(tmp_path, scale="paper", **options), None)  # type: ignore[arg-type]
        return bench.recipe("cifar10", "simple_cnn", small=6)

    assert recipe(protocol="paper") == plateau_recipe_of("cifar10", "simple_cnn")
    shorter = recipe(protocol="paper", pretrain=3, smoothing=0.2)
    assert isinstance(shorter, PlateauRecipe)
    assert (shorter.epochs, shorter.smoothing, shorter.marks) == (3, 0.2, (1, 2))
    assert not isinstance(recipe(protocol="paper", schedule="cosine"), PlateauRecipe)
    assert plateau_recipe_of("cifar100", "resnet18").smoothing == 0.1


def test_a_plateau_lowers_the_rate_and_the_best_epoch_is_kept(tmp_path: Path) -> None:
    train, test = (
        frpt.data.load("digits", "train").select(range(200)),
        frpt.data.load("digits", "test").select(range(60)),
    )
    recipe = PlateauRecipe(4, 50, 3e-2, warmup=0.0, augment=True, smoothing=0.1, patience=1, marks=(1,))
    seen: list[float] = []
    starts = starting_models(tmp_path, "simple_cnn", train, test, recipe, each=lambda e, a: seen.append(a))
    assert [start.epoch for start in starts] == [1, 1 + seen.index(max(seen))]
    assert starts[-1].accuracy == max(seen)
    assert load_model(starts[-1].path, "simple_cnn", "digits")
    again = pretrain(make_model("simple_cnn", "digits"), train, test, recipe)
    assert again.history == seen  # fresh draws, but the seed's own
    with pytest.raises(OptionError, match="patience"):
        PlateauRecipe(patience=0)


def test_options_in_the_shell(tmp_path: Path) -> None:
    runner = CliRunner(env={"COLUMNS": "250"})
    wrong = runner.invoke(app, ["reproduce", "mnist", "--rate", "fast", "--out", str(tmp_path)])
    assert wrong.exit_code == 2
    assert "--rate takes numbers" in wrong.output
    wrong = runner.invoke(app, ["reproduce", "mnist", "--protocol", "text", "--out", str(tmp_path)])
    assert "there are clean, paper" in wrong.output
    shown = runner.invoke(app, ["reproduce", "--help"]).output
    assert all(option in shown for option in ("--protocol", "--images", "--rate", "--batch-size", "--smoothing"))
