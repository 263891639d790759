"""Post-training: the part before a layer, with task loss and feature supervision, beside matched controls."""

from frpt.train.balance import LossBalance
from frpt.train.compare import Arm, Comparison, compare
from frpt.train.freeze import Frozen, freeze
from frpt.train.metrics import Metric
from frpt.train.post import post_train
from frpt.train.result import Epoch, Result
from frpt.train.settings import Settings
from frpt.train.tap import FeatureTap

__all__ = [
    "Arm",
    "Comparison",
    "Epoch",
    "FeatureTap",
    "Frozen",
    "LossBalance",
    "Metric",
    "Result",
    "Settings",
    "compare",
    "freeze",
    "post_train",
]
