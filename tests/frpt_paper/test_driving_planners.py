"""The driving experiment on a few synthetic scenes: what is run, what it is compared with, and that it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import frpt
from frpt import stats, zoo
from frpt.errors import OptionError
from frpt_paper import ExperimentReport, ReproduceOptions, RunsTable, reproduce
from frpt_paper.experiments import driving_planners
from frpt_paper.experiments.driving_planners import Size, papers_layers
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT
from frpt_paper.runs.planner_repairs import Head, embedded
from frpt_paper.runs.planners import (
    PLANNERS,
    TEST,
    TRAIN,
    PlannerJob,
    PlannerLab,
    Values,
    as_text,
    from_text,
    target_quality,
)
from frpt_paper.tables import driving_tables as tables

TINY = Size("tiny", 12, 8, 6, 6, (16, 64), 1, 1, 4, 8, (2, 100))


def tiny() -> zoo.Planner:
    """A planner whose backbone is one convolution."""
    backbone = nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten())
    return zoo.Planner(backbone, nn.Linear(16, 512), zoo.PlannerOptions(), {})


@pytest.fixture(scope="module", autouse=True)
def small_scale() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(driving_planners.SIZES, "small", TINY)
        patch.setitem(PLANNERS, "tiny", tiny)
        patch.setattr(driving_planners, "METHODS", ("nearest",))
        patch.setattr(frpt, "repair", partial(frpt.repair, strength=10.0))  # one strength instead of a dozen
        yield


def options(out: Path) -> ReproduceOptions:
    return ReproduceOptions(out, layers=("planning z_2",), c_rec=(0.3,), presets=("default", "reference"), seeds=1)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExperimentReport]:
    out = tmp_path_factory.mktemp("driving")
    return out, reproduce("driving", options(out))


def test_runs_controls_and_files(ran: tuple[Path, ExperimentReport]) -> None:
    out, report = ran
    frame = RunsTable(out / "driving" / "runs.csv").frame()
    assert list(zip(frame["arm"], frame["preset"], strict=True)) == [
        (BACKPROP, ""), (ANCHOR, ""), (FRPT, "default"), (FRPT, "reference"),
    ]  # fmt: skip
    for row in frame.to_dict("records"):
        values = from_text(row["scenes"])
        assert len(values["PDMS"]) == 6
        assert values["PDMS"].mean() == pytest.approx(row["PDMS"], abs=1e-3)
    repairs = RunsTable(out / "driving" / "repairs.csv").frame()
    assert list(repairs["method"]) == ["nearest"]
    assert repairs["given"].tolist() == [2]
    files = {p.name for p in (out / "driving").iterdir()}
    tables_ = [*report.tables, *report.details]
    assert {"report.md", "driving.png", *(f"{t.name}.{e}" for t in tables_ for e in ("md", "tex", "csv"))} <= files
    assert all("synthetic" in t.title for t in tables_)
    assert "100 scenes are left out" in report.markdown()


def test_the_planner_is_what_the_runs_start_from(ran: tuple[Path, ExperimentReport]) -> None:
    out, _ = ran
    checkpoint = RunsTable(out / "driving" / "runs.csv").frame()["checkpoint"][0]
    lab = PlannerLab(out.resolve(), "tiny", 12, 8, 6, 6, (16, 64), 1)
    assert lab.pretrained(progress=False) == checkpoint  # found, not trained again
    job = PlannerJob("driving", "tiny", "planning z_2", 0.3, 0, FRPT, "default", "", checkpoint)
    quality = target_quality(lab, job)
    assert quality["closed"] > 0.8
    assert quality["deviation"] > 0
    anchors = PlannerJob("driving", "tiny", "planning z_2", 0.3, 0, ANCHOR, "", "", checkpoint)
    assert target_quality(lab, anchors) == {"closed": 0.0, "closed_median": 0.0, "deviation": 0.0}
    data = lab.data(TEST, 6)
    with torch.no_grad():
        plans = lab.planner(checkpoint)(*data.__getbatch__(range(6))[0])
    head, planner = Head(lab.planner(checkpoint)), lab.planner(checkpoint)
    with torch.no_grad():
        assert torch.allclose(head(*embedded(planner, data.__getbatch__(range(6))[0])), plans, atol=1e-4)
        head.trajectory.bias.add_(1.0)
    assert planner.load_state_dict(head.state_dict(), strict=False).unexpected_keys == []  # as a repair is put back
    with torch.no_grad():
        assert torch.allclose(planner(*data.__getbatch__(range(6))[0]), plans + 1, atol=1e-4)
    scores = lab.before(checkpoint, TEST, 6)
    assert np.allclose(scores["PDMS"], data.score(plans)["PDMS"])
    assert lab.data(TRAIN, 12)[0][1].shape == (8, 3)


def test_a_second_call_runs_nothing(ran: tuple[Path, ExperimentReport], monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = ran
    before = (out / "driving" / "runs.csv").read_bytes()
    monkeypatch.setattr("frpt.post_train", None)
    monkeypatch.setattr("frpt.repair", None)
    reproduce("driving", options(out))
    assert (out / "driving" / "runs.csv").read_bytes() == before


def made_up(pdms: list[float]) -> Values:
    """Scores of scenes whose PDMS is given: EP carries it, everything else is perfect."""
    ones = np.ones(len(pdms))
    ep = (12 * np.array(pdms) - 7) / 5
    return {"NC": ones, "DAC": ones, "EP": ep, "TTC": ones, "C": ones, "DDC": ones, "ADE": ones, "PDMS": np.array(pdms)}


def runs(**settings: list[list[float]]) -> pd.DataFrame:
    """A table of runs, a list of scenes per seed. Names: the arm's first letter and the preset."""
    arms = {"b": (BACKPROP, "", 0.0), "a": (ANCHOR, "", 0.1), "f": (FRPT, "default", 0.1)}
    rows = []
    for name, seeds in settings.items():
        arm, preset, c = arms[name]
        for seed, scenes in enumerate(seeds):
            values = made_up(scenes)
            row = {"l_r": "fusion z", "c_rec": c, "arm": arm, "preset": preset, "seed": seed}
            rows.append({**row, "scenes": as_text(values), **{k: v.mean() for k, v in values.items()}})
    return pd.DataFrame(rows)


def test_differences_are_paired_by_scene() -> None:
    rng = np.random.default_rng(0)
    base, own = (np.round(rng.uniform(0.6, 1.0, (2, 40)), 3) for _ in range(2))
    start = np.round(rng.uniform(0.6, 1.0, 40), 3)
    data = tables.differences(runs(b=base.tolist(), f=own.tolist()), made_up(start.tolist()), ("PDMS", "NC"))
    row = data[(data["arm"] == FRPT) & (data["against"] == BACKPROP) & (data["metric"] == "PDMS")].iloc[0]
    expected = stats.paired(100 * own.mean(0), 100 * base.mean(0), resamples=tables.RESAMPLES)
    assert row["delta"] == pytest.approx(expected.delta, abs=0.02)
    assert (row["low"], row["high"]) == pytest.approx(expected.ci, abs=0.02)
    assert (row["n"], row["seeds"]) == (40, 2)
    each = [float(d) for d in row["by_seed"].split()]
    assert each == pytest.approx(100 * (own - base).mean(1), abs=0.02)
    assert set(data[data["arm"] == BACKPROP]["against"]) == {tables.BEFORE}  # never with itself
    assert (data[data["metric"] == "NC"]["delta"] == 0).all()
    overall = tables.overall(runs(b=base.tolist(), f=own.tolist()), made_up(start.tolist()))
    assert overall[overall["against"] == BACKPROP]["delta"].iloc[0] == pytest.approx(row["delta"])


def test_seeds_that_one_arm_lacks_are_left_out() -> None:
    frame = runs(b=[[0.7, 0.8, 0.9]], a=[[0.8, 0.8, 0.9], [0.1, 0.1, 0.1]])
    data = tables.differences(frame, made_up([0.7, 0.7, 0.7]), ("PDMS",))
    row = data[(data["arm"] == ANCHOR) & (data["against"] == BACKPROP)].iloc[0]
    assert row["seeds"] == 1
    assert row["delta"] == pytest.approx(100 / 30, abs=0.01)


def test_fixed_and_broken_are_counted_scene_by_scene() -> None:
    before, after = made_up([0.9] * 4), made_up([0.9] * 4)
    for values, off in ((before, [0, 1]), (after, [1, 2])):
        values["DAC"][off] = 0.0
        values["PDMS"][off] = 0.0
    given = {"given": 2, "given_driven": 1, "given_ADE": 1.0, "given_ADE_before": 2.0}
    repair = {"method": "nearest", "failing": 2, "predicted_kl": 0.1, "wall": 1.0, "scenes": as_text(after)}
    frame = pd.DataFrame([repair | given])
    table = tables.repair_table(frame, before, "repair", "title")
    assert table.data[["mended", "broken"]].iloc[0].tolist() == [1, 1]
    assert table.data["delta"].iloc[0] == pytest.approx(0.0, abs=0.01)


def test_layers_are_the_papers() -> None:
    assert papers_layers("resnet10") == ("planning z_2", "planning z_1", "fusion z", "ResNet z_4", "ResNet z_3")
    common = ("planning z_2", "planning z_1", "fusion z", "image embedding", "ViT final CLS token")
    assert papers_layers("vit_b16") == (*common, "ViT encoder layer 10 output")
    assert papers_layers("vit4") == (*common, "ViT encoder layer 2 output")


@pytest.mark.parametrize("name", ["resnet10", "vit4"])
def test_small_planners_have_every_layer(name: str) -> None:
    torch.manual_seed(0)
    model = PLANNERS[name]().eval()
    inputs = (torch.rand(2, 3, 32, 128), torch.randn(2, 8))
    rev = frpt.Reverser(model, inputs)
    units = [len(rev.plan(model.layers[layer]).units) for layer in papers_layers(name)]
    assert units == sorted(set(units))  # each is further back than the one before
    wanted = model(*inputs).detach() + 0.05
    rec = rev.reconstruct(inputs, wanted, at=model.layers["planning z_2"])
    torch.testing.assert_close(rev.run(inputs, "planning2", rec.target), wanted, atol=1e-3, rtol=1e-3)


def test_the_small_vit_is_the_papers_but_for_its_size() -> None:
    with torch.device("meta"):
        small, papers = PLANNERS["vit4"](), zoo.planner("vit_b16")
    names = [[n for n, _ in model.named_parameters()] for model in (small, papers)]
    assert names[0] == [n for n in names[1] if ".blocks." not in n or int(n.split(".")[2]) < 4]
    for name in papers_layers("vit4")[:-1]:
        assert small.layers[name] == papers.layers[name]
    assert small.layers["ViT encoder layer 2 output"] == "backbone.blocks.2"  # the last but one
    assert torch.equal(PLANNERS["vit4"]().mean.flatten(), torch.full((3,), 0.5))
    eps = {m.eps for m in small.backbone.modules() if isinstance(m, nn.LayerNorm)}
    assert eps == {1e-5}
    shares = {m.p for m in small.backbone.modules() if isinstance(m, nn.Dropout)}
    assert shares == {0.1}


def test_gains_stand_beside_those_of_the_papers_layer() -> None:
    frame = runs(b=[[0.7, 0.8, 0.9]], f=[[0.8, 0.8, 0.9]]).assign(l_r="ViT encoder layer 2 output")
    data = tables.differences(frame, made_up([0.7, 0.7, 0.7]), ("PDMS",))
    table = tables.beside_paper(data, driving_planners._papers_rows("vit4"), "paper", "title")
    assert table.data["paper"].iloc[0] == pytest.approx(77.96 - 77.50)


def test_repairs_are_those_of_the_scales_planner(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLANNERS, "vit-tiny", tiny)
        chosen = ReproduceOptions(tmp_path, models=("vit-tiny",), layers=("planning z_2",), c_rec=(0.3,), seeds=1)
        report = reproduce("driving", chosen)
    assert "repairs are those of tiny alone" in report.markdown()
    assert not (tmp_path / "driving" / "repairs.csv").exists()


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="resnet10"):
        reproduce("driving", ReproduceOptions(tmp_path, models=("resnet99",)))
