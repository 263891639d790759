"""Whom the ego meets, now and if it went straight on, and whether it is to blame.

``pdm_score`` calls it. An object that is met without blame is excused from then on, and one blame is enough: so the
first meeting with each object decides, in the order of time, then of the steps looked ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from frpt.driving.areas import EGO_LENGTH, EGO_WIDTH, Ego, Whereabouts
from frpt.driving.dynamics import DT, STEPS
from frpt.driving.polygons import Array, Bools, Indices, boxes_meet, corners, meet
from frpt.driving.scene import AGENTS, Scene

STANDING = 0.05  # m/s; up to this an ego or an object stands when they collide
CREEPING = 0.005  # m/s; an ego below this has no time to collision
LOOK_AHEAD = np.arange(0, 10, 3)  # time steps that the ego's box goes straight on
AHEAD, BEHIND = np.deg2rad(30), np.deg2rad(150)


class Meetings(NamedTuple):
    """Meetings of plans and objects, one of each pair that meets; all (n,)."""

    plan: Indices
    item: Indices
    time: Indices
    later: Indices  # time steps that the box was moved on


@dataclass(frozen=True, eq=False)
class Contact:
    """Boxes of m objects over time, and which of them k drives meet.

    Attributes:
        boxes: The objects' corners, (m, 51, 4, 2).
        met: Whether the ego's box, moved on along its heading, meets an object's of that later time, (k, 41, 4, m).
    """

    boxes: Array
    met: Bools

    @classmethod
    def of(cls, scene: Scene, ego: Ego) -> Contact:
        """Contacts of these drives with the scene's objects; to touch is to meet."""
        poses = np.array([item.poses for item in scene.objects]).reshape(-1, STEPS + 11, 3)
        sizes = np.array([(item.length, item.width) for item in scene.objects]).reshape(-1, 2)
        boxes = corners(poses[..., :2], poses[..., 2], sizes[:, :1], sizes[:, 1:])
        later = boxes[:, np.arange(STEPS + 1)[:, None] + LOOK_AHEAD].transpose(1, 2, 0, 3, 4)
        shift = (ego.speed[..., None] * ego.ahead)[:, :, None] * (LOOK_AHEAD * DT)[:, None]
        met = _near(ego.centre[:, :, None] + shift, later, sizes)
        plan, time, step, item = near = np.nonzero(met)
        met[near] = boxes_meet(ego.corners[plan, time] + shift[plan, time, step, None], later[time, step, item])
        return cls(boxes, met)

    def first(self, met: Bools) -> Meetings:
        """The first of some meetings for each plan and object. met: (k, 41, q, m), some of ``self.met``."""
        k, times, steps, m = met.shape
        flat = met.reshape(k, times * steps, m)
        plan, item = np.nonzero(flat.any(1))
        time, step = np.divmod(flat.argmax(1)[plan, item], steps)
        return Meetings(plan, item, time, LOOK_AHEAD[step])


def _near(centre: Array, boxes: Array, sizes: Array) -> Bools:
    """Whether circles around the boxes meet: (k, 41, 4, m). centre: (k, 41, 4, 2); boxes: (41, 4, m, 4, 2)."""
    other = boxes.mean(-2)
    reach = (np.hypot(EGO_LENGTH, EGO_WIDTH) + np.hypot(sizes[:, 0], sizes[:, 1])) / 2 + 1e-6  # rounding is far smaller
    dx, dy = (centre[..., None, axis] - other[..., axis] for axis in (0, 1))
    return np.asarray(dx**2 + dy**2 <= reach**2)


def no_collision(scene: Scene, ego: Ego, where: Whereabouts, contact: Contact) -> Array:
    """NC: 0 for a collision with an agent that the ego is to blame for, ½ with something else, else 1; (k,).

    It is not to blame if it stands, nor if a moving agent is behind it. It is if the other stands, or meets its front,
    or if it is not in one lane on the road.
    """
    meetings = contact.first(contact.met[:, :, :1])
    plan, item, time, _ = meetings
    box = contact.boxes[item, time]
    agent = np.array([other.kind in AGENTS for other in scene.objects], dtype=np.bool_)
    moving = agent & np.array([abs(other.speed) > STANDING for other in scene.objects], dtype=np.bool_)
    front = meet(ego.corners[plan, time][:, [3, 0]], box)
    active = ~(_angle(ego, meetings, box) > BEHIND) & (front | where.unclear(plan, time))
    blamed = (ego.speed[plan, time] > STANDING) & (~moving[item] | active)
    nc = np.ones(len(ego.speed))
    np.minimum.at(nc, plan[blamed], np.where(agent[item[blamed]], 0.0, 0.5))
    return nc


def time_to_collision(ego: Ego, where: Whereabouts, contact: Contact) -> Array:
    """TTC: 0 if the ego, going straight on for up to 0.9 s, meets something that it should heed, else 1; (k,).

    That is something ahead; and something beside it where it is not in one lane on the road, or in an intersection.
    """
    meetings = contact.first(contact.met & (ego.speed >= CREEPING)[:, :, None, None])
    plan, item, time, later = meetings
    angle = _angle(ego, meetings, contact.boxes[item, time + later])
    careful = where.unclear(plan, time) | where.crossing(plan, time)
    ttc = np.ones(len(ego.speed))
    ttc[plan[(angle < AHEAD) | (careful & ~(angle > BEHIND))]] = 0.0
    return ttc


def _angle(ego: Ego, meetings: Meetings, box: Array) -> Array:
    """Between the ego's heading and the way from its rear axle to the boxes' centres; NaN where that has no length.

    NaN is neither ahead nor behind, there and in the devkit.
    """
    away = box.mean(-2) - ego.rear[meetings.plan, meetings.time]
    distance = np.linalg.norm(away, axis=-1)
    forward = (away * ego.ahead[meetings.plan, meetings.time]).sum(-1)
    cosine = np.divide(forward, distance, out=np.full_like(distance, np.nan), where=distance > 0)
    return np.asarray(np.arccos(np.clip(cosine, -1.0, 1.0)))
