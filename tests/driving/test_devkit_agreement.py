"""The numbers are the devkit's: those of a sample that lies here, of a larger file where there is one, and its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from frpt.driving import Scene, score, simulate
from tests.driving.devkit import NAMES, SAMPLE, devkit_cache, devkit_score, read, why_not
from tests.driving.made import Json, Wild, touching

FILE = "navsim/pdm_scenes.json.gz"


def assert_agrees(scene: Json, tolerance: float) -> None:
    found = score(Scene.from_dict(scene), [plan["poses"] for plan in scene["plans"]])
    for name in NAMES:
        expected = [plan["scores"][name] for plan in scene["plans"]]
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=tolerance, err_msg=name)


def test_a_sample_of_scenes_that_the_devkit_scored() -> None:
    scenes = read(SAMPLE)
    for scene in scenes:
        assert_agrees(scene, 1e-9)
    seen = {name: {plan["scores"][name] for scene in scenes for plan in scene["plans"]} for name in NAMES}
    assert seen["NC"] == seen["DDC"] == {0, 0.5, 1}
    assert seen["DAC"] == seen["TTC"] == seen["C"] == {0, 1}
    assert len(seen["EP"]) > 25
    assert sum(len(scene["plans"]) for scene in scenes) > 200


def larger_file() -> Path | None:
    """Beside the data sets (FRPT_DATA), or in a folder ``shared`` beside the repository."""
    given = os.environ.get("FRPT_DATA")
    folders = [*([Path(given), Path(given).parent] if given else []), Path(__file__).resolve().parents[3] / "shared"]
    return next((folder / FILE for folder in folders if (folder / FILE).exists()), None)


@pytest.mark.skipif(larger_file() is None, reason=f"no {FILE} in FRPT_DATA")
def test_two_hundred_plans_that_the_devkit_scored() -> None:
    """Coordinates in the file have six digits, which its scores show in the eighth."""
    path = larger_file()
    assert path is not None
    for scene in read(path):
        assert_agrees(scene, 1e-6)


@pytest.mark.parametrize("seed", range(100, 110))
def test_the_devkit_itself(seed: int) -> None:
    if reason := why_not():
        pytest.skip(reason)
    for made, plans in (Wild(seed).scene(), touching(seed)):
        scene = Scene.from_dict(made)
        expected, states = devkit_score(devkit_cache(made), plans)
        driven = simulate(scene, plans)
        np.testing.assert_allclose(driven.x, states[..., 0], atol=1e-7)
        np.testing.assert_allclose(driven.y, states[..., 1], atol=1e-7)
        np.testing.assert_allclose(driven.speed, states[..., 3], atol=1e-7)
        for name, value in score(scene, plans).items():
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-9, err_msg=f"{name} of seed {seed}")
