"""Driving: scenes, plans scored in them as NAVSIM does, without its devkit, and a synthetic set to train planners on.

Called by users, the planners' experiments and the command line. What draws loads with the first picture.
"""

from typing import TYPE_CHECKING, Any

from frpt.driving.dynamics import Driven, simulate
from frpt.driving.pdm_score import score
from frpt.driving.scene import Area, Scene, SceneObject
from frpt.driving.synthetic.driving_data import DrivingData, command
from frpt.driving.synthetic.making import make_scene
from frpt.driving.synthetic.renderer import Camera, render

if TYPE_CHECKING:
    from frpt.driving.birds_eye import picture

__all__ = [
    "Area",
    "Camera",
    "Driven",
    "DrivingData",
    "Scene",
    "SceneObject",
    "command",
    "make_scene",
    "picture",
    "render",
    "score",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """``picture`` on its first use: it brings matplotlib along."""
    if name != "picture":
        raise AttributeError(f"module 'frpt.driving' has no attribute {name!r}")
    from frpt.driving.birds_eye import picture

    globals()[name] = picture
    return picture
