"""The repair's part of the report: its numbers are the repair's, in the text and in headless Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect
from torch.utils.data import TensorDataset

from frpt.diagnosis import diagnose
from frpt.diagnosis.report.repair_part import PICTURES, repair_part
from frpt.errors import OptionError
from frpt.repairs import remember, repair
from tests.diagnosis import made
from tests.diagnosis.browser import MISSING, opened
from tests.diagnosis.test_report import EVIL, Page
from tests.diagnosis.test_report_reading import NAMES, USE


def test_what_it_says_is_what_the_repair_did() -> None:
    fix, d = made.fix(), made.diagnosis(model="Tiny")
    part = repair_part(d, fix)
    groups = {group["state"]: group for group in part.data["groups"]}
    assert fix.kept is not None
    counts = {state: group["count"] for state, group in groups.items()}
    assert counts == {
        "not fixed": int((~fix.fixed).sum()), "fixed": int((fix.fixed & ~fix.right_before).sum()),
        "broken": len(fix.kept.broken), "mended": len(fix.kept.mended),
    }  # fmt: skip
    row = int(fix.kept.broken[0])
    with torch.no_grad():
        image = fix.kept.inputs.args[0][row : row + 1]
        before, after = (int(model(image).argmax()) for model in (fix.start.model, fix.model))
    card = groups["broken"]["cards"][0]
    assert (card["index"], card["before"], card["after"]) == (row, made.CLASSES[before], made.CLASSES[after])
    assert card["label"] == made.CLASSES[int(fix.kept.labels[row])]
    assert part.notes == fix.notes
    assert len(part.data["curve"]) == 1 + len(fix.curve)
    assert sum(len(c["image"]["url"]) for g in part.data["groups"] for c in g["cards"]) < 1.4 * PICTURES
    features = next(table for table in part.tables if table.name == "features")
    assert [row.cells[0].text for row in features.rows] == ["fc", "layer3"]


def test_without_old_samples_and_of_outputs() -> None:
    alone = repair_part(made.diagnosis(model="Tiny"), made.fix(keep=0))
    assert {group["state"] for group in alone.data["groups"]} == {"not fixed", "fixed"}
    assert not alone.measured
    numbers = repair_part(made.diagnosis(model="Tiny", classes=()), made.fix(regression=True))
    assert all("%" in card["after"] for group in numbers.data["groups"] for card in group["cards"])


def test_inputs_that_are_no_pictures() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    x = torch.randn(6, 4)
    fix = repair(model, x, torch.arange(6) % 3, remember(model, torch.randn(200, 4), progress=False))
    part = repair_part(made.diagnosis(model="Sequential", classes=("a", "b", "c")), fix)
    assert part.data["groups"] == []
    assert len(part.tables[0].rows) == 6


def test_what_it_does_to_the_diagnosed_samples_is_counted(tmp_path: Path) -> None:
    """Samples of the diagnosis that the repair fixes and breaks, as running both networks has it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    x = torch.randn(120, 4)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[:20] = (y[:20] + 1) % 3
    memory = remember(model, x, progress=False)
    fix = repair(model, x[:10], y[:10], memory, strength=0.01)
    with torch.no_grad():
        before, after = (net(x).argmax(1) == y for net in (model, fix.model))
    given = torch.arange(120) < 10
    fixed, broken = ~before & after, before & ~after
    assert (fixed & given).any()
    assert broken.any()
    d = diagnose(model, TensorDataset(x, y), gallery=0, progress=False)
    part = repair_part(d, fix)
    said = (
        f"Of the 120 samples of this diagnosis 10 were given to the repair, which fixed {(fixed & given).sum()} of "
        f"them. Of the 110 others it fixed {(fixed & ~given).sum()} and broke {(broken & ~given).sum()} of the "
        f"{(before & ~given).sum()} that were right."
    )
    assert said in part.text
    assert said in d.to_html(tmp_path / "r.html", repair=fix).read_text("utf-8")
    facts = {fact.label: fact.value for fact in part.facts}
    assert facts["others fixed"] == f"{(fixed & ~given).sum()} of {(~before & ~given).sum()}"
    assert facts["others broken"] == f"{(broken & ~given).sum()} of {(before & ~given).sum()}"
    rows = next(table for table in part.tables if table.name == "recounted").rows
    shown = [(int(r.cells[0].key), *(cell.text for cell in r.cells[1:3])) for r in rows]
    assert shown == [
        (int(i), state, "yes" if mine else "no")
        for state, changed in (("broken", broken), ("fixed", fixed))
        for mine in (False, True)
        for i in (changed & (given == mine)).nonzero()[:, 0]
    ]


def test_samples_that_are_all_given_or_all_new_are_told_so() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    x, other = torch.randn(8, 4), torch.randn(30, 4)
    with torch.no_grad():
        y, labels = (model(inputs).argmax(1) for inputs in (x, other))
    fix = repair(model, x, (y + 1) % 3, remember(model, other, progress=False))
    new = repair_part(diagnose(model, TensorDataset(other, labels), gallery=0, progress=False), fix)
    assert "None of the 30 samples of this diagnosis was given to the repair. Of the 30 samples it fixed 0" in new.text
    same = repair_part(diagnose(model, TensorDataset(x, (y + 1) % 3), gallery=0, progress=False), fix)
    assert f"8 were given to the repair, which fixed {int(fix.fixed.sum())} of them." in same.text
    assert "others" not in same.text
    assert not [fact for fact in same.facts if "others" in fact.label]


def test_samples_that_were_given_and_right_are_not_counted_as_not_fixed() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    x = torch.randn(30, 4)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[:3] = (y[:3] + 1) % 3
    fix = repair(model, x[:8], y[:8], remember(model, x, progress=False))
    part = repair_part(diagnose(model, TensorDataset(x, y), gallery=0, progress=False), fix)
    fixed = int(fix.fixed[:3].sum())
    assert f"8 were given to the repair, which fixed {fixed} of the 3 that were wrong" in part.text


def test_of_diagnosed_outputs_those_that_got_worse_are_counted() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)).eval()
    x = torch.randn(40, 3)
    with torch.no_grad():
        y = model(x) + torch.tensor([0.5, -0.5]) * (torch.arange(40) < 6)[:, None]
    fix = repair(model, x[:6], y[:6], remember(model, x, task="regression", progress=False), strength=1e-3)
    part = repair_part(diagnose(model, TensorDataset(x, y), gallery=0, progress=False), fix)
    with torch.no_grad():
        was, now = ((net(x) - y).norm(dim=1) for net in (model, fix.model))
    worse = int((now > torch.maximum(0.05 * y.norm(dim=1), 1.05 * was)).sum())
    assert f"took {worse} farther from their targets" in part.text


def test_another_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the repair is of a Tiny, the diagnosis of a SimpleCNN"):
        made.diagnosis().to_html(tmp_path / "r.html", repair=made.fix())
    with pytest.raises(OptionError, match=r"what frpt\.repair returned"):
        made.diagnosis().to_html(tmp_path / "r.html", repair=made.comparison())  # type: ignore[arg-type]
    assert not (tmp_path / "r.html").exists()


def test_names_are_text(tmp_path: Path) -> None:
    names = (*EVIL, *made.CLASSES[len(EVIL) :])
    file = made.diagnosis(model="Tiny", classes=names).to_html(tmp_path / "r.html", repair=made.fix())
    found = Page(file.read_text("utf-8"))
    assert [tag for tag, _ in found.elements].count("script") == 2
    assert not [1 for tag, _ in found.elements if tag == "img"]
    shown = {card["label"] for group in found.data["repair"]["groups"] for card in group["cards"]}
    assert shown <= set(names)


@MISSING
@pytest.mark.parametrize("width", [1280, 360])
def test_in_a_browser(browser: Browser, tmp_path: Path, width: int) -> None:
    fix = made.fix()
    file = made.diagnosis(model="Tiny", classes=(*EVIL, *made.CLASSES[len(EVIL) :])).to_html(
        tmp_path / "r.html", repair=fix, results=[made.comparison(1)]
    )
    with opened(browser, file, width, 800) as found:
        page = found.page
        page.evaluate(USE)
        assert page.evaluate(NAMES) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        expect(page.locator("#repair h3").filter(has_text="Fixed (11)")).to_have_count(1)
        images = page.locator("#repair-cards img")
        assert fix.kept is not None
        assert images.count() == len(fix.fixed) + len(fix.kept.broken) + len(fix.kept.mended)
        for image in images.all():
            image.scroll_into_view_if_needed()
        page.wait_for_function("[...document.querySelectorAll('#repair-cards img')].every(i => i.naturalWidth > 0)")
        assert page.locator("#repair-kl .dot").count() == page.locator("#repair-broken .dot").count() == 2
        assert page.locator("#repair-weights .bar").count() == len(fix.diff.moved)
        assert page.locator("#repair-features .bar").count() == 4
        page.locator("#repair-kl .dot").last.hover()
        expect(page.locator("#tip")).to_contain_text("strength 30, taken")
