"""Small stand-ins for NAVSIM's devkit: the names, signatures and files that frpt.navsim uses, of versions 1.1 and 2."""

from __future__ import annotations

import gzip
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import frpt.zoo
from frpt.zoo.planner import Planner, PlannerOptions, ViT
from frpt.zoo.resnet import ResNet

_FULL = frpt.zoo.planner


class FirstAgent(nn.Module):
    """AbstractAgent of version 1.1."""

    def __init__(self, requires_scene: bool = False) -> None:
        super().__init__()
        self.requires_scene = requires_scene

    def compute_trajectory(self, agent_input: Any) -> np.ndarray:
        self.eval()
        features: dict[str, Tensor] = {}
        for builder in self.get_feature_builders():
            features.update(builder.compute_features(agent_input))
        with torch.no_grad():
            made = self.forward({name: value.unsqueeze(0) for name, value in features.items()})
        poses: np.ndarray = made["trajectory"].squeeze(0).numpy()
        return poses


class SecondAgent(FirstAgent):
    """AbstractAgent of version 2."""

    def __init__(self, trajectory_sampling: Any, requires_scene: bool = False) -> None:
        super().__init__(requires_scene)
        self._trajectory_sampling = trajectory_sampling


@dataclass
class SensorConfig:
    cam_f0: Any
    cam_l0: Any
    cam_r0: Any
    cam_b0: Any
    lidar_pc: Any

    @classmethod
    def build_no_sensors(cls) -> SensorConfig:
        return cls(*[False] * 5)


@dataclass
class Sampling:
    time_horizon: float
    interval_length: float


class Builder:
    """AbstractFeatureBuilder and AbstractTargetBuilder."""


class Callback:
    """pytorch_lightning's."""


def load(path: Path) -> dict[str, Tensor]:
    with gzip.open(path, "rb") as f:
        content: dict[str, Tensor] = pickle.load(f)
    return content


def dump(path: Path, data: dict[str, Tensor]) -> None:
    with gzip.open(path, "wb", compresslevel=1) as f:
        pickle.dump(data, f)


@dataclass
class Camera:
    image: np.ndarray


@dataclass
class Ego:
    ego_velocity: np.ndarray = field(default_factory=lambda: np.array([5.0, 0.5], np.float32))
    ego_acceleration: np.ndarray = field(default_factory=lambda: np.array([1.0, -0.5], np.float32))
    driving_command: np.ndarray = field(default_factory=lambda: np.array([0, 1, 0, 0]))


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """A module and the packages around it, for the time of a test."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        package = ".".join(parts[:i])
        if not isinstance(sys.modules.get(package), ModuleType) or not hasattr(sys.modules[package], "standin"):
            made = ModuleType(package)
            made.__dict__.update(__path__=[], standin=True)
            monkeypatch.setitem(sys.modules, package, made)
    module = ModuleType(name)
    module.__dict__.update(content, standin=True)
    monkeypatch.setitem(sys.modules, name, module)


def install(monkeypatch: pytest.MonkeyPatch, second: bool = False) -> None:
    """Put the stand-ins in the devkit's place; frpt.navsim is imported anew, with small planners."""
    forget(monkeypatch)
    builders = {"AbstractFeatureBuilder": Builder, "AbstractTargetBuilder": Builder}
    files = {"load_feature_target_from_pickle": load, "dump_feature_target_to_pickle": dump}
    _module(monkeypatch, "navsim.agents.abstract_agent", AbstractAgent=SecondAgent if second else FirstAgent)
    _module(monkeypatch, "navsim.common.dataclasses", SensorConfig=SensorConfig)
    _module(monkeypatch, "navsim.planning.training.abstract_feature_target_builder", **builders)
    _module(monkeypatch, "navsim.planning.training.dataset", **files)
    _module(monkeypatch, "nuplan.planning.simulation.trajectory.trajectory_sampling", TrajectorySampling=Sampling)
    _module(monkeypatch, "pytorch_lightning", Callback=Callback)
    monkeypatch.setattr(frpt.zoo, "planner", small_planner)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have frpt.navsim imported anew now; after the test all modules are what they were, the real devkit's too."""
    parts = [f"frpt.navsim.{module.name}" for module in iter_modules(frpt.navsim.__path__)]
    for name in {"navsim", *parts, *devkit_modules()}:
        monkeypatch.setitem(sys.modules, name, None)  # so that one that is not there now will not be there again
        del sys.modules[name]
    monkeypatch.delattr(frpt, "navsim")


def devkit_modules() -> dict[str, Any]:
    """What is imported of the devkit, or of its stand-ins, and of frpt.navsim."""
    roots = ("navsim", "nuplan")
    return {n: m for n, m in sys.modules.items() if n.split(".")[0] in roots or n.startswith("frpt.navsim")}


def small_planner(backbone: str = "resnet34", options: PlannerOptions | None = None) -> Planner:
    """The paper's planners with one block in each stage, or narrow ones."""
    with torch.device("meta"):
        layers = _FULL(backbone).layers
    made = PlannerOptions()
    if backbone == "resnet34":
        project = nn.Sequential(
            nn.Sequential(nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten()),
            nn.Linear(2048, 512),
            nn.LayerNorm(512),
            nn.GELU(),
        )
        return Planner(ResNet((1, 1, 1, 1), "imagenet", 10), project, made, layers)
    return Planner(ViT((2, 4), 24, 2), nn.Linear(24, 512), made, layers)


def make_cache(root: Path, count: int = 6, size: tuple[int, int] = (32, 128)) -> Path:
    """A training cache of made-up samples in two logs: camera and status, trajectory."""
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        folder = root / f"log{i % 2}" / f"token{i}"
        folder.mkdir(parents=True)
        camera = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator)
        status = torch.randn(8, generator=generator)
        speed = 1 + 2 * torch.rand(1, generator=generator)
        trajectory = torch.stack([speed * torch.arange(1, 9) / 2, torch.zeros(8), torch.zeros(8)], 1)
        dump(folder / "frpt_camera.gz", {"camera": camera, "status": status})
        dump(folder / "frpt_trajectory.gz", {"trajectory": trajectory})
    return root


def batch_of(agent: Any, cache: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All samples of a cache as the devkit's loader gives them: (features, targets)."""
    folders = [f for f in sorted(cache.glob("*/*")) if f.is_dir()]
    found: list[dict[str, Tensor]] = []
    for builders in (agent.get_feature_builders(), agent.get_target_builders()):
        rows = [{k: v for b in builders for k, v in load(f / f"{b.get_unique_name()}.gz").items()} for f in folders]
        found.append({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
    return found[0], found[1]


def fit(agent: Any, cache: Path, steps: int, mixed: bool = False) -> list[float]:
    """What Lightning does with an agent, on one batch: the losses. mixed: as with precision bf16-mixed."""
    features, targets = batch_of(agent, cache)
    optimizer, losses = agent.get_optimizers(), []
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = agent.compute_loss(features, targets, agent.forward(features))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def save_checkpoint(agent: Any, path: Path) -> Path:
    """As Lightning saves an agent in its module."""
    state = {f"agent.{name}": value for name, value in agent.state_dict().items()}
    torch.save({"epoch": 1, "global_step": 3, "state_dict": state, "callbacks": {}}, path)
    return path
