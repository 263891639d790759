"""The report's text: escaping, size, no network, and what is shown of unusual diagnoses."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import os
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frpt.diagnosis.findings import Advice, Response
from frpt.diagnosis.report.page import to_html
from frpt.diagnosis.report.pictures import response, shrink
from frpt.diagnosis.report.words import number, percent, safe_json
from frpt.diagnosis.trust import advise
from frpt.errors import FrptError, OptionError
from tests.diagnosis import made

EVIL = (
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "a & b",
    "猫 \u2028 \u202e x",
    "n" * 400,
)


class Page(HTMLParser):
    """Elements, attributes, and the text of the data block."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._inside = ""
        self.data: dict[str, Any] = {}
        self.script = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = "data" if dict(attrs).get("id") == "data" else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data = json.loads(data)
        elif self._inside == "script":
            self.script += data
        elif self._inside != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


def page(tmp_path: Path, *args: Any, **options: Any) -> Page:
    return Page(to_html(made.diagnosis(**options), tmp_path / "r.html", *args).read_text("utf-8"))


def test_is_one_page_without_network(tmp_path: Path) -> None:
    text = to_html(
        made.diagnosis(), tmp_path / "r.html", results=[made.comparison(), made.result(), made.trajectory()]
    ).read_text("utf-8")
    found = Page(text)
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in found.elements}
    for _, attributes in found.elements:
        for name in ("src", "srcset", "action", "poster"):
            assert name not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", text)
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody loads


def test_policy_forbids_the_network_and_foreign_scripts(tmp_path: Path) -> None:
    found = page(tmp_path)
    policy = next(a["content"] for _, a in found.elements if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    own = base64.b64encode(hashlib.sha256(found.script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{own}'"


def test_says_what_the_diagnosis_says(tmp_path: Path) -> None:
    words = page(tmp_path).words
    assert "The fault is most likely in layer3 ." in words.replace("layer3.", "layer3 .")
    assert "22 of them (36.7 %) need a correction" in words
    assert "plane → car" in words
    assert "Beyond layer3 the bound passes 0.5" in words


@pytest.mark.parametrize(
    ("suspects", "headline"),
    [
        ((), "No single layer stands out ."),
        (("layer3", "layer4"), "No single layer stands out: layer3 or layer4 ."),
        (("layer3", "layer4", "fc"), "No single layer stands out: layer3 , layer4 or fc ."),
    ],
)
def test_the_headline_names_those_that_cannot_be_told_apart(
    tmp_path: Path, suspects: tuple[str, ...], headline: str
) -> None:
    d = dataclasses.replace(made.diagnosis(), suspects=suspects)
    words = Page(to_html(d, tmp_path / "r.html").read_text("utf-8")).words
    assert headline.replace(" ", "") in words.replace(" ", "")
    assert f"likeliest fault{' or '.join(suspects) or 'none stands out'}" in words


def test_user_text_is_escaped(tmp_path: Path) -> None:
    d = made.diagnosis(
        classes=EVIL,
        layers=((EVIL[0], "vector", (8,)), (EVIL[1], "map", (4, 4, 4))),
        model=EVIL[0],
        preset=EVIL[1],
        advice=Advice((EVIL[0],), EVIL[1]),
    )
    clean = Page(to_html(made.diagnosis(layers=made.LAYERS[:2]), tmp_path / "clean.html").read_text("utf-8"))
    text = to_html(d, tmp_path / "r.html", title=EVIL[0]).read_text("utf-8")
    found = Page(text)
    assert {tag for tag, _ in found.elements} == {tag for tag, _ in clean.elements}
    assert sum(tag == "script" for tag, _ in found.elements) == 2
    assert "\u2028" not in text.split('id="data">')[1].split("</script>")[0]
    assert found.data["names"] == {str(i): name for i, name in enumerate(EVIL)}
    assert found.data["layers"][1]["name"] == EVIL[1]
    assert EVIL[0] in "".join(found.text)


def test_lone_surrogates_and_empty_names(tmp_path: Path) -> None:
    found = page(tmp_path, classes=("\ud800", "", "c"))
    assert found.data["names"]["1"] == "class 1"


def test_json_is_safe_and_strict() -> None:
    text = safe_json({"a": [math.nan, math.inf, 1 / 3, np.float32(2), np.int64(3), np.bool_(True)], "b": "<&>\u2029"})
    assert not set("<>&\u2029") & set(text)
    assert json.loads(text) == {"a": [None, None, 0.333333, 2.0, 3, True], "b": "<&>\u2029"}


@pytest.mark.parametrize(("size", "noise"), [(32, 0.2), (224, 0.2)])
def test_200_samples_at_five_layers_fit_in_15_megabytes(tmp_path: Path, size: int, noise: float) -> None:
    layers = tuple((f"layer{i}", "map", (16, 56, 56)) for i in range(5))
    d = made.diagnosis(samples=500, gallery=1, size=size, noise=noise, layers=layers)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    one = d.gallery[0]
    many = tuple(
        dataclasses.replace(one, index=i, image=made.picture(rng, size, noise) if i < 20 else one.image)
        for i in range(200)
    )
    bytes_ = to_html(dataclasses.replace(d, gallery=many), tmp_path / "r.html").stat().st_size
    assert bytes_ < 15e6
    found = Page((tmp_path / "r.html").read_text("utf-8"))
    assert len(found.data["gallery"]) == 200
    assert all(s["image"]["url"].startswith("data:image/") for s in found.data["gallery"])


def test_twenty_large_layers_still_fit(tmp_path: Path) -> None:
    layers = tuple((f"layer{i}", "map", (4, 32, 32)) for i in range(20))
    d = made.diagnosis(gallery=1, layers=layers)  # type: ignore[arg-type]
    many = tuple(dataclasses.replace(d.gallery[0], index=i) for i in range(200))
    assert to_html(dataclasses.replace(d, gallery=many), tmp_path / "r.html").stat().st_size < 15e6


def test_maps_are_bytes_in_the_order_the_script_reads() -> None:
    a, b, c = np.array([[0.0, 1.0]]), np.array([[0.5, math.nan]]), np.array([[2.0, -1.0]])
    found = response(Response("map", a, b, c), 32)
    assert found["size"] == (1, 2)
    assert list(base64.b64decode(found["maps"])) == [0, 255, 128, 0, 255, 0]


def test_vectors_keep_the_channels_that_change_most() -> None:
    change = np.zeros(40)
    change[[7, 3]] = -0.9, 0.4
    found = response(Response("vector", np.arange(40.0), np.arange(40.0), change), 32)
    assert list(found["channels"][:2]) == [7, 3]
    assert len(found["channels"]) == 16
    assert list(found["values"][0][:2]) == [7, 3]


def test_shrinking_keeps_the_mean() -> None:
    grid = np.random.default_rng(0).random((96, 64))
    small = shrink(grid, 32)
    assert small.shape == (32, 32)
    assert small.mean() == pytest.approx(grid.mean(), rel=1e-5)
    assert shrink(grid[0], 32).shape == (1, 64)
    assert shrink(np.ones((3, 8, 8)), 32).shape == (8, 8)


def test_positions_keep_their_total(tmp_path: Path) -> None:
    found = page(tmp_path, layers=(("a", "map", (2, 64, 64)),))
    positions = found.data["layers"][0]["positions"]
    assert positions["size"] == [32, 32]
    assert sum(positions["values"]) == pytest.approx(1, abs=1e-3)


def test_no_classes(tmp_path: Path) -> None:
    found = page(tmp_path, classes=())
    ids = {a.get("id") for _, a in found.elements}
    assert not {"classes", "confusions", "heat", "gallery-class", "samples-class"} & ids
    assert "mean squared error" in found.words
    assert found.data["confusion"] is None


def test_thousand_classes_are_cut_and_say_so(tmp_path: Path) -> None:
    d = made.diagnosis(classes=tuple(f"c{i}" for i in range(1000)), samples=3000)
    file = to_html(d, tmp_path / "r.html")
    found = Page(file.read_text("utf-8"))
    assert file.stat().st_size < 15e6
    wrong, all_of = (np.bincount(d.samples.label[rows], minlength=1000) for rows in (d.samples.corrected, slice(None)))
    assert len(found.data["heat"]) == 30
    assert wrong[found.data["heat"][0]] == all_of[found.data["heat"][0]] > 0
    for note in (
        "30 classes with the largest share wrong, of 1,000",
        "first 500 of 3,000 samples",
        "up to 50",
        "the 200 with",
    ):
        assert note in found.words


def test_numbers_that_are_none(tmp_path: Path) -> None:
    d = made.diagnosis()
    bad = {"deviation": math.nan, "closed": math.inf, "fault": -math.inf, "sensitivity": math.inf}
    layers = tuple(dataclasses.replace(f, **bad) for f in d.layers)
    units = tuple(dataclasses.replace(u, bound=math.nan, rho=math.inf) for u in d.units)
    found = Page(
        to_html(dataclasses.replace(d, layers=layers, units=units, score=math.nan), tmp_path / "r.html").read_text()
    )
    assert found.data["layers"][0]["deviation"] is None
    assert "∞" in found.words
    assert "nan" not in found.words.lower().replace("finan", "")


def test_nothing_to_correct(tmp_path: Path) -> None:
    d = made.diagnosis(gallery=0, pairs=())
    zeros = dataclasses.replace(
        d.samples, corrected=np.zeros(len(d.samples), dtype=bool), deviation=np.zeros_like(d.samples.deviation)
    )
    found = Page(to_html(dataclasses.replace(d, samples=zeros), tmp_path / "r.html").read_text())
    assert "No layer is at fault." in found.words
    assert "No sample needs a correction" in found.words
    assert "No sample was chosen to be looked at." in found.words


def test_samples_are_worst_first(tmp_path: Path) -> None:
    d = made.diagnosis()
    found = page(tmp_path)
    shown = [int(str(a["data-sample"])) for tag, a in found.elements if tag == "tr" and "data-sample" in a]
    mean = d.samples.deviation.mean(1)
    assert shown == sorted(range(60), key=lambda i: (not d.samples.corrected[i], -mean[i], i))


def test_runs_are_shown(tmp_path: Path) -> None:
    c = made.comparison()
    found = Page(to_html(made.diagnosis(), tmp_path / "r.html", results=[c, made.result()]).read_text())
    run = found.data["runs"][0]
    assert run["gaps"][1]["mean"] == pytest.approx(c.difference("FR-PT").mean, rel=1e-5)
    assert [a["name"] for a in run["arms"]] == list(c.arms)
    assert len(run["arms"][0]["runs"]) == 5
    assert "Comparison before layer3" in found.words
    assert "Post-training before layer3" in found.words


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"results\[1\].*'dict'"):
        to_html(made.diagnosis(), tmp_path / "r.html", results=[made.result(), {}])  # type: ignore[list-item]
    assert not list(tmp_path.iterdir())


def test_a_bad_path_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for bad in (tmp_path / "missing" / "r.html", tmp_path / "file" / "r.html", tmp_path):
        with pytest.raises(FrptError, match="directory that exists"):
            to_html(made.diagnosis(gallery=0), bad)
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "r.html"
    file.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OptionError, match="No space left"):
        to_html(made.diagnosis(gallery=0), file)
    assert file.read_text() == "before"
    assert [f.name for f in tmp_path.iterdir()] == ["r.html"]
    monkeypatch.undo()
    assert to_html(made.diagnosis(gallery=0), str(file)) == file
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask


PERCENTAGES = {
    0.0: "0 %", 1.0: "100 %", 0.9996: "99.9 %", 0.995: "99.5 %", 0.123: "12.3 %", 0.001: "0.10 %", 1e-7: "0.00 %",
    -1e-7: "0.00 %", -0.0312: "−3.1 %", 2.7238: "272 %", 10.0: "1,000 %", 420.2721: "more than 1,000 %",
    459271.5625: "more than 1,000 %", -20.0: "less than −1,000 %",
}  # fmt: skip


def test_numbers_as_text() -> None:
    assert [number(v) for v in (1234.0, 0.12345, -2.5, math.nan, math.inf, None)] == [
        "1,234", "0.1235", "−2.5", "–", "∞", "–",
    ]  # fmt: skip
    assert [percent(v) for v in PERCENTAGES] == list(PERCENTAGES.values())
    assert [percent(v) for v in (math.inf, math.nan, None)] == ["more than 1,000 %", "–", "–"]


def test_absurd_deviations_are_not_spelled_out(tmp_path: Path) -> None:
    """A feature that would have to move by many times itself, a target that is not steady: in text and on the page."""
    d = made.diagnosis()
    wild = {"deviation": 459271.5625, "sensitivity": math.inf, "fault": -30.0, "fault_interval": (-90.0, 1.0)}
    layers = tuple(dataclasses.replace(f, **wild) for f in d.layers)
    d = dataclasses.replace(d, layers=layers, advice=advise(layers))
    words = Page(to_html(d, tmp_path / "r.html").read_text()).words
    for said in (str(d), words):
        assert "would have to move by more than 1,000 % of their norm" in said.replace("\u00a0", " ")
        assert "changes the correction by more than 1,000 %" in said.replace("\u00a0", " ")
        assert "inf %" not in said
    assert re.search(r"less than −1,000 to 100 %", str(d))
