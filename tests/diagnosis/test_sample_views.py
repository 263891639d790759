"""Names, words, waveforms and segmentations: what a reader recognises a sample by, from the data set to the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, expect
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import frpt
from frpt.diagnosis.responses import picture
from frpt.diagnosis.sample_views import class_colours, namer, segmentation, waveform, words_of
from frpt.errors import OptionError
from tests.diagnosis.browser import MISSING, opened


class Folder(TensorDataset):
    """As torchvision's folders: paths beside classes."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self.samples = [(f"/data/cat/{i:03}.jpg", 0) for i in range(len(tensors[0]))]


class Reads(nn.Module):
    """Token ids → classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(7, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.mix(self.embed(ids))).mean(1))
        return out


VOCABULARY = ["the", "cat", "sat", "on", "<mat>", "dog", "ran"]


def test_names_of_samples() -> None:
    data = Folder(torch.randn(6, 3), torch.zeros(6).long())
    assert namer(data, None)(2) == "002.jpg"
    assert namer(Subset(data, [4, 1]), None)(1) == "001.jpg"
    assert namer(DataLoader(data), None)(2) == "002.jpg"
    assert namer(data, [f"s{i}" for i in range(6)])(5) == "s5"
    assert namer(data, lambda i: f"frame {i}")(3) == "frame 3"
    assert namer(TensorDataset(torch.zeros(2)), None)(0) == ""
    with pytest.raises(OptionError, match="2 names, the data set 6 samples"):
        namer(data, ["a", "b"])


def test_words_of_a_sample() -> None:
    ids = torch.tensor([0, 1, 2, 99])
    assert words_of(ids, VOCABULARY) == ("the", "cat", "sat", "#99")
    masked = {"attention_mask": torch.tensor([1, 1, 0, 0]), "input_ids": ids}
    assert words_of(masked, lambda numbers: [f"w{n}" for n in numbers]) == ("w0", "w1")
    assert words_of(torch.randn(4), VOCABULARY) == words_of(ids, None) == ()
    with pytest.raises(OptionError, match="1 texts for 4 token ids"):
        words_of(ids, lambda numbers: ["one string"])


def test_a_waveform_shows_where_the_signal_is() -> None:
    x = torch.zeros(1024)
    x[512:] = torch.sin(torch.arange(512) * 2.0)
    image = waveform(x)
    assert image is not None
    assert image.shape == (96, 384, 3)
    ink = (image == image[48, 0]).all(2).sum(0)
    assert ink[:190].max() <= 2
    assert ink[200:].min() > 30
    assert np.array_equal(image, picture(x[None], mean=0.5, std=0.2))
    assert waveform(torch.zeros(100)) is None
    assert waveform(torch.zeros(3, 1024)) is None
    assert picture(torch.zeros(64)) is None
    assert waveform(torch.full((300,), torch.nan)) is not None


def test_a_segmentation_has_the_colours_of_its_classes() -> None:
    ids = np.zeros((8, 8), np.int64)
    ids[:, 4:], ids[0, 0] = 2, 255
    drawn = segmentation(None, {"before": ids, "target": ids}, ["ground", "road", "car"], 255)
    colours = class_colours(3)
    assert (drawn[16 + 100, 18] == colours[0]).all()
    assert (drawn[16 + 100, 170] == colours[2]).all()
    assert (drawn[16 + 2, 10] == 128).all()
    assert len(np.unique(class_colours(40), axis=0)) == 40


def test_a_diagnosis_of_pixels_draws_its_classes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1)).eval()
    data = TensorDataset(torch.rand(6, 3, 8, 8), torch.randint(3, (6, 8, 8)))
    names = ["ground", "road", "car"]
    d = frpt.diagnose(net, data, ["1"], gallery=2, class_names=names, reference=False, progress=False)
    assert d.class_names == ()
    for s in d.gallery:
        assert set(s.drawings) == {"out", "1"}
        assert "% of its labels are right" in s.says
    with pytest.raises(OptionError, match="2 names, the output 3 classes"):
        frpt.diagnose(net, data, ["1"], class_names=names[:2], progress=False)
    with pytest.raises(OptionError, match="class_names has 1 name, the output 3 classes"):
        frpt.diagnose(net, data, ["1"], class_names=names[:1], progress=False)


class Named(Dataset[tuple[Tensor, Tensor]]):
    """Text whose data set knows its names and its words."""

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randint(7, (30, 5), generator=g), torch.randint(3, (30,), generator=g)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]

    def sample_name(self, i: int) -> str:
        return f"review <{i}>"

    def tokens(self, ids: list[int]) -> list[str]:
        return [VOCABULARY[i] for i in ids]


@MISSING
def test_the_page_shows_words_and_names(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    d = frpt.diagnose(Reads().eval(), Named(), ["mix", "embed"], gallery=3, reference=False, progress=False)
    first = d.gallery[0]
    assert first.name == f"review <{first.index}>"
    assert first.words == tuple(VOCABULARY[i] for i in Named().x[first.index])
    assert d.sample_names[first.index] == first.name
    file = d.to_html(tmp_path / "r.html")
    with opened(browser, file) as found:
        page = found.page
        page.select_option("#gallery-layer", label="mix")
        expect(page.locator("#about")).to_contain_text(f"Sample {first.index} (review <{first.index}>)")
        expect(page.locator("#panels .words")).to_have_count(4)
        words = page.locator("#panels figure").nth(3).locator(".words span")
        assert words.all_text_contents() == list(first.words)
        assert all(words.evaluate_all("spans => spans.map((s) => s.style.background !== '')"))
        expect(page.locator("#panels figcaption").first).to_contain_text("taken for")
        expect(page.locator("#table-samples thead")).to_contain_text("name")
