"""From plan to drive: against a slow second implementation, and where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frpt.driving import Scene, simulate
from frpt.driving.dynamics import Jerk, _curvatures, _interpolated, _speeds
from frpt.errors import InputError, NonFiniteError, OptionError
from tests.driving import slow
from tests.driving.made import Wild, road, straight


@pytest.mark.parametrize("jerk", ["devkit", "right"])
@pytest.mark.parametrize("seed", range(6))
def test_drives_as_the_slow_one(seed: int, jerk: Jerk) -> None:
    made, plans = Wild(seed).scene()
    scene = Scene.from_dict(made)
    driven = simulate(scene, plans, jerk)
    for i, plan in enumerate(plans):
        expected = slow.drive(scene.speed, scene.acceleration, plan, jerk)
        found = np.stack([driven.x, driven.y, driven.heading, driven.speed, driven.acceleration, driven.steering], -1)[
            i
        ]
        difference = found - expected
        difference[:, 2] = np.arctan2(np.sin(difference[:, 2]), np.cos(difference[:, 2]))
        np.testing.assert_allclose(difference, 0, atol=1e-7)


def test_the_two_penalties_differ_as_they_should() -> None:
    """A constant acceleration costs the right penalty nothing, so that it is found; the devkit's draws it to zero."""
    t = np.arange(41) * 0.1
    x = (2 * t + t**2 - 0.1 * t)[:, None]  # sums of 0.1 v, v = 2 + 2t
    right = np.diff(_speeds(x, 0 * x, 0 * x, "right")[:, 0]) / 0.1
    np.testing.assert_allclose(right, 2, atol=1e-9)
    devkit = np.diff(_speeds(x, 0 * x, 0 * x, "devkit")[:, 0]) / 0.1
    assert (devkit[:3] < 1.9).all()
    made, plan = Scene.from_dict(road(2.0)), np.stack([x[5::5, 0], np.zeros(8), np.zeros(8)], -1)
    assert np.abs(simulate(made, plan).x - simulate(made, plan, "right").x).max() > 1e-3


def test_curvature_of_a_circle_and_of_standing_still() -> None:
    t = 0.5 * np.arange(1, 9)
    circle = np.stack([20 * np.sin(0.3 * t), 20 - 20 * np.cos(0.3 * t), 0.3 * t], -1)
    x, y, heading = _interpolated(np.stack([circle, np.zeros((8, 3))]))
    curvatures = _curvatures(_speeds(x, y, heading, "right"), heading)
    np.testing.assert_allclose(curvatures[:, 0], 1 / 20, rtol=0.02)
    assert (curvatures[:, 1] == 0).all()


def test_goes_straight_at_the_speed_it_has() -> None:
    driven = simulate(Scene.from_dict(road(8.0)), straight(8.0), "right")
    np.testing.assert_allclose(driven.x[0], 8 * np.arange(41) * 0.1, atol=1e-9)
    assert (driven.y == 0).all()
    assert (driven.heading == 0).all()


def test_stands_when_told_to_stand() -> None:
    driven = simulate(Scene.from_dict(road(0.0)), np.zeros((8, 3)))
    assert all((field == 0).all() for field in (driven.x, driven.y, driven.speed, driven.acceleration, driven.steering))


def test_headings_may_be_off_by_full_turns() -> None:
    scene, plans = Wild(5).scene()
    turned = plans + np.array([0, 0, 2 * np.pi])
    np.testing.assert_allclose(
        simulate(Scene.from_dict(scene), plans).x, simulate(Scene.from_dict(scene), turned).x, atol=1e-9
    )


def test_the_steering_angle_is_bounded() -> None:
    t = 0.5 * np.arange(1, 9)
    back = np.stack([-5 * t, 5 * t, 0 * t + np.pi], -1)
    assert np.abs(simulate(Scene.from_dict(road(10.0)), back).steering).max() == np.pi / 3


@given(st.integers(0, 30), st.permutations(range(8)))
def test_a_drive_does_not_depend_on_its_batch(seed: int, order: list[int]) -> None:
    made, plans = Wild(seed).scene()
    scene = Scene.from_dict(made)
    alone, together = simulate(scene, plans[order[0]]), simulate(scene, plans[order])
    assert all((getattr(alone, name)[0] == getattr(together, name)[0]).all() for name in ("x", "y", "heading", "speed"))


def test_takes_tensors_lists_and_single_plans() -> None:
    scene = Scene.from_dict(road())
    plan = straight(5.0)
    expected = simulate(scene, plan[None]).x
    for given_as in (plan, plan.tolist(), torch.tensor(plan, requires_grad=True), [plan.tolist()]):
        assert (simulate(scene, given_as).x == expected).all()
    half = torch.tensor(plan, dtype=torch.bfloat16)
    np.testing.assert_allclose(simulate(scene, half).x, expected, rtol=0.01)
    assert simulate(scene, np.zeros((0, 8, 3))).x.shape == (0, 41)


@pytest.mark.parametrize("shape", [(8,), (7, 3), (8, 2), (2, 9, 3), (1, 1, 8, 3)])
def test_refuses_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"\(k, 8, 3\)"):
        simulate(Scene.from_dict(road()), np.zeros(shape))


def test_refuses_what_is_no_plan() -> None:
    scene, plans = Scene.from_dict(road()), np.zeros((4, 8, 3))
    with pytest.raises(InputError, match="numbers"):
        simulate(scene, "a plan")
    with pytest.raises(InputError, match="numbers"):
        simulate(scene, [[[1.0], [1.0, 2.0]]])
    plans[1, 3, 2] = np.nan
    plans[3, 0, 0] = np.inf
    with pytest.raises(NonFiniteError, match=r"2 of 4 plans \(plan 1, 3\)"):
        simulate(scene, plans)
    with pytest.raises(NonFiniteError, match="too large"):
        simulate(scene, np.full((8, 3), 1e308))
    with pytest.raises(OptionError, match="'devkit' or 'right'"):
        simulate(scene, straight(1.0), "left")  # type: ignore[arg-type]
