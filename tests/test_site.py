"""The documentation site builds without a warning, shows every public name, and its tutorials run."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import frpt

pytest.importorskip("mkdocs", reason="the site needs the docs extra")
jupytext = pytest.importorskip("jupytext", reason="notebooks need the docs extra")
nbformat = pytest.importorskip("nbformat", reason="notebooks need the docs extra")

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
NOTEBOOKS = ROOT / "docs" / "tutorials"


def test_the_site_builds_strictly_shows_every_public_name_and_loads_from_nowhere(tmp_path: Path) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    pages = {p.relative_to(tmp_path).as_posix(): p.read_text() for p in tmp_path.rglob("*.html")}
    reference = "".join(text for name, text in pages.items() if name.startswith("reference/"))
    names = [name for name in frpt.__all__ if not name.startswith("__")]
    assert not [name for name in names if f'id="frpt.{name}"' not in reference]
    loads = re.compile(r"<(?:script|img)[^>]+src=\"?https?://|<link[^>]+rel=\"?stylesheet[^>]+href=\"?https?://")
    assert not [name for name, text in pages.items() if loads.search(text)]


def cells(script: Path) -> list[Any]:
    return list(jupytext.read(script, fmt="py:percent").cells)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_the_notebook_is_the_script_and_has_its_output(script: Path) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{script.stem}.ipynb", as_version=4)
    assert [c.source for c in notebook.cells] == [c.source for c in cells(script)], "run `make notebooks`"
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert outputs
    assert all(o.output_type != "error" and o.get("name") != "stderr" for o in outputs)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_the_tutorial_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With twenty steps of training, and without the cells that say they are slow."""
    from matplotlib import pyplot as plt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    code = [c.source for c in cells(script) if c.cell_type == "code" and not c.source.startswith("# slow")]
    text, count = re.subn(r"^STEPS = \d+$", "STEPS = 20", "\n\n".join(code), flags=re.MULTILINE)
    assert count == 1
    (tmp_path / "tutorial.py").write_text(text)
    runpy.run_path(str(tmp_path / "tutorial.py"))
    plt.close("all")  # a notebook closes what it has shown
