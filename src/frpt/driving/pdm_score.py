"""NAVSIM's PDM score (v1.1) of plans in a scene, without its devkit.

Called by users, the planners' experiments and the command line.

    PDMS = NC · DAC · (5 EP + 5 TTC + 2 C) / 12
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from frpt.driving.areas import EGO_LENGTH, EGO_WIDTH, Ego, Whereabouts
from frpt.driving.comfort import comfortable
from frpt.driving.dynamics import DT, STEPS, Jerk, drive, plans
from frpt.driving.polygons import Array, Bools, Indices, along, corners, meet
from frpt.driving.scene import AGENTS, Scene

SCORES = ("NC", "DAC", "EP", "TTC", "C", "DDC", "PDMS")
STANDING = 0.05  # m/s; slower is standing, for ego and objects in a collision
LOOK_AHEAD = np.arange(0, 10, 3)  # time steps that the box is moved on for the time to collision
AHEAD, BEHIND = np.deg2rad(30), np.deg2rad(150)
CHUNK = 128  # plans at once; more take no less time each and more memory (benchmarks/driving.py)


def score(scene: Scene, poses: Any, jerk: Jerk = "devkit") -> dict[str, Array]:
    """The PDM score of plans in a scene, and what it is made of.

    Each plan is driven by a tracker and a bicycle model for 4 s; what is scored is that drive, beside the drive of the
    scene's reference. The numbers agree with those of NAVSIM's devkit v1.1.

    Args:
        scene: The scene.
        poses: Plans (k, 8, 3), or one plan (8, 3), of poses (x, y, θ) of the rear axle every 0.5 s; an array, a tensor
            or lists.
        jerk: ``"devkit"`` smooths the speed as the devkit does, which is needed to compare with published scores;
            ``"right"`` without its mistake.

    Returns:
        Arrays (k,), also for one plan: ``NC`` no collision at fault (1, ½ for something that is no agent, 0), ``DAC``
        stays on the road, ``EP`` progress beside the reference, ``TTC`` time to collision, ``C`` comfort, ``DDC``
        direction (reported, without weight), and ``PDMS``.

    Raises:
        InputError: If the poses have another shape.
        NonFiniteError: If a pose is NaN or infinite, or so large that the drive is.
        OptionError: If ``jerk`` is neither of the two.

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
        >>> slower = 0.75 * scene.reference
        >>> {name: float(value[0].round(2)) for name, value in frpt.driving.score(scene, slower).items()}
        {'NC': 1.0, 'DAC': 1.0, 'EP': 0.83, 'TTC': 1.0, 'C': 1.0, 'DDC': 1.0, 'PDMS': 0.93}
    """
    checked = plans(poses)
    parts = [_chunk(scene, checked[i : i + CHUNK], jerk) for i in range(0, max(len(checked), 1), CHUNK)]
    return {name: np.concatenate([part[name] for part in parts]) for name in SCORES}


def _chunk(scene: Scene, plans: Array, jerk: Jerk) -> dict[str, Array]:
    driven = drive(scene, np.concatenate([scene.reference[None], plans]), jerk)
    ego = Ego.of(driven)
    where = Whereabouts.of(scene, ego)
    nc, ttc = _collisions(scene, ego, where)
    dac = 1.0 - where.off_road.any(-1)
    ends = along(scene.centre_line, np.concatenate([ego.centre[:1, 0], ego.centre[:, -1]]))
    ep = _progress_share(np.maximum(ends[1:] - ends[0], 0.0), nc * dac)
    c = comfortable(driven).astype(np.float64)
    pdms = nc * dac * (5 * ep + 5 * ttc + 2 * c) / 12
    ddc = _direction(ego, where)
    return {name: value[1:] for name, value in zip(SCORES, (nc, dac, ep, ttc, c, ddc, pdms), strict=True)}


def _progress_share(progress: Array, allowed: Array) -> Array:
    """Progress beside the larger of the plan's and the reference's (entry 0), which counts only beyond 5 m."""
    counted = progress * allowed
    larger = np.maximum(counted, counted[0])
    share = np.divide(counted, larger, out=np.zeros_like(counted), where=larger > 0)
    return np.where(larger > 5.0, share, allowed > 0)


def _direction(ego: Ego, where: Whereabouts) -> Array:
    """1 below 2 m, ½ below 6 m, else 0: the most that is driven outside the route's lanes in 11 samples."""
    driven = np.linalg.norm(np.diff(ego.centre, axis=1), axis=-1) * where.oncoming[:, 1:]
    most = sliding_window_view(np.pad(driven, ((0, 0), (10, 0))), 11, axis=-1).sum(-1).max(-1)
    return np.select([most < 2.0, most < 6.0], [1.0, 0.5], 0.0)


def _collisions(scene: Scene, ego: Ego, where: Whereabouts) -> tuple[Array, Array]:
    """NC and TTC, each (k,).

    An object that is met without fault is excused from then on, and one fault is enough: so the first meeting with each
    object decides, in the order of time, then of the steps looked ahead.
    """
    k = len(ego.speed)
    nc, ttc = np.ones(k), np.ones(k)
    if not scene.objects:
        return nc, ttc
    boxes = corners(
        np.stack([o.poses[:, :2] for o in scene.objects]),
        np.stack([o.poses[:, 2] for o in scene.objects]),
        np.array([[o.length] for o in scene.objects]),
        np.array([[o.width] for o in scene.objects]),
    )
    met = _met(ego, boxes)
    unclear = where.several_lanes | where.off_road

    plan, item, time, _ = _first(met[:, :, :1])
    fault = _at_fault(scene, ego, boxes, unclear, plan, item, time)
    penalty = np.array([0.0 if o.kind in AGENTS else 0.5 for o in scene.objects])
    np.minimum.at(nc, plan[fault], penalty[item[fault]])

    plan, item, time, later = _first(met & (ego.speed >= 0.005)[:, :, None, None])
    angle = _angle(ego, plan, time, boxes[item, time + later])
    fault = (angle < AHEAD) | ((unclear | where.crossing)[plan, time] & ~(angle > BEHIND))
    ttc[plan[fault]] = 0.0
    return nc, ttc


def _met(ego: Ego, boxes: Array) -> Bools:
    """Whether the ego's box, moved on along its heading, meets each object: (k, 41, 4, m). boxes: (m, 51, 4, 2)."""
    later = boxes[:, np.arange(STEPS + 1)[:, None] + LOOK_AHEAD].transpose(1, 2, 0, 3, 4)
    shift = (ego.speed[..., None] * ego.ahead)[:, :, None] * (LOOK_AHEAD * DT)[:, None]
    centre = later.mean(-2)
    reach = np.hypot(EGO_LENGTH, EGO_WIDTH) / 2 + np.linalg.norm(later[..., 0, :] - centre, axis=-1) + 1e-6
    moved = ego.centre[:, :, None] + shift
    gap = [moved[..., None, axis] - centre[..., axis] for axis in (0, 1)]
    met = gap[0] ** 2 + gap[1] ** 2 <= reach**2
    plan, time, step, item = near = np.nonzero(met)
    met[near] = meet(ego.corners[plan, time] + shift[plan, time, step, None], later[time, step, item])
    return met


def _first(met: Bools) -> tuple[Indices, Indices, Indices, Indices]:
    """The first meeting of plan and object: plan, object, time and steps looked ahead, each (n,). met: (k, 41, q, m)."""
    k, _, steps, m = met.shape
    flat = met.reshape(k, -1, m)
    plan, item = np.nonzero(flat.any(1))
    time, step = np.divmod(flat.argmax(1)[plan, item], steps)
    return plan, item, time, LOOK_AHEAD[step]


def _at_fault(
    scene: Scene, ego: Ego, boxes: Array, unclear: Bools, plan: Indices, item: Indices, time: Indices
) -> Bools:
    """Whether the ego is to blame for meetings: not if it stands or is hit from behind."""
    standing = np.array([o.kind not in AGENTS or abs(o.speed) <= STANDING for o in scene.objects])[item]
    box = boxes[item, time]
    behind = _angle(ego, plan, time, box) > BEHIND
    front = meet(ego.corners[plan, time][:, [3, 0]], box)
    moving = ego.speed[plan, time] > STANDING
    return moving & (standing | (~behind & (front | unclear[plan, time])))


def _angle(ego: Ego, plan: Indices, time: Indices, box: Array) -> Array:
    """Between the ego's heading and the way from its rear axle to the boxes' centres."""
    away = box.mean(-2) - ego.rear[plan, time]
    distance = np.linalg.norm(away, axis=-1, keepdims=True)
    toward = np.divide(away, distance, out=np.full_like(away, np.nan), where=distance > 0)
    return np.arccos(np.clip((toward * ego.ahead[plan, time]).sum(-1), -1.0, 1.0))
