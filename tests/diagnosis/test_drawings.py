"""What a data set or a user draws of samples: called with the right outputs, within its budget, shown on the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from playwright.sync_api import Browser, expect
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.diagnosis.findings import drawn_at
from frpt.diagnosis.report.page import to_html
from frpt.diagnosis.report.pictures import DRAWINGS, drawings
from frpt.errors import OptionError
from tests.diagnosis import made
from tests.diagnosis.browser import MISSING, opened


def drawing(seed: int = 0, noise: bool = False) -> Figure:
    figure = Figure(figsize=(3.6, 4.8))
    rng = np.random.default_rng(seed)
    figure.subplots().imshow(rng.random((300, 300)) if noise else np.eye(30))
    return figure


class Drawn(TensorDataset):
    """A data set that draws its samples, and keeps what it was asked to draw."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self.asked: dict[int, Mapping[str, Tensor]] = {}

    def picture(self, index: int, outputs: Mapping[str, Tensor]) -> Figure:
        self.asked[index] = outputs
        return drawing()


@pytest.fixture(scope="module")
def regression() -> tuple[nn.Module, Drawn]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    return net, Drawn(torch.randn(30, 5), torch.randn(30, 3))


def test_outputs_before_and_after_beside_the_label(regression: tuple[nn.Module, Drawn]) -> None:
    net, data = regression
    found = frpt.diagnose(net, data, at=["0", "2"], gallery=4, reference=False, progress=False)
    assert sorted(data.asked) == sorted(s.index for s in found.gallery)
    assert len(data.asked) == 4
    layer = drawn_at(found.ranking)
    assert layer == next(name for name in found.ranking if name != "out")
    rev = frpt.Reverser(net, data.tensors[0][:8])
    for index, outputs in data.asked.items():
        x, y = (t[index : index + 1] for t in data.tensors)
        assert list(outputs) == ["before", "target", "after"]
        assert torch.allclose(outputs["before"], net(x)[0], atol=1e-6)
        assert torch.equal(outputs["target"], y[0])
        after = rev.run(x, layer, rev.reconstruct(x, y, at=layer).target)
        assert torch.allclose(outputs["after"], after[0], atol=1e-4)
    assert all(s.drawing is not None and s.drawing.shape == (480, 360, 3) for s in found.gallery)


def test_a_function_draws_instead_of_the_data_set(regression: tuple[nn.Module, Drawn]) -> None:
    net, data = regression
    data.asked.clear()
    asked = []

    def draw(index: int, outputs: Mapping[str, Tensor]) -> Figure:
        asked.append(index)
        return drawing()

    found = frpt.diagnose(net, data, at=["2"], gallery=2, reference=False, pictures=draw, progress=False)
    assert asked == [s.index for s in found.gallery]
    assert not data.asked
    with pytest.raises(OptionError, match="must be a matplotlib figure, got str"):
        frpt.diagnose(net, data, at=["2"], gallery=2, reference=False, pictures=lambda i, o: "x", progress=False)  # type: ignore[arg-type,return-value]


def test_nobody_draws() -> None:
    torch.manual_seed(0)
    net, data = (
        nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)),
        TensorDataset(torch.randn(9, 5), torch.randn(9, 3)),
    )
    found = frpt.diagnose(net, data, at=["0"], gallery=2, reference=False, progress=False)
    assert all(s.drawing is None for s in found.gallery)


def test_drawings_fit_their_budget() -> None:
    rng = np.random.default_rng(0)
    one = made.diagnosis().gallery[0]
    many = [dataclasses.replace(one, drawing=rng.integers(0, 256, (480, 360, 3), np.uint8)) for _ in range(30)]
    shown = drawings([*many, one])
    assert shown[-1] is None
    assert sum(len(s["url"]) for s in shown if s is not None) < 1.4 * DRAWINGS
    assert shown[0] is not None
    assert shown[0]["size"] == (480, 360)


@MISSING
def test_the_page_shows_them(browser: Browser, tmp_path: Path) -> None:
    d = made.diagnosis(gallery=2)
    pixels = np.full((480, 360, 3), 200, np.uint8)
    gallery = (dataclasses.replace(d.gallery[0], drawing=pixels), d.gallery[1])
    file = to_html(dataclasses.replace(d, gallery=gallery), tmp_path / "r.html")
    with opened(browser, file) as found:
        image = found.page.locator("#panels .drawing img")
        expect(image).to_have_count(1)
        expect(found.page.locator("#panels .drawing figcaption")).to_contain_text(
            f"run on from the target of {drawn_at(d.ranking)}"
        )
        assert image.evaluate("i => i.decode().then(() => i.naturalWidth)") == 360
        found.page.click("#next")
        expect(image).to_have_count(0)
