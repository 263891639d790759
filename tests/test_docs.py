"""Code in the documents runs: examples print what pages say, every Python block of a page works."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import frpt
from frpt.rules.registry import RULES

ROOT = Path(__file__).parent.parent
PAGES = [p for p in sorted((ROOT / "docs").rglob("*.md")) if "```python" in p.read_text()]


def blocks(page: Path) -> list[str]:
    """The Python code of a page; what cannot run by itself is marked as text there."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize(("page", "name"), [("README.md", "repair_first.py"), ("docs/get-started.md", "first.py")])
def test_a_page_shows_an_example_and_its_output(
    page: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = (ROOT / "examples" / name).read_text()
    text = (ROOT / page).read_text()
    assert example.split("\n", 2)[2].strip() in text
    monkeypatch.chdir(ROOT)
    runpy.run_path(f"examples/{name}")
    assert capsys.readouterr().out in text


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


class Small(nn.Module):
    """A network with the layer names that the pages use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.layer3 = nn.Sequential(nn.Conv2d(6, 6, 3, 2, 1), nn.ReLU())
        self.layer4 = nn.Sequential(nn.Flatten(), nn.Linear(96, 12), nn.GELU())
        self.fc = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))))
        return out


def your_own() -> dict[str, Any]:
    """What pages suppose the reader to have: a network, a batch, data sets."""
    torch.manual_seed(0)
    x = torch.randn(48, 3, 16, 16)
    y = (x.mean((1, 2, 3)) * 48).round().long() % 3
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    data = TensorDataset(x, y)
    given = {"dataset": data, "trainset": data, "valset": TensorDataset(x[:16], y[:16])}
    return {
        "model": model.eval(),
        "x": x[:8],
        "y": y[:8],
        "old_x": x[8:],
        "old_y": y[8:],
        "names": ["a", "b", "c"],
        **given,
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT / "docs").as_posix())
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = {preset: set(rules) for preset, rules in RULES.items()}
    namespace = your_own()
    try:
        for block in blocks(page):
            exec(compile(block, str(page), "exec"), namespace)
    finally:
        plt.close("all")
        for preset, rules in RULES.items():
            for op in set(rules) - known[preset]:
                del rules[op]


def test_the_rule_in_contributing_can_be_registered_and_used() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None

    class Atan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.atan(self.a(x)))

    torch.manual_seed(0)
    model, x = Atan().eval(), torch.randn(4, 5)
    assert "composite" in str(frpt.Reverser(model, x).plan("a"))
    try:
        exec(code.group(1), {})
        rev = frpt.Reverser(model, x, margin=0.05)
        assert [u.match.rule for u in rev.plan("a").units] == ["linear", "atan"]
        with torch.no_grad():
            y = (model(x).argmax(1) + 1) % 3
        rec = rev.reconstruct(x, y, at="a")
        assert (rev.run(x, "a", rec.target).argmax(1) == y).all()
    finally:
        RULES["default"].pop(torch.ops.aten.atan.default, None)


def test_tables_of_the_results_page_are_those_under_results() -> None:
    tool = runpy.run_path(str(ROOT / "docs" / "tools" / "results_page.py"))
    text = (ROOT / "docs" / "results.md").read_text()
    assert tool["filled"](text) == text, "run docs/tools/results_page.py page"
    assert text.count("<!-- table: ") == text.count("<!-- end -->") - text.count("<!-- lines: ")
    summary = tool["summary"]()
    assert summary.markdown() == (ROOT / "results" / "summary.md").read_text(), "run docs/tools/results_page.py tables"


def test_numbers_in_sentences_of_the_results_page_are_under_results() -> None:
    tool = runpy.run_path(str(ROOT / "docs" / "tools" / "results_page.py"))
    text = (ROOT / "docs" / "results.md").read_text()
    assert tool["unfounded"](text) == []
    section = "## The paper's protocol, run again"
    changed = text.replace(section, f"{section}\n\n`results/cifar10-paper/` has a gain of 987.65 points.")
    assert tool["unfounded"](changed) == [(section, "987.65")]
