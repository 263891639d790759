"""The README's example is the one in examples/, and it prints what the README says; the rule in CONTRIBUTING works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import frpt
from frpt.rules.registry import RULES

ROOT = Path(__file__).parent.parent


def test_readme_shows_the_example_and_its_output() -> None:
    example = (ROOT / "examples" / "ten_lines.py").read_text()
    readme = (ROOT / "README.md").read_text()
    assert example.split("\n", 2)[2].strip() in readme
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "ten_lines.py")], capture_output=True, text=True, check=True
    )
    plan = run.stdout[: run.stdout.index("'0':")]
    assert plan in readme
    assert "labels [0, 1, 2, 3, 4, 5, 6, 7] predicted from the target [0, 1, 2, 3, 4, 5, 6, 7]" in run.stdout
    assert run.stdout.strip().splitlines()[-1] in readme
    assert run.stdout.strip().splitlines()[-2] in readme


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
