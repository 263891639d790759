"""The public names of frpt, and what importing it must not cost."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import frpt

ROOT = Path(__file__).parent.parent
HEAVY = ("pandas", "matplotlib", "lightning_fabric", "jinja2", "tensorboard", "scipy", "torch._dynamo", "sympy")


def loaded_after(code: str) -> set[str]:
    """The heavy packages that a fresh process has loaded after running some code."""
    script = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_frpt_loads_nothing_heavy() -> None:
    assert loaded_after("import frpt") <= loaded_after("import torch")


def test_the_command_line_starts_without_the_packages_that_single_commands_need() -> None:
    wanted_later = {"pandas", "matplotlib", "lightning_fabric", "jinja2", "tensorboard"}
    assert not loaded_after("import frpt.cli.main") & wanted_later


def test_the_pieces_of_a_training_loop_load_no_trainer() -> None:
    assert "lightning_fabric" not in loaded_after("from frpt import FeatureTap, LossBalance, freeze, post_train")


@pytest.mark.parametrize("name", frpt.__all__)
def test_every_public_name_resolves_and_is_kept(name: str) -> None:
    value = getattr(frpt, name)
    assert vars(frpt)[name] is value
    assert name in dir(frpt)


def test_type_checkers_see_what_is_there() -> None:
    tree = ast.parse(Path(frpt.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: getattr(node, "module", "")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    rooms = {name for name, module in seen.items() if module == "frpt"}
    assert rooms == set(frpt._ROOMS)
    assert {name: module for name, module in seen.items() if name not in rooms} == frpt._HOME_OF
    assert set(seen) | {"__version__"} == set(frpt.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Reversr'"):
        frpt.Reversr  # noqa: B018
    with pytest.raises(ImportError):
        from frpt import Reversr  # noqa: F401


def test_the_version_is_the_one_of_the_distribution() -> None:
    assert frpt.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
