"""Whether a drive is comfortable: accelerations, jerks and turning within the bounds of nuPlan's metric.

``pdm_score`` calls it. Every quantity is smoothed by a Savitzky-Golay filter first, with the devkit's windows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.signal import savgol_filter

from frpt.driving.dynamics import DT, STEPS, Driven
from frpt.driving.polygons import Array, Bools

ACCELERATION = (-4.05, 2.40)  # m/s²; this and the following are the bounds of nuPlan's metric
JERK = 8.37  # m/s³, of the acceleration's size
LONGITUDINAL_JERK = 4.13  # m/s³
YAW_ACCELERATION = 1.93  # rad/s²
YAW_RATE = 0.95  # rad/s


def comfortable(driven: Driven) -> Bools:
    """Whether everything stays strictly within its bounds, at all times.

    The lateral acceleration of the bicycle model is zero, so its bound never matters.

    Args:
        driven: k drives.

    Returns:
        (k,) true or false.
    """
    whole = STEPS + 1
    acceleration = _smooth(driven.acceleration, whole, 2)
    heading = np.unwrap(driven.heading, axis=-1)
    return (
        ((acceleration > ACCELERATION[0]) & (acceleration < ACCELERATION[1])).all(-1)
        & _below(_smooth(_smooth(np.abs(driven.acceleration), 8, 2), whole, 2, derivative=1), JERK)
        & _below(_smooth(_smooth(driven.acceleration, 8, 2), whole, 2, derivative=1), LONGITUDINAL_JERK)
        & _below(_smooth(heading, 5, 3, derivative=2), YAW_ACCELERATION)
        & _below(_smooth(heading, 5, 2, derivative=1), YAW_RATE)
    )


@lru_cache(maxsize=8)
def _filter(window: int, order: int, derivative: int) -> Array:
    """The Savitzky-Golay filter as the matrix (41, 41) that it is."""
    return np.asarray(savgol_filter(np.eye(STEPS + 1), window, order, deriv=derivative, delta=DT, axis=0))


def _smooth(values: Array, window: int, order: int, derivative: int = 0) -> Array:
    """Filtered and rounded to 8 digits, as the devkit does. values: (k, 41)."""
    filtered = np.einsum("ij,kj->ki", _filter(window, order, derivative), values)
    return np.asarray(np.round(filtered, 8))


def _below(values: Array, bound: float) -> Bools:
    return np.asarray((np.abs(values) < bound).all(-1))
