"""The room is in order: few modules, no import cycle, nothing heavy loaded before it is needed."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import frpt.diagnosis

ROOT = Path(frpt.diagnosis.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MOST_MODULES, MOST_LINES = 12, 400


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in FILES}


def imported(file: Path) -> set[str]:
    """The modules of this room that a module imports, anywhere in it, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("frpt.diagnosis"):
            inside = {f"{node.module}.{a.name}" for a in node.names} & set(MODULES)
            names |= inside or {str(node.module)}
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names} & set(MODULES)
    return names


@pytest.mark.parametrize("name", MODULES)
def test_a_module_can_be_imported_by_its_name(name: str) -> None:
    assert importlib.import_module(name).__name__ == name


def test_imports_inside_the_room_make_no_cycle() -> None:
    """Counting those inside functions: they put off loading, they do not hide a cycle."""
    uses = {name: imported(file) for name, file in MODULES.items()}
    assert sum(map(len, uses.values())) > 20
    assert len(list(TopologicalSorter(uses).static_order())) == len(MODULES)


def test_a_folder_and_a_file_fit_in_the_head() -> None:
    for folder in (ROOT, ROOT / "figures", ROOT / "report"):
        assert len([f for f in folder.glob("*.py") if f.stem != "__init__"]) <= MOST_MODULES
    assert {f.name: n for f in FILES if (n := len(f.read_text().splitlines())) > MOST_LINES} == {}


def test_no_two_modules_have_one_name() -> None:
    stems = [f.stem for f in FILES if f.stem != "__init__"]
    assert len(set(stems)) == len(stems)


WATCHED = """
import sys, traceback
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("matplotlib", "pandas", "jinja2"):
            print(name, *(f.filename for f in traceback.extract_stack() if "frpt/diagnosis" in f.filename))
sys.meta_path.insert(0, Watch())
import frpt, frpt.diagnosis.tables, frpt.diagnosis.trajectory, frpt.diagnosis.responses, frpt.diagnosis.report.verdict
"""


def test_importing_loads_neither_figures_nor_frames_nor_templates() -> None:
    """No file of this room is on the stack when one of them is imported."""
    run = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=True)
    assert [line for line in run.stdout.splitlines() if "frpt/diagnosis" in line] == []
