"""The examples in the docstrings of targets, data, zoo and stats give what they say."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import frpt
import frpt.data.images
import frpt.data.load
import frpt.stats
import frpt.targets.dataset
import frpt.targets.rewrite
import frpt.targets.store
import frpt.targets.write
import frpt.zoo.planner
import frpt.zoo.resnet
import frpt.zoo.simple_cnn
import frpt.zoo.simple_vit
from tests.targets.common import data, reverser

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples take for granted: a Reverser, a data set, a store of their own and a folder."""
    rev, dataset, folder = reverser(), data(), tmp_path_factory.mktemp("examples")
    store = frpt.write_targets(rev, dataset, "0", folder / "store", mode="delta", progress=False)
    return {"frpt": frpt, "rev": rev, "dataset": dataset, "folder": folder, "store": store, "Path": Path}


def examples(*modules: ModuleType) -> list[Any]:
    finder = doctest.DocTestFinder()
    found = [test for module in modules for test in finder.find(module) if test.examples]
    return [pytest.param(test, id=test.name) for test in found]


@pytest.mark.parametrize(
    "example",
    examples(
        frpt.targets.write,
        frpt.targets.store,
        frpt.targets.dataset,
        frpt.targets.rewrite,
        frpt.data.load,
        frpt.data.images,
        frpt.stats,
        frpt.zoo.simple_cnn,
        frpt.zoo.simple_vit,
        frpt.zoo.resnet,
        frpt.zoo.planner,
    ),
)
def test_examples_run(example: doctest.DocTest, names: dict[str, Any]) -> None:
    example.globs |= names
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=said.append)
    assert result.failed == 0, "".join(said)


@pytest.mark.parametrize(
    "name",
    [
        "frpt.write_targets", "frpt.TargetStore", "frpt.TargetDataset", "frpt.targets.rewrite_damaged",
        "frpt.data.load", "frpt.data.digits", "frpt.zoo.simple_cnn", "frpt.zoo.simple_vit", "frpt.zoo.resnet",
        "frpt.zoo.planner", "frpt.stats.paired", "frpt.stats.holm", "frpt.stats.benjamini_hochberg",
        "frpt.stats.best_against_reference", "frpt.stats.nested",
    ],
)  # fmt: skip
def test_public_names_say_what_they_take_and_show_an_example(name: str) -> None:
    value: Any = frpt
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    said = value.__doc__ or ""
    for section in ("Args:", "Example:"):
        assert section in said, f"{name} has no {section}"
