"""The paper's planners for NAVSIM's devkit: an agent, its builders, targets in the devkit's cache, scores compared.

Called by the devkit (hydra instantiates ``frpt.navsim.PlannerAgent``) and by `frpt navsim`. The devkit is imported when
``PlannerAgent`` or a builder is first used; scores are compared without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frpt.navsim.score_tables import METRICS, ScoreComparison, compare_scores, read_scores

if TYPE_CHECKING:
    from frpt.navsim.agent import PlannerAgent
    from frpt.navsim.builders import CameraBuilder, FeatureTargetBuilder, TrajectoryBuilder
    from frpt.navsim.cached_targets import WrittenTargets, write_cached_targets

__all__ = [
    "METRICS",
    "CameraBuilder",
    "FeatureTargetBuilder",
    "PlannerAgent",
    "ScoreComparison",
    "TrajectoryBuilder",
    "WrittenTargets",
    "compare_scores",
    "read_scores",
    "write_cached_targets",
]

_HOMES = {
    "PlannerAgent": "agent",
    "CameraBuilder": "builders",
    "FeatureTargetBuilder": "builders",
    "TrajectoryBuilder": "builders",
    "WrittenTargets": "cached_targets",
    "write_cached_targets": "cached_targets",
}


def __getattr__(name: str) -> Any:
    """A name that needs the devkit, on its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'frpt.navsim' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"frpt.navsim.{_HOMES[name]}"), name)
    return value
