"""A scene is checked when it is made, and its JSON form keeps every digit."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from frpt.driving import Area, Scene, SceneObject
from frpt.errors import FrptError, SceneError
from tests.driving.made import Json, Wild, road, thing


def test_there_and_back_again() -> None:
    made, _ = Wild(3).scene()
    scene = Scene.from_dict(made)
    assert scene.to_dict() == made
    assert Scene.from_dict(json.loads(json.dumps(scene.to_dict()))).to_dict() == made
    assert scene.objects[0].poses.shape == (51, 3)


def test_what_lies_beside_a_scene_is_not_read() -> None:
    assert "plans" not in Scene.from_dict({**road(), "plans": [1, 2], "seed": 3}).to_dict()


def test_a_scene_is_its_own_and_cannot_be_changed() -> None:
    line = np.array([[0.0, 0.0], [50.0, 0.0]])
    scene = Scene.from_dict({**road(), "centre_line": line})
    line[:] = 7
    assert scene.centre_line[1, 0] == 50
    with pytest.raises(ValueError, match="read-only"):
        scene.centre_line[0, 0] = 1.0
    with pytest.raises(AttributeError):
        scene.speed = 3.0  # type: ignore[misc]


def changed(path: str, value: Any) -> Json:
    """A good scene with one entry replaced (or removed: ...); the path's parts are keys and places."""
    made = copy.deepcopy(road(objects=[thing("vehicle", 20, 0)]))
    *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
    inner: Any = made
    for part in way:
        inner = inner[part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return made


NAN = float("nan")
BAD: list[tuple[str, Any, str]] = [
    ("ego", ..., "the scene has no 'ego'"),
    ("ego", 3, "must be a dictionary"),
    ("ego.speed", ..., "ego has no 'speed'"),
    ("ego.speed", NAN, "speed is nan"),
    ("ego.acceleration", "fast", "acceleration must be a number"),
    ("reference", ..., "no 'reference'"),
    ("reference", [[0, 0, 0]] * 7, r"reference plan must have shape \(8, 3\), got \(7, 3\)"),
    ("reference", [[0, 0, NAN]] * 8, "NaN or infinity"),
    ("centre_line", [], "nothing in the centre line"),
    ("centre_line", [[1, 1], [1, 1]], "no centre line"),
    ("centre_line", [[1, 1], [1]], "rows of 2"),
    ("route", [], "no route"),
    ("route", ["elsewhere"], "no route"),
    ("polygons", [], "no lane"),
    ("polygons.0.kind", "roadblock", "no lane"),
    ("polygons.0.kind", "river", "of kind 'river'; known are lane"),
    ("polygons.0.points", [[0, 0], [1, 1]], "'own' has 2 different points"),
    ("polygons.0.points", [[0, 0], [1, 1], [0, 0], [1, 1]], "at least three"),
    ("polygons.0.points", [[0, 0], [1, 1], [NAN, 0]], "NaN or infinity in the points of polygon 'own'"),
    ("polygons.0.points", [], "nothing in the points of polygon 'own'"),
    ("polygons.0.name", ..., "polygon of the scene has no 'name'"),
    ("objects.0.kind", "ufo", "of kind 'ufo'"),
    ("objects.0.poses", [[0, 0, 0]] * 50, r"poses of a vehicle of the scene must have shape \(51, 3\), got \(50, 3\)"),
    ("objects.0.poses", [[0, 0, NAN]] * 51, "NaN or infinity"),
    ("objects.0.width", 0, "above zero"),
    ("objects.0.length", -1.0, "above zero"),
    ("objects.0.speed", None, "speed of a vehicle of the scene must be a number"),
]


@pytest.mark.parametrize(("path", "value", "says"), BAD, ids=lambda v: v if isinstance(v, str) else "")
def test_a_bad_scene_is_refused(path: str, value: Any, says: str) -> None:
    with pytest.raises(SceneError, match=says):
        Scene.from_dict(changed(path, value))


def test_the_parts_check_themselves() -> None:
    assert issubclass(SceneError, FrptError)
    with pytest.raises(SceneError):
        Area("a", "lane", np.zeros((2, 2)))
    with pytest.raises(SceneError):
        SceneObject("vehicle", 1.0, 1.0, float("inf"), np.zeros((51, 3)))
    with pytest.raises(SceneError, match="must be a dictionary"):
        Scene.from_dict([])  # type: ignore[arg-type]
