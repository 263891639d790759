"""The score's parts once more, slowly: plain Python, one plan, rational numbers for geometry, dense least squares."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import atan2, cos, pi, sin, tan

import numpy as np
import numpy.typing as npt
from scipy.signal import savgol_filter

Array = npt.NDArray[np.float64]
Point = Sequence[float]
Shape = Sequence[Point]


def turn(a: Point, b: Point, c: Point) -> Fraction:
    (ax, ay), (bx, by), (cx, cy) = ([Fraction(float(value)) for value in point] for point in (a, b, c))
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)


def on_segment(a: Point, b: Point, c: Point) -> bool:
    within = all(min(a[i], b[i]) <= c[i] <= max(a[i], b[i]) for i in (0, 1))
    return within and turn(a, b, c) == 0


def edges(shape: Shape) -> list[tuple[Point, Point]]:
    return [(shape[i], shape[(i + 1) % len(shape)]) for i in range(len(shape))]


def inside(shape: Shape, point: Point) -> bool:
    """Strictly inside, by a ray along x: another direction than the library's."""
    if any(on_segment(a, b, point) for a, b in edges(shape)):
        return False
    crossings = 0
    for a, b in edges(shape):
        if (a[1] > point[1]) != (b[1] > point[1]):
            low, high = (a, b) if a[1] < b[1] else (b, a)
            crossings += turn(low, high, point) > 0
    return crossings % 2 == 1


def segments_meet(a: Point, b: Point, c: Point, d: Point) -> bool:
    if any((on_segment(a, b, c), on_segment(a, b, d), on_segment(c, d, a), on_segment(c, d, b))):
        return True
    return turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0


def shapes_meet(one: Shape, other: Shape) -> bool:
    """Edges that cross or touch, or one shape inside the other; not by separating lines."""
    if any(segments_meet(a, b, c, d) for a, b in edges(one) for c, d in edges(other)):
        return True
    return inside(other, one[0]) or (len(one) > 2 and inside(one, other[0]))


def wrapped(angle: float) -> float:
    return atan2(sin(angle), cos(angle))


def profiles(poses: Array, jerk: str) -> tuple[Array, Array]:
    """Speeds and curvatures (40,) of 41 poses by dense least squares over (v_0, a_0, …) and (κ_0, κ̇_0, …)."""
    n, dt = 40, 0.1
    steps, turns = np.diff(poses[:, :2], axis=0), np.array([wrapped(t) for t in np.diff(poses[:, 2])])
    integrate = np.concatenate([np.ones((n, 1)), dt * np.tri(n, n - 1, -1)], 1)
    design = np.zeros((2 * n, n))
    for k in range(n):
        design[2 * k] = dt * cos(poses[k, 2]) * integrate[k]
        design[2 * k + 1] = dt * sin(poses[k, 2]) * integrate[k]
    penalty = np.zeros((n - 2, n))
    for i in range(n - 2):
        penalty[i, i + 1] = -1
        if jerk == "right" or i == n - 3:
            penalty[i, i + 2] = 1
    speeds = integrate @ _least_squares([design, 1e-2 * penalty], steps.ravel())
    own = np.diag([1e-5, *[1e-1] * (n - 1)])
    curvatures = integrate @ _least_squares([(speeds * dt)[:, None] * integrate, own], turns)
    return speeds, curvatures


def _least_squares(blocks: list[Array], target: Array) -> Array:
    design = np.concatenate(blocks)
    found: Array = np.linalg.lstsq(design, np.concatenate([target, np.zeros(len(design) - len(target))]), rcond=None)[0]
    return found


def drive(speed: float, acceleration: float, plan: Array, jerk: str) -> Array:
    """States (41, 6) of one plan: x, y, heading, speed, acceleration, steering."""
    dt, base = 0.1, 3.089
    knots = np.concatenate([np.zeros((1, 3)), plan])
    knots[:, 2] = np.unwrap(knots[:, 2])
    times = np.linspace(0, 8, 41)
    poses = np.stack([np.interp(times, np.arange(9), knots[:, i]) for i in range(3)], -1)
    speeds, curvatures = profiles(poses, jerk)
    x, y, theta, v, a, delta = 0.0, 0.0, 0.0, speed, acceleration, 0.0
    states = [(x, y, theta, v, a, delta)]
    for i in range(40):
        wanted = speeds[min(i + 10, 39)]
        if wanted <= 0.2 and v <= 0.2:
            command, rate = -0.5 * (v - wanted), 0.0
        else:
            command = -(v - wanted) * 10 / 11
            px, py, ph = poses[i]
            error = np.array([-(x - px) * sin(ph) + (y - py) * cos(ph), wrapped(theta - ph), delta])
            A, B, g = np.eye(3), np.zeros(3), np.zeros(3)
            for n in range(10):
                w = (v + n * dt * command) * dt
                step = np.array([[1, w, 0], [0, 1, w / base], [0, 0, 1]])
                A, B = step @ A, step @ B + [0, 0, dt]
                g = step @ g + [0, -w * curvatures[min(i + n, 39)], 0]
            ahead = A @ error + g
            ahead[1:] = [wrapped(angle) for angle in ahead[1:]]
            Q = np.diag([1.0, 10.0, 0.0])
            rate = -(B @ Q @ ahead) / (B @ Q @ B + 1)
        a += dt / (dt + 0.2) * (command - a)
        x, y, theta = x + v * cos(theta) * dt, y + v * sin(theta) * dt, theta + v * tan(delta) / base * dt
        v, delta = v + a * dt, float(np.clip(delta + dt / (dt + 0.05) * rate * dt, -pi / 3, pi / 3))
        states.append((x, y, theta, v, a, delta))
    return np.array(states)


def comfortable(acceleration: Array, heading: Array) -> bool:
    """One drive of 41 samples, with a call of the filter for each number that is bounded."""
    smoothed = savgol_filter(acceleration, 41, 2).round(8)
    lengthwise, size = (savgol_filter(a, 8, 2).round(8) for a in (acceleration, np.abs(acceleration)))
    bounded = [
        (savgol_filter(size, 41, 2, deriv=1, delta=0.1), 8.37),
        (savgol_filter(lengthwise, 41, 2, deriv=1, delta=0.1), 4.13),
        (savgol_filter(np.unwrap(heading), 5, 3, deriv=2, delta=0.1), 1.93),
        (savgol_filter(np.unwrap(heading), 5, 2, deriv=1, delta=0.1), 0.95),
    ]
    within = smoothed.min() > -4.05 and smoothed.max() < 2.40
    return bool(within and all(np.abs(values.round(8)).max() < bound for values, bound in bounded))
