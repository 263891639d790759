"""The house: rooms, the direction of imports, sizes, and that every module says what it is for."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import frpt

ROOT = Path(frpt.__file__).parent
PAPER = ROOT.parent / "frpt_paper"
MODULES = sorted(file for root in (ROOT, PAPER) for file in root.rglob("*.py"))

LEVELS = [
    ["errors"],
    ["common", "stats"],
    ["files"],
    ["datasets", "graph", "solvers", "embed"],
    ["options"],
    ["rules"],
    ["ops", "reverse"],
    ["reverser"],
    ["reference"],
    ["targets", "data", "zoo"],
    ["train", "repairs"],
    ["diagnosis"],
    ["driving", "navsim"],
    ["cli"],
]

ENDS = {"__init__", "__main__"}
"""In no room: what ``import frpt`` and ``python -m frpt`` begin with."""


def imported(file: Path) -> list[str]:
    """The modules of frpt that a file imports, wherever in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("frpt."):
            names += [f"frpt.{a.name}" for a in node.names] if node.module == "frpt" else [str(node.module)]
        elif isinstance(node, ast.Import):
            names += [a.name for a in node.names if a.name.startswith("frpt.")]
    return names


def room(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def test_imports_go_one_way() -> None:
    """errors ← common ← files ← graph, solvers ← rules ← reverse ← reverser ← targets ← train ← … ← driving ← cli."""
    level = {name: i for i, names in enumerate(LEVELS) for name in names}
    rooms = {room(file) for file in MODULES if ROOT in file.parents} - ENDS
    assert rooms <= set(level), f"{rooms - set(level)} have no place in the order of imports"
    checked = 0
    for file in MODULES:
        if ROOT not in file.parents or room(file) in ENDS:
            continue
        own = room(file)
        for name in imported(file):
            other = name.split(".")[1]
            assert other == own or level[other] < level[own], f"{file.relative_to(ROOT)} imports {name}"
            checked += 1
    assert checked > 300


def test_no_room_is_crowded() -> None:
    crowded = Counter(file.parent for file in MODULES if file.stem != "__init__")
    assert {str(folder): count for folder, count in crowded.items() if count > 12} == {}


def test_a_module_has_its_name_for_itself() -> None:
    names = Counter(file.stem for file in MODULES if ROOT in file.parents and not file.stem.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(ROOT.parent)))
def test_a_module_says_what_it_is_for_and_fits_in_the_head(file: Path) -> None:
    text = file.read_text()
    says = ast.get_docstring(ast.parse(text))
    assert says is not None
    assert len(says.split("\n")[0].split()) >= 4
    assert text.count("\n") <= 450


def test_contributing_names_the_rooms() -> None:
    """Every folder and module at the top of the tree is in CONTRIBUTING's list of rooms, and nothing else."""
    text = (ROOT.parent.parent / "CONTRIBUTING.md").read_text()
    tree = text.split("```text\nsrc/frpt/", 1)[1].split("```", 1)[0]
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ") and line.split()}
    there = {p.stem for p in ROOT.iterdir() if (p.is_dir() and (p / "__init__.py").exists()) or p.suffix == ".py"}
    assert listed == there - ENDS
