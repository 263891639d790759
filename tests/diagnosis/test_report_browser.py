"""The report in headless Chromium: every control is used, and nothing is loaded or complained about."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.diagnosis import made
from tests.diagnosis.browser import MISSING, chosen
from tests.diagnosis.test_report import PERCENTAGES

pytestmark = MISSING

PARTS = re.compile(r"(\d+)")
PIXELS = "c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return d.reduce((a, v, i) => (a * 31 + v) % 1000003, 7); }"  # noqa: E501


def test_theme(page: Page) -> None:
    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    button = page.get_by_role("button", name="Theme: system")
    light = background()
    button.click()
    assert (page.locator("html").get_attribute("data-theme"), background()) == ("light", light)
    cell = page.locator("#heat tbody td").first
    before = cell.evaluate("c => c.style.background")
    page.get_by_role("button", name="Theme: light").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert background() != light
    assert cell.evaluate("c => c.style.background") != before
    page.get_by_role("button", name="Theme: dark").press("Enter")
    assert page.locator("html").get_attribute("data-theme") is None
    assert background() == light


def test_skip_link_and_sections(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    links = page.locator("nav a")
    assert links.count() == 9
    for link in links.all():
        link.click()
        target = page.locator(link.get_attribute("href") or "")
        assert abs(target.bounding_box()["y"] - 64) < 900  # type: ignore[index]
        expect(target).to_be_in_viewport()


def test_layers_are_chosen_by_bar(page: Page) -> None:
    assert chosen(page, "#gallery-layer") == "layer3"
    page.locator("#deviation .bar").nth(1).click()
    for select in ("#channels-layer", "#pair-layer", "#gallery-layer"):
        assert chosen(page, select) == "layer4"
    expect(page.locator("#deviation .bar").nth(1)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#table-layers tr.chosen")).to_contain_text("layer4")
    page.locator("#fault .bar[tabindex='0']").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert chosen(page, "#gallery-layer") == "layer1"
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"  # focus is kept
    page.locator("#pair-layers .bar").first.click()
    assert chosen(page, "#gallery-layer") == "fc"


def test_channels_and_positions(page: Page) -> None:
    d = made.diagnosis()
    bars = page.locator("#channel-bars .bar")
    page.select_option("#channels-layer", label="layer4")
    assert bars.count() == 16
    expect(bars.first).to_contain_text(f"channel {d.layers[1].channels.argmax()}")
    before = page.locator("#positions canvas").evaluate(PIXELS)
    page.select_option("#channels-class", label="cat")
    expect(bars.first).to_contain_text(f"channel {d.layers[1].channels_by_class[3].argmax()}")
    assert chosen(page, "#gallery-class") == chosen(page, "#samples-class") == "cat"
    page.select_option("#channels-layer", label="layer3")
    assert page.locator("#positions canvas").evaluate(PIXELS) != before
    page.select_option("#channels-layer", label="fc")
    expect(page.locator("#positions")).to_contain_text("no positions")
    page.select_option("#channels-class", label="car")  # no sample of it needs a correction
    expect(page.locator("#channel-bars")).to_contain_text("Nothing to show")


def test_heat_map_by_pointer_and_keyboard(page: Page) -> None:
    cell = page.get_by_role("gridcell", name="cat at layer1", exact=False)
    cell.click()
    expect(page.get_by_role("gridcell", name="cat at layer1")).to_have_attribute("aria-selected", "true")
    assert (chosen(page, "#gallery-layer"), chosen(page, "#gallery-class")) == ("layer1", "cat")
    expect(page.locator("#table-classes tr.chosen")).to_contain_text("cat")
    rows = page.locator("#table-samples tbody tr:visible")
    assert set(rows.evaluate_all("rows => rows.map(r => r.dataset.class)")) == {"3"}
    assert page.locator("#samples-shown").text_content() == f"{rows.count()} of 60 rows"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert chosen(page, "#gallery-layer") == "blocks.1"
    page.keyboard.press("ArrowUp")
    page.keyboard.press(" ")
    assert chosen(page, "#gallery-class") != "cat"
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"


def test_confused_pairs(page: Page) -> None:
    d = made.diagnosis()
    page.select_option("#pair", index=2)
    expect(page.locator("#pair-channels .bar").first).to_contain_text(
        f"channel {d.pairs[2].channels['layer3'].argmax()}"
    )
    value = page.locator("#pair-layers .bar .value").first
    assert value.text_content() == f"{d.pairs[2].deviation['fc']:.3g}"
    page.select_option("#pair-layer", label="layer1")
    expect(page.locator("#pair-channels .bar").first).to_contain_text(
        f"channel {d.pairs[2].channels['layer1'].argmax()}"
    )
    page.get_by_role("gridcell", name="plane taken for car").click()
    assert chosen(page, "#pair").startswith("plane → car")
    page.get_by_role("gridcell", name="car taken for truck").click()  # never happened: nothing changes
    assert chosen(page, "#pair").startswith("plane → car")


def test_gallery(page: Page) -> None:
    about = page.locator("#about")
    expect(about).to_contain_text("(1 of 12)")
    expect(page.locator("#panels canvas")).to_have_count(4)
    captions = [text.strip() for text in page.locator("#panels strong").all_text_contents()]
    assert captions == ["Input", "Forward", "Reconstructed", "Difference"]
    page.click("#next")
    expect(about).to_contain_text("(2 of 12)")
    page.click("#previous")
    page.click("#previous")
    expect(about).to_contain_text("(12 of 12)")
    page.locator("#stage").press("ArrowRight")
    expect(about).to_contain_text("(1 of 12)")
    page.locator("#stage").press("ArrowLeft")
    expect(about).to_contain_text("(12 of 12)")
    page.select_option("#gallery-sample", index=4)
    expect(about).to_contain_text("(5 of 12)")
    label = made.diagnosis().gallery[0].label
    page.select_option("#gallery-class", value=str(label))
    expect(about).to_contain_text(made.CLASSES[label])
    page.select_option("#gallery-class", label="bird")
    expect(about).to_contain_text("No sample of bird")
    page.get_by_role("button", name="Show all classes").click()
    expect(about).to_contain_text("of 12)")


def test_gallery_layers(page: Page) -> None:
    map_ = page.locator("#panels canvas").nth(1)
    seen = {map_.evaluate(PIXELS)}
    for name in ("layer4", "blocks.1", "layer1"):
        page.select_option("#gallery-layer", label=name)
        expect(page.locator("#panels canvas").nth(1)).to_have_attribute(
            "aria-label", f"Forward response at {name}: the feature the layer has"
        )
        seen.add(map_.evaluate(PIXELS))
    assert len(seen) == 4
    page.select_option("#gallery-layer", label="fc")
    expect(page.locator("#panels .plot")).to_have_count(3)
    expect(page.locator("#panels .plot").first.locator(".bar")).to_have_count(16)
    expect(page.locator("#panels canvas")).to_have_count(1)
    expect(page.locator("#map-controls")).to_be_hidden()


def test_gallery_opacity_and_overlay(page: Page) -> None:
    canvas = page.locator("#panels canvas").nth(1)
    as_input = page.locator("#panels canvas").first.evaluate(PIXELS)
    half = canvas.evaluate(PIXELS)
    slider = page.get_by_label("Opacity")
    slider.fill("0")
    expect(page.locator("#opacity-value")).to_have_text("0 %")
    expect(canvas).to_be_visible()
    assert canvas.evaluate(PIXELS) == as_input  # nothing laid over it
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#opacity-value")).to_have_text("5 %")
    slider.fill("100")
    full = canvas.evaluate(PIXELS)
    assert len({as_input, half, full}) == 3
    page.get_by_label("Lay over the input").uncheck()
    expect(slider).to_be_disabled()
    assert canvas.evaluate(PIXELS) == full
    page.get_by_label("Lay over the input").check()
    expect(slider).to_be_enabled()


def test_warm_is_strong(page: Page) -> None:
    page.get_by_label("Lay over the input").uncheck()
    red, blue = page.evaluate(
        """() => {
          const { maps, size } = data.gallery[state.sample].responses.layer3;
          const v = Array.from(atob(maps), c => c.charCodeAt(0)).slice(0, size[0] * size[1]);
          const c = document.querySelectorAll('#panels canvas')[1];
          const at = i => {
            const x = ((i % size[1]) + 0.5) * c.width / size[1];
            const y = (Math.floor(i / size[1]) + 0.5) * c.height / size[0];
            return Array.from(c.getContext('2d').getImageData(x, y, 1, 1).data);
          };
          return [at(v.indexOf(Math.max(...v))), at(v.indexOf(Math.min(...v)))];
        }"""
    )
    assert red[0] > red[2] + 60
    assert blue[2] > blue[0] + 60


def test_samples_lead_to_the_gallery(page: Page) -> None:
    page.select_option("#samples-class", label="frog")
    look = page.locator("#table-samples tr:visible .look").first
    index = look.text_content()
    look.click()
    expect(page.locator("#about")).to_contain_text(f"Sample {index} ")
    assert page.evaluate("document.activeElement.id") == "stage"


SORTED = """table => [...table.tHead.rows[0].cells].map((head, column) => {
  const turn = () => {
    head.firstElementChild.click();
    const keys = [...table.tBodies[0].rows].map(r => r.cells[column].dataset.v ?? r.cells[column].textContent);
    return [head.getAttribute('aria-sort'), table.querySelectorAll('[aria-sort]').length, keys];
  };
  return [head.classList.contains('num'), turn(), turn()];
})"""


def test_every_table_sorts_by_every_column(page: Page) -> None:
    tables = page.locator(".table table")
    assert tables.count() == 7
    for table in tables.all():
        for numeric, (first, one, there), (second, _, back) in table.evaluate(SORTED):
            assert one == 1
            assert [first, second] == (["descending", "ascending"] if numeric else ["ascending", "descending"])
            assert sorted(there) == sorted(back)
            if not numeric:
                assert there == sorted(
                    there, key=lambda v: [int(p) if p.isdigit() else p for p in PARTS.split(v.lower())]
                )
                continue
            for values, sign in ((there, -1), (back, 1)):
                known = [sign * float(v) for v in values if v]
                assert known == sorted(known)
                assert values[: len(known)] == [v for v in values if v]  # what is missing comes last


def test_sorting_by_pointer_and_keyboard(page: Page) -> None:
    head = page.locator("#table-layers th", has_text=re.compile(r"^\s*deviation"))
    head.locator("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#table-layers tbody th").first).to_have_text("layer1")
    head.locator("button").press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("#table-layers tbody th").first).to_have_text("fc")


def test_every_table_downloads(page: Page) -> None:
    for button in page.locator(".csv").all():
        with page.expect_download() as waiting:
            button.click()
        name = button.get_attribute("data-name")
        assert waiting.value.suggested_filename == f"{name}.csv"
        rows = list(csv.reader(io.StringIO(Path(waiting.value.path()).read_text("utf-8-sig"))))
        table = page.locator(f"#table-{name} table")
        assert rows[0] == [text.strip() for text in table.locator("thead th").all_text_contents()]
        assert len(rows) == 1 + table.locator("tbody tr").count()
        assert {len(r) for r in rows} == {len(rows[0])}


def test_numbers_behind_plots(page: Page) -> None:
    box = page.locator("#channel-bars + details.numbers")
    box.locator("summary").click()
    expect(box.locator("tbody tr")).to_have_count(16)
    box.get_by_role("button", name="share").click()
    expect(box.locator("th[aria-sort='descending']")).to_have_count(1)
    page.select_option("#channels-layer", label="layer4")  # an open table follows its plot
    expect(box.locator("tbody th").first).to_have_text(page.locator("#channel-bars .name").first.text_content() or "")
    box.locator("summary").press("Enter")
    expect(box.locator("table")).to_be_hidden()
    boxes = page.locator("details.numbers")
    boxes.evaluate_all("all => all.forEach(d => { d.open = true; })")
    expect(boxes.last.locator("tbody tr")).not_to_have_count(0)
    rows = boxes.evaluate_all("all => all.map(d => d.querySelectorAll('tbody tr').length)")
    assert len(rows) >= 8
    assert min(rows) > 0


def test_tooltips_by_pointer_and_keyboard(page: Page) -> None:
    tip = page.locator("#tip")
    page.locator("#trust .dot").nth(2).hover()
    expect(tip).to_contain_text("3. conv2d_2")
    expect(tip).to_contain_text("σ from 0.02 to 8")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.locator("#trust .dot[tabindex='0']").focus()
    page.keyboard.press("End")
    expect(tip).to_contain_text("10. relu_9 → layer1")
    page.keyboard.press("ArrowLeft")
    expect(tip).to_contain_text("9. linear_8")
    stops = page.locator(".plot svg").evaluate_all("""all => all.map(s => {
      const stops = s.querySelectorAll("[tabindex='0']");
      stops[0].focus();
      return [stops.length, tip.hidden, s.querySelectorAll('.mark:not([aria-label])').length];
    })""")
    assert len(stops) > 10
    assert all(stop == [1, False, 0] for stop in stops)  # one tab stop each, with a tooltip


def test_training(page: Page) -> None:
    first = page.locator("#run-plots-0")
    assert first.locator("path.line.thin").count() == 15  # three arms, five seeds
    assert first.locator("path.line:not(.thin)").count() == 3
    assert first.locator(".span").count() == 2
    assert first.locator(".bar.orange").count() == 3
    assert page.locator("#run-plots-1 .plot").count() == 4
    assert page.locator("#run-plots-2 .dot").count() == 24
    expect(page.locator("#run-plots-2")).to_contain_text("Pearson −1")


def test_percentages_read_as_in_the_text(page: Page) -> None:
    assert page.evaluate("values => values.map(pct)", list(PERCENTAGES)) == list(PERCENTAGES.values())
