"""Synthetic scenes: the same for the same numbers, good by the score, and what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from frpt.driving import Scene, command, make_scene, score, simulate
from frpt.driving.polygons import corners, meet
from frpt.driving.synthetic.expert import FRONT, Actor, Driver, allowed, expert_plan, pull
from frpt.driving.synthetic.making import GOOD, _drawn, find_scene, scene_of
from frpt.driving.synthetic.roads import END, bent, line_of, strip
from frpt.errors import OptionError

COUNT = 60


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene(seed=11, index=i) for i in range(COUNT)]


def same(one: Scene, other: Scene) -> bool:
    return one.to_dict() == other.to_dict()


def test_a_scene_depends_on_its_numbers_alone(scenes: list[Scene]) -> None:
    assert same(make_scene(11, 7), scenes[7])
    assert not same(make_scene(12, 7), scenes[7])
    assert not same(scenes[6], scenes[7])
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    make_scene(11, 3)
    assert (np.random.get_state()[1] == state).all()


def test_a_trial_makes_the_scene_again() -> None:
    for index in range(12):
        trial, scene = find_scene(3, index)
        assert same(scene_of(3, index, trial), scene)


def test_the_driver_scores_well(scenes: list[Scene]) -> None:
    assert all(score(scene, scene.reference)["PDMS"][0] >= GOOD for scene in scenes)


def test_most_scenes_drawn_are_good() -> None:
    """What ``TRIES`` in making.py relies on."""
    trials = [find_scene(11, i)[0] // 2 for i in range(COUNT)]
    assert sum(trial == 0 for trial in trials) >= 0.65 * COUNT


def test_json_form_keeps_a_scene(scenes: list[Scene]) -> None:
    for scene in scenes[:5]:
        assert same(Scene.from_dict(scene.to_dict()), scene)


def test_scenes_are_of_all_kinds(scenes: list[Scene]) -> None:
    kinds = {item.kind for scene in scenes for item in scene.objects}
    assert kinds == {"vehicle", "pedestrian", "bicycle", "traffic_cone", "barrier"}
    lanes = [sum(area.kind == "lane" for area in scene.areas) for scene in scenes]
    assert set(lanes) == {1, 2, 3}
    names = [{area.name for area in scene.areas} for scene in scenes]
    assert any("crossing" in n and "ahead" not in n for n in names), "a crossing that is passed"
    assert any("ahead" in n for n in names), "a crossing that is turned at"
    assert {command(scene) for scene in scenes} == {"left", "straight", "right"}


def test_curvature_is_within_its_range(scenes: list[Scene]) -> None:
    """By the centre line's points alone: at most 1/12 per metre, and some bends near it."""
    most = []
    for scene in scenes:
        steps = np.diff(scene.centre_line, axis=0)
        heading = np.unwrap(np.arctan2(steps[:, 1], steps[:, 0]))
        most.append(np.abs(np.diff(heading)).max() / 0.5)
    assert max(most) <= 1 / 12 + 1e-3
    assert max(most) > 1 / 16
    assert min(most) < 1 / 300


def test_ego_is_in_its_lane_near_its_centre(scenes: list[Scene]) -> None:
    for scene in scenes:
        assert np.linalg.norm(scene.centre_line, axis=1).min() < 1.3
        own = next(area for area in scene.areas if area.name == "own")
        assert own.slabs.contain(np.zeros((1, 2))).all()


def test_nothing_overlaps_at_the_start(scenes: list[Scene]) -> None:
    for scene in scenes:
        boxes = [
            corners(o.poses[:1, :2], o.poses[:1, 2], o.length, o.width)[0] for o in scene.objects
        ]  # fmt: skip
        for i, box in enumerate(boxes):
            for other in boxes[:i]:
                assert not meet(box[None], other[None])[0]


def test_the_command_is_the_bends() -> None:
    for side, word in ((1, "left"), (-1, "right"), (0.05, "straight")):
        line = line_of(bent(10, 6, side * 1.2, 20), 0.0, 0.0)
        scene = scene_of(11, 0, 0)
        turned = Scene(
            8.0, 0.0, scene.reference, line.points, ("own",), scene.areas, ()
        )  # fmt: skip
        assert command(turned) == word


def test_a_line_has_the_curvature_and_place_asked_for() -> None:
    line = line_of(bent(10, 6, 1.2, 20), heading=0.05, left=0.4)
    assert line.heading[-1] - line.heading[0] == pytest.approx(1.2, abs=1e-3)
    short = line_of(bent(10, 10, 0.2, 20), 0.0, 0.0)
    assert short.heading[-1] - short.heading[0] == pytest.approx(10 / 20, abs=1e-3)
    (point,), (heading,) = line.at(np.zeros(1), 0.4)
    assert point == pytest.approx([0, 0], abs=1e-9), "ego is 0.4 m left of the line"
    assert heading == pytest.approx(-0.05)
    circle = line.points[(line.s > 20) & (line.s < 30)]
    centre = line.at(np.array([25.0]), 20.0)[0][0]
    assert np.linalg.norm(circle - centre, axis=1) == pytest.approx(20, abs=0.05)
    assert strip(line, -2, 2).shape == (2 * len(line.s), 2)
    beyond, _ = line.at(np.array([END, END + 10]))
    assert np.linalg.norm(beyond[1] - beyond[0]) == pytest.approx(10)


def ahead(gap: float, speed: float = 0.0) -> Actor:
    times = np.linspace(0, 5, 51)
    return Actor("vehicle", 4.8, 2.0, speed, FRONT + gap + 2.4 + speed * times, np.zeros(51), 0.0)


def test_the_driver_follows_treibers_model() -> None:
    driver = Driver()
    assert pull(driver.speed, driver.speed, np.inf, 0.0, driver) == pytest.approx(0.0)
    assert pull(0.0, driver.speed, np.inf, 0.0, driver) == pytest.approx(driver.acceleration)
    v, gap = 10.0, 30.0
    wished = driver.standing + v * driver.headway
    expected = driver.acceleration * (1 - (v / driver.speed) ** 4 - (wished / gap) ** 2)
    assert pull(v, driver.speed, gap, 0.0, driver) == pytest.approx(expected)
    assert pull(12.0, driver.speed, 3.0, 12.0, driver) == -driver.hardest


def test_the_driver_stops_behind_what_stands_and_passes_nobody() -> None:
    line = line_of(0 * bent(0, 5, 1, 20), 0.0, 0.0)
    plan = expert_plan(line, [ahead(25)], 8.0, 0.0, (0.0, 0.0), False, Driver())
    assert plan[-1, 0] < 25
    speeds = np.diff(plan[:, 0]) / 0.5
    assert (np.diff(speeds) < 0).all()
    assert speeds[-1] < 2.5, "of 8 m/s before"
    free = expert_plan(line, [], 8.0, 0.0, (0.0, 0.0), False, Driver())
    assert free[-1, 0] > 32


def test_the_driver_returns_to_the_lanes_centre() -> None:
    line = line_of(0 * bent(0, 5, 1, 20), heading=0.03, left=0.6)
    plan = expert_plan(line, [], 10.0, 0.0, (0.6, 0.03), False, Driver())
    away = [np.linalg.norm(line.points - p[:2], axis=1).min() for p in plan]
    assert away[0] > 0.3
    assert away[-1] < 0.1
    assert plan[-1, 2] == pytest.approx(line.heading[-1], abs=0.02)


def test_the_driver_slows_down_for_bends() -> None:
    line = line_of(bent(20, 6, 1.5, 12), 0.0, 0.0)
    speeds = allowed(line, Driver())
    assert speeds[line.s < 0][0] > 8
    assert speeds[np.argmax(np.abs(line.curvature))] == pytest.approx(np.sqrt(2.0 * 12))
    slowing = np.diff(speeds**2) / (2 * np.diff(line.s))
    assert slowing.min() >= -Driver().slowing - 1e-9


def test_waiting_for_one_who_crosses() -> None:
    line = line_of(0 * bent(0, 5, 1, 20), 0.0, 0.0)
    times = np.linspace(0, 5, 51)
    walker = Actor("pedestrian", 0.6, 0.6, 1.4, np.full(51, 25.0), 3.5 - 1.4 * times, -np.pi / 2)
    assert walker.crosses
    goes, waits = (
        expert_plan(line, [walker], 7.0, 0.0, (0.0, 0.0), wait, Driver()) for wait in (False, True)
    )  # fmt: skip
    assert waits[3, 0] < goes[3, 0], "brakes before anybody is in the way"


def test_what_a_plan_is_driven_like(scenes: list[Scene]) -> None:
    """The tracker stays near the driver's plan: scenes are drivable, not only scored well."""
    off = []
    for scene in scenes:
        driven = simulate(scene, scene.reference)
        off.append(np.hypot(driven.x[0, 5::5] - scene.reference[:, 0], driven.y[0, 5::5] - scene.reference[:, 1]).max())
    assert np.median(off) < 0.8


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(OptionError, match="must not be negative"):
        make_scene(-1, 0)
    assert _drawn(0, 0, 0).speed > 0
