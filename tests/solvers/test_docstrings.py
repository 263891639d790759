"""The examples in the docstrings of the public names of the solvers' options, the rules and ``frpt.ops`` run."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

import frpt

NAMED = {
    "Bounded": frpt.Bounded,
    "Composite": frpt.Composite,
    "Convolutions": frpt.Convolutions,
    "Gate": frpt.Gate,
    "LikeliestWinning": frpt.LikeliestWinning,
    "Limits": frpt.Limits,
    "NearestWinning": frpt.NearestWinning,
    "Preset": frpt.Preset,
    "Reach": frpt.Reach,
    "ops.composite": frpt.ops.composite,
    "ops.conv": frpt.ops.conv,
    "ops.linear": frpt.ops.linear,
    "reverses": frpt.reverses,
}


@pytest.mark.parametrize("name", NAMED)
def test_the_example_runs(name: str) -> None:
    """As a reader would type it: nothing is there that the example does not import itself."""
    thing: Any = NAMED[name]
    found = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    examples = [test for test in found if test.examples]
    assert examples, f"{name} has no example"
    for test in examples:
        said: list[str] = []
        failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
        assert not failed, "".join(said)
