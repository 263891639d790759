"""The agent in the real devkit, on made-up scenes: trained, post-trained and scored by the devkit's own classes.

Runs where the devkit is installed from its clone (docs/navsim.md); its data are not needed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import frpt
from tests.navsim.standins import dump, make_cache

pytest.importorskip("navsim.evaluate", reason="NAVSIM's devkit is not installed: it is not on PyPI, see docs/navsim.md")

from frpt.navsim.devkit import SECOND

CONF = Path(frpt.__file__).parent / "navsim" / "conf"
SPEED = 6.0
CAMERAS = ("CAM_F0", "CAM_L0", "CAM_L1", "CAM_L2", "CAM_R0", "CAM_R1", "CAM_R2", "CAM_B0")


def make_log(root: Path, tokens: list[str]) -> None:
    """A log of scenes of 14 frames each, driven straight ahead, and the pictures of its cameras."""
    from PIL import Image

    logs, blobs = root / "logs", root / "blobs"
    logs.mkdir(parents=True)
    blobs.mkdir()
    rng = np.random.default_rng(0)
    frames: list[dict[str, Any]] = []
    for scene in tokens:
        Image.fromarray(rng.integers(0, 255, (1080, 1920, 3), dtype=np.uint8)).save(blobs / f"{scene}.jpg")
        pose = {"data_path": f"{scene}.jpg", "sensor2lidar_rotation": None, "sensor2lidar_translation": None}
        camera = pose | {"cam_intrinsic": None, "distortion": None}
        for i in range(14):
            frames.append({
                "token": scene if i == 3 else f"{scene}-{i}", "log_name": "made-up", "roadblock_ids": ["1"],
                "ego2global_translation": [SPEED * (i - 3) / 2, 0.0, 0.0], "ego2global_rotation": [1.0, 0.0, 0.0, 0.0],
                "ego_dynamic_state": [SPEED, 0.0, 0.0, 0.0], "driving_command": np.array([0, 1, 0, 0]),
                "cams": dict.fromkeys(CAMERAS, camera), "lidar_path": "none",
            })  # fmt: skip
    (logs / "made-up.pkl").write_bytes(pickle.dumps(frames))


def make_metric_cache(root: Path, tokens: list[str]) -> None:
    """What the devkit scores against: a straight road of one lane, and a car that drives ahead."""
    from navsim.planning.metric_caching.metric_cache import MetricCache
    from navsim.planning.simulation.planner.pdm_planner.observation.pdm_observation import PDMObservation
    from navsim.planning.simulation.planner.pdm_planner.observation.pdm_occupancy_map import PDMDrivableMap
    from navsim.planning.simulation.planner.pdm_planner.utils.pdm_path import PDMPath
    from nuplan.common.actor_state.agent import Agent
    from nuplan.common.actor_state.ego_state import EgoState
    from nuplan.common.actor_state.oriented_box import OrientedBox
    from nuplan.common.actor_state.scene_object import SceneObjectMetadata
    from nuplan.common.actor_state.state_representation import StateSE2, StateVector2D, TimePoint
    from nuplan.common.actor_state.tracked_objects import TrackedObjects
    from nuplan.common.actor_state.tracked_objects_types import TrackedObjectType
    from nuplan.common.actor_state.vehicle_parameters import get_pacifica_parameters
    from nuplan.common.maps.maps_datatypes import SemanticMapLayer
    from nuplan.planning.simulation.observation.observation_type import DetectionsTracks
    from nuplan.planning.simulation.trajectory.interpolated_trajectory import InterpolatedTrajectory
    from nuplan.planning.simulation.trajectory.trajectory_sampling import TrajectorySampling
    from shapely.geometry import box

    def ego(time: float) -> EgoState:
        return EgoState.build_from_rear_axle(
            StateSE2(SPEED * time, 0, 0), StateVector2D(SPEED, 0), StateVector2D(0, 0), 0.0,
            TimePoint(int(1e6 * time)), get_pacifica_parameters(),
        )  # fmt: skip

    def car(time: float) -> DetectionsTracks:
        place = OrientedBox(StateSE2(30 + SPEED * time, 0, 0), 4.5, 1.9, 1.6)
        known = SceneObjectMetadata(0, "car", 1, "car")
        return DetectionsTracks(
            TrackedObjects([Agent(TrackedObjectType.VEHICLE, place, StateVector2D(SPEED, 0), known)])
        )

    sampling = TrajectorySampling(num_poses=40, interval_length=0.1)
    road = box(-20, -3, 200, 3)
    files = []
    for token in tokens:
        observation = PDMObservation(sampling, sampling, 100, observation_sample_res=1)
        observation.update_detections_tracks([car(0.1 * i) for i in range(51)])
        file = root / "made-up" / "unknown" / token / "metric_cache.pkl"
        file.parent.mkdir(parents=True)
        layers = [SemanticMapLayer.LANE, SemanticMapLayer.ROADBLOCK]
        MetricCache(
            file, InterpolatedTrajectory([ego(0.1 * i) for i in range(41)]), ego(0.0), observation,
            PDMPath([StateSE2(x, 0, 0) for x in range(-20, 200, 5)]), ["lane"],
            PDMDrivableMap(["lane", "block"], layers, np.array([road, road])),
        ).dump()  # fmt: skip
        files.append(str(file))
    (root / "metadata").mkdir()
    (root / "metadata" / "made-up.csv").write_text("\n".join(["file_name", *files]))


def composed(kind: str, name: str, *overrides: str) -> Any:
    """A configuration of the devkit with the agents of frpt, as its scripts get it."""
    from hydra import compose, initialize_config_module

    paths = f"hydra.searchpath=[pkg://navsim.planning.script.config.common,file://{CONF}]"
    with initialize_config_module(f"navsim.planning.script.config.{kind}", version_base=None):
        return compose(name, overrides=[paths, "experiment_name=made-up", "train_test_split=test", *overrides])


def trained(cfg: Any, folder: Path) -> tuple[Any, Path]:
    """What the devkit's run_training does: (the agent, its checkpoint)."""
    import pytorch_lightning as pl
    from hydra.utils import instantiate
    from navsim.planning.training.agent_lightning_module import AgentLightningModule
    from navsim.planning.training.dataset import CacheOnlyDataset
    from torch.utils.data import DataLoader

    agent = instantiate(cfg.agent)
    builders = (agent.get_feature_builders(), agent.get_target_builders())
    data = CacheOnlyDataset(cfg.cache_path, *builders, log_names=["log0", "log1"])
    assert len(data) == 4
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=agent.get_training_callbacks(), default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, logger=False,
    )  # fmt: skip
    trainer.fit(AgentLightningModule(agent), DataLoader(data, 2, shuffle=True), DataLoader(data, 2))
    trainer.save_checkpoint(folder / "last.ckpt")
    return agent, folder / "last.ckpt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the devkit's variables point to."""
    made = tmp_path_factory.mktemp("devkit")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("OPENSCENE_DATA_ROOT", "NAVSIM_EXP_ROOT", "NUPLAN_MAPS_ROOT"):
            monkeypatch.setenv(name, str(made))
        yield made


@pytest.fixture(scope="module")
def checkpoints(folder: Path) -> dict[str, Path]:
    """A planner trained from the start, and post-trained with targets of the cache."""
    torch.manual_seed(0)
    cache = make_cache(folder / "cache", 4)
    common = ("training", "default_training", f"cache_path={cache}", "agent=frpt_resnet34")
    agent, start = trained(composed(*common), folder / "base")
    assert agent.post is None
    written = frpt.navsim.write_cached_targets(cache, start, "planning z_1", progress=False)
    assert written.written == 4
    options = (f"agent.start={start}", "agent.at=planning z_1", "agent.c_rec=0.3")
    agent, last = trained(composed(*common, *options), folder / "post")
    assert agent.post.balance.weight > 0
    return {"start": start, "post": last}


def test_post_training_leaves_the_rest_as_it_was(checkpoints: dict[str, Path]) -> None:
    before, after = (torch.load(file, weights_only=True)["state_dict"] for file in checkpoints.values())
    changed = {name.split(".")[2] for name in before if not torch.equal(before[name], after[name])}
    assert changed >= {"backbone", "status", "fusion", "planning1"}
    assert not changed & {"planning2", "trajectory"}


def straight(folder: Path) -> Path:
    """The checkpoint of a planner that goes straight ahead, whatever it sees."""
    model = frpt.zoo.planner("resnet34")
    with torch.no_grad():
        model.trajectory.weight.zero_()
        model.trajectory.bias.copy_(torch.tensor([[SPEED * t / 2, 0, 0] for t in range(1, 9)]).flatten())
    torch.save(model.state_dict(), folder / "straight.pt")
    return folder / "straight.pt"


def test_scored_by_the_devkit(checkpoints: dict[str, Path], folder: Path) -> None:
    import pandas as pd
    from navsim.planning.script.run_pdm_score import run_pdm_score

    if SECOND:
        pytest.skip("version 2 of the devkit is installed: PDMS is scored by version 1.1")
    tokens = ["a", "b"]
    make_log(folder / "data", tokens)
    make_metric_cache(folder / "metrics", tokens)
    tables = []
    for name, checkpoint in {**checkpoints, "straight": straight(folder)}.items():
        cfg = composed(
            "pdm_scoring", "default_run_pdm_score", "agent=frpt_resnet34", f"agent.checkpoint_path={checkpoint}",
            f"navsim_log_path={folder}/data/logs", f"sensor_blobs_path={folder}/data/blobs",
            f"metric_cache_path={folder}/metrics",
        )  # fmt: skip
        rows = run_pdm_score([{"cfg": cfg, "log_file": "made-up", "tokens": tokens}])
        assert all(row["valid"] for row in rows)
        pd.DataFrame(rows).to_csv(folder / f"{name}.csv")
        tables.append(folder / f"{name}.csv")
    compared = frpt.navsim.compare_scores(tables)
    assert compared.scenes == 2
    perfect = dict.fromkeys(frpt.navsim.METRICS, 100.0)  # as the road goes, at the speed it has
    assert compared.means["straight"] == pytest.approx(perfect, abs=0.1)
    assert all(0 <= value <= 100 for means in compared.means.values() for value in means.values())


def test_the_picture_is_that_of_opencv(tmp_path: Path) -> None:
    """The paper's code resizes bytes with OpenCV; at most one level is between the two."""
    cv2 = pytest.importorskip("cv2", reason="opencv is not installed")
    from navsim.common.dataclasses import SceneFilter
    from navsim.common.dataloader import SceneLoader

    if SECOND:
        pytest.skip("the scenes made up here are those of version 1.1")
    make_log(tmp_path, ["a"])
    agent = frpt.navsim.PlannerAgent()
    loader = SceneLoader(tmp_path / "logs", tmp_path / "blobs", SceneFilter(), agent.get_sensor_config())
    seen = loader.get_agent_input_from_token("a")
    (builder,) = agent.get_feature_builders()
    features = builder.compute_features(seen)
    views = [getattr(seen.cameras[-1], name).image[28:-28] for name in ("cam_l0", "cam_f0", "cam_r0")]
    stitched = np.concatenate([views[0][:, 416:-416], views[1], views[2][:, 416:-416]], 1)
    theirs = torch.from_numpy(cv2.resize(stitched, (1024, 256))).permute(2, 0, 1)
    assert int((features["camera"].int() - theirs.int()).abs().max()) <= 1
    assert features["status"].tolist() == [SPEED, 0, 0, 0, 0, 1, 0, 0]


def test_files_of_the_cache_are_the_devkits(tmp_path: Path) -> None:
    """The stand-ins' files and the devkit's are the same."""
    from navsim.planning.training.dataset import load_feature_target_from_pickle

    dump(tmp_path / "x.gz", {"a": torch.arange(3)})
    assert load_feature_target_from_pickle(tmp_path / "x.gz")["a"].tolist() == [0, 1, 2]
