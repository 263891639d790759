"""frpt: what should this layer have produced for this label?"""

from frpt import data, embed, errors, ops, stats, targets, train, zoo
from frpt.diagnosis import Diagnosis, Trajectory, along_training, diagnose
from frpt.options import (
    Bounded,
    Composite,
    Convolutions,
    Gate,
    LikeliestWinning,
    Limits,
    NearestWinning,
    Preset,
    Reach,
)
from frpt.reference import Reference
from frpt.reverse.reconstruction import Reconstruction, UnitReport
from frpt.reverser import Reverser
from frpt.rules.registry import reverses
from frpt.targets import TargetDataset, TargetStore, write_targets
from frpt.train import Comparison, FeatureTap, LossBalance, Metric, Result, compare, freeze, post_train

__all__ = [
    "Bounded",
    "Comparison",
    "Composite",
    "Convolutions",
    "Diagnosis",
    "FeatureTap",
    "Gate",
    "LikeliestWinning",
    "Limits",
    "LossBalance",
    "Metric",
    "NearestWinning",
    "Preset",
    "Reach",
    "Reconstruction",
    "Reference",
    "Result",
    "Reverser",
    "TargetDataset",
    "TargetStore",
    "Trajectory",
    "UnitReport",
    "along_training",
    "compare",
    "data",
    "diagnose",
    "embed",
    "errors",
    "freeze",
    "ops",
    "post_train",
    "reverses",
    "stats",
    "targets",
    "train",
    "write_targets",
    "zoo",
]
