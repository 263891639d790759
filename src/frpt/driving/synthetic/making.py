"""Synthetic driving scenes: road, traffic and a driver's plan, drawn from (seed, index) and kept if the score is good.

Users call ``make_scene``, ``DrivingData`` what it is made of. Ranges are those of town streets, tuned to no result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import pi

import numpy as np

from frpt.driving.areas import EGO_WIDTH
from frpt.driving.dynamics import DT
from frpt.driving.pdm_score import score
from frpt.driving.scene import OBJECT_POSES, Area, Array, Scene, SceneObject
from frpt.driving.synthetic.expert import FRONT, REAR, Actor, Driver, allowed, expert_plan, pull
from frpt.driving.synthetic.roads import BEGIN, END, STEP, Lane, Line, Road, bent, block, line_of, strip
from frpt.errors import OptionError, SceneError

GOOD = 0.9
"""The driver's plan has to score this much, by the definition of the set."""
TRIES = 200
"""Scenes drawn for an index before giving up; about four in five are good (tests/driving/synthetic/test_making.py)."""
DRIVER = Driver()
TIMES: Array = np.linspace(0, DT * (OBJECT_POSES - 1), OBJECT_POSES)
LANES = (
    ("own",), ("own", "oncoming"), ("right", "own"), ("own", "left"), ("right", "own", "oncoming"),
    ("own", "left", "oncoming"),
)  # fmt: skip
"""Lanes of a road, the rightmost first."""
MARKING = 0.2
"""Metres that an intersection reaches beyond the road's border, so that its marking ends there."""
SIZES = {
    "vehicle": (4.7, 1.9), "pedestrian": (0.6, 0.6), "bicycle": (1.8, 0.6), "traffic_cone": (0.4, 0.4),
    "barrier": (2.4, 0.5),
}  # fmt: skip
"""Length and width in metres; vehicles vary by a tenth."""


@dataclass(frozen=True)
class Drawn:
    """A scene before it is known to be good. start: ego's offset from its lane's centre, its heading relative to it."""

    road: Road
    start: tuple[float, float]
    speed: float
    acceleration: float
    actors: tuple[Actor, ...]

    def scene(self, wait: bool) -> Scene:
        """The scene with the driver's plan as its reference. wait: for those who cross."""
        line = self.road.line
        plan = expert_plan(line, self.actors, self.speed, self.acceleration, self.start, wait, DRIVER)
        return Scene(
            speed=self.speed,
            acceleration=self.acceleration,
            reference=plan,
            centre_line=line.points,
            route=tuple(lane.name for lane in self.road.lanes if lane.forward),
            areas=self.road.areas,
            objects=tuple(_object(line, actor) for actor in self.actors),
        )


def make_scene(seed: int, index: int) -> Scene:
    """A synthetic driving scene; the same for the same numbers, whatever other scenes are made.

    Straight roads, bends of 12 to 60 m radius and crossings that are passed or turned at, one to three lanes, traffic;
    the reference is the plan of a driver who knows where everybody will be. It scores at least 0.9.

    Args:
        seed: Of a set of scenes.
        index: Of a scene within the set.

    Returns:
        The scene.

    Raises:
        OptionError: A number is negative.
        SceneError: None of the scenes drawn for the index is good.

    Example:
        >>> scene = frpt.driving.make_scene(seed=0, index=3)
        >>> scene.reference.shape
        (8, 3)
        >>> float(frpt.driving.score(scene, scene.reference)["PDMS"][0]) >= 0.9
        True
    """
    return find_scene(seed, index)[1]


def find_scene(seed: int, index: int) -> tuple[int, Scene]:
    """(trial, scene): the first good scene for an index, and the trial that ``scene_of`` makes it again from.

    Trials 2n and 2n + 1 have the n-th scene that is drawn: the driver goes before those who cross, or waits for them.
    """
    for trial in range(2 * TRIES):
        drawn = _drawn(seed, index, trial // 2)
        if trial % 2 and not any(actor.crosses for actor in drawn.actors):
            continue
        scene = drawn.scene(wait=trial % 2 == 1)
        if float(score(scene, scene.reference)["PDMS"][0]) >= GOOD:
            return trial, scene
    raise SceneError(f"none of {TRIES} scenes drawn for index {index}, seed {seed}, is good; take another seed")


def scene_of(seed: int, index: int, trial: int) -> Scene:
    """The scene of a trial that ``find_scene`` returned."""
    return _drawn(seed, index, trial // 2).scene(wait=trial % 2 == 1)


def _drawn(seed: int, index: int, number: int) -> Drawn:
    if min(seed, index) < 0:
        raise OptionError(f"seed and index must not be negative, got {seed} and {index}")
    rng = np.random.default_rng((seed, index, number))
    start = (float(rng.normal(0, 0.3)), float(rng.normal(0, 0.03)))
    road = _road(rng, start)
    cap = float(np.interp(0.0, road.line.s, allowed(road.line, DRIVER)))
    speed = cap * float(rng.uniform(0.75, 1.0) if rng.random() < 0.75 else rng.uniform(0.2, 0.75))
    traffic = Traffic(rng, road, speed)
    traffic.draw()
    gap, closing = traffic.lead()
    pulled = pull(speed, cap, gap, closing, DRIVER) * rng.uniform(0.5, 1.0) + rng.normal(0, 0.1)
    order = rng.permutation(len(traffic.actors))
    return Drawn(road, start, speed, float(np.clip(pulled, -2.0, 1.5)), tuple(traffic.actors[i] for i in order))


def _road(rng: np.random.Generator, start: tuple[float, float]) -> Road:
    """Three in ten straight, four bent, three with a crossing, half of which ego turns at."""
    names = LANES[rng.integers(len(LANES))]
    width, own = float(rng.uniform(3.3, 3.8)), names.index("own")
    lanes = tuple(Lane(name, (i - own) * width, width, name != "oncoming") for i, name in enumerate(names))
    kind = rng.choice(["straight", "bend", "through", "turn"], p=[0.3, 0.4, 0.15, 0.15])
    side = rng.choice([-1.0, 1.0])
    gentle = np.full(round((END - BEGIN) / STEP) + 1, rng.uniform(-1, 1) / 400)
    if kind == "straight":
        return Road(line_of(gentle, start[1], start[0]), lanes)
    if kind == "bend":
        begin, ramp, angle = rng.uniform(-12, 30), rng.uniform(6, 12), rng.uniform(0.4, 1.6)
        curvature = bent(begin, ramp, side * angle, rng.uniform(12, 60))
        return Road(line_of(curvature, start[1], start[0]), lanes)
    if kind == "through":
        road = Road(line_of(0 * gentle, start[1], start[0]), lanes, crossing=float(rng.uniform(14, 45)))
        return _crossed(road, float(rng.uniform(3.5, 7)))
    begin, ramp, radius = float(rng.uniform(4, 24)), 5.0, float(rng.uniform(12, 16))
    line = line_of(bent(begin, ramp, side * pi / 2, radius), start[1], start[0])
    return _turned(Road(line, lanes), begin, begin + pi / 2 * radius + ramp, side)


def _crossed(road: Road, half: float) -> Road:
    """With a straight street across."""
    assert road.crossing is not None
    street = block(road.line, road.crossing, (-half, half), (-60, 60))
    right, left = road.borders
    meeting = block(road.line, road.crossing, (-half, half), (right - MARKING, left + MARKING))
    return replace(road, streets=(Area("street", "roadblock", street), Area("crossing", "intersection", meeting)))


def _turned(road: Road, begin: float, end: float, side: float) -> Road:
    """With the streets that ego does not take: straight on from the turn's beginning, and on both sides of its end.

    Seen along x from the turn's beginning, the new street has its centre line at x = ``far``; its offsets to the left
    are along −x after a left turn and along x after a right one. They meet where they overlap and where ego turns.
    """
    line, borders = road.line, road.borders
    (first,), (heading,) = line.at(np.array([begin]))
    far = float((line.points[-1] - first) @ [np.cos(heading), np.sin(heading)])
    low, high = sorted(far - side * edge for edge in borders)
    wide = borders[0] - MARKING, borders[1] + MARKING
    return replace(
        road,
        streets=(
            Area("ahead", "roadblock", block(line, begin, (-5, far + 70), borders)),
            Area("street", "roadblock", block(line, begin, (low, high), (-70, 70))),
            Area("crossing", "intersection", block(line, begin, (low, high), wide)),
            Area("turn", "intersection", strip(line, *wide, between=(begin, end))),
        ),
    )


class Traffic:
    """Draws who else is on a road. Whoever would stand in another's way is left out. speed: ego's."""

    def __init__(self, rng: np.random.Generator, road: Road, speed: float) -> None:
        self.rng, self.road, self.speed = rng, road, speed
        self.actors: list[Actor] = []

    def draw(self) -> None:
        chances: list[tuple[float, Callable[[], None]]] = [
            (0.5, self._leader), (0.25, self._walker), (0.15, self._bicycle), (0.2, self._roadworks),
        ]  # fmt: skip
        for chance, draw in chances:
            if self.rng.random() < chance:
                draw()
        for lane in self.road.lanes:
            if lane.name != "own":
                for _ in range(self.rng.integers(0, 3)):
                    self._neighbour(lane)
        if self.road.crossing is not None:
            for _ in range(self.rng.integers(0, 3)):
                self._crosser(self.road.crossing)

    def lead(self) -> tuple[float, float]:
        """(gap, closing speed) to whoever is ahead in ego's lane now."""
        ahead = [a for a in self.actors if abs(a.d[0]) < EGO_WIDTH / 2 + a.half[1] and a.s[0] > FRONT]
        nearest = min(ahead, key=lambda a: a.s[0] - a.half[0], default=None)
        if nearest is None:
            return np.inf, 0.0
        return nearest.s[0] - nearest.half[0] - FRONT, self.speed - nearest.speed * np.cos(nearest.yaw)

    def _leader(self) -> None:
        """Ahead in ego's lane: moving, in a distance that ego would keep, or standing, far enough away to stop."""
        rng = self.rng
        if rng.random() < 0.7:
            gap = 3 + self.speed * rng.uniform(0.8, 2.2)
            self._along("vehicle", FRONT + 2.4 + gap, 0.0, self.speed * rng.uniform(0.4, 1.05))
            return
        gap = self.speed**2 / 4 + 4 + rng.uniform(0, 14)
        self._along("vehicle" if rng.random() < 0.8 else "barrier", FRONT + 2.4 + gap, 0.0, 0.0)

    def _neighbour(self, lane: Lane) -> None:
        rng = self.rng
        if lane.forward:
            parked = rng.random() < 0.15
            speed = 0.0 if parked else max(self.speed, 3.0) * rng.uniform(0.7, 1.2)
            self._along("vehicle", rng.uniform(-15, 45), lane.left, speed)
        else:
            self._along("vehicle", rng.uniform(10, 75), lane.left, -rng.uniform(4, 12))

    def _bicycle(self) -> None:
        """Beside the road's right border."""
        self._along("bicycle", self.rng.uniform(6, 35), self.road.borders[0] - self.rng.uniform(0.6, 1.2), 4.0)

    def _walker(self) -> None:
        """Stands beside the road, or crosses it from either side."""
        rng, (right, left) = self.rng, self.road.borders
        s, side = rng.uniform(10, 40), rng.choice([-1.0, 1.0])
        border = left if side > 0 else right
        speed = 0.0 if rng.random() < 0.4 else rng.uniform(1.0, 1.6)
        begin = border + side * (rng.uniform(0.6, 2.0) if speed == 0.0 else rng.uniform(-border * side, 1.5))
        self._across("pedestrian", s, begin, -side, speed)

    def _crosser(self, crossing: float) -> None:
        """On the street that crosses ours: drives on, or waits before it; those from the left are on the near side."""
        rng, side = self.rng, self.rng.choice([-1.0, 1.0])
        s = crossing - side * rng.uniform(1.6, 2.4)
        border = self.road.borders[1] if side > 0 else self.road.borders[0]
        if rng.random() < 0.4:
            self._across("vehicle", s, border + side * rng.uniform(3.5, 6), -side, 0.0)
            return
        speed = rng.uniform(4, 9)
        self._across("vehicle", s, side * speed * rng.uniform(0.3, 4.0), -side, speed)

    def _roadworks(self) -> None:
        """Two to four cones or barriers beside the road."""
        rng, kind = self.rng, "traffic_cone" if self.rng.random() < 0.6 else "barrier"
        side, first = rng.choice([-1.0, 1.0]), rng.uniform(6, 35)
        border = self.road.borders[1] if side > 0 else self.road.borders[0]
        for i in range(rng.integers(2, 5)):
            self._along(kind, first + 4.0 * i, border + side * 0.6, 0.0)

    def _along(self, kind: str, s: float, d: float, speed: float) -> None:
        """Keeps its offset from ego's lane; against ego's direction at a negative speed."""
        yaw = pi if speed < 0 else 0.0
        self._add(kind, s + speed * TIMES, np.full(OBJECT_POSES, d), yaw, abs(speed))

    def _across(self, kind: str, s: float, d: float, side: float, speed: float) -> None:
        """Faces the left (1) or the right (−1)."""
        self._add(kind, np.full(OBJECT_POSES, s), d + side * speed * TIMES, side * pi / 2, speed)

    def _add(self, kind: str, s: Array, d: Array, yaw: float, speed: float) -> None:
        length, width = SIZES[kind]
        if kind == "vehicle":
            length, width = length * self.rng.uniform(0.9, 1.1), width * self.rng.uniform(0.95, 1.05)
        new = Actor(kind, length, width, speed, s, d, yaw)
        if not any(_meet(new, other) for other in self.actors) and not _meets_ego(new):
            self.actors.append(new)


def _meet(one: Actor, other: Actor) -> bool:
    """Whether two ever come closer than a metre along the road and a quarter of one across it."""
    along, side = one.half[0] + other.half[0] + 1.0, one.half[1] + other.half[1] + 0.25
    return bool(np.any((np.abs(one.s - other.s) < along) & (np.abs(one.d - other.d) < side)))


def _meets_ego(actor: Actor) -> bool:
    """Whether it is within a metre of ego now."""
    along, side = actor.half
    near = -REAR - along - 1 < actor.s[0] < FRONT + along + 1
    return bool(near and abs(actor.d[0]) < EGO_WIDTH / 2 + side + 0.5)


def _object(line: Line, actor: Actor) -> SceneObject:
    points, heading = line.at(actor.s, actor.d)
    poses = np.concatenate([points, (heading + actor.yaw)[:, None]], -1)
    return SceneObject(actor.kind, actor.length, actor.width, actor.speed, poses)
