"""Scenes for the tests: a plain road to put things on, and random scenes that try to be awkward."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Json = dict[str, Any]

SIZES = {
    "vehicle": (4.8, 2.0),
    "pedestrian": (0.7, 0.7),
    "bicycle": (1.8, 0.6),
    "traffic_cone": (0.4, 0.4),
    "barrier": (2.0, 0.5),
    "czone_sign": (0.6, 0.6),
    "generic_object": (1.0, 1.0),
}


def rectangle(x0: float, x1: float, y0: float, y1: float) -> list[list[float]]:
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def area(name: str, kind: str, x0: float, x1: float, y0: float, y1: float) -> Json:
    return {"name": name, "kind": kind, "points": rectangle(x0, x1, y0, y1)}


def road(speed: float = 8.0, *, objects: list[Json] | None = None, polygons: list[Json] | None = None) -> Json:
    """A straight road along x, 8 m wide, in one lane on the route; the reference drives on at the ego's speed."""
    default = [area("own", "lane", -30, 90, -4, 4), area("road", "roadblock", -30, 90, -4, 4)]
    return {
        "ego": {"speed": speed, "acceleration": 0.0},
        "reference": straight(speed).tolist(),
        "centre_line": [[-30.0, 0.0], [90.0, 0.0]],
        "route": ["own"],
        "polygons": default if polygons is None else polygons,
        "objects": objects or [],
    }


def straight(speed: float) -> Array:
    """The plan that drives straight ahead at this speed."""
    return np.stack([speed * 0.5 * np.arange(1, 9), np.zeros(8), np.zeros(8)], -1)


def thing(
    kind: str, x: float, y: float, heading: float = 0.0, speed: float = 0.0, moves: tuple[float, float] | None = None
) -> Json:
    """An object that moves along its heading, or by ``moves`` m/s in x and y."""
    length, width = SIZES[kind]
    vx, vy = (speed * np.cos(heading), speed * np.sin(heading)) if moves is None else moves
    t = np.arange(51) * 0.1
    poses = np.stack([x + vx * t, y + vy * t, np.full(51, heading)], -1)
    return {"kind": kind, "length": length, "width": width, "speed": speed, "poses": poses.tolist()}


def arc(s: Array, curvature: float, beside: float = 0.0, y: float = 0.0, heading: float = 0.0) -> Array:
    """Poses (n, 3) at lengths s along an arc that begins at (0, y), moved to its left by ``beside``."""
    turned = heading + curvature * s
    if abs(curvature) < 1e-9:
        x, dy = s * np.cos(heading), s * np.sin(heading)
    else:
        x = (np.sin(turned) - np.sin(heading)) / curvature
        dy = (np.cos(heading) - np.cos(turned)) / curvature
    return np.stack([x - beside * np.sin(turned), y + dy + beside * np.cos(turned), turned], -1)


class Wild:
    """One random scene with eight plans, of every kind that driving code gets wrong."""

    def __init__(self, seed: int) -> None:
        self.random = r = np.random.default_rng(seed)
        self.curvature = (
            float(r.choice([0, 0, 1, -1]) * r.uniform(1 / 60, 1 / 12)) if r.random() < 0.8 else r.normal(0, 0.05)
        )
        self.y, self.heading, self.width = r.normal(0, 0.4), r.normal(0, 0.05), r.uniform(3, 4)
        self.s = np.arange(-20, 90, r.choice([1.0, 2.0, 5.0]))
        self.speed = float(r.choice([0, 0.03, 0.1, 1.0, *r.uniform(0, 15, 4)]))

    def band(self, low: float, high: float) -> list[list[float]]:
        right, left = (
            arc(s, self.curvature, b, self.y, self.heading) for s, b in ((self.s, low), (self.s[::-1], high))
        )
        return np.concatenate([right, left])[:, :2].tolist()

    def polygons(self) -> list[Json]:
        r, w = self.random, self.width
        beside = [0.0, *(w * (j + 1) * r.choice([-1, 1]) for j in range(r.integers(0, 3)))]
        found: list[Json] = []
        for j, b in enumerate(beside):
            if j == 0 or abs(self.curvature) * (abs(b) + w / 2) < 0.9:
                found.append({"name": f"lane{j}", "kind": "lane", "points": self.band(b - w / 2, b + w / 2)})
                wide = w / 2 + r.uniform(0, 0.3)
                found.append({"name": f"block{j}", "kind": "roadblock", "points": self.band(b - wide, b + wide)})
        if r.random() < 0.5:
            c, a = r.uniform(0, 40), r.uniform(4, 15)
            found.append(area("crossing", "intersection", c - a, c + a, -a, a))
        if r.random() < 0.2:  # a star that crosses itself
            found.append({"name": "park", "kind": "car_park", "points": r.normal([15, 0], 15, (6, 2)).tolist()})
        if r.random() < 0.5:
            found.append(area("yard", "drivable_area", -30, r.uniform(10, 120), -60, 60))
        if r.random() < 0.2:
            found.append({"name": "branch", "kind": "lane", "points": self.band(-1.6, 1.6)})
        return found

    def thing(self) -> Json:
        r, t = self.random, np.arange(51) * 0.1
        kind = str(r.choice(list(SIZES), p=[0.4, 0.15, 0.1, 0.1, 0.1, 0.075, 0.075]))
        speed = float(r.choice([0, 0.04, 0.05, 0.06, r.uniform(0, 15), r.uniform(0, 4)]))
        case, on = r.integers(0, 6), (self.y, self.heading)
        if case == 0:
            poses = arc(r.uniform(-15, 40) + speed * t, self.curvature, r.normal(0, 0.5), *on)
        elif case == 1:
            poses = arc(r.uniform(0, 60) - speed * t, self.curvature, r.choice([-1, 0, 1]) * self.width, *on)
            poses[:, 2] += np.pi
        elif case == 2:
            way = r.choice([-1, 1])
            poses = np.stack(
                [0 * t + r.uniform(0, 40), way * (speed * t - r.uniform(0, 10)), 0 * t + way * np.pi / 2], -1
            )
        elif case == 3:
            poses = arc(r.uniform(-5, 15) + speed * t, self.curvature, r.choice([-1, 1]) * r.uniform(1.5, 4), *on)
        elif case == 4:
            speed = self.speed + r.uniform(0, 8)
            poses = arc(speed * t - r.uniform(4, 25), self.curvature, r.normal(0, 0.7), *on)
        else:
            poses = arc(speed * t, 0.0, heading=r.uniform(-4, 4))
            poses[:, :2] += r.normal([8, 0], [10, 4])
        length, width = SIZES[kind]
        return {"kind": kind, "length": length, "width": width, "speed": speed, "poses": poses.tolist()}

    def plan(self, case: int) -> Array:
        r, v, t = self.random, self.speed, np.arange(1, 9) * 0.5
        forward = arc(max(v, 1.0) * t, self.curvature)
        if case == 0:
            return arc(v * t, self.curvature, 0, self.y, self.heading)
        if case == 1:
            return arc(max(v, 1.0) * r.uniform(0.3, 1.5) * t, self.curvature + r.normal(0, 0.01), r.normal())
        if case == 2:
            return np.zeros((8, 3))
        if case == 3:  # trembles on the spot
            return r.normal(0, [1e-3, 1e-3, 0.1], (8, 3))
        if case == 4:
            return arc(-r.uniform(0, 5) * t, r.normal(0, 0.05))
        if case == 5:
            return arc(max(v, 2.0) * t, r.choice([-1, 1]) * r.uniform(0.1, 0.5))
        if case == 6:
            return np.cumsum(r.normal(0, [3, 1, 0.5], (8, 3)), 0)
        if case == 7:
            return np.concatenate([r.normal(0, 20, (8, 2)), r.uniform(-4, 4, (8, 1))], 1)
        if case == 8:  # brakes or speeds up
            a = r.uniform(-6, 4)
            return arc(np.where(v + a * t > 0, v * t + a * t * t / 2, -v * v / (2 * a)), self.curvature)
        if case == 9:
            return forward + np.stack([0 * t, r.choice([-1, 1]) * t**2 / 4, 0.2 * r.normal() + 0 * t], -1)
        if case == 10:  # turns round, with headings that jump at π
            circle = arc(r.uniform(3, 12) * t, r.uniform(0.2, 0.6))
            circle[:, 2] = (circle[:, 2] + np.pi) % (2 * np.pi) - np.pi
            return circle
        return forward + r.normal(0, [0.1, 0.1, 0.02], (8, 3))

    def scene(self) -> tuple[Json, Array]:
        r = self.random
        polygons = self.polygons()
        lanes = [p["name"] for p in polygons if p["kind"] == "lane"]
        line = arc(self.s, self.curvature, 0, self.y, self.heading)[:, :2]
        scene = {
            "ego": {"speed": self.speed * float(r.choice([1, -0.3], p=[0.95, 0.05])), "acceleration": r.normal()},
            "reference": self.plan(int(r.choice([0, 0, 0, 1, 8, 11, 2]))).tolist(),
            "centre_line": line[:: int(r.choice([1, -1], p=[0.9, 0.1]))].tolist(),
            "route": [name for name in lanes if r.random() < 0.7] or lanes[:1],
            "polygons": polygons,
            "objects": [self.thing() for _ in range(r.integers(0, 6))],
        }
        return scene, np.stack([self.plan(int(case)) for case in r.integers(0, 12, 8)])


def touching(seed: int) -> tuple[Json, Array]:
    """A straight road in round numbers where boxes touch boxes and corners lie on borders, with five straight plans."""
    r = np.random.default_rng(seed)
    speed = float(r.choice([0, 0, 2, 5, 10]))
    own = [
        rectangle(-20, 80, -1.1485, 2),
        rectangle(-1.127, 80, -1.1485, 1.1485),
        [[-20, -2], [0, -2], [0, -1], [5, -1], [5, -2], [80, -2], [80, 2], [-20, 2]],
    ][r.integers(3)]
    polygons = [{"name": name, "kind": kind, "points": own} for name, kind in (("own", "lane"), ("block", "roadblock"))]
    polygons.append(area("other", "lane", -20, 80, 2, 6))
    if r.random() < 0.5:
        polygons.append(area("crossing", "intersection", 0, 10, -3, 3))
    objects = []
    for _ in range(r.integers(1, 5)):
        length, width = float(r.choice([0.5, 1, 2, 4])), float(r.choice([1, 2]))
        x = r.choice([4.049 + length / 2, 4.049 + width / 2, -1.127 - length / 2, 10, 5, 1.461, 0]) + r.choice(
            [0, 0, 1e-16, 1e-9]
        )
        y = r.choice([0, 1.1485 + width / 2, 1.1485 + length / 2, -1.1485 - width / 2, 1])
        heading = float(r.choice([0, np.pi / 2, np.pi, -np.pi / 2, 0.3]))
        poses = np.tile([x, y, heading], (51, 1))
        poses[:, 0] += np.arange(51) * 0.1 * speed * r.integers(2)
        kind, own_speed = str(r.choice(list(SIZES))), float(r.choice([0, 0.05, 1, 5]))
        objects.append({"kind": kind, "length": length, "width": width, "speed": own_speed, "poses": poses.tolist()})
    scene = {**road(speed, objects=objects, polygons=polygons), "centre_line": [[-20, 0], [0, 0], [0, 0], [80, 0]]}
    plans = [straight(share * speed) for share in (1, 0, 0.5, -1)]
    return scene, np.stack([*plans, plans[0] + [[0.1 * i * i, 0, 0] for i in range(8)]])


def rounded(value: Any, digits: int) -> Any:
    """The same lists and dictionaries with numbers of so many digits, for a small file."""
    if isinstance(value, dict):
        return {key: rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry, digits) for entry in value]
    return round(value, digits) if isinstance(value, float) else value
