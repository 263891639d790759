"""Where on the map the ego's box is: on the road, in which lanes, in an intersection.

``pdm_score`` asks for all plans and times whether they are on the road and the route, ``collisions`` for the rest where
something is met.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frpt.driving.dynamics import Driven
from frpt.driving.polygons import Array, Bools, Indices, corners
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
    """Where on the map the ego is; on a border is not inside.

    Attributes:
        scene: Whose map it is.
        ego: Who drives there.
        off_road: Whether a corner is in nothing that is drivable, (k, 41).
        oncoming: Whether the centre is in no lane of the route, (k, 41).
    """

    scene: Scene
    ego: Ego
    off_road: Bools
    oncoming: Bools

    @classmethod
    def of(cls, scene: Scene, ego: Ego) -> Whereabouts:
        """Where on the scene's map this ego is."""
        off_road = np.any(~_in_any(scene.kinds(*DRIVABLE), ego.corners), axis=-1)
        route = [lane for lane in scene.kinds("lane") if lane.name in scene.route]
        return cls(scene, ego, off_road, ~_in_any(route, ego.centre))

    def unclear(self, plan: Indices, time: Indices) -> Bools:
        """Whether it is off the road or in several lanes: more than one holds a corner, none holds all four; (n,)."""
        box = self.ego.corners[plan, time]
        held = np.stack([np.count_nonzero(lane.slabs.contain(box), axis=-1) for lane in self.scene.kinds("lane")])
        several = (np.count_nonzero(held, axis=0) > 1) & (held != 4).all(0)
        return np.asarray(several | self.off_road[plan, time])

    def crossing(self, plan: Indices, time: Indices) -> Bools:
        """Whether the rear axle is in an intersection, (n,)."""
        return _in_any(self.scene.kinds("intersection"), self.ego.rear[plan, time])


def _in_any(areas: list[Area], points: Array) -> Bools:
    flat = points.reshape(-1, 2)
    found = np.zeros(len(flat), dtype=np.bool_)
    for area in areas:
        rest = np.flatnonzero(~found)
        found[rest] = area.slabs.contain(flat[rest])
    return found.reshape(points.shape[:-1])
