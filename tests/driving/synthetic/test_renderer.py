"""The panorama: what is where it should be, at every size, and polygons filled as matplotlib fills them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.path import Path

from frpt.driving import Area, Camera, Scene, SceneObject, make_scene, render
from frpt.driving.scene import Array
from frpt.driving.synthetic.renderer import Grid, fill, markings, outline
from frpt.errors import OptionError

SIZE = (64, 256)


def road(*objects: SceneObject, left: float = 0.0) -> Scene:
    """A straight road of two lanes, the left one oncoming; ego is ``left`` metres beside its lane's centre."""

    def strip(low: float, high: float) -> Array:
        x = np.linspace(-20, 120, 281)
        return np.concatenate([np.stack([x, 0 * x + high - left], 1), np.stack([x, 0 * x + low - left], 1)[::-1]])

    areas = (
        Area("own", "lane", strip(-1.75, 1.75)), Area("oncoming", "lane", strip(1.75, 5.25)),
        Area("road", "roadblock", strip(-1.75, 5.25)),
    )  # fmt: skip
    plan = np.stack([4.0 * np.arange(1, 9), np.zeros(8), np.zeros(8)], 1)
    return Scene(8.0, 0.0, plan, np.array([[-20.0, -left], [120, -left]]), ("own",), areas, objects)


def box(x: float, y: float, heading: float = 0.0, kind: str = "vehicle", speed: float = 0.0) -> SceneObject:
    sizes = {"vehicle": (4.8, 2.0), "pedestrian": (0.6, 0.6), "traffic_cone": (0.4, 0.4)}[kind]
    return SceneObject(kind, *sizes, speed, np.tile([x, y, heading], (51, 1)))


def changed(scene: Scene, without: Scene, size: tuple[int, int] = SIZE) -> Array:
    """Which pixels an object changes."""
    return np.abs(render(scene, size).astype(int) - render(without, size)).sum(0) > 12


@pytest.mark.parametrize("size", [(32, 128), (64, 256), (256, 1024)])
@pytest.mark.parametrize(
    ("x", "y", "heading"), [(15, 0, 0), (12, 6, 0.7), (10, -9, 1.5), (30, 3.5, 3.14), (6, 14, -1.0)]
)
def test_a_box_is_seen_where_it_is(size: tuple[int, int], x: float, y: float, heading: float) -> None:
    """The picture changes exactly within the box's corners as the camera projects them, up to a pixel."""
    scene, camera = road(box(x, y, heading)), Camera()
    item = scene.objects[0]
    c, s = np.cos(heading), np.sin(heading)
    seen = [
        camera.pixel_of((x + a * c - b * s, y + a * s + b * c, z), size)
        for a in (-item.length / 2, item.length / 2) for b in (-item.width / 2, item.width / 2) for z in (0.0, 1.6)
    ]  # fmt: skip
    rows, columns = np.nonzero(changed(scene, road(), size))
    (top, left), (bottom, right) = np.min(seen, 0), np.max(seen, 0)
    assert columns.min() == pytest.approx(max(left, 0), abs=1.5)
    assert columns.max() + 1 == pytest.approx(right, abs=1.5)
    assert rows.min() == pytest.approx(max(top, 0), abs=1.5)
    assert rows.max() + 1 == pytest.approx(min(bottom, size[0]), abs=1.5)


def test_what_is_behind_is_not_seen() -> None:
    assert not changed(road(box(-8, 0)), road()).any()


def test_the_nearer_hides_the_farther() -> None:
    near, far = box(12, 0), box(25, 0)
    assert (render(road(near, far), SIZE) == render(road(near), SIZE)).mean() > 0.99
    beside = changed(road(near, box(25, 6)), road(near))
    assert beside.any()
    order = render(road(far, box(12, 1)), SIZE).astype(int) - render(road(box(12, 1), far), SIZE)
    assert (order != 0).sum() > 0, "colours go with the number of an object"


def test_left_is_left_and_the_road_is_where_the_lanes_are() -> None:
    camera, size = Camera(), (256, 1024)
    picture = render(road(), size).astype(int).transpose(1, 2, 0)

    def at(x: float, y: float) -> Array:
        row, column = camera.pixel_of((x, y, 0.0), size)
        return picture[int(row), int(column)]

    assert np.ptp(at(10, 0)) < 15, "tarmac is grey"
    assert np.ptp(at(10, 3.5)) < 15
    assert at(10, -6)[1] > at(10, -6)[0] > at(10, -6)[2], "the verge is green"
    assert at(10, 9)[1] > at(10, 9)[0]
    assert at(8, -1.75).min() > 150, "the right border is white"
    assert at(8, 1.75)[0] > at(8, 1.75)[2] + 60, "the border to the oncoming lane is yellow"
    assert picture[0, 0, 2] > picture[0, 0, 0], "the sky is blue"


def test_an_offset_moves_the_road() -> None:
    still, moved = render(road(), SIZE), render(road(left=0.5), SIZE)
    assert (still != moved).any()
    assert (render(road(left=0.5), SIZE) == moved).all(), "the same every time"


def test_brake_lights_are_on_when_it_stands() -> None:
    stands, moves = (render(road(box(10, 0, speed=v)), SIZE).astype(int) for v in (0.0, 5.0))
    lit = (stands != moves).any(0)
    assert 10 < lit.sum() < 400
    assert (stands[0] > moves[0])[lit].all()
    assert (stands[0] - moves[0])[lit].max() > 50


def test_markings_are_dashed_within_the_route_and_end_at_intersections() -> None:
    scene = road()
    own, other = scene.areas[0].points, scene.areas[1].points
    white, yellow = markings([own, other], [True, True])
    assert len(yellow) == 0
    between = np.abs(white.mean(1)[:, 1] - 1.75) < 0.01
    assert 0.4 < between.sum() / 2 / 280 < 0.6, "half of the border between two lanes of the route"
    white, yellow = markings([own, other], [True, False])
    assert (np.abs(white.mean(1)[:, 1] + 1.75) < 0.01).sum() == 280
    square = Area("x", "intersection", np.array([[20.0, -2.5], [30, -2.5], [30, 6], [20, 6]]))
    grid = Grid.of(replace(scene, areas=(*scene.areas, square)), 0.1)
    x = np.linspace(15, 35, 201)
    painted = grid.at(x, 0 * x - 1.75) >= 2
    assert painted[(x < 19.8) | (x > 30.2)].all()
    assert not painted[(x > 20.2) & (x < 29.8)].any()


def test_polygons_are_filled_as_matplotlib_does() -> None:
    rng = np.random.default_rng(0)
    shape = (40, 50)
    angles = np.sort(rng.uniform(0, 2 * np.pi, (6, 9)), 1)
    radius = rng.uniform(4, 16, (6, 9))
    shapes = np.stack([25 + radius * np.cos(angles), 20 + radius * np.sin(angles)], -1)
    shapes[3:] = shapes[3:, ::-1]  # clockwise ones, too
    x, y = np.meshgrid(np.arange(50) + 0.5, np.arange(40) + 0.5)
    centres = np.stack([x.ravel(), y.ravel()], 1)
    inside = np.any([Path(p).contains_points(centres) for p in shapes], 0).reshape(shape)
    assert (fill(outline(shapes), shape) == inside).all()
    assert not fill(np.zeros((0, 2, 2)), shape).any()


def test_shared_scenes_and_any_size() -> None:
    scene = make_scene(0, 4)
    for size in ((32, 128), (17, 33), (1, 1)):
        picture = render(scene, size)
        assert picture.shape == (3, *size)
        assert picture.dtype == np.uint8
    with pytest.raises(OptionError, match="two positive numbers"):
        render(scene, (0, 5))
