"""Where on the map the ego's box is at every time: on the road, in which lanes, in an intersection.

``pdm_score`` asks once for all plans; collisions, drivable area and direction are judged by the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from frpt.driving.dynamics import Driven
from frpt.driving.polygons import Array, Bools, corners
from frpt.driving.scene import DRIVABLE, Area, Scene

# nuPlan's Pacifica: 4.049 m before and 1.127 m behind the rear axle.
EGO_LENGTH = 4.049 + 1.127
EGO_WIDTH = 1.1485 * 2
REAR_AXLE_TO_CENTRE = EGO_LENGTH / 2 - 1.127


@dataclass(frozen=True, eq=False)
class Ego:
    """The ego's box along k drives.

    Attributes:
        rear: The rear axle's positions, (k, 41, 2).
        centre: The box's centres, (k, 41, 2).
        corners: The box's corners, (k, 41, 4, 2), front left first, counter-clockwise.
        ahead: Unit vectors along the heading, (k, 41, 2).
        speed: Without sign, (k, 41).
    """

    rear: Array
    centre: Array
    corners: Array
    ahead: Array
    speed: Array

    @classmethod
    def of(cls, driven: Driven) -> Ego:
        """The box along these drives."""
        rear = np.stack([driven.x, driven.y], -1)
        ahead = np.stack([np.cos(driven.heading), np.sin(driven.heading)], -1)
        centre = rear + REAR_AXLE_TO_CENTRE * ahead
        box = corners(centre, driven.heading, EGO_LENGTH, EGO_WIDTH)
        return cls(rear, centre, box, ahead, np.abs(driven.speed))


@dataclass(frozen=True, eq=False)
class Whereabouts:
    """Where the ego is, each (k, 41).

    Attributes:
        several_lanes: More than one lane holds a corner, and none holds all four.
        off_road: A corner is in nothing that is drivable.
        oncoming: The centre is in no lane of the route.
        crossing: The rear axle is in an intersection.
    """

    several_lanes: Bools
    off_road: Bools
    oncoming: Bools
    crossing: Bools

    @classmethod
    def of(cls, scene: Scene, ego: Ego) -> Whereabouts:
        """Where on the scene's map the box is; on a border is not inside."""
        lanes = [area for area in scene.areas if area.kind == "lane"]
        in_lanes = np.stack([np.count_nonzero(lane.slabs.contain(ego.corners), axis=-1) for lane in lanes])
        road = [area for area in scene.areas if area.kind in DRIVABLE]
        return cls(
            several_lanes=(np.count_nonzero(in_lanes, axis=0) > 1) & (in_lanes != 4).all(0),
            off_road=np.any(~_in_any(road, ego.corners), axis=-1),
            oncoming=~_in_any([lane for lane in lanes if lane.name in scene.route], ego.centre),
            crossing=_in_any([area for area in road if area.kind == "intersection"], ego.rear),
        )


def _in_any(areas: Iterable[Area], points: Array) -> Bools:
    found: npt.NDArray[np.bool_] = np.zeros(points.shape[:-1], dtype=np.bool_)
    for area in areas:
        found |= area.slabs.contain(points)
    return found
