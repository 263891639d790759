"""The public names of frpt.train say what they take and return, and their examples run."""

from __future__ import annotations

import doctest
import inspect

import pytest
import torch

import frpt

NAMES = frpt.train.__all__
FRAMEWORKS = {"LightningTargets": "lightning", "TargetTrainer": "transformers"}
TAKE = (
    "post_train", "compare", "freeze", "Training", "FeatureTap", "FeatureTargets", "LossBalance", "Metric", *FRAMEWORKS,
)  # fmt: skip
HOLD = ("Result", "Comparison", "Arm", "Difference", "Epoch", "Frozen")


def test_every_public_name_is_looked_at() -> None:
    assert sorted((*TAKE, *HOLD)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_is_whole(name: str) -> None:
    if name in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[name], reason="the framework is not installed")
    value = getattr(frpt.train, name)
    text = inspect.getdoc(value) or ""
    if name in HOLD:
        assert "Attributes:" in text
        return
    assert "Example:" in text
    for parameter in inspect.signature(value).parameters:
        stars = {"options": "**", "args": "*"}.get(parameter, "")
        assert f"    {stars}{parameter}: " in text, parameter
    if inspect.isfunction(value):
        assert "Returns:" in text
        assert "Raises:" in text


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_run(name: str) -> None:
    if name in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[name], reason="the framework is not installed")
    value = getattr(frpt.train, name)
    for test in doctest.DocTestFinder().find(value, name, globs={"frpt": frpt, "torch": torch}):
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
