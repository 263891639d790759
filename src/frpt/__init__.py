"""frpt: what should this layer have produced for this label?"""

from frpt import embed, errors, ops, targets
from frpt.presets import Gate, Preset, SolverOptions
from frpt.reconstruction import Reconstruction, UnitReport
from frpt.reverser import Reverser
from frpt.rules.registry import reverses
from frpt.targets import TargetDataset, TargetStore, write_targets

__all__ = [
    "Gate",
    "Preset",
    "Reconstruction",
    "Reverser",
    "SolverOptions",
    "TargetDataset",
    "TargetStore",
    "UnitReport",
    "embed",
    "errors",
    "ops",
    "reverses",
    "targets",
    "write_targets",
]
