"""The driver of synthetic scenes: keeps to its lane's centre and its distance (the intelligent driver model).

Called by ``making.py``. The acceleration is Treiber's, a = A(1 − (v/v₀)⁴ − (g*/g)²), g* = g₀ + vT + vΔv/(2√(AB)), with
the gap g to whatever is in the way; v₀ is what bends ahead allow. The driver knows where others will be: it may go
before one that crosses, or wait until it has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, sin

import numpy as np

from frpt.driving.areas import EGO_LENGTH, EGO_WIDTH, REAR_AXLE_TO_CENTRE
from frpt.driving.dynamics import DT, POSE_STEPS, STEPS
from frpt.driving.scene import Array
from frpt.driving.synthetic.roads import Line

FRONT, REAR = EGO_LENGTH / 2 + REAR_AXLE_TO_CENTRE, EGO_LENGTH / 2 - REAR_AXLE_TO_CENTRE
"""Metres that ego reaches before and behind its rear axle."""


@dataclass(frozen=True)
class Driver:
    """What the driver keeps to; the first five are the usual ones of the model for town traffic (Treiber 2013)."""

    acceleration: float = 1.5  # A, m/s²
    braking: float = 2.0  # B, m/s², comfortable
    headway: float = 1.2  # T, s
    standing: float = 2.5  # g₀, m
    speed: float = 13.5  # m/s, on a straight road
    hardest: float = 3.5  # m/s², braking at most; the score allows 4.05
    jerk: float = 2.5  # m/s³; the score allows 4.13, and its controller overshoots
    sideways: float = 2.0  # m/s², in bends
    slowing: float = 1.2  # m/s², before bends
    room: float = 0.3  # m, beside the box, where something counts as in the way
    foresight: float = 3.0  # s, how long before somebody crosses the driver waits


@dataclass(frozen=True)
class Actor:
    """Somebody or something on the road. s, d: (51,), its centre every 0.1 s; yaw: relative to the line's heading."""

    kind: str
    length: float
    width: float
    speed: float
    s: Array
    d: Array
    yaw: float

    @property
    def half(self) -> tuple[float, float]:
        """Half of what its box covers along s and along d."""
        along, side = abs(cos(self.yaw)), abs(sin(self.yaw))
        return (along * self.length + side * self.width) / 2, (side * self.length + along * self.width) / 2

    @property
    def crosses(self) -> bool:
        """Whether it moves across the lane."""
        return bool(np.ptp(self.d) > self.width)


def allowed(line: Line, driver: Driver) -> Array:
    """(n,) the speed at each point of a line from which the bends ahead can be slowed down for."""
    curvature = np.maximum(np.abs(line.curvature), 1e-9)
    squared = np.minimum(driver.sideways / curvature, driver.speed**2)
    gained = 2 * driver.slowing * line.s
    return np.sqrt(np.minimum.accumulate((squared + gained)[::-1])[::-1] - gained)


def pull(speed: float, limit: float, gap: float, closing: float, driver: Driver) -> float:
    """The model's acceleration, within what the driver keeps to."""
    wished = driver.standing + speed * driver.headway
    wished += speed * closing / (2 * np.sqrt(driver.acceleration * driver.braking))
    free = 1 - (speed / max(limit, 0.1)) ** 4
    value = driver.acceleration * (free - (max(wished, 0.0) / max(gap, 0.1)) ** 2)
    return float(np.clip(value, -driver.hardest, driver.acceleration))


def expert_plan(
    line: Line, actors: Sequence[Actor], speed: float, acceleration: float, start: tuple[float, float], wait: bool,
    driver: Driver,
) -> Array:  # fmt: skip
    """The plan: (8, 3) poses of the rear axle every 0.5 s.

    start: ego's offset from the line at s = 0, and its heading relative to the line's. wait: until those who cross have
    passed; else it goes before them, and slows down only for those that are in the way.
    """
    limits, s, places = allowed(line, driver), 0.0, [0.0]
    for k in range(STEPS):
        gap, closing = _ahead(actors, k, s, speed, wait, driver)
        wanted = pull(speed, float(np.interp(s, line.s, limits)), gap, closing, driver)
        change = driver.jerk * DT
        acceleration += float(np.clip(wanted - acceleration, -change, change))
        faster = max(speed + acceleration * DT, 0.0)
        s += (speed + faster) / 2 * DT
        speed = faster
        places.append(s)
    return _poses(line, np.array(places[POSE_STEPS::POSE_STEPS]), start, max(6.0, 0.9 * places[10]))


def _ahead(actors: Sequence[Actor], k: int, s: float, speed: float, wait: bool, driver: Driver) -> tuple[float, float]:
    """(gap, closing speed) to the nearest in the way, at step k."""
    nearest, closing = np.inf, 0.0
    for actor in actors:
        last = k + (round(driver.foresight / DT) if wait and actor.crosses else 0) + 1
        along, side = actor.half
        blocks = (np.abs(actor.d[k:last]) < EGO_WIDTH / 2 + side + driver.room) & (actor.s[k:last] + along > s + FRONT)
        if not blocks.any():
            continue
        gap = float(actor.s[k:last][blocks].min()) - along - s - FRONT
        if gap < nearest:
            forward = 0.0 if actor.crosses else (actor.s[-1] - actor.s[0]) / (DT * (len(actor.s) - 1))
            nearest, closing = gap, speed - forward
    return nearest, closing


def _poses(line: Line, s: Array, start: tuple[float, float], settle: float) -> Array:
    """Poses at s, the offset from the start's to the middle of the lane, critically damped over ``settle`` metres.

    In a bend the front corners swing out by κ·FRONT²/2: half of it is taken back by driving further inside.
    """

    def inside(at: Array) -> Array:
        return line.bend(at) * FRONT**2 / 4

    here = np.zeros(1)
    slope = (inside(here + 0.5) - inside(here - 0.5))[0]
    away, steer = start[0] - inside(here)[0], np.tan(start[1]) - slope

    def offset(at: Array) -> Array:
        left: Array = inside(at) + (away + (steer + away / settle) * at) * np.exp(-at / settle)
        return left

    d = offset(s)
    points, heading = line.at(s, d)
    turned = heading + np.arctan2(offset(s + 0.25) - offset(s - 0.25), 0.5 * (1 - line.bend(s) * d))
    return np.concatenate([points, turned[:, None]], -1)
