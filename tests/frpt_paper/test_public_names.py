"""The laboratory is a user of frpt like any other: it imports public names only, and frpt works without it.

Public is what ``frpt.__all__`` lists, and in its sub-modules what their ``__all__`` lists or, where there is none, what
they define under a name without an underscore.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import frpt
import frpt_paper
from frpt.cli.main import app

FOLDER = Path(frpt_paper.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
MODULES = ("data", "driving", "embed", "errors", "ops", "stats", "targets", "train", "zoo")
"""Sub-modules whose names are public too."""


def public(module: ModuleType) -> set[str]:
    if hasattr(module, "__all__"):
        return set(module.__all__)
    names: set[str] = set()
    for node in ast.parse(Path(str(module.__file__)).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return {name for name in names if not name.startswith("_")}


NAMES = {"frpt": set(frpt.__all__)} | {f"frpt.{m}": public(importlib.import_module(f"frpt.{m}")) for m in MODULES}
"""Module → its public names."""


def is_public(dotted: str) -> bool:
    """Whether everything up to the first thing that is no module is public; attributes of classes are not followed."""
    module, *rest = dotted.split(".")
    for name in rest:
        if module not in NAMES:
            return True
        if name not in NAMES[module]:
            return False
        module = f"{module}.{name}"
    return True


def used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything of frpt that a module imports or reaches through an imported module."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "frpt":
                    bound[alias.asname or "frpt"] = alias.name if alias.asname else "frpt"
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "frpt":
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:  # the whole of a.b.c, not a.b again
            names, value = [node.attr], node.value
            while isinstance(value, ast.Attribute):
                names, value = [value.attr, *names], value.value
            if isinstance(value, ast.Name) and value.id in bound:
                yield node.lineno, ".".join([bound[value.id], *names])


def private(source: str) -> list[str]:
    return [f"line {line}: {name}" for line, name in used(ast.parse(source)) if not is_public(name)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_only_public_names(file: Path) -> None:
    assert private(file.read_text()) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import frpt\nfrpt.Reverser(m, x).model", 0),
        ("from frpt.errors import OptionError\nfrom frpt import data\ndata.load('digits')", 0),
        ("from frpt.train.settings import Settings", 1),
        ("import frpt.options", 1),
        ("import frpt\nfrpt.train.loop.Loop", 1),
        ("from frpt import stats\nstats.paired(a, b)\nstats._EXACT\nstats.np", 2),
        ("from frpt import reverser as r\nr.Reverser", 2),
    ],
)
def test_the_test_sees_private_names(source: str, count: int) -> None:
    assert len(private(source)) == count


def test_folders_hold_few_modules_of_different_names() -> None:
    names = [file.stem for file in FILES if file.stem != "__init__"]
    assert len(names) == len(set(names))
    for folder in {file.parent for file in FILES}:
        assert len(list(folder.glob("*.py"))) <= 12
    assert max(len(file.read_text().splitlines()) for file in FILES) <= 400


def test_the_core_does_not_need_the_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = "import sys; sys.modules['frpt_paper'] = None; import frpt.cli.main; frpt.Reverser, frpt.post_train"
    subprocess.run([sys.executable, "-c", alone], check=True)
    for name in [m for m in sys.modules if m.split(".")[0] == "frpt_paper"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "frpt_paper", None)
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["reproduce", "--list"])
    assert result.exit_code == 2
    assert "pip install" in result.output
