"""What the planners see and are trained on, as the devkit's feature and target builders.

The devkit calls them with a scene and keeps what they return in its cache, under the builder's unique name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from frpt.errors import StoreError
from frpt.navsim.devkit import AbstractFeatureBuilder, AbstractTargetBuilder
from frpt.zoo.planner import POSES

SIZE = (256, 1024)
CAMERAS = ("cam_l0", "cam_f0", "cam_r0")
EDGE, SIDE = 28, 416
"""Rows cut off above and below, columns of the side cameras cut off left and right: the picture is then 4 : 1."""


def pixels(camera: Tensor) -> Tensor:
    """The camera's bytes as numbers in [0, 1]; what is in them already passes through."""
    return camera.float() / 255 if camera.dtype == torch.uint8 else camera


class CameraBuilder(AbstractFeatureBuilder):  # type: ignore[misc]
    """camera (3, 256, 1024), bytes, and status (8,): velocity 2, acceleration 2, driving command 4; the last frame's.

    The three front cameras side by side, as in the paper's code. Bytes take a quarter of the space of numbers.
    """

    def get_unique_name(self) -> str:
        """The file's name in the cache."""
        return "frpt_camera"

    def compute_features(self, agent_input: Any) -> dict[str, Tensor]:
        """From the agent's input at the last frame."""
        cameras, ego = agent_input.cameras[-1], agent_input.ego_statuses[-1]
        left, front, right = (getattr(cameras, name).image for name in CAMERAS)
        rows = slice(EDGE, -EDGE)
        seen = np.concatenate([left[rows, SIDE:-SIDE], front[rows], right[rows, SIDE:-SIDE]], axis=1)
        image = torch.from_numpy(seen).permute(2, 0, 1)[None].float()
        small = F.interpolate(image, SIZE, mode="bilinear", align_corners=False)[0]
        parts = (ego.ego_velocity, ego.ego_acceleration, ego.driving_command)
        status = torch.cat([torch.as_tensor(np.asarray(part), dtype=torch.float32) for part in parts])
        return {"camera": small.round().to(torch.uint8), "status": status}


class TrajectoryBuilder(AbstractTargetBuilder):  # type: ignore[misc]
    """trajectory (8, 3): where the driver went, x, y and heading each 0.5 s, from the rear axle."""

    def get_unique_name(self) -> str:
        """The file's name in the cache."""
        return "frpt_trajectory"

    def compute_targets(self, scene: Any) -> dict[str, Tensor]:
        """From the scene's future."""
        driven = scene.get_future_trajectory(num_trajectory_frames=POSES[0])
        return {"trajectory": torch.as_tensor(driven.poses, dtype=torch.float32)}


class FeatureTargetBuilder(AbstractTargetBuilder):  # type: ignore[misc]
    """frpt_target: what a layer should have produced. Written by `frpt navsim targets` and only read here.

    name: of the file in the cache. It holds the layer, the preset and the digest of the weights they were made with, so
    that the devkit finds no others.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def get_unique_name(self) -> str:
        """The file's name in the cache."""
        return self.name

    def compute_targets(self, scene: Any) -> dict[str, Tensor]:
        """Refused: the devkit asks for it where the cache has no such file."""
        token = scene.scene_metadata.initial_token
        raise StoreError(
            f"the cache has no target {self.name!r} for the scene {token}. Targets are made in batches and for one "
            "checkpoint: write them with `frpt navsim targets`, with the start, layer and preset of this agent, and "
            "train with force_cache_computation=false."
        )
