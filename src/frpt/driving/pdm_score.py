"""NAVSIM's PDM score (v1.1) of plans in a scene, without its devkit.

Called by users, the planners' experiments and the command line.

    PDMS = NC · DAC · (5 EP + 5 TTC + 2 C) / 12
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from frpt.driving.areas import Ego, Whereabouts
from frpt.driving.collisions import Contact, no_collision, time_to_collision
from frpt.driving.comfort import comfortable
from frpt.driving.dynamics import Jerk, drive, plans
from frpt.driving.polygons import Array, along
from frpt.driving.scene import Scene

SCORES = ("NC", "DAC", "EP", "TTC", "C", "DDC", "PDMS")
CHUNK = 256  # plans at once; 1024 take as long each, 64 half as long again (benchmarks/driving.py)


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
        {'NC': 1.0, 'DAC': 1.0, 'EP': 0.82, 'TTC': 1.0, 'C': 1.0, 'DDC': 1.0, 'PDMS': 0.92}
    """
    checked = plans(poses)
    parts = [_chunk(scene, checked[i : i + CHUNK], jerk) for i in range(0, max(len(checked), 1), CHUNK)]
    return {name: np.concatenate([part[name] for part in parts]) for name in SCORES}


def _chunk(scene: Scene, plans: Array, jerk: Jerk) -> dict[str, Array]:
    driven = drive(scene, np.concatenate([scene.reference[None], plans]), jerk)
    ego = Ego.of(driven)
    where = Whereabouts.of(scene, ego)
    contact = Contact.of(scene, ego)
    nc = no_collision(scene, ego, where, contact)
    dac = np.where(where.off_road.any(-1), 0.0, 1.0)
    places = along(scene.centre_line, np.concatenate([ego.centre[:1, 0], ego.centre[:, -1]]))
    ep = _progress_share(np.maximum(places[1:] - places[0], 0.0), nc * dac)
    ttc = time_to_collision(ego, where, contact)
    c = np.where(comfortable(driven), 1.0, 0.0)
    pdms = nc * dac * (5 * ep + 5 * ttc + 2 * c) / 12
    ddc = _direction(ego, where)
    return {name: value[1:] for name, value in zip(SCORES, (nc, dac, ep, ttc, c, ddc, pdms), strict=True)}


def _progress_share(progress: Array, allowed: Array) -> Array:
    """Progress beside the larger of the plan's and the reference's (entry 0), which counts only beyond 5 m."""
    counted = progress * allowed
    larger = np.maximum(counted, counted[0])
    share = np.divide(counted, larger, out=np.zeros_like(counted), where=larger > 0)
    return np.where(larger > 5.0, share, np.where(allowed > 0, 1.0, 0.0))


def _direction(ego: Ego, where: Whereabouts) -> Array:
    """1 below 2 m, ½ below 6 m, else 0: the most that is driven outside the route's lanes in 11 samples."""
    driven = np.linalg.norm(np.diff(ego.centre, axis=1), axis=-1) * where.oncoming[:, 1:]
    most = sliding_window_view(np.pad(driven, ((0, 0), (10, 0))), 11, axis=-1).sum(-1).max(-1)
    return np.where(most < 2.0, 1.0, np.where(most < 6.0, 0.5, 0.0))
