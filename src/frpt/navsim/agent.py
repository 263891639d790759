"""``PlannerAgent``: the paper's planners as an agent of NAVSIM's devkit, trained, post-trained and scored by it.

The devkit instantiates it by hydra from the files of ``conf/`` and calls everything here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import AdamW, Optimizer

from frpt.errors import CheckpointError, OptionError
from frpt.files.weights import read_weights
from frpt.navsim.builders import CAMERAS, CameraBuilder, FeatureTargetBuilder, TrajectoryBuilder, pixels
from frpt.navsim.cached_targets import check_cache
from frpt.navsim.devkit import (
    SECOND,
    AbstractAgent,
    AbstractFeatureBuilder,
    AbstractTargetBuilder,
    Callback,
    SensorConfig,
    TrajectorySampling,
)
from frpt.navsim.planner_weights import layer_of, load_planner, target_name, targets_preset
from frpt.navsim.supervised import CACHE, TARGET, PostTraining
from frpt.zoo import planner

LAST = 3
"""The last of the four frames that the devkit gives."""
BASE_DECAY, POST_DECAY, BACKBONE_LR = 1e-4, 1e-2, 1e-5


class PlannerAgent(AbstractAgent):  # type: ignore[misc]
    """One of the paper's two planners: trained from the start, or post-trained before a layer.

    Without ``start`` it is trained as a whole on the L1 distance, with AdamW and a smaller rate for the backbone. With
    ``start`` the part before ``at`` is trained on mean squared error + λ · MSE(target, feature), and the rest stays as
    it is, to the last bit; c_rec = 0 is the matched run without targets. The defaults are the paper's.

    Args:
        backbone: "resnet34" or "vit_b16".
        checkpoint_path: what is scored: the checkpoint that ``initialize`` loads.
        weights: public weights of the backbone, to train from: torchvision's ResNet-34 or timm's ViT-B/16.
        start: the checkpoint to post-train from.
        at: the layer l_R, by its name in the paper's tables ("fusion z") or in the model ("fusion").
        c_rec: strength of the feature supervision, 0 to 1.
        targets: "cache" (written by `frpt navsim targets`), "online" (made in each step) or "anchor" (the start's own
            features, without any label).
        preset: with which targets of the cache were made, "default" or "paper".
        cache_path: the devkit's training cache, where targets are looked for before any training.
        lr: learning rate.
        backbone_lr: of the backbone; by default 1e-5, and in post-training ``lr``.
        weight_decay: by default 1e-4, and in post-training 1e-2.

    Raises:
        CheckpointError: for weights that cannot be read, or of the other backbone.
        OptionError: for options that do not go together.
        StoreMismatchError: for a cache whose targets are of other weights, another layer or preset.
    """

    def __init__(
        self,
        backbone: str = "resnet34",
        *,
        checkpoint_path: str | None = None,
        weights: str | None = None,
        start: str | None = None,
        at: str | None = None,
        c_rec: float = 0.0,
        targets: str = CACHE,
        preset: str = "default",
        cache_path: str | None = None,
        lr: float = 1e-4,
        backbone_lr: float | None = None,
        weight_decay: float | None = None,
    ) -> None:
        sampling = TrajectorySampling(time_horizon=4, interval_length=0.5)
        super().__init__(**({"trajectory_sampling": sampling} if SECOND else {}))
        if (start is None) != (at is None) or (start is None and c_rec):
            raise OptionError("post-training takes both start= (a checkpoint) and at= (a layer), and c_rec= only then")
        if start is not None and weights is not None:
            raise OptionError("weights= are where training begins, start= where post-training does: pass one of them")
        targets_preset(preset)
        self.backbone, self.checkpoint_path = backbone, checkpoint_path
        self.planner = planner(backbone)
        self.lr = lr
        usual_lr, usual_decay = (BACKBONE_LR, BASE_DECAY) if start is None else (lr, POST_DECAY)
        self.backbone_lr = usual_lr if backbone_lr is None else backbone_lr
        self.weight_decay = usual_decay if weight_decay is None else weight_decay
        self.target_name: str | None = None
        self.post: PostTraining | None = None
        if start is None or at is None:
            if weights is not None:
                self.planner.load_backbone(read_weights(weights))
            self.planner.classifier().requires_grad_(False)  # not used: DDP refuses trained parameters without gradient
            return
        load_planner(start, self.planner, backbone)
        layer = layer_of(self.planner, at)
        if c_rec and targets == CACHE:
            self.target_name = target_name(self.planner, layer, preset)
            if cache_path is not None:
                check_cache(cache_path, self.target_name)
        self.post = PostTraining(self.planner, layer, c_rec, targets)

    def name(self) -> str:
        """Of the evaluation's file."""
        return f"frpt_{self.backbone}"

    def initialize(self) -> None:
        """Load what is to be scored; the devkit does not call it for training."""
        if self.checkpoint_path is None:
            raise CheckpointError("nothing to score: pass agent.checkpoint_path=…/last.ckpt")
        load_planner(self.checkpoint_path, self.planner, self.backbone)

    def get_sensor_config(self) -> Any:
        """The three front cameras of the last frame."""
        config = SensorConfig.build_no_sensors()
        for name in CAMERAS:
            setattr(config, name, [LAST])
        return config

    def get_feature_builders(self) -> list[AbstractFeatureBuilder]:
        """Camera and status."""
        return [CameraBuilder()]

    def get_target_builders(self) -> list[AbstractTargetBuilder]:
        """The driver's trajectory, and the feature's targets where they come from the cache."""
        named = [] if self.target_name is None else [FeatureTargetBuilder(self.target_name)]
        return [TrajectoryBuilder(), *named]

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """camera (b, 3, h, w), bytes or in [0, 1], and status (b, 8) → trajectory (b, 8, 3)."""
        inputs = _inputs(features)
        if self.post is not None and self.training:
            self.post.prepare(inputs)
        return {"trajectory": self.planner(*inputs)}

    def compute_loss(
        self, features: dict[str, Tensor], targets: dict[str, Tensor], predictions: dict[str, Tensor]
    ) -> Tensor:
        """L1 in training from the start; in post-training the squared error, with the feature term while training."""
        planned, driven = predictions["trajectory"].float(), targets["trajectory"].float()
        if self.post is None:
            return F.l1_loss(planned, driven)
        task = F.mse_loss(planned, driven)
        if not self.training:
            return task
        return self.post.loss(task, _inputs(features), driven, targets.get(TARGET))

    def get_optimizers(self) -> Optimizer:
        """AdamW on what is trained."""
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for name, parameter in self.planner.named_parameters():
            if parameter.requires_grad:
                groups[name.startswith("backbone.")].append(parameter)
        rates = {True: self.backbone_lr, False: self.lr}
        made = [{"params": group, "lr": rates[inside]} for inside, group in groups.items() if group]
        return AdamW(made, weight_decay=self.weight_decay)

    def get_training_callbacks(self) -> list[Any]:
        """In post-training one that looks whether the frozen part stays, and keeps the balance of the losses."""
        return [] if self.post is None else [PostTrainingWatch(self.post)]


class PostTrainingWatch(Callback):  # type: ignore[misc]
    """Checks the frozen part after every epoch; saves the moving averages of the losses in Lightning's checkpoints."""

    def __init__(self, post: PostTraining) -> None:
        self.post = post

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's hook."""
        self.post.frozen.check()

    def state_dict(self) -> dict[str, Any]:
        """Lightning's hook."""
        return dict(self.post.balance.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning's hook."""
        self.post.balance.load_state_dict(state_dict)


def _inputs(features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return pixels(features["camera"]), features["status"]
