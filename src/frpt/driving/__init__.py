"""Driving: scenes, and plans scored in them as NAVSIM does, without its devkit.

Called by users, the planners' experiments and the command line.
"""

from frpt.driving.dynamics import Driven, simulate
from frpt.driving.pdm_score import score
from frpt.driving.scene import Area, Scene, SceneObject

__all__ = ["Area", "Driven", "Scene", "SceneObject", "score", "simulate"]
