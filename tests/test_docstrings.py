"""The public names explain themselves: what they take, return and raise, with an example that runs."""

from __future__ import annotations

import doctest
import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import frpt

ROOMS = ("data", "driving", "embed", "ops", "stats", "targets", "train", "zoo")


def public() -> Iterator[tuple[str, Any]]:
    """Every public name that is no module, of frpt and of its public rooms."""
    for name in frpt.__all__:
        value = getattr(frpt, name)
        if not isinstance(value, types.ModuleType):
            yield name, value
    for room in ROOMS:
        module = getattr(frpt, room)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType):
                yield f"{room}.{name}", value


NAMES = {name: value for name, value in public() if inspect.isclass(value) or inspect.isfunction(value)}


@pytest.mark.parametrize("name", NAMES)
def test_public_names_say_what_they_take(name: str) -> None:
    value = NAMES[name]
    text = inspect.getdoc(value) or ""
    assert len(text.split()) > 5, f"{name} has no docstring to speak of"
    if inspect.isfunction(value) and inspect.signature(value).parameters:
        assert "Args:" in text
        if inspect.signature(value).return_annotation not in (None, "None"):
            assert "Returns:" in text


ELSEWHERE = ("frpt.targets", "frpt.diagnosis")
"""Their examples need a store or a trained network: tests/targets and tests/diagnosis run them."""


@pytest.mark.parametrize("name", [n for n, value in NAMES.items() if not value.__module__.startswith(ELSEWHERE)])
def test_examples_run(name: str) -> None:
    value = NAMES[name]
    tests = [t for t in doctest.DocTestFinder().find(value, name, globs={"frpt": frpt, "torch": torch}) if t.examples]
    for test in tests:
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
        assert result.failed == 0
