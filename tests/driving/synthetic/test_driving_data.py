"""The synthetic data set: what its items are, that they stay the same, on disk and off it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import frpt
from frpt.datasets.labelled import LabelledSamples
from frpt.driving import DrivingData, command, render
from frpt.driving.synthetic.driving_data import COMMANDS, PART
from frpt.errors import InputError, OptionError

COUNT = 24


@pytest.fixture(scope="module")
def data() -> DrivingData:
    return DrivingData(COUNT, seed=2, progress=False)


def equal(one: DrivingData, other: DrivingData) -> bool:
    (x, s), y = one.__getbatch__(range(len(one)))
    (x2, s2), y2 = other.__getbatch__(range(len(other)))
    return x.equal(x2) and s.equal(s2) and y.equal(y2)


def test_items(data: DrivingData) -> None:
    assert len(data) == COUNT
    (image, status), plan = data[5]
    assert image.shape == (3, 32, 128)
    assert image.dtype == status.dtype == plan.dtype == torch.float32
    assert 0 <= float(image.min()) < float(image.max()) <= 1
    scene = data.scene(5)
    assert torch.equal(image, torch.from_numpy(render(scene)).float() / 255)
    assert torch.equal(plan, torch.from_numpy(scene.reference.copy()).float())
    assert status[:4].tolist() == pytest.approx([scene.speed, 0, scene.acceleration, 0])
    (last, _), _ = data[-1]
    assert torch.equal(last, data[COUNT - 1][0][0])
    with pytest.raises(IndexError):
        data[COUNT]


def test_the_command_is_the_routes_or_unknown(data: DrivingData) -> None:
    unknown = 0
    for i in range(COUNT):
        told = data[i][0][1][4:]
        assert float(told.sum()) == 1
        said = COMMANDS[int(told.argmax())]
        unknown += said == "unknown"
        assert said in (command(data.scene(i)), "unknown")
    assert unknown <= 0.3 * COUNT


def test_batches_by_every_way(data: DrivingData) -> None:
    (x, s), y = data.__getbatch__([3, 1])
    assert torch.equal(x[1], data[1][0][0])
    loaded = next(iter(DataLoader(data, batch_size=4)))
    assert loaded[0][0].shape == (4, 3, 32, 128)
    assert torch.equal(loaded[1], data.__getbatch__(range(4))[1])
    samples = LabelledSamples(data)
    samples.check_stable()
    _, (images, status), plans = next(iter(samples.batches([[3, 1]], 2)))
    assert images.equal(x)
    assert status.equal(s)
    assert plans.equal(y)


def test_the_same_for_the_same_seed_and_a_part_of_a_longer_one(data: DrivingData) -> None:
    again = DrivingData(6, seed=2, progress=False)
    assert torch.equal(again.__getbatch__(range(6))[0][0], data.__getbatch__(range(6))[0][0])
    other = DrivingData(6, seed=3, progress=False)
    assert not torch.equal(again.trajectories, other.trajectories)


def test_on_disk(data: DrivingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = DrivingData(COUNT, seed=2, folder=tmp_path / "new", progress=False)
    assert equal(written, data)
    (file,) = (tmp_path / "new").iterdir()
    made: list[range] = []
    whole = DrivingData._made

    def noted(self: DrivingData, part: range) -> tuple[Tensor, ...]:
        made.append(part)
        return whole(self, part)

    monkeypatch.setattr(DrivingData, "_made", noted)
    assert equal(DrivingData(COUNT, seed=2, folder=tmp_path / "new", progress=False), data)
    assert made == [range(0, 1)], "only the first is made, to compare"
    file.write_bytes(file.read_bytes()[:-100])
    assert equal(DrivingData(COUNT, seed=2, folder=tmp_path / "new", progress=False), data)
    assert made[-1] == range(COUNT), "a damaged file is made again"


def test_a_file_of_other_scenes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = DrivingData(2, seed=5, folder=tmp_path, progress=False)
    monkeypatch.setattr("frpt.driving.synthetic.renderer.TARMAC", (0.1, 0.1, 0.1))
    new = DrivingData(2, seed=5, folder=tmp_path, progress=False)
    assert not torch.equal(old[1][0][0], new[1][0][0])


def test_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frpt.driving.synthetic.driving_data.PART", 3)
    whole = DrivingData._made

    def stopped(self: DrivingData, part: range) -> tuple[Tensor, ...]:
        if part.start == 3:
            raise KeyboardInterrupt
        return whole(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(DrivingData, "_made", stopped)
        with pytest.raises(KeyboardInterrupt):
            DrivingData(6, seed=2, folder=tmp_path, progress=False)
    assert len(list(tmp_path.iterdir())) == 1
    assert len(DrivingData(6, seed=2, folder=tmp_path, progress=False)) == 6
    assert PART > 3


def test_a_folder_that_cannot_be_written_to_costs_the_cache_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not cached"):
        made = DrivingData(1, seed=2, folder=tmp_path / "file" / "x", progress=False)
    assert len(made) == 1


def test_scores(data: DrivingData) -> None:
    scores = data.score(data.trajectories)
    assert set(scores) == {"NC", "DAC", "EP", "TTC", "C", "DDC", "PDMS"}
    assert scores["PDMS"].shape == (COUNT,)
    assert (scores["PDMS"] >= 0.9).all()
    mean = data.trajectories.mean(0, keepdim=True).expand(COUNT, 8, 3)
    assert data.score(mean)["PDMS"].mean() < 0.7
    with pytest.raises(InputError, match="one for each scene"):
        data.score(data.trajectories[:3])


def test_bad_options() -> None:
    with pytest.raises(OptionError, match="count must be positive"):
        DrivingData(0)
    with pytest.raises(OptionError, match="two positive numbers"):
        DrivingData(1, size=(32,))  # type: ignore[arg-type]


class Little(nn.Module):
    """A planner in a few weights: image and status in, eight poses out."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten())
        self.plan = nn.Sequential(nn.Linear(40, 32), nn.Tanh())
        self.out = nn.Linear(32, 24)

    def forward(self, image: Tensor, status: Tensor) -> Tensor:
        out: Tensor = self.out(self.plan(torch.cat([self.see(image), status], 1)))
        return out.reshape(-1, 8, 3)


def test_a_diagnosis_draws_the_scenes(data: DrivingData, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Little()
    found = frpt.diagnose(net, data, at=["plan"], samples=6, gallery=2, reference=False, progress=False)
    assert len(found.gallery) == 2
    for specimen in found.gallery:
        drawing = specimen.drawings["plan"]
        assert drawing.dtype == np.uint8
        assert len(np.unique(drawing.reshape(-1, 3), axis=0)) > 50
    page = found.to_html(tmp_path / "report.html").read_text()
    assert page.count('"plan":{"url":"data:image/png') == 2  # one for each sample, beside the output's


def test_no_random_state_or_warning_filter_is_touched() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), list(warnings.filters)  # type: ignore[union-attr]
    DrivingData(1, seed=1, progress=False)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (np.random.get_state()[1] == before[1]).all()
    assert before[2] == list(warnings.filters)
