"""Post-training: the part before a layer, with task loss and feature supervision, beside matched controls.

``post_train`` and ``compare`` do the whole job; ``freeze``, ``FeatureTap`` and ``LossBalance`` are their parts, for
training loops of one's own. ``LightningTargets`` and ``TargetTrainer`` are for those of Lightning and of Hugging Face,
which load when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frpt.train.comparison import Arm, Comparison, Difference, compare
from frpt.train.frameworks.feature_targets import FeatureTargets
from frpt.train.frozen import Frozen, freeze
from frpt.train.metrics import Metric
from frpt.train.objective import LossBalance
from frpt.train.post import post_train
from frpt.train.result import Epoch, Result
from frpt.train.tap import FeatureTap
from frpt.train.training import Training

if TYPE_CHECKING:
    from frpt.train.frameworks.hugging_face import TargetTrainer
    from frpt.train.frameworks.lightning_targets import LightningTargets

__all__ = [
    "Arm",
    "Comparison",
    "Difference",
    "Epoch",
    "FeatureTap",
    "FeatureTargets",
    "Frozen",
    "LightningTargets",
    "LossBalance",
    "Metric",
    "Result",
    "TargetTrainer",
    "Training",
    "compare",
    "freeze",
    "post_train",
]

_FRAMEWORKS = {"LightningTargets": "lightning_targets", "TargetTrainer": "hugging_face"}


def __getattr__(name: str) -> Any:
    """A class of another framework, with that framework, when it is first used."""
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module 'frpt.train' has no attribute {name!r}")
    return getattr(import_module(f"frpt.train.frameworks.{_FRAMEWORKS[name]}"), name)
