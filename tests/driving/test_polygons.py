"""Points in polygons, boxes that meet, places along a line: against rational numbers, touching included."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from frpt.driving.polygons import Slabs, along, boxes_meet, corners, meet, side
from tests.driving import slow

whole = st.integers(0, 4).map(float)
point = st.tuples(whole, whole)
wide = st.floats(-1e3, 1e3)


@given(st.lists(point, min_size=3, max_size=9), st.lists(point, min_size=1, max_size=8))
def test_points_on_a_grid_are_inside_as_by_hand(
    shape: list[tuple[float, float]], points: list[tuple[float, float]]
) -> None:
    """On a small grid most points lie on vertices, edges or in line with them; polygons cross themselves."""
    assume(len(set(shape)) >= 3)
    found = Slabs.of(np.array(shape)).contain(np.array(points))
    assert found.tolist() == [slow.inside(shape, p) for p in points]


@given(st.lists(st.tuples(wide, wide), min_size=3, max_size=12), st.lists(st.tuples(wide, wide), min_size=1))
def test_points_anywhere_are_inside_as_by_hand(
    shape: list[tuple[float, float]], points: list[tuple[float, float]]
) -> None:
    found = Slabs.of(np.array(shape)).contain(np.array([*points, *shape]))
    assert found.tolist() == [slow.inside(shape, p) for p in [*points, *shape]]


def test_a_notched_square() -> None:
    square = Slabs.of(np.array([[0, 0], [2, 0], [2, 2], [3, 2], [3, 0], [5, 0], [5, 5], [0, 5]], dtype=float))
    inside = [(1, 1), (2.5, 3), (4, 1), (2, 3), (3, 4), (2.5, 2.5)]
    outside = [
        (2.5, 1),
        (2, 1),
        (3, 1),
        (2, 2),
        (3, 2),
        (2.5, 2),
        (0, 3),
        (5, 3),
        (1, 0),
        (1, 5),
        (0, 0),
        (6, 1),
        (-1, 1),
    ]
    assert square.contain(np.array(inside)).all()
    assert not square.contain(np.array(outside, dtype=float)).any()
    assert square.contain(np.array(inside).reshape(2, 3, 2)).shape == (2, 3)
    assert square.contain(np.zeros((0, 2))).shape == (0,)


def test_the_sign_is_right_where_floating_point_is_not() -> None:
    """Points a few ulps around a line of slope 1: the plain determinant gets a part of them wrong."""
    a, b = np.array([0.5, 0.5]), np.array([12.0, 12.0])
    grid = 0.5 + np.arange(40) * 2.0**-53
    c = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    exact = np.array([float(np.sign(slow.turn(a, b, p))) for p in c])
    a, b = np.array([24.0, 24.0]), np.array([12.0, 12.0])
    exact = np.array([float(np.sign(slow.turn(a, b, p))) for p in c])
    plain = (b[0] - a[0]) * (c[:, 1] - a[1]) - (b[1] - a[1]) * (c[:, 0] - a[0])
    assert (np.sign(plain) != exact).any()
    assert (np.sign(side(a, b, c)) == exact).all()


@given(
    st.lists(
        st.tuples(whole, whole, st.sampled_from([0.0, np.pi / 2, np.pi, 0.3]), whole, whole), min_size=2, max_size=6
    )
)
def test_boxes_meet_as_by_hand(boxes: list[tuple[float, float, float, float, float]]) -> None:
    made = [corners(np.array([x, y]), np.array(h), 1 + length, 1 + width) for x, y, h, length, width in boxes]
    first, second = np.stack(made[:-1]), np.stack(made[1:])
    assert meet(first, second).tolist() == [slow.shapes_meet(a, b) for a, b in zip(first, second, strict=True)]
    assert (meet(first, second) == meet(second, first)).all()
    assert (boxes_meet(first, second) == meet(first, second)).all()
    fronts = first[:, [3, 0]]
    assert meet(fronts, second).tolist() == [slow.shapes_meet(a, b) for a, b in zip(fronts, second, strict=True)]


def test_boxes_that_touch_meet() -> None:
    unit = corners(np.zeros(2), np.array(0.0), 2.0, 2.0)
    for x, y, expected in ((2.0, 0.0, True), (2.0, 2.0, True), (np.nextafter(2, 3), 0.0, False), (0.1, 0.0, True)):
        assert meet(unit[None], unit[None] + [x, y]).item() is expected


def test_corners_go_round_from_the_front_left() -> None:
    box = corners(np.array([10.0, 5.0]), np.array(np.pi / 2), 4.0, 2.0)
    np.testing.assert_allclose(box, [[9, 7], [9, 3], [11, 3], [11, 7]], atol=1e-12)


@given(st.lists(point, min_size=2, max_size=6), st.tuples(wide, wide))
def test_the_place_along_a_line_is_the_nearest(line: list[tuple[float, float]], p: tuple[float, float]) -> None:
    assume(len(set(line)) > 1)
    vertices = np.array(line)
    lengths = np.append(0, np.cumsum(np.linalg.norm(np.diff(vertices, axis=0), axis=1)))
    place = along(vertices, np.array([p]))[0]
    s = np.linspace(0, lengths[-1], 4001)
    keep = np.append(True, np.diff(lengths) > 0)
    path = np.stack([np.interp(np.append(s, place), lengths[keep], vertices[keep, i]) for i in (0, 1)], -1)
    gaps = np.linalg.norm(path - p, axis=-1)
    assert gaps[-1] <= gaps[:-1].min() + 1e-9


def test_of_several_nearest_places_the_first() -> None:
    line = np.array([[0, 0], [4, 0], [4, 4], [0, 4]], dtype=float)
    assert along(line, np.array([[2.0, 2.0], [-3.0, -1.0], [9.0, 9.0], [1.0, -1.0]])).tolist() == [2.0, 0.0, 8.0, 1.0]
