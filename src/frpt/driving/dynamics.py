"""From a plan to what the car does: speed and curvature fitted to the poses, a tracker, a bicycle model.

``simulate`` is for users and pictures, ``drive`` for the score. The tracker is NAVSIM's: a linear-quadratic regulator,
one step for ten time steps, apart for speed and steering. All plans go through each of the 40 time steps together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve_banded, cholesky_banded

from frpt.driving.scene import PLAN_POSES, Scene
from frpt.errors import InputError, NonFiniteError, OptionError

Array = npt.NDArray[np.float64]
Jerk = Literal["devkit", "right"]

DT = 0.1
STEPS = 40
POSE_STEPS = STEPS // PLAN_POSES
WHEEL_BASE = 3.089  # nuPlan's Pacifica, as the car's sizes in areas.py
HORIZON = 10  # time steps that the tracker looks ahead


@dataclass(frozen=True, eq=False)
class Driven:
    """What the car does when it follows plans: every field is (k, 41), for k plans at 0, 0.1, …, 4 s.

    Attributes:
        x: The rear axle's position ahead of the start, in metres.
        y: The rear axle's position to the left of the start, in metres.
        heading: In radians, from −π to π.
        speed: Along the heading, in m/s; below zero when it rolls backwards.
        acceleration: Along the heading, in m/s².
        steering: The front wheels' angle, in radians.
    """

    x: Array
    y: Array
    heading: Array
    speed: Array
    acceleration: Array
    steering: Array


def simulate(scene: Scene, poses: Any, jerk: Jerk = "devkit") -> Driven:
    """What the car does when it follows plans, which is what is scored.

    Args:
        scene: The scene; its ego's speed and acceleration are where the drive begins.
        poses: Plans (k, 8, 3), or one plan (8, 3), of poses (x, y, θ) of the rear axle every 0.5 s; an array, a tensor
            or lists.
        jerk: ``"devkit"`` smooths the speed as NAVSIM's devkit does, which penalises accelerations where it means to
            penalise their differences; ``"right"`` penalises the differences.

    Returns:
        Positions, headings, speeds, accelerations and steering angles at 41 times; one plan is a batch of one.

    Raises:
        InputError: If the poses have another shape.
        NonFiniteError: If a pose is NaN or infinite, or so large that the drive is.
        OptionError: If ``jerk`` is neither of the two.

    Example:
        >>> scene = frpt.driving.Scene.from_dict({
        ...     "ego": {"speed": 8.0, "acceleration": 0.0},
        ...     "reference": [[4.0 * i, 0, 0] for i in range(1, 9)],
        ...     "centre_line": [[-20, 0], [80, 0]],
        ...     "route": ["own"],
        ...     "polygons": [{"name": "own", "kind": "lane", "points": [[-20, -2], [80, -2], [80, 2], [-20, 2]]}],
        ...     "objects": [],
        ... })
        >>> driven = frpt.driving.simulate(scene, scene.reference)
        >>> driven.x.shape, float(driven.x[0, -1].round(2))
        ((1, 41), 32.0)
    """
    return drive(scene, plans(poses), jerk)


def plans(poses: Any) -> Array:
    """Plans as a checked array (k, 8, 3) of float64; one plan (8, 3) becomes a batch of one."""
    if hasattr(poses, "detach"):
        poses = poses.detach().cpu().double().numpy()
    try:
        array = np.asarray(poses, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("plans must be numbers of shape (k, 8, 3)") from None
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.shape[1:] != (PLAN_POSES, 3):
        raise InputError(
            f"plans must have shape (k, {PLAN_POSES}, 3), or ({PLAN_POSES}, 3) for one plan: poses (x, y, heading) "
            f"every 0.5 s for 4 s; got {tuple(np.shape(poses))}"
        )
    _refuse_non_finite(array, "NaN or infinity")
    return array


def _refuse_non_finite(array: Array, what: str) -> None:
    bad = np.flatnonzero(~np.isfinite(array).all((1, 2)))
    if len(bad):
        listed = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        raise NonFiniteError(f"{what} in {len(bad)} of {len(array)} plans (plan {listed}); correct or leave them out")


def drive(scene: Scene, plans: Array, jerk: Jerk) -> Driven:
    """``simulate`` for plans that have been checked."""
    if jerk not in ("devkit", "right"):
        raise OptionError(f"jerk must be 'devkit' or 'right', got {jerk!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        driven = _track(scene, *_interpolated(plans), jerk)
    states = np.stack([driven.x, driven.y, driven.heading, driven.speed, driven.acceleration, driven.steering], axis=1)
    _refuse_non_finite(states, "poses too large to be driven")
    return driven


def _interpolated(plans: Array) -> tuple[Array, Array, Array]:
    """x, y and unwrapped heading at every time step, (41, k) each; linear between the poses, from the origin on."""
    knots = np.concatenate([np.zeros((1, len(plans), 3)), plans.transpose(1, 0, 2)])
    knots[..., 2] = np.unwrap(np.arctan2(np.sin(knots[..., 2]), np.cos(knots[..., 2])), axis=0)
    steps = np.diff(knots, axis=0) / POSE_STEPS
    between = knots[:-1, None] + np.arange(POSE_STEPS)[:, None, None] * steps[:, None]
    poses = np.concatenate([between.reshape(STEPS, len(plans), 3), knots[-1:]])
    return poses[..., 0], poses[..., 1], poses[..., 2]


@lru_cache(maxsize=2)
def _speed_normal_matrix(jerk: Jerk) -> Array:
    """Banded Cholesky factor of  dt² I + 1e-4 (R D)ᵀ(R D),  with D the accelerations of speeds, R the jerk penalty."""
    differences = np.diff(np.eye(STEPS), axis=0) / DT
    penalty = np.diff(np.eye(STEPS - 1), axis=0)
    if jerk == "devkit":
        # The devkit writes its −1 and the zeros around it over the +1 of every row but the last.
        penalty = np.minimum(penalty, 0.0)
        penalty[-1, -1] = 1.0
    smooth = penalty @ differences
    normal = DT**2 * np.eye(STEPS) + 1e-4 * smooth.T @ smooth
    bands = np.zeros((3, STEPS))
    for lower in range(3):
        bands[lower, : STEPS - lower] = np.diagonal(normal, -lower)
    return np.asarray(cholesky_banded(bands, lower=True))


def _speeds(x: Array, y: Array, heading: Array, jerk: Jerk) -> Array:
    """The speeds v (40, k) that minimise  Σ ‖Δ_i − v_i dt (cos θ_i, sin θ_i)‖² + 1e-4 ‖R a‖²,  a = Dv.

    The headings are unit vectors: only the displacement along them matters, and the normal matrix is the same for all.
    """
    steps = np.diff(x, axis=0) * np.cos(heading[:-1]) + np.diff(y, axis=0) * np.sin(heading[:-1])
    return np.asarray(cho_solve_banded((_speed_normal_matrix(jerk), True), DT * steps, check_finite=False))


def _curvatures(speeds: Array, heading: Array) -> Array:
    """The curvatures κ (40, k) that minimise  Σ (Δθ_i − v_i dt κ_i)² + 1e-10 κ_0² + 1e-2 Σ κ̇_i²,  κ̇ = Dκ.

    A chain: seen from its end, κ_i has the precision s_i = w_i² + s_{i+1}/(1 + s_{i+1}) for w = v dt, in units of
    1e-2/dt². Sums of positive numbers only, so that a car that hardly moves loses no digits.
    """
    unit = 1e-2 / DT**2
    w = speeds * DT
    turn = np.diff(heading, axis=0)
    turn = np.arctan2(np.sin(turn), np.cos(turn))
    precision, weighted = w**2 / unit, w * turn / unit
    for i in range(STEPS - 2, -1, -1):
        precision[i] += precision[i + 1] / (1 + precision[i + 1])
        weighted[i] += weighted[i + 1] / (1 + precision[i + 1])
    curvatures = np.empty_like(w)
    curvatures[0] = weighted[0] / (precision[0] + 1e-10 / unit)
    for i in range(1, STEPS):
        curvatures[i] = (curvatures[i - 1] + weighted[i]) / (1 + precision[i])
    return curvatures


def _track(scene: Scene, x: Array, y: Array, heading: Array, jerk: Jerk) -> Driven:
    """The bicycle model under the tracker's commands, from the scene's ego on. x, y, heading: (41, k)."""
    speeds = _speeds(x, y, heading, jerk)
    curvatures = _curvatures(speeds, heading)
    ahead = np.concatenate([curvatures, np.repeat(curvatures[-1:], HORIZON - 1, axis=0)])
    cos, sin = np.cos(heading), np.sin(heading)
    state = np.zeros((6, STEPS + 1, x.shape[1]))
    px, py, theta, v, a, delta = state
    v[0], a[0] = scene.speed, scene.acceleration
    for i in range(STEPS):
        wanted = speeds[min(i + HORIZON, STEPS - 1)]
        stopping = (wanted <= 0.2) & (v[i] <= 0.2)
        command = np.where(stopping, -0.5, -10 / 11) * (v[i] - wanted)
        lateral = -(px[i] - x[i]) * sin[i] + (py[i] - y[i]) * cos[i]
        off = _wrapped(theta[i] - heading[i])
        rate = _steering_rate(lateral, off, delta[i], v[i], command, ahead[i : i + HORIZON])
        rate[stopping] = 0.0
        px[i + 1] = px[i] + v[i] * np.cos(theta[i]) * DT
        py[i + 1] = py[i] + v[i] * np.sin(theta[i]) * DT
        theta[i + 1] = (theta[i] + v[i] * np.tan(delta[i]) / WHEEL_BASE * DT + np.pi) % (2 * np.pi) - np.pi
        a[i + 1] = a[i] + DT / (DT + 0.2) * (command - a[i])
        v[i + 1] = v[i] + a[i + 1] * DT
        delta[i + 1] = np.clip(delta[i] + DT / (DT + 0.05) * rate * DT, -np.pi / 3, np.pi / 3)
    return Driven(*(field.T.copy() for field in state))


_STEP = np.arange(HORIZON)[:, None]


def _steering_rate(lateral: Array, off: Array, delta: Array, speed: Array, command: Array, curvature: Array) -> Array:
    """The steering rate u that minimises  e₁² + 10 e₂² + u²  after ten steps of

        e₁ += v_n dt e₂,   e₂ += v_n dt (e₃/L − κ_n),   e₃ += dt u,   v_n = v + n dt a.

    e is the lateral error, the heading error and the steering angle. The ten steps are sums, taken twice: from the
    errors with u = 0, and from zero with u = 1 and no curvature. ``cumsum`` adds in order, ``sum`` in an
    order that depends on the number of plans.
    """
    w = (speed + _STEP * (DT * command)) * DT
    turned = np.cumsum(w * (delta / WHEEL_BASE - curvature), axis=0)
    e2 = off + turned[-1]
    e1 = lateral + w[0] * off + np.cumsum(w[1:] * (off + turned[:-1]), axis=0)[-1]
    answer = np.cumsum(w * (_STEP * (DT / WHEEL_BASE)), axis=0)
    b1, b2 = np.cumsum(w[1:] * answer[:-1], axis=0)[-1], answer[-1]
    return np.asarray(-(b1 * e1 + 10 * b2 * _wrapped(e2)) / (b1**2 + 10 * b2**2 + 1))


def _wrapped(angle: Array) -> Array:
    return np.arctan2(np.sin(angle), np.cos(angle))
