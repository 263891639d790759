"""How the report reads: names, headings, contrast, small screens, paper, and diagnoses out of the ordinary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from frpt.diagnosis import Diagnosis
from frpt.diagnosis.report.page import to_html
from tests.diagnosis import made
from tests.diagnosis.browser import MISSING, chosen, opened

pytestmark = MISSING

NAMES = """() => {
  const unnamed = e => {
    const own = e.matches('select, input, canvas, img, svg, .scroll') ? '' : e.textContent;
    const given = ['aria-label', 'alt'].map(a => e.getAttribute(a));
    return ![...given, ...[...(e.labels ?? [])].map(l => l.textContent), own].join('').trim();
  };
  const all = document.querySelectorAll('button, select, input, a, summary, [tabindex], canvas, img, svg');
  return [...all].filter(unnamed).map(e => e.outerHTML.slice(0, 120));
}"""

CONTRAST = """() => {
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = c => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = c; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; };
  const light = c => { const f = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.closest('script, :disabled, noscript')) continue;
    const style = getComputedStyle(e);
    const ink = rgba(e.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(`${e.tagName}.${e.className.baseVal ?? e.className} ${e.textContent.slice(0, 30)} ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
  }
  return bad;
}"""  # noqa: E501


def test_names_labels_headings_and_ids(page: Page) -> None:
    assert page.evaluate(NAMES) == []
    page.select_option("#gallery-layer", label="fc")
    expect(page.locator("#panels .plot svg")).to_have_count(3)
    assert page.evaluate(NAMES) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert [page.locator(tag).count() for tag in ("main", "header", "nav", "footer")] == [1, 1, 1, 1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser: Browser, file: Path, scheme: str) -> None:
    with opened(browser, file, color_scheme=scheme) as found:
        dark = found.page.evaluate("getComputedStyle(document.documentElement).colorScheme")
        assert dark == scheme
        assert found.page.evaluate(CONTRAST) == []


def test_small_screens(browser: Browser, file: Path) -> None:
    with opened(browser, file, 360, 780, has_touch=True, is_mobile=True) as found:
        page = found.page
        page.locator("#next").tap()
        expect(page.locator("#about")).to_contain_text("(2 of 12)")
        page.locator("#heat tbody td").nth(2).tap()
        assert chosen(page, "#gallery-layer") == "layer3"
        page.get_by_role("button", name="system").tap()
        assert page.locator("html").get_attribute("data-theme") == "light"
        for width in (360, 768):
            page.set_viewport_size({"width": width, "height": 780})
            for layer in ("layer3", "fc"):
                page.select_option("#gallery-layer", label=layer)
                page.wait_for_timeout(100)
                assert page.evaluate("document.documentElement.scrollWidth") == width


def test_print(browser: Browser, file: Path) -> None:
    with opened(browser, file, color_scheme="dark") as found:
        page = found.page
        assert page.pdf(format="A4").startswith(b"%PDF")
        page.set_viewport_size({"width": 690, "height": 1000})
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        for hidden in (".top", ".csv", "#gallery-layer", "#opacity", ".numbers"):
            assert not page.locator(hidden).first.is_visible()
        samples = page.locator("#table-samples .scroll")
        assert samples.evaluate("e => e.scrollHeight <= e.clientHeight + 1")
        expect(page.locator("#panels canvas").first).to_be_visible()


EVIL = ("</script><script>throw 1</script>", "<img src=x onerror='throw 2'>", '" onfocus="throw 3', "猫" * 90, "=1+1")


def small(**options: Any) -> Diagnosis:
    return made.diagnosis(**{"samples": 20, "gallery": 3, **options})


def no_number() -> Diagnosis:
    d, nan = small(), math.nan
    missing = {"deviation": nan, "closed": nan, "fault": nan, "sensitivity": nan, "wins": nan}
    layers = tuple(dataclasses.replace(f, **missing, positions=f.positions * nan) for f in d.layers)
    return dataclasses.replace(
        d, layers=layers, score=nan, units=tuple(dataclasses.replace(u, bound=nan) for u in d.units)
    )


def zeros() -> Diagnosis:
    d = small(pairs=(), gallery=0)
    empty = {"deviation": 0.0, "fault": 0.0}
    return dataclasses.replace(
        d,
        layers=tuple(
            dataclasses.replace(f, **empty, channels=f.channels * 0, by_class=f.by_class * math.nan) for f in d.layers
        ),
        units=tuple(dataclasses.replace(u, bound=0.0) for u in d.units),
        samples=dataclasses.replace(d.samples, corrected=np.zeros(20, dtype=bool)),
    )


CASES: dict[str, Callable[[], Diagnosis]] = {
    "regression": lambda: small(classes=()),
    "no pictures": lambda: small(size=None),
    "no gallery": lambda: small(gallery=0),
    "one layer": lambda: small(layers=made.LAYERS[2:3]),
    "no layer": lambda: small(layers=(), ranking=(), suspects=(), gallery=0, pairs=()),
    "no number": no_number,
    "zeros": zeros,
    "many classes": lambda: small(classes=tuple(f"class {i}" for i in range(1000)), samples=300),
    "fifty classes": lambda: small(classes=tuple(f"a rather long name {i}" for i in range(50)), samples=100),
    "evil names": lambda: small(
        classes=EVIL, samples=30, layers=tuple((n, *rest) for n, (_, *rest) in zip(EVIL, made.LAYERS, strict=True))
    ),
}


USE = """() => {
  for (const s of document.querySelectorAll('select')) {
    if (s.disabled) continue;
    s.selectedIndex = 1;
    s.dispatchEvent(new Event('change'));
  }
  const cells = '.grid tbody tr:last-child td:last-child';
  document.querySelectorAll(`${cells}, button:not(.csv)`).forEach(b => b.click());
  document.querySelectorAll('summary').forEach(s => s.click());
}"""


@pytest.mark.parametrize("name", list(CASES))
def test_unusual_diagnoses(browser: Browser, tmp_path: Path, name: str) -> None:
    file = to_html(CASES[name](), tmp_path / "r.html", results=[made.comparison(1)])
    with opened(browser, file, 360, 740) as found:
        page = found.page
        page.evaluate(USE)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.evaluate(NAMES) == []
        assert page.locator("script").count() == 2
        assert page.locator("img").count() == 0
        if name == "many classes":
            assert page.locator("#heat tbody tr").count() == 30
            assert page.locator("#matrix").count() == 0
        if name == "evil names":
            shown = {text.split(" → ")[0] for text in page.locator("#pair option").all_text_contents()}
            assert shown <= set(EVIL)
            assert any("<script>" in text for text in page.locator("#pair option").all_text_contents())
