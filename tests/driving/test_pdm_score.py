"""Each part of the score where the answer is known by hand: an ego of 2.297 by 5.176 m on a straight road."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frpt.driving import Driven, Scene, score
from frpt.driving.comfort import comfortable
from frpt.errors import InputError, NonFiniteError, OptionError
from tests.driving import slow
from tests.driving.made import Json, Wild, area, road, straight, thing, touching

TWO_LANES = [
    area("own", "lane", -30, 90, -4, 0),
    area("left", "lane", -30, 90, 0, 4),
    area("road", "roadblock", -30, 90, -4, 4),
]
BESIDE = 1.1485 + 1.0 - 0.05  # a car's centre that overlaps the ego's left side by 5 cm


def scored(scene: Json, plan: Any = None, **options: Any) -> dict[str, float]:
    plan = scene["reference"] if plan is None else plan
    return {name: float(value[0]) for name, value in score(Scene.from_dict(scene), plan, **options).items()}


def test_a_free_road() -> None:
    assert scored(road()) == dict.fromkeys(("NC", "DAC", "EP", "TTC", "C", "DDC", "PDMS"), 1.0)


# NC


OTHERS = ("traffic_cone", "barrier", "czone_sign", "generic_object")


@pytest.mark.parametrize(
    ("kind", "nc"), [("vehicle", 0), ("pedestrian", 0), ("bicycle", 0), *((kind, 0.5) for kind in OTHERS)]
)
def test_what_stands_in_the_way(kind: str, nc: float) -> None:
    found = scored(road(objects=[thing(kind, 25, 0)]))
    assert (found["NC"], found["TTC"]) == (nc, 0)
    assert found["PDMS"] == pytest.approx(nc * (5 * (nc > 0) + 2) / 12)


def test_the_worst_of_several_counts() -> None:
    cone, walker = thing("traffic_cone", 15, 0), thing("pedestrian", 30, 0)
    assert scored(road(objects=[cone, walker]))["NC"] == 0
    assert scored(road(objects=[walker, cone]))["NC"] == 0
    assert scored(road(objects=[cone]))["NC"] == 0.5


def test_a_standing_ego_is_not_to_blame() -> None:
    """Hit from behind, and from the front."""
    for x, heading in ((-20, 0.0), (25, np.pi)):
        found = scored(road(0.0, objects=[thing("vehicle", x, 0, heading, speed=8.0)]))
        assert (found["NC"], found["TTC"], found["PDMS"]) == (1, 1, 1)


@pytest.mark.parametrize(("speed", "nc"), [(0.04, 1), (0.06, 0)])
def test_an_ego_slower_than_five_centimetres_stands(speed: float, nc: float) -> None:
    assert scored(road(speed, objects=[thing("vehicle", 4.049 + 2.4, 0)]))["NC"] == nc


def test_a_moving_ego_hit_from_behind_is_not_to_blame() -> None:
    """TTC looks for the other from where the rear axle is now: what arrives fast is ahead of it by then."""
    gently, fast = (road(speed, objects=[thing("vehicle", -8, 0, speed=speed + 2)]) for speed in (2.0, 8.0))
    assert (scored(gently)["NC"], scored(gently)["TTC"]) == (1, 1)
    assert (scored(fast)["NC"], scored(fast)["TTC"]) == (1, 0)


@pytest.mark.parametrize(("speed", "nc"), [(0.05, 0), (0.0501, 1)])
def test_reversing_into_something_behind(speed: float, nc: float) -> None:
    """What stands is always hit, what moves is behind: its speed at the start decides."""
    behind = thing("vehicle", -12, 0, speed=speed, moves=(0.0, 0.0))
    made = {**road(-4.0, objects=[behind]), "reference": straight(-4.0).tolist()}
    assert scored(made)["NC"] == nc


def test_beside_in_one_lane_the_other_is_to_blame() -> None:
    car = thing("vehicle", 1.461, BESIDE, speed=8.0)
    assert scored(road(objects=[car]))["NC"] == 1
    assert scored(road(objects=[car], polygons=TWO_LANES))["NC"] == 0
    narrow = [area("own", "lane", -30, 90, -4, 4), area("road", "roadblock", -30, 90, -1, 4)]
    found = scored(road(objects=[car], polygons=narrow))
    assert (found["NC"], found["DAC"]) == (0, 0)


def test_two_lanes_are_one_if_a_third_holds_the_ego() -> None:
    car = thing("vehicle", 1.461, BESIDE, speed=8.0)
    assert scored(road(objects=[car], polygons=[*TWO_LANES, area("both", "lane", -30, 90, -2, 2)]))["NC"] == 1


def test_the_front_is_to_blame_in_any_lane() -> None:
    """A car that crosses slowly: the ego's front edge runs into its side."""
    crossing = thing("vehicle", 20, -1.0, np.pi / 2, speed=0.5)
    assert scored(road(objects=[crossing]))["NC"] == 0


def test_what_was_excused_stays_excused() -> None:
    """It brushes the ego's side, then pulls in front and stops there; met later for the first time, it is hit."""
    t = np.arange(51) * 0.1
    pulls_in = np.stack([1.461 + np.minimum(8 * t + 3 * t, 14), np.maximum(BESIDE - 2 * t, 0), 0 * t], -1)
    brushing = {**thing("vehicle", 0, 0, speed=8.0), "poses": pulls_in.tolist()}
    found = scored(road(objects=[brushing]))
    assert (found["NC"], found["TTC"]) == (1, 1)
    pulls_in[:5, 1] = 6.0
    found = scored(road(objects=[{**brushing, "poses": pulls_in.tolist()}]))
    assert (found["NC"], found["TTC"]) == (0, 0)


def test_to_touch_is_to_meet() -> None:
    for gap, nc in ((0.0, 0.5), (1e-9, 1.0)):
        cone = {**thing("traffic_cone", 0, 0), "length": 1.0, "width": 1.0}
        beside = np.tile([1.461, 1.1485 + 0.5 + gap, 0.0], (51, 1))
        assert scored(road(objects=[{**cone, "poses": beside.tolist()}]))["NC"] == nc


# TTC


@pytest.mark.parametrize(("gap", "ttc"), [(8 * 0.9 - 0.1, 0), (8 * 0.9 + 0.1, 1)])
def test_a_car_ahead_is_too_near_within_nine_tenths_of_a_second(gap: float, ttc: float) -> None:
    """The ego looks 0.9 s ahead at where the other will be: alongside at the same speed it never arrives."""
    same = thing("vehicle", 4.049 + gap + 2.4, 0, speed=8.0)
    assert scored(road(objects=[same]))["TTC"] == 1
    brakes = {**same, "poses": np.tile([4.049 + 32 + gap + 2.4, 0.0, 0.0], (51, 1)).tolist()}
    found = scored(road(objects=[brakes]))
    assert (found["NC"], found["TTC"]) == (1, ttc)


def test_beside_matters_in_intersections_and_between_lanes() -> None:
    car = thing("vehicle", 1.461, BESIDE, speed=8.0)
    one_lane = road(objects=[car])
    assert scored(one_lane)["TTC"] == 1
    assert scored(road(objects=[car], polygons=TWO_LANES))["TTC"] == 0
    crossing = [*one_lane["polygons"], area("x", "intersection", -10, 10, -10, 10)]
    assert scored(road(objects=[car], polygons=crossing))["TTC"] == 0
    later = [*one_lane["polygons"], area("x", "intersection", 10, 20, -10, 10)]
    assert scored(road(objects=[car], polygons=later))["TTC"] == 1


def test_behind_does_not_matter_in_an_intersection() -> None:
    polygons = [*road()["polygons"], area("x", "intersection", -20, 60, -10, 10)]
    assert scored(road(2.0, objects=[thing("vehicle", -8, 0, speed=4.0)], polygons=polygons))["TTC"] == 1


# DAC, DDC


@pytest.mark.parametrize(("half", "dac"), [(1.1485, 0), (1.1486, 1)])
@pytest.mark.parametrize("kind", ["roadblock", "intersection", "drivable_area", "car_park"])
def test_a_corner_on_the_border_is_not_on_the_road(half: float, dac: float, kind: str) -> None:
    polygons = [area("own", "lane", -30, 90, -4, 4), area("road", kind, -30, 90, -half, half)]
    found = scored(road(polygons=polygons))
    assert (found["DAC"], found["EP"], found["PDMS"]) == (dac, dac, dac)


def test_a_lane_alone_is_no_road() -> None:
    assert scored(road(polygons=[area("own", "lane", -30, 90, -4, 4)]))["DAC"] == 0


def test_corners_may_be_in_different_pieces_of_road() -> None:
    pieces = [area("a", "roadblock", -30, 20, -4, 4), area("b", "car_park", 19.9, 90, -4, 4)]
    assert scored(road(polygons=[area("own", "lane", -30, 90, -4, 4), *pieces]))["DAC"] == 1


def off_route(*gaps: tuple[float, float]) -> list[Json]:
    """The road, with a route that has gaps along x."""
    ends = [-30.0, *(x for gap in gaps for x in gap), 90.0]
    lanes = [area("own", "lane", a, b, -4, 4) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    return [*lanes, area("else", "lane", -30, 90, -4, 4), area("road", "roadblock", -30, 90, -4, 4)]


@pytest.mark.parametrize(
    ("gaps", "ddc"),
    [
        ([(10.0, 11.5)], 1),  # 1.6 m in two samples
        ([(10.0, 14.0)], 0.5),  # 4 m
        ([(10.0, 18.0)], 0),  # 8 m
        ([(10.0, 11.5), (14.0, 15.5)], 0.5),  # 3.2 m within a second
        ([(10.0, 11.5), (20.0, 21.5)], 1),  # farther apart than 11 samples
        ([(-10.0, 60.0)], 0),
    ],
)
def test_direction_is_judged_over_eleven_samples(gaps: list[tuple[float, float]], ddc: float) -> None:
    found = scored(road(polygons=off_route(*gaps)))
    assert found["DDC"] == ddc
    assert found["PDMS"] == 1  # it has no weight


@pytest.mark.parametrize(("speed", "ddc"), [(1.7, 1), (1.9, 0.5), (5.3, 0.5), (5.6, 0)])
def test_direction_has_bounds_of_two_and_six_metres(speed: float, ddc: float) -> None:
    assert scored(road(speed, polygons=off_route((-10.0, 60.0))))["DDC"] == ddc


# EP


def test_progress_is_a_share_of_the_longer_drive() -> None:
    made = road(8.0)
    slower = scored(made, straight(4.0))
    assert 0.5 < slower["EP"] < 0.7
    assert scored(made, straight(9.0))["EP"] == 1
    assert scored(made, straight(-9.0))["EP"] == 0


def test_a_reference_short_of_five_metres_asks_for_nothing() -> None:
    made = {**road(0.0), "reference": straight(1.2).tolist()}
    assert scored(made, np.zeros((8, 3)))["EP"] == 1
    off = {**made, "polygons": [area("own", "lane", -30, 90, -4, 4), area("road", "roadblock", -30, 90, -1, 1)]}
    assert scored(off, np.zeros((8, 3)))["EP"] == 0
    assert scored({**made, "reference": straight(4.0).tolist()}, np.zeros((8, 3)))["EP"] == 0


@pytest.mark.parametrize(("speed", "ep"), [(1.2, 1), (1.3, 0)])
def test_progress_counts_beyond_five_metres(speed: float, ep: float) -> None:
    """The reference makes four times its speed; the plan goes back."""
    assert scored(road(speed), straight(-2.0))["EP"] == ep


def test_a_reference_that_crashes_asks_for_nothing() -> None:
    """It hits the cone (½): half its progress is what a plan that stops before it is compared with."""
    for kind, share in (("vehicle", 1.0), ("traffic_cone", 2.0)):
        made = road(8.0, objects=[thing(kind, 30, 0)])
        t = 0.5 * np.arange(1, 9)
        stops = np.stack([np.where(t < 3, 8 * t - 8 / 6 * t**2, 12.0), 0 * t, 0 * t], -1)
        found = scored(made, stops)
        assert found["NC"] == 1
        if kind == "vehicle":
            assert found["EP"] == 1
        else:
            free = scored(road(8.0), stops)["EP"]
            assert found["EP"] == pytest.approx(min(free * share, 1))


# C


def drive_with(acceleration: Any = 0.0, heading: Any = 0.0) -> Driven:
    zero = np.zeros((1, 41))
    turned = (np.atleast_2d(heading) + zero + np.pi) % (2 * np.pi) - np.pi
    return Driven(zero, zero, turned, zero, np.atleast_2d(acceleration) + zero, zero)


T = np.arange(41) * 0.1


@pytest.mark.parametrize(
    ("bound", "acceleration", "heading", "expected"),
    [
        ("speeding up", 2.3999, 0, True),
        ("speeding up", 2.40, 0, False),
        ("braking", -4.0499, 0, True),
        ("braking", -4.05, 0, False),
        ("longitudinal jerk", (T - 2) ** 2 - 2, 0, True),
        ("longitudinal jerk", 1.1 * ((T - 2) ** 2 - 2), 0, False),
        ("yaw rate", 0, 0.9499 * T, True),
        ("yaw rate", 0, 0.95 * T, False),
        ("yaw rate", 0, 3.0 - 0.9 * T, True),
        ("yaw acceleration", 0, 0.11 * np.sin(4 * T), True),
        ("yaw acceleration", 0, 0.13 * np.sin(4 * T), False),
    ],
)
def test_comfort_has_strict_bounds(bound: str, acceleration: Any, heading: Any, expected: bool) -> None:
    assert bool(comfortable(drive_with(acceleration, heading))[0]) is expected, bound


def test_jerk_is_of_the_size_of_the_acceleration() -> None:
    """Accelerations that alternate in sign and grow: smoothed they vanish, their size grows by 1.05 slope a second."""
    signs = np.where(np.arange(41) // 2 % 2, 1.0, -1.0)
    for slope, expected in ((7.9, True), (8.0, False)):
        assert bool(comfortable(drive_with(signs * slope * T))[0]) is expected


def test_comfort_as_the_slow_one() -> None:
    """Noise whose strength is such that about half of the drives are comfortable, once by each bound."""
    random = np.random.default_rng(0)
    slope = random.uniform(0.9, 1.1, (400, 1)) * np.repeat([[2.0], [0.0]], 200, axis=0)
    acceleration = slope * (T - 2) ** 2 / 2 - slope + random.normal(0, 1.0, (400, 41))
    heading = random.normal(0, 0.006, (400, 41)) * np.repeat([[0.0], [1.0]], 200, axis=0)
    zero = np.zeros((400, 41))
    found = comfortable(Driven(zero, zero, heading, zero, acceleration, zero))
    assert found.tolist() == [slow.comfortable(a, h) for a, h in zip(acceleration, heading, strict=True)]
    assert 50 < found[:200].sum() < 150
    assert 50 < found[200:].sum() < 150


def test_hard_braking_is_uncomfortable_and_costs_a_sixth() -> None:
    brake = scored({**road(14.0), "reference": np.zeros((8, 3)).tolist()}, np.zeros((8, 3)))
    assert brake["C"] == 0
    assert brake["PDMS"] == pytest.approx(10 / 12)


# all of it


def test_both_jerks() -> None:
    scene, plans = Scene.from_dict(road(8.0)), np.stack([straight(4.0), straight(6.0)])
    devkit, right = score(scene, plans), score(scene, plans, jerk="right")
    assert (score(scene, plans, jerk="devkit")["PDMS"] == devkit["PDMS"]).all()
    assert (devkit["EP"] != right["EP"]).any()
    with pytest.raises(OptionError, match="'devkit' or 'right'"):
        score(scene, plans, jerk="wrong")  # type: ignore[arg-type]


def test_shapes_types_and_chunks() -> None:
    made, plans = Wild(1).scene()
    scene = Scene.from_dict(made)
    expected = score(scene, plans)
    many = score(scene, torch.tensor(np.tile(plans, (40, 1, 1))))
    assert list(expected) == ["NC", "DAC", "EP", "TTC", "C", "DDC", "PDMS"]
    for name, value in expected.items():
        assert value.shape == (8,)
        assert value.dtype == np.float64
        assert (many[name] == np.tile(value, 40)).all()
    assert score(scene, plans[3])["PDMS"].tolist() == [expected["PDMS"][3]]
    assert all(value.shape == (0,) for value in score(scene, np.zeros((0, 8, 3))).values())


def test_bad_plans_are_refused() -> None:
    scene, plans = Scene.from_dict(road()), np.zeros((3, 8, 3))
    with pytest.raises(InputError, match=r"got \(3, 7, 3\)"):
        score(scene, plans[:, :7])
    plans[2, 0, 0] = np.nan
    with pytest.raises(NonFiniteError, match="plan 2"):
        score(scene, plans)


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=1e-9, err_msg=name)


seeds = st.integers(0, 10_000)


@given(seeds)
def test_a_plan_does_not_depend_on_its_batch(seed: int) -> None:
    made, plans = Wild(seed).scene()
    scene = Scene.from_dict(made)
    together = score(scene, plans)
    same({name: value[2:3] for name, value in together.items()}, score(scene, plans[2]))
    same({name: value[::-1] for name, value in together.items()}, score(scene, plans[::-1]))


@given(seeds, st.randoms(use_true_random=False))
def test_the_order_of_objects_and_polygons_does_not_matter(seed: int, random: Any) -> None:
    made, plans = Wild(seed).scene() if seed % 2 else touching(seed)
    before = score(Scene.from_dict(made), plans)
    random.shuffle(made["objects"])
    random.shuffle(made["polygons"])
    made["objects"] += made["objects"][:1]  # the same thing twice is hit as once
    same(before, score(Scene.from_dict(made), plans))


@given(seeds)
def test_the_mirrored_scene_scores_the_same(seed: int) -> None:
    made, plans = Wild(seed).scene()
    before = score(Scene.from_dict(made), plans)
    pose, point = np.array([1.0, -1.0, -1.0]), np.array([1.0, -1.0])
    made["reference"] = (np.array(made["reference"]) * pose).tolist()
    made["centre_line"] = (np.array(made["centre_line"]) * point).tolist()
    for polygon in made["polygons"]:
        polygon["points"] = (np.array(polygon["points"]) * point).tolist()
    for item in made["objects"]:
        item["poses"] = (np.array(item["poses"]) * pose).tolist()
    same(before, score(Scene.from_dict(made), plans * pose))


@given(seeds)
def test_what_must_hold_between_the_parts(seed: int) -> None:
    made, plans = Wild(seed).scene()
    found = score(Scene.from_dict(made), plans)
    for name, allowed in (("NC", {0, 0.5, 1}), ("DAC", {0, 1}), ("TTC", {0, 1}), ("C", {0, 1}), ("DDC", {0, 0.5, 1})):
        assert set(found[name]) <= allowed
    assert ((found["EP"] >= 0) & (found["EP"] <= 1)).all()
    assert (found["EP"][found["NC"] * found["DAC"] == 0] == 0).all()
    expected = found["NC"] * found["DAC"] * (5 * found["EP"] + 5 * found["TTC"] + 2 * found["C"]) / 12
    np.testing.assert_allclose(found["PDMS"], expected)
    more_road = {**made, "polygons": [*made["polygons"], area("all", "drivable_area", -500, 500, -500, 500)]}
    assert (score(Scene.from_dict(more_road), plans)["DAC"] == 1).all()
    empty = score(Scene.from_dict({**made, "objects": []}), plans)
    assert (empty["NC"] == 1).all()
    assert (empty["TTC"] == 1).all()
    for name in ("DAC", "C", "DDC"):
        assert (empty[name] == found[name]).all()
