"""PlannerAgent against stand-ins of the devkit: base training, post-training in three ways, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import frpt
from frpt.errors import CheckpointError, DevkitError, OptionError, StoreError, StoreMismatchError
from tests.navsim.standins import (
    Camera,
    Ego,
    batch_of,
    devkit_modules,
    fit,
    forget,
    install,
    make_cache,
    save_checkpoint,
)


class Input:
    """AgentInput: cameras whose pixels say where they are from."""

    def __init__(self) -> None:
        ramp = np.broadcast_to(np.arange(1920, dtype=np.float64)[:, None] / 1919 * 80, (1080, 1920, 3))
        images = {"cam_l0": 0, "cam_f0": 85, "cam_r0": 170}
        views = {name: Camera((base + ramp).round().astype(np.uint8)) for name, base in images.items()}
        self.cameras = [None, type("Cameras", (), views)()]
        self.ego_statuses = [None, Ego()]


def test_both_versions_make_train_and_plan(either: str, tmp_path: Path) -> None:
    from frpt.navsim import PlannerAgent

    torch.manual_seed(0)
    agent = PlannerAgent()
    assert agent.requires_scene is False
    assert hasattr(agent, "_trajectory_sampling") == (either == "2")
    assert agent.name() == "frpt_resnet34"
    sensors = agent.get_sensor_config()
    assert (sensors.cam_l0, sensors.cam_f0, sensors.cam_r0) == ([3], [3], [3])
    assert (sensors.cam_b0, sensors.lidar_pc) == (False, False)
    losses = fit(agent, make_cache(tmp_path / "cache"), 6)
    assert losses[-1] < losses[0]
    again = PlannerAgent(checkpoint_path=str(save_checkpoint(agent, tmp_path / "a.ckpt")))
    again.initialize()
    seen = Input()
    poses = again.compute_trajectory(seen)
    assert poses.shape == (8, 3)
    np.testing.assert_array_equal(poses, agent.compute_trajectory(seen))


def test_what_the_planner_sees(devkit: None) -> None:
    """The middle of the left camera, the whole front, the middle of the right one; bytes; the status in order."""
    from frpt.navsim import CameraBuilder

    features = CameraBuilder().compute_features(Input())
    camera = features["camera"]
    assert (camera.dtype, tuple(camera.shape)) == (torch.uint8, (3, 256, 1024))
    cuts = np.cumsum([0, 1920 - 2 * 416, 1920, 1920 - 2 * 416]) * 1024 / 4096
    row = camera[0, 128].float()
    for base, start, stop, (first, last) in zip(
        (0, 85, 170), cuts[:-1], cuts[1:], [(416, 1503), (0, 1919), (416, 1503)], strict=True
    ):
        assert abs(float(row[int(start) + 1]) - base - first / 1919 * 80) < 2
        assert abs(float(row[int(stop) - 2]) - base - last / 1919 * 80) < 2
    assert features["status"].tolist() == [5.0, 0.5, 1.0, -0.5, 0, 1, 0, 0]


def test_base_training_is_the_papers(devkit: None) -> None:
    """L1; AdamW with 1e-4, 1e-5 for the backbone, decay 1e-4; the unused classifier is not trained."""
    from frpt.navsim import PlannerAgent

    agent = PlannerAgent()
    planned, driven = torch.zeros(2, 8, 3), torch.full((2, 8, 3), 3.0)
    assert float(agent.compute_loss({}, {"trajectory": driven}, {"trajectory": planned})) == 3.0
    optimizer = agent.get_optimizers()
    assert isinstance(optimizer, torch.optim.AdamW)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, p in agent.planner.named_parameters():
        expected = None if name.startswith("backbone.fc") else 1e-5 if name.startswith("backbone.") else 1e-4
        assert rates.get(id(p)) == expected, name
    assert {group["weight_decay"] for group in optimizer.param_groups} == {1e-4}
    assert agent.get_training_callbacks() == []


def test_public_weights_of_the_backbone(devkit: None, tmp_path: Path) -> None:
    from frpt.navsim import PlannerAgent

    weights = {name: value + 1 for name, value in PlannerAgent().planner.backbone.state_dict().items()}
    torch.save(weights, tmp_path / "resnet34.pth")
    agent = PlannerAgent(weights=str(tmp_path / "resnet34.pth"))
    assert torch.equal(agent.planner.backbone.conv1.weight, weights["conv1.weight"])


def frozen_of(agent: Any) -> dict[str, torch.Tensor]:
    kept = ("planning1", "planning2", "trajectory")
    return {name: v.clone() for name, v in agent.planner.state_dict().items() if name.startswith(kept)}


@pytest.mark.parametrize("targets", ["cache", "online", "anchor"])
def test_post_training_moves_the_feature_to_its_target(
    targets: str, base: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from frpt.navsim import PlannerAgent, write_cached_targets

    cache, start = base
    if targets == "cache":
        write_cached_targets(cache, start, "fusion z", progress=False)
        assert "6 of 6 targets to write" in capsys.readouterr().out
    torch.manual_seed(0)
    agent = PlannerAgent(start=str(start), at="fusion z", c_rec=0.3, targets=targets, cache_path=str(cache), lr=1e-3)
    assert agent.planner.training  # Lightning keeps the mode that it finds
    assert not agent.planner.planning1.training
    before = frozen_of(agent)
    moving = agent.planner.fusion.beta.weight.clone()
    fit(agent, cache, 3)
    assert all(np.isfinite(fit(agent, cache, 1, mixed=True)))
    assert all(torch.equal(value, agent.planner.state_dict()[name]) for name, value in before.items())
    assert not torch.equal(moving, agent.planner.fusion.beta.weight)
    assert agent.post.balance.weight > 0
    assert agent.post.balance.rec is not None


def test_the_callback_checks_the_frozen_part_and_keeps_the_balance(base: tuple[Path, Path]) -> None:
    from frpt.navsim import PlannerAgent

    cache, start = base
    agent = PlannerAgent(start=str(start), at="fusion", c_rec=0.3, targets="anchor")
    (watch,) = agent.get_training_callbacks()
    fit(agent, cache, 1)
    watch.on_train_epoch_end(None, None)
    state, weight = watch.state_dict(), agent.post.balance.weight
    assert weight > 0
    agent.post.balance.update(5.0, 1.0)
    assert agent.post.balance.weight != weight
    watch.load_state_dict(state)
    assert agent.post.balance.weight == weight
    with torch.no_grad():
        agent.planner.trajectory.bias += 1
    with pytest.raises(frpt.FrptError, match=r"trajectory\.bias"):
        watch.on_train_epoch_end(None, None)


def test_the_loss_is_that_of_post_train(base: tuple[Path, Path]) -> None:
    """task + λ · MSE, with λ = c_rec · task / rec in the first step; the task loss alone in validation."""
    from frpt.navsim import PlannerAgent, write_cached_targets

    cache, start = base
    write_cached_targets(cache, start, "planning z_1", progress=False, say=lambda text: None)
    agent = PlannerAgent(start=str(start), at="planning z_1", c_rec=0.1, cache_path=str(cache))
    features, targets = batch_of(agent, cache)
    made = agent.forward(features)
    task = (made["trajectory"] - targets["trajectory"]).square().mean()
    with frpt.FeatureTap(agent.planner, "planning1") as tap:
        agent.forward(features)
        rec = (tap.value - targets["frpt_target"]).square().mean()
    loss = agent.compute_loss(features, targets, made)
    torch.testing.assert_close(loss, 1.1 * task, rtol=1e-3, atol=0)
    torch.testing.assert_close(torch.tensor(agent.post.balance.rec), rec.detach().float(), rtol=1e-3, atol=0)
    agent.eval()
    made = agent.forward(features)
    alone = agent.compute_loss(features, targets, made)
    torch.testing.assert_close(alone, (made["trajectory"] - targets["trajectory"]).square().mean())
    groups = agent.get_optimizers().param_groups
    assert {(g["lr"], g["weight_decay"]) for g in groups} == {(1e-4, 1e-2)}


def test_without_c_rec_it_is_plain_back_propagation(base: tuple[Path, Path]) -> None:
    from frpt.navsim import PlannerAgent

    cache, start = base
    agent = PlannerAgent(start=str(start), at="fusion z", cache_path=str(cache))
    assert [b.get_unique_name() for b in agent.get_target_builders()] == ["frpt_trajectory"]
    before = frozen_of(agent)
    fit(agent, cache, 2)
    assert all(torch.equal(value, agent.planner.state_dict()[name]) for name, value in before.items())


def test_the_vit_is_post_trained_at_layer_10(devkit: None, tmp_path: Path) -> None:
    from frpt.navsim import PlannerAgent

    torch.manual_seed(0)
    cache = make_cache(tmp_path / "cache", 2)
    start = str(save_checkpoint(PlannerAgent("vit_b16"), tmp_path / "vit.ckpt"))
    agent = PlannerAgent("vit_b16", start=start, at="ViT encoder layer 10 output", c_rec=0.1, targets="anchor")
    trained = {name for name, p in agent.planner.named_parameters() if p.requires_grad}
    assert any(name.startswith("backbone.blocks.10.") for name in trained)
    assert not any(name.startswith(("backbone.blocks.11.", "project", "status")) for name in trained)
    losses = fit(agent, cache, 2)
    assert all(np.isfinite(losses))


def test_a_stale_cache_is_refused(base: tuple[Path, Path], tmp_path: Path) -> None:
    from frpt.navsim import FeatureTargetBuilder, PlannerAgent, write_cached_targets

    start = str(base[1])
    cache = make_cache(tmp_path / "cache", 2)
    write_cached_targets(cache, start, "fusion z", progress=False, say=lambda text: None)
    other = PlannerAgent()
    changed = str(save_checkpoint(other, tmp_path / "other.ckpt"))
    for options in (
        {"start": changed, "at": "fusion z"},
        {"start": start, "at": "planning z_2"},
        {"start": start, "at": "fusion z", "preset": "paper"},
    ):
        with pytest.raises(StoreMismatchError, match=r"2 of 2 samples have no[\s\S]*frpt_target_fusion_default"):
            PlannerAgent(c_rec=0.1, cache_path=str(cache), **options)
    scene = type("Scene", (), {"scene_metadata": type("Metadata", (), {"initial_token": "abc"})()})()
    with pytest.raises(StoreError, match=r"scene abc[\s\S]*frpt navsim targets"):
        FeatureTargetBuilder("frpt_target_fusion_default_0").compute_targets(scene)
    agent = PlannerAgent(start=start, at="fusion z", c_rec=0.1, cache_path=str(cache))
    features, targets = batch_of(agent, cache)
    del targets["frpt_target"]
    with pytest.raises(StoreError, match="frpt_target"):
        agent.compute_loss(features, targets, agent.forward(features))


def test_a_checkpoint_of_the_other_backbone_is_refused(base: tuple[Path, Path], tmp_path: Path) -> None:
    from frpt.navsim import PlannerAgent

    start = str(base[1])
    with pytest.raises(CheckpointError, match=r"planner with resnet34, this agent has vit_b16"):
        PlannerAgent("vit_b16", start=start, at="fusion z")
    with pytest.raises(CheckpointError, match="resnet34"):
        PlannerAgent("vit_b16", checkpoint_path=start).initialize()
    with pytest.raises(CheckpointError, match="checkpoint_path"):
        PlannerAgent().initialize()
    torch.save({"state_dict": {"weight": torch.zeros(2)}}, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="no checkpoint of a planner"):
        PlannerAgent(start=str(tmp_path / "other.ckpt"), at="fusion z")
    torch.save({"state_dict": {"backbone.conv1.weight": torch.zeros(2)}}, tmp_path / "part.ckpt")
    with pytest.raises(CheckpointError, match="does not fit"):
        PlannerAgent(start=str(tmp_path / "part.ckpt"), at="fusion z")
    with pytest.raises(CheckpointError, match="cannot be read"):
        PlannerAgent(start=str(tmp_path / "missing.ckpt"), at="fusion z")


def test_options_that_do_not_go_together(base: tuple[Path, Path]) -> None:
    from frpt.navsim import PlannerAgent

    start = str(base[1])
    for options in ({"start": start}, {"at": "fusion z"}, {"c_rec": 0.1}):
        with pytest.raises(OptionError, match="both start="):
            PlannerAgent(**options)
    with pytest.raises(OptionError, match="one of them"):
        PlannerAgent(start=start, at="fusion z", weights="resnet34.pth")
    with pytest.raises(OptionError, match="'cache', 'online' or 'anchor'"):
        PlannerAgent(start=start, at="fusion z", c_rec=0.1, targets="disk")
    with pytest.raises(OptionError, match="preset"):
        PlannerAgent(preset="online")
    with pytest.raises(OptionError, match="'fusion z'"):
        PlannerAgent(start=start, at="fusion y", c_rec=0.1)


def test_without_the_devkit_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "navsim", None)
    import frpt.navsim

    with pytest.raises(DevkitError, match=r"github\.com/autonomousvision/navsim"):
        frpt.navsim.PlannerAgent  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        frpt.navsim.nothing  # noqa: B018


def test_another_project_of_the_name_is_recognised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget(monkeypatch)
    (tmp_path / "navsim").mkdir()
    (tmp_path / "navsim" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    import frpt.navsim

    with pytest.raises(DevkitError, match="another project"):
        frpt.navsim.PlannerAgent  # noqa: B018


def test_the_stand_ins_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the real devkit run in the same process."""
    forget(monkeypatch)
    import frpt.navsim

    before, package = devkit_modules(), frpt.navsim
    with pytest.MonkeyPatch.context() as inner:
        install(inner)
        from frpt.navsim import PlannerAgent

        assert PlannerAgent.__module__ in devkit_modules()
    assert devkit_modules() == before
    assert frpt.navsim is package


@pytest.mark.parametrize("backbone", ["resnet34", "vit_b16"])
def test_the_hydra_files_name_every_option(backbone: str, devkit: None) -> None:
    import inspect

    from frpt.navsim import PlannerAgent

    file = Path(frpt.__file__).parent / "navsim" / "conf" / "agent" / f"frpt_{backbone}.yaml"
    content = yaml.safe_load(file.read_text())
    assert content.pop("_target_") == "frpt.navsim.PlannerAgent"
    assert content.pop("_convert_") == "all"
    assert content.pop("cache_path") == "${oc.select:cache_path,null}"
    parameters = inspect.signature(PlannerAgent.__init__).parameters
    defaults = {name: p.default for name, p in parameters.items() if name not in ("self", "cache_path")}
    assert content == defaults | {"backbone": backbone}
