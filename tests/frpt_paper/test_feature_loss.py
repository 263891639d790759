"""Feature targets as a loss: its terms against slow ones, the choice of settings, the tables, the whole at once."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import frpt
from frpt.errors import OptionError
from frpt_paper import ReproduceOptions, RunsTable, reproduce
from frpt_paper.experiments import adapting
from frpt_paper.experiments.adapting import Aim, distance, fisher, kl
from frpt_paper.experiments.feature_loss import FIELDS, GRIDS, Way, comparisons, jointly, reported, settings, singly
from frpt_paper.runs.lab import Lab
from frpt_paper.tables import frontier_tables as tables


@pytest.fixture(scope="module")
def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).eval()


@pytest.fixture(scope="module")
def reference(network: torch.nn.Sequential) -> frpt.Reference:
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(80, 4, generator=generator), torch.arange(80) % 3)
    return frpt.Reference.fit(network, data, at="1", progress=False)


def aim() -> Aim:
    generator = torch.Generator().manual_seed(2)
    anchor = torch.rand(5, 6, generator=generator) + 0.5
    corrected = torch.tensor([True, False, True, False, False])
    target = torch.where(corrected[:, None], anchor + torch.randn(5, 6, generator=generator), anchor)
    return Aim(target, anchor, corrected)


@pytest.mark.parametrize("measure", ["relative", "reference"])
def test_the_distance_begins_at_one_and_ends_at_zero(measure: str, reference: frpt.Reference) -> None:
    one = aim()
    f, rows = distance(one, measure, 3.0, reference, "1"), torch.arange(5)
    assert float(f(one.anchor, rows)) == pytest.approx(1.0, rel=1e-5)
    assert float(f(one.target, rows)) == 0.0
    larger = replace(one, target=one.anchor + 10 * (one.target - one.anchor))
    assert float(distance(larger, measure, 3.0, reference, "1")(one.anchor, rows)) == pytest.approx(1.0, rel=1e-5)


def test_corrected_and_right_samples_are_weighed_apart(reference: frpt.Reference) -> None:
    """Twice as many right samples, each counting half: the same distance, by a loop over the samples."""
    one, rest = aim(), 3.0
    feature = one.anchor + 0.1
    relative = (feature - one.target).square().sum(1) / one.anchor.square().sum(1)
    unit = ((one.anchor - one.target).square().sum(1) / one.anchor.square().sum(1))[one.corrected].mean()
    slow = (relative[one.corrected].mean() + rest * relative[~one.corrected].mean()) / unit
    f = distance(one, "relative", rest, reference, "1")
    assert float(f(feature, torch.arange(5))) == pytest.approx(float(slow), rel=1e-5)
    with pytest.raises(OptionError, match="relative, reference"):
        distance(one, "absolute", rest, reference, "1")


def test_anchors_alone_have_a_distance_too(reference: frpt.Reference) -> None:
    one = aim()
    still = Aim(one.anchor, one.anchor, torch.zeros(5, dtype=torch.bool))
    f = distance(still, "relative", 1.0, reference, "1")
    assert float(f(one.anchor, torch.arange(5))) == 0.0
    assert float(f(1.1 * one.anchor, torch.arange(5))) == pytest.approx(0.01, rel=1e-4)


def test_the_fisher_is_the_mean_square_of_single_gradients(network: torch.nn.Sequential) -> None:
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        taught = network(x).log_softmax(1)
    found = fisher(network, x, taught, ["0.weight", "0.bias"])
    drawn = torch.multinomial(taught.exp(), 1, generator=torch.Generator().manual_seed(0))[:, 0]
    slow = torch.zeros_like(network[0].weight)
    for image, label in zip(x, drawn, strict=True):
        loss = F.cross_entropy(network(image[None]), label[None])
        slow += torch.autograd.grad(loss, network[0].weight)[0].square() / len(x)
    assert set(found) == {"0.weight", "0.bias"}
    assert torch.allclose(found["0.weight"], slow, atol=1e-7)
    assert float(kl(taught, taught)) == pytest.approx(0.0, abs=1e-6)


def held_out(rows: list[tuple[Way, float, float]]) -> pd.DataFrame:
    start = {"size": 20, "new_start": 0.2, "old_start": 0.7}
    return pd.DataFrame(
        [{**{f: getattr(way, f) for f in FIELDS}, **start, "new": new, "old": old} for way, new, old in rows]
    )


def test_settings_are_chosen_by_both_accuracies() -> None:
    weak, middle, strong = (Way("EWC", keep="EWC", hold=h) for h in (1.0, 10.0, 100.0))
    rows = [(weak, 0.5, 0.5), (middle, 0.45, 0.62), (strong, 0.3, 0.69)]
    assert settings(held_out(rows)) == {"EWC": middle}


def test_targets_are_added_to_replay_at_its_own_strength() -> None:
    grid = GRIDS["paper"]
    ways = list(singly(grid, 20))
    frame = held_out([(way, 0.4 + (way.hold == 3.0) * 0.1 + (way.rest == 10.0) * 0.1, 0.69) for way in ways])
    found = list(jointly(grid, frame))
    assert {way.hold for way in found} == {3.0, 0.9}
    assert {way.pull for way in found if way.hold == 0.9} == {grid.faint}
    assert {way.arm for way in found} == {"replay + nearest", "replay + likeliest"}
    assert {way.rest for way in found if way.pull > grid.faint} == {10.0}
    assert sum(reported(way) and way.keep == adapting.REPAIR for way in ways) == 2
    assert sum(reported(way) and way.keep == adapting.REPAIR for way in singly(grid, 500)) == 1


def test_a_frontier_has_what_nothing_else_beats() -> None:
    points = pd.DataFrame({"new": [10.0, 20.0, 30.0, 30.0, 5.0], "old": [60.0, 65.0, 50.0, 40.0, 65.0]})
    assert tables.pareto(points)[["new", "old"]].to_numpy().tolist() == [[20.0, 65.0], [30.0, 50.0]]


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ by 5 points, arms by 1 and 2 on the new kinds; on the old one nothing differs."""
    rows = [
        {"size": 20, "arm": arm, "seed": seed, "corruption": kind, "new": 0.4 + 0.05 * seed + gain * (arm == "a"),
         "old": 0.6, "new_start": 0.2, "old_start": 0.7, "given": 0.9, "seconds": 1.0}
        for arm in ("a", "b") for seed in range(3)
        for kind, gain in (("noise", 0.01), ("fog", 0.02 + 0.0001 * seed))
    ]  # fmt: skip
    table = tables.differences(pd.DataFrame(rows), [("a", "b"), ("a", "absent")], "x", "x")
    assert table.data["new"].tolist() == pytest.approx([1.505])
    assert table.data["old"].tolist() == [0.0]
    assert table.data["both"].tolist() == pytest.approx([0.7525])
    assert table.data["n"].tolist() == [3]
    assert table.data["p_holm"].tolist() == table.data["p_t"].tolist()
    assert len(table.rows) == 1


def test_the_experiment_at_a_very_small_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frpt_paper.experiments.feature_loss.KINDS", ("contrast",))
    monkeypatch.setattr("frpt_paper.experiments.feature_loss.GRIDS", {"small": replace(GRIDS["small"], steps=4)})
    options = ReproduceOptions(tmp_path, samples=(200, 200), seeds=2, pretrain=1)
    report = reproduce("feature-loss", options)
    folder = tmp_path / "feature-loss"
    frame = RunsTable(folder / "runs.csv").frame()
    arms = {arm for pair in comparisons() for arm in pair}
    assert set(frame[frame["part"] == "report"]["arm"]) == arms
    assert set(frame[frame["part"] == "choice"]["arm"]) == arms | {"targets: class means", tables.ALL_WEIGHTS}
    counts = frame.groupby("part")["job"].nunique()
    assert counts["report"] == len(arms) * 2 * 2  # two corruptions, two seeds
    assert set(frame[frame["part"] == "choice"]["corruption"]) == {"contrast"}
    assert set(frame[frame["part"] == "report"]["corruption"]) == {"contrast", "jpeg"}
    assert (folder / "feature-loss.png").is_file()
    assert all(len(t.rows) for t in [*report.tables, *report.details])
    before = (folder / "runs.csv").read_bytes()
    reproduce("feature-loss", options)
    assert (folder / "runs.csv").read_bytes() == before  # nothing was missing
    _check_parts_and_parameters(Lab(tmp_path, train=200, test=200), frame)


def _check_parts_and_parameters(lab: Lab, frame: pd.DataFrame) -> None:
    """Samples, choice and report are of different images; only parameters up to the layer are trained."""
    names = list(adapting.AdaptingJob.__dataclass_fields__)
    rows = frame[frame["arm"] == "replay + likeliest"].set_index("part")[names[:4] + names[5:]]
    job = adapting.AdaptingJob(**{**rows.loc["report"].iloc[0].to_dict(), "part": "report"})
    images = [
        part
        for name in adapting.PARTS
        for part in (
            adapting.samples(lab, replace(job, part=name, corruption="contrast"))[0],
            adapting.measured(lab, job.dataset, name, "contrast", job.strength)[0],
        )
    ]
    together = torch.cat(images).flatten(1)
    assert len(together.unique(dim=0)) == len(together)
    start = adapting.start_of(lab, job.place)
    was = deepcopy(start.rev.model.state_dict())
    model = adapting.trained(start, job, *adapting.samples(lab, job), adapting.aim_of(lab, job))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, was[name])}
    assert changed == set(start.rev.upstream(start.at))
    assert all(torch.equal(value, was[name]) for name, value in start.rev.model.state_dict().items())


def test_options_that_mean_nothing_here(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="steps"):
        reproduce("feature-loss", ReproduceOptions(tmp_path, epochs=3))
