"""A driving scene: the ego vehicle's state, the road as polygons, other objects over five seconds, a reference plan.

``score`` and ``simulate`` read it, scene makers and renderers make and draw it; its JSON form is what goes between them
and files. Everything is in the ego's frame at the start: its rear axle at the origin, heading along x; metres, radians,
seconds. A scene is checked when it is made, so that whoever holds one can rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from frpt.driving.polygons import Slabs
from frpt.errors import SceneError

Array = npt.NDArray[np.float64]

AGENTS = ("vehicle", "pedestrian", "bicycle")
OBJECT_KINDS = (*AGENTS, "traffic_cone", "barrier", "czone_sign", "generic_object")
DRIVABLE = ("roadblock", "intersection", "drivable_area", "car_park")
AREA_KINDS = ("lane", *DRIVABLE)

PLAN_POSES = 8
OBJECT_POSES = 51


@dataclass(frozen=True, eq=False)
class Area:
    """A piece of the map.

    Args:
        name: Its name; the route of a scene is a list of lanes' names.
        kind: lane, roadblock, intersection, drivable_area or car_park. Cars may be anywhere but in a lane alone: lanes
            say where traffic runs, the other kinds where there is road.
        points: Its border, (n, 2) with n ≥ 3; closed from the last point to the first.

    Raises:
        SceneError: If the kind is unknown, there are fewer than three points, or one is not finite.
    """

    name: str
    kind: str
    points: Array

    def __post_init__(self) -> None:
        where = f"polygon {self.name!r}"
        _one_of(where, self.kind, AREA_KINDS)
        object.__setattr__(self, "points", _array(f"the points of {where}", self.points, (None, 2)))
        distinct = len(np.unique(self.points, axis=0))
        if distinct < 3:
            raise SceneError(f"{where} has {distinct} different points; an area needs at least three")

    @cached_property
    def slabs(self) -> Slabs:
        """What answers quickly whether points are inside."""
        return Slabs.of(self.points)


@dataclass(frozen=True, eq=False)
class SceneObject:
    """Something that a car can hit: a box that moves as recorded, whatever the ego does.

    Args:
        kind: vehicle, pedestrian or bicycle (agents), traffic_cone, barrier, czone_sign or generic_object.
        length: Along its heading, in metres.
        width: Across its heading, in metres.
        speed: Its speed at the start, which decides whether it counts as standing.
        poses: Centre and heading (x, y, θ) every 0.1 s from now on, (51, 3).

    Raises:
        SceneError: If the kind is unknown, a size is not positive, or there are other than 51 finite poses.
    """

    kind: str
    length: float
    width: float
    speed: float
    poses: Array

    def __post_init__(self) -> None:
        _one_of("an object", self.kind, OBJECT_KINDS)
        where = f"a {self.kind} of the scene"
        for name in ("length", "width", "speed"):
            object.__setattr__(self, name, _number(f"the {name} of {where}", getattr(self, name)))
        if min(self.length, self.width) <= 0:
            raise SceneError(f"{where} is {self.length} m long and {self.width} m wide; both must be above zero")
        object.__setattr__(self, "poses", _array(f"the poses of {where}", self.poses, (OBJECT_POSES, 3)))


@dataclass(frozen=True, eq=False)
class Scene:
    """A driving scene to score plans in.

    Args:
        speed: The ego's speed at the start, in m/s.
        acceleration: The ego's acceleration along its heading at the start, in m/s².
        reference: The plan that progress is compared with: 8 poses (x, y, θ) every 0.5 s, (8, 3).
        centre_line: The line that progress is measured along, (n, 2) with n ≥ 2.
        route: Names of the lanes that lead where the ego is to go.
        areas: The map; at least one lane.
        objects: What the ego could hit; may be empty.

    Raises:
        SceneError: If there is no lane, no route among the lanes or no centre line, or a number is not finite.

    Example:
        >>> road = {"name": "road", "points": [[-20, -2], [80, -2], [80, 2], [-20, 2]]}
        >>> scene = frpt.driving.Scene.from_dict({
        ...     "ego": {"speed": 8.0, "acceleration": 0.0},
        ...     "reference": [[4.0 * i, 0, 0] for i in range(1, 9)],
        ...     "centre_line": [[-20, 0], [80, 0]],
        ...     "route": ["road"],
        ...     "polygons": [{**road, "kind": "lane"}, {**road, "kind": "roadblock"}],
        ...     "objects": [],
        ... })
        >>> [area.kind for area in scene.areas]
        ['lane', 'roadblock']
    """

    speed: float
    acceleration: float
    reference: Array
    centre_line: Array
    route: tuple[str, ...]
    areas: tuple[Area, ...]
    objects: tuple[SceneObject, ...] = ()

    def __post_init__(self) -> None:
        for name in ("speed", "acceleration"):
            object.__setattr__(self, name, _number(f"the ego's {name}", getattr(self, name)))
        object.__setattr__(self, "reference", _array("the reference plan", self.reference, (PLAN_POSES, 3)))
        object.__setattr__(self, "centre_line", _array("the centre line", self.centre_line, (None, 2)))
        for name in ("route", "areas", "objects"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        lanes = {area.name for area in self.kinds("lane")}
        if not lanes:
            raise SceneError("the scene has no lane; give at least one polygon of kind 'lane'")
        if not lanes & set(self.route):
            raise SceneError(
                f"the scene has no route: none of {list(self.route)} is among its lanes {sorted(lanes)}; "
                "name the lanes that lead where the ego is to go"
            )
        if len(np.unique(self.centre_line, axis=0)) < 2:
            raise SceneError("the scene has no centre line; give at least two different points")

    def kinds(self, *kinds: str) -> list[Area]:
        """The areas of some kinds."""
        return [area for area in self.areas if area.kind in kinds]

    @classmethod
    def from_dict(cls, scene: Mapping[str, Any]) -> Scene:
        """A scene from its JSON form.

        Args:
            scene: ``ego`` {speed, acceleration}, ``reference``, ``centre_line``, ``route``, ``polygons`` [{name, kind,
                points}] and ``objects`` [{kind, length, width, speed, poses}]. Other keys, such as plans that lie
                beside a scene in a file, are not read.

        Returns:
            The scene.

        Raises:
            SceneError: If a key is missing or the scene is unusable.
        """
        ego = _entry(scene, "ego", "the scene")
        return cls(
            speed=_entry(ego, "speed", "the scene's ego"),
            acceleration=_entry(ego, "acceleration", "the scene's ego"),
            reference=_entry(scene, "reference", "the scene"),
            centre_line=_entry(scene, "centre_line", "the scene"),
            route=_entry(scene, "route", "the scene"),
            areas=tuple(
                Area(**{key: _entry(area, key, "a polygon of the scene") for key in ("name", "kind", "points")})
                for area in _entry(scene, "polygons", "the scene")
            ),
            objects=tuple(
                SceneObject(
                    **{
                        key: _entry(item, key, "an object of the scene")
                        for key in ("kind", "length", "width", "speed", "poses")
                    }
                )
                for item in _entry(scene, "objects", "the scene")
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """The scene's JSON form: plain numbers, texts, lists and dictionaries, which ``from_dict`` takes.

        Returns:
            The dictionary; numbers keep every digit.
        """
        return {
            "ego": {"speed": self.speed, "acceleration": self.acceleration},
            "reference": self.reference.tolist(),
            "centre_line": self.centre_line.tolist(),
            "route": list(self.route),
            "polygons": [{"name": a.name, "kind": a.kind, "points": a.points.tolist()} for a in self.areas],
            "objects": [
                {"kind": o.kind, "length": o.length, "width": o.width, "speed": o.speed, "poses": o.poses.tolist()}
                for o in self.objects
            ],
        }


def _entry(mapping: Any, key: str, where: str) -> Any:
    if not isinstance(mapping, Mapping):
        raise SceneError(f"{where} must be a dictionary, got {type(mapping).__name__}")
    if key not in mapping:
        raise SceneError(f"{where} has no {key!r}; it has {', '.join(map(repr, mapping)) or 'nothing'}")
    return mapping[key]


def _one_of(where: str, kind: object, kinds: Sequence[str]) -> None:
    if kind not in kinds:
        raise SceneError(f"{where} is of kind {kind!r}; known are {', '.join(kinds)}")


def _number(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise SceneError(f"{what} must be a number, got {value!r}") from None
    if not np.isfinite(number):
        raise SceneError(f"{what} is {number}; it must be finite")
    return number


def _array(what: str, value: Any, shape: tuple[int | None, int]) -> Array:
    """A finite float64 copy that nobody can write to. shape: None stands for any length."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise SceneError(f"{what} must be numbers in rows of {shape[1]}") from None
    if array.size == 0:
        raise SceneError(f"there is nothing in {what}")
    rows = "n" if shape[0] is None else shape[0]
    if array.ndim != 2 or array.shape[1] != shape[1] or shape[0] not in (None, len(array)):
        raise SceneError(f"{what} must have shape ({rows}, {shape[1]}), got {array.shape}")
    if not np.isfinite(array).all():
        raise SceneError(f"NaN or infinity in {what}")
    array.setflags(write=False)
    return array
