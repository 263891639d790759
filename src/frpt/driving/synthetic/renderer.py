"""What a camera on ego sees of a scene: a panorama, cast ray by ray. ``DrivingData`` calls it; users may, too.

A column of the picture is a direction, a row a slope: the ray of slope v and azimuth φ is camera + t·(cos φ, sin φ,
−v), so that it meets the ground at t = height/v and a box's side where the column's ray in the plane does. The ground
is a grid of cells, filled from the scene's polygons once; boxes are met exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frpt.driving.scene import Array, Scene, SceneObject
from frpt.errors import OptionError

Colour = tuple[float, float, float]

SKY, HORIZON, VERGE, TARMAC = (0.45, 0.62, 0.85), (0.82, 0.86, 0.90), (0.33, 0.45, 0.24), (0.36, 0.36, 0.38)
WHITE, YELLOW, LIGHTS = (0.93, 0.93, 0.93), (0.92, 0.74, 0.22), (0.90, 0.08, 0.08)
PAINT = ((0.75, 0.75, 0.78), (0.20, 0.26, 0.42), (0.55, 0.13, 0.12), (0.90, 0.90, 0.88), (0.13, 0.13, 0.14))
"""Of vehicles, in turn."""
LOOKS = {
    "pedestrian": (1.75, (0.80, 0.45, 0.30)), "bicycle": (1.70, (0.15, 0.50, 0.55)),
    "traffic_cone": (0.75, (0.95, 0.45, 0.10)), "barrier": (1.00, (0.90, 0.30, 0.20)),
}  # fmt: skip
"""Height in metres and colour of what is no vehicle."""
VEHICLE, OTHER = 1.6, (1.2, (0.6, 0.4, 0.6))
"""Height of vehicles; height and colour of anything else."""
STANDS = 0.05
"""Below this speed, in m/s, a vehicle counts as standing (NAVSIM); its brake lights are on."""


@dataclass(frozen=True)
class Camera:
    """Where the camera is, and what it sees; about NAVSIM's front three put side by side.

    Args:
        forward: Metres before ego's rear axle.
        height: Metres above the ground.
        wide: Degrees between the picture's left and right edge.
        horizon: Share of the picture's height above the horizon.
        rays: Along either side of a pixel; its colour is their mean.
    """

    forward: float = 1.6
    height: float = 1.55
    wide: float = 140.0
    horizon: float = 0.4
    rays: int = 2

    def rays_of(self, size: tuple[int, int]) -> tuple[Array, Array]:
        """(slopes (h,), azimuths (w,)) of a picture's rows and columns, several for each pixel."""
        height, width = size[0] * self.rays, size[1] * self.rays
        focal = width / np.deg2rad(self.wide)
        slopes = (np.arange(height) + 0.5 - self.horizon * height) / focal
        return slopes, np.deg2rad(self.wide) * (0.5 - (np.arange(width) + 0.5) / width)

    def pixel_of(self, point: tuple[float, float, float], size: tuple[int, int]) -> tuple[float, float]:
        """(row, column) where a point (x, y, z) of the scene is seen; outside the picture where it is not."""
        x, y, z = point[0] - self.forward, point[1], point[2]
        focal = size[1] / np.deg2rad(self.wide)
        row = self.horizon * size[0] + focal * (self.height - z) / np.hypot(x, y)
        return float(row), float(size[1] / 2 - focal * np.arctan2(y, x))


CAMERA = Camera()


def render(scene: Scene, size: tuple[int, int] = (32, 128), camera: Camera = CAMERA) -> NDArray[np.uint8]:
    """A picture of a scene as ego sees it at the start.

    Args:
        scene: The scene.
        size: Height and width in pixels; any, such as 32 × 128 or 256 × 1024.
        camera: Where it is, and what it sees.

    Returns:
        The picture, (3, height, width) uint8.

    Raises:
        OptionError: A size is not positive.

    Example:
        >>> scene = frpt.driving.make_scene(seed=0, index=3)
        >>> frpt.driving.render(scene, (64, 256)).shape
        (3, 64, 256)
    """
    if len(size) != 2 or min(size) < 1:
        raise OptionError(f"size must be two positive numbers, height and width, got {size}")
    slopes, azimuths = camera.rays_of(size)
    colours, distances = _ground(scene, slopes, azimuths, camera, 0.15 if size[0] < 128 else 0.05)
    _draw_boxes(scene, colours, distances, slopes, azimuths, camera)
    n = camera.rays
    shown = colours.reshape(size[0], n, size[1], n, 3).mean((1, 3))
    picture: NDArray[np.uint8] = np.rint(255 * shown.clip(0, 1)).astype(np.uint8).transpose(2, 0, 1)
    return picture


def _ground(scene: Scene, slopes: Array, azimuths: Array, camera: Camera, cell: float) -> tuple[Array, Array]:
    """(colours (h, w, 3), distances (h, 1)) of sky, verge, road and markings."""
    grid = Grid.of(scene, cell)
    t = np.where(slopes > 0, camera.height / np.maximum(slopes, 1e-9), np.inf)
    below = np.isfinite(t)
    x = camera.forward + t[below, None] * np.cos(azimuths)
    y = t[below, None] * np.sin(azimuths)
    colours = np.empty((len(slopes), len(azimuths), 3))
    height = np.clip(-slopes[~below] / max(-slopes.min(), 1e-9), 0, 1)[:, None, None]
    colours[~below] = np.asarray(HORIZON) + height * (np.asarray(SKY) - HORIZON)
    colours[below] = _hazy(np.asarray([VERGE, TARMAC, WHITE, YELLOW])[grid.at(x, y)], t[below, None, None])
    return colours, t[:, None]


def _hazy(colours: Array, distance: Array) -> Array:
    """Colours from afar turn into that of the horizon."""
    clear = np.exp(-distance / 90)
    hazy: Array = clear * colours + (1 - clear) * np.asarray(HORIZON)
    return hazy


def _draw_boxes(
    scene: Scene, colours: Array, distances: Array, slopes: Array, azimuths: Array, camera: Camera
) -> None:  # fmt: skip
    """Objects over the picture, each pixel that of the nearest; the farthest first, column by column."""
    depth = np.broadcast_to(distances, colours.shape[:2]).copy()
    for number, item in enumerate(scene.objects):
        near, far, face = _met(item, azimuths, camera)
        seen = np.isfinite(near)
        if not seen.any():
            continue
        height, paint = _look(item, number)
        columns = np.flatnonzero(seen)
        near, far, face = near[columns], far[columns], face[columns]
        over = camera.height - height
        side = (slopes[:, None] >= over / near) & (slopes[:, None] <= camera.height / near)
        lid = (slopes[:, None] >= over / far) & (slopes[:, None] < over / near) if over > 0 else np.zeros_like(side)
        where = over / np.maximum(slopes[:, None], 1e-9)
        t = np.where(side, near, np.where(lid, where, np.inf))
        rows, cols = np.nonzero(t < depth[:, columns])
        above = (camera.height - slopes[rows] * near[cols]) / height  # share of the box's height
        tint = _tint(item, paint, face[cols], above, lid[rows, cols])
        colours[rows, columns[cols]] = _hazy(tint, t[rows, cols][:, None])
        depth[rows, columns[cols]] = t[rows, cols]


FRONT_FACE, REAR_FACE, SIDE_FACE = 0, 1, 2


def _met(item: SceneObject, azimuths: Array, camera: Camera) -> tuple[Array, Array, NDArray[np.int64]]:
    """(near, far, face) of each column's ray and a box: distances, infinite where it misses, and the side it meets."""
    x, y, heading = item.poses[0]
    away = np.array([camera.forward - x, -y])
    origin = np.array([[np.cos(heading), np.sin(heading)], [-np.sin(heading), np.cos(heading)]]) @ away
    u = np.stack([np.cos(azimuths - heading), np.sin(azimuths - heading)])
    u = np.where(np.abs(u) < 1e-12, 1e-12, u)
    half = np.array([[item.length], [item.width]]) / 2
    one, two = (-half - origin[:, None]) / u, (half - origin[:, None]) / u
    enter, leave = np.minimum(one, two), np.maximum(one, two)
    near, far = enter.max(0), leave.min(0)
    hit = (near < far) & (near > 0)
    face = np.where(enter[0] >= enter[1], np.where(u[0] > 0, REAR_FACE, FRONT_FACE), SIDE_FACE)
    return np.where(hit, near, np.inf), far, face


def _look(item: SceneObject, number: int) -> tuple[float, Colour]:
    """(height, colour) of an object."""
    if item.kind == "vehicle":
        return VEHICLE, PAINT[number % len(PAINT)]
    return LOOKS.get(item.kind, OTHER)


def _tint(item: SceneObject, paint: Colour, face: NDArray[np.int64], above: Array, lid: NDArray[np.bool_]) -> Array:
    """Colours of points of a box: shaded by the side they are on, dark below; a vehicle has windows and lights."""
    shade = np.where(lid, 1.1, np.choose(face, [0.85, 0.75, 0.95]))
    colour: Array = shade[:, None] * np.asarray(paint)
    side = ~lid
    if item.kind == "vehicle":
        colour[side & (above > 0.62) & (above < 0.92)] = (0.16, 0.19, 0.23)
        band = side & (above > 0.38) & (above < 0.58)
        braking = item.speed <= STANDS
        colour[band & (face == REAR_FACE)] = LIGHTS if braking else tuple(0.55 * c for c in LIGHTS)
        colour[band & (face == FRONT_FACE)] = (0.98, 0.97, 0.85)
        colour[side & (above < 0.2)] = (0.10, 0.10, 0.10)
    if item.kind in ("traffic_cone", "barrier"):
        colour[side & (above > 0.4) & (above < 0.7)] = WHITE
    return colour


@dataclass(frozen=True)
class Grid:
    """The ground as cells of 0 verge, 1 road, 2 white and 3 yellow marking. west, south: of its first cell."""

    cells: NDArray[np.uint8]
    west: float
    south: float
    cell: float

    @classmethod
    def of(cls, scene: Scene, cell: float) -> Grid:
        """What is around ego: 90 m ahead, 60 m to either side."""
        west, south = 0.0, -60.0
        shape = round(120 / cell), round(90 / cell)
        origin = np.array([west, south])

        def filled(polygons: Sequence[Array] | Array) -> NDArray[np.bool_]:
            edges = [outline(polygons)] if isinstance(polygons, np.ndarray) else [outline(p) for p in polygons]
            return fill((np.concatenate([np.zeros((0, 2, 2)), *edges]) - origin) / cell, shape)

        lanes = [a for a in scene.areas if a.kind == "lane"]
        crossings = filled([a.points for a in scene.areas if a.kind == "intersection"])
        cells = filled([a.points for a in scene.areas]).astype(np.uint8)
        white, yellow = markings([a.points for a in lanes], [a.name in scene.route for a in lanes])
        cells[filled(white) & ~crossings] = 2
        cells[filled(yellow) & ~crossings] = 3
        return cls(cells, west, south, cell)

    def at(self, x: Array, y: Array) -> NDArray[np.uint8]:
        """What is at some points; verge outside the grid."""
        column = np.floor((x - self.west) / self.cell).clip(-1, self.cells.shape[1]).astype(int)
        row = np.floor((y - self.south) / self.cell).clip(-1, self.cells.shape[0]).astype(int)
        inside = (column >= 0) & (column < self.cells.shape[1]) & (row >= 0) & (row < self.cells.shape[0])
        return np.where(inside, self.cells[row * inside, column * inside], 0)


def outline(points: Array) -> Array:
    """The edges of polygons, counter-clockwise. points: (..., n, 2) → (m, 2, 2)"""
    x, y = points[..., 0], points[..., 1]
    following = np.roll(points, -1, -2)
    area = (x * following[..., 1] - y * following[..., 0]).sum(-1)[..., None, None]
    ends = [np.where(area > 0, points, following), np.where(area > 0, following, points)]
    return np.stack(ends, -2).reshape(-1, 2, 2)


def fill(edges: Array, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Which cells have their centre within any of some polygons. edges: theirs, (m, 2, 2), x and y in cells.

    Winding numbers: an edge that goes down through a row adds one to all cells right of it, one that goes up takes one.
    """
    rows, columns = shape
    (x0, y0), (x1, y1) = edges[:, 0].T, edges[:, 1].T
    low = np.ceil(np.minimum(y0, y1) - 0.5).clip(0, rows).astype(int)
    count = np.ceil(np.maximum(y0, y1) - 0.5).clip(0, rows).astype(int) - low
    edge = np.repeat(np.arange(len(edges)), count)  # an entry for each row that an edge goes through
    row = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + low[edge]
    x = x0[edge] + (row + 0.5 - y0[edge]) * ((x1 - x0)[edge] / (y1 - y0)[edge])
    column = np.ceil(x - 0.5).clip(0, columns).astype(int)
    turns = np.where(y1 > y0, -1, 1)[edge]
    added = np.bincount(row * (columns + 1) + column, turns, minlength=rows * (columns + 1))
    winding = np.cumsum(added.reshape(rows, columns + 1)[:, :columns].astype(np.int16), 1, dtype=np.int16)
    filled: NDArray[np.bool_] = winding > 0
    return filled


def markings(lanes: Sequence[Array], ours: Sequence[bool]) -> tuple[Array, Array]:
    """(white, yellow) stripes (n, 4, 2) along lanes' borders: dashed between lanes of the route, yellow beside others.

    Lanes that lie side by side have their border's points in common. The closing edges, across the lanes, are left out.
    """
    edges = np.concatenate([np.stack([p[:-1], p[1:]], 1) for p in lanes])
    kept = [np.arange(len(p) - 1) for p in lanes]
    on_route, turn = np.repeat(ours, [len(k) for k in kept]), np.concatenate(kept)
    middle = np.round(edges.mean(1), 2)
    _, first, same, shared = np.unique(middle, axis=0, return_index=True, return_inverse=True, return_counts=True)
    same = same.reshape(-1)  # numpy 2.0 alone returns it as (n, 1)
    every, mine = shared[same], np.bincount(same, on_route)[same]
    dashed = (every > 1) & (mine == every)
    yellow = mine < every
    white = ~yellow & (~dashed | (turn[first][same] % 12 < 6))
    return _stripes(edges[white]), _stripes(edges[yellow])


def _stripes(edges: Array, width: float = 0.2) -> Array:
    """A rectangle around each edge. (n, 2, 2) → (n, 4, 2)"""
    along = edges[:, 1] - edges[:, 0]
    length = np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    side = width / 2 * np.stack([-along[:, 1], along[:, 0]], 1) / length
    a, b = edges[:, 0], edges[:, 1]
    return np.stack([a - side, b - side, b + side, a + side], 1)
