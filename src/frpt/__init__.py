"""frpt: what should this layer have produced for this label?"""

from frpt import embed, errors, ops, targets, train, zoo
from frpt.presets import Gate, Preset, SolverOptions
from frpt.reconstruction import Reconstruction, UnitReport
from frpt.reverser import Reverser
from frpt.rules.registry import reverses
from frpt.targets import TargetDataset, TargetStore, write_targets
from frpt.train import Comparison, FeatureTap, LossBalance, Metric, Result, compare, freeze, post_train

__all__ = [
    "Comparison",
    "FeatureTap",
    "Gate",
    "LossBalance",
    "Metric",
    "Preset",
    "Reconstruction",
    "Result",
    "Reverser",
    "SolverOptions",
    "TargetDataset",
    "TargetStore",
    "UnitReport",
    "compare",
    "embed",
    "errors",
    "freeze",
    "ops",
    "post_train",
    "reverses",
    "targets",
    "train",
    "write_targets",
    "zoo",
]
