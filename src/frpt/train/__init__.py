"""Post-training: the part before a layer, with task loss and feature supervision, beside matched controls.

``post_train`` and ``compare`` do the whole job; ``freeze``, ``FeatureTap`` and ``LossBalance`` are their parts, for
training loops of one's own.
"""

from frpt.train.comparison import Arm, Comparison, Difference, compare
from frpt.train.frozen import Frozen, freeze
from frpt.train.metrics import Metric
from frpt.train.objective import LossBalance
from frpt.train.post import post_train
from frpt.train.result import Epoch, Result
from frpt.train.tap import FeatureTap
from frpt.train.training import Training

__all__ = [
    "Arm",
    "Comparison",
    "Difference",
    "Epoch",
    "FeatureTap",
    "Frozen",
    "LossBalance",
    "Metric",
    "Result",
    "Training",
    "compare",
    "freeze",
    "post_train",
]
