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
        self.asked: dict[int, list[Mapping[str, Tensor]]] = {}

    def picture(self, index: int, outputs: Mapping[str, Tensor]) -> Figure:
        self.asked.setdefault(index, []).append(outputs)
        return drawing()


@pytest.fixture(scope="module")
def regression() -> tuple[nn.Module, Drawn]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        reachable = net(torch.randn(30, 5))
    return net, Drawn(torch.randn(30, 5), reachable)


def test_outputs_before_and_after_beside_the_label(regression: tuple[nn.Module, Drawn]) -> None:
    net, data = regression
    found = frpt.diagnose(net, data, at=["0", "2"], gallery=4, reference=False, progress=False)
    assert sorted(data.asked) == sorted(s.index for s in found.gallery)
    assert len(data.asked) == 4
    rev = frpt.Reverser(net, data.tensors[0][:8])
    layers = [f.name for f in found.layers]
    for index, drawn in data.asked.items():
        x, y = (t[index : index + 1] for t in data.tensors)
        for layer, outputs in zip(layers, drawn, strict=True):
            assert list(outputs) == ["before", "target", "after"]
            assert torch.allclose(outputs["before"], net(x)[0], atol=1e-6)
            assert torch.equal(outputs["target"], y[0])
            after = rev.run(x, layer, rev.reconstruct(x, y, at=layer).target)
            assert torch.allclose(outputs["after"], after[0], atol=1e-4)
    for s in found.gallery:
        assert list(s.drawings) == layers
        assert {d.shape for d in s.drawings.values()} == {(480, 360, 3)}
        assert s.says.startswith("label ")


def test_a_function_draws_instead_of_the_data_set(regression: tuple[nn.Module, Drawn]) -> None:
    net, data = regression
    data.asked.clear()
    asked = []

    def draw(index: int, outputs: Mapping[str, Tensor]) -> Figure:
        asked.append(index)
        return drawing()

    found = frpt.diagnose(net, data, at=["2"], gallery=2, reference=False, pictures=draw, progress=False)
    assert sorted(asked) == sorted([s.index for s in found.gallery] * 2)  # at the output and at the layer
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
    assert all(s.drawings == {} for s in found.gallery)


def test_drawings_fit_their_budget() -> None:
    rng = np.random.default_rng(0)
    one = made.diagnosis().gallery[0]
    images = [{n: rng.integers(0, 256, (480, 360, 3), np.uint8) for n in ("out", "fc")} for _ in range(15)]
    shown = drawings([*(dataclasses.replace(one, drawings=image) for image in images), one])
    assert shown[-1] == {}
    assert sum(len(d["url"]) for s in shown for d in s.values()) < 1.4 * DRAWINGS
    assert shown[0]["fc"]["size"] == (480, 360)


@MISSING
def test_the_page_shows_that_of_the_chosen_layer(browser: Browser, tmp_path: Path) -> None:
    d = made.diagnosis(gallery=2)
    pixels = {f.name: np.full((480, 360 - 10 * i, 3), 200, np.uint8) for i, f in enumerate(d.layers)}
    gallery = (dataclasses.replace(d.gallery[0], drawings=pixels), d.gallery[1])
    file = to_html(dataclasses.replace(d, gallery=gallery), tmp_path / "r.html")
    with opened(browser, file) as found:
        image = found.page.locator("#panels .drawing img")
        expect(image).to_have_count(1)
        for i, f in enumerate(d.layers[:3]):
            found.page.select_option("#gallery-layer", str(i))
            caption = found.page.locator("#panels .drawing figcaption")
            expect(caption).to_contain_text(f"run on from the target of {f.name}")
            assert image.evaluate("i => i.decode().then(() => i.naturalWidth)") == 360 - 10 * i
        found.page.click("#next")
        expect(image).to_have_count(0)
