"""frpt: what should this layer have produced for this label?"""

from frpt import embed, errors, ops
from frpt.presets import Gate, Preset, SolverOptions
from frpt.reconstruction import Reconstruction, UnitReport
from frpt.reverser import Reverser
from frpt.rules.registry import reverses

__all__ = [
    "Gate",
    "Preset",
    "Reconstruction",
    "Reverser",
    "SolverOptions",
    "UnitReport",
    "embed",
    "errors",
    "ops",
    "reverses",
]
