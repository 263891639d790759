"""frpt: what should this layer have produced for this label?

The public names. Importing frpt loads nothing but this file: each name brings its room along when it is first used,
so that ``import frpt`` costs milliseconds and pandas, matplotlib or lightning_fabric load only where they are needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frpt.common.imports import without_a_trace

if TYPE_CHECKING:  # what type checkers and editors see; _HOMES below is what happens
    from frpt import data, driving, embed, errors, navsim, ops, stats, targets, train, zoo
    from frpt.diagnosis import Diagnosis, Trajectory, along_training, diagnose
    from frpt.errors import FrptError
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
    from frpt.repairs import Fix, Memory, Patch, RepairComparison, apply, compare_repairs, remember, repair
    from frpt.reverse.reconstruction import Reconstruction, UnitReport
    from frpt.reverser import Reverser
    from frpt.rules.registry import reverses
    from frpt.targets import TargetDataset, TargetStore, write_targets
    from frpt.train import Comparison, FeatureTap, LossBalance, Metric, Result, Training, compare, freeze, post_train

__version__ = "0.1.0"

__all__ = [
    "Bounded",
    "Comparison",
    "Composite",
    "Convolutions",
    "Diagnosis",
    "FeatureTap",
    "Fix",
    "FrptError",
    "Gate",
    "LikeliestWinning",
    "Limits",
    "LossBalance",
    "Memory",
    "Metric",
    "NearestWinning",
    "Patch",
    "Preset",
    "Reach",
    "Reconstruction",
    "Reference",
    "RepairComparison",
    "Result",
    "Reverser",
    "TargetDataset",
    "TargetStore",
    "Training",
    "Trajectory",
    "UnitReport",
    "__version__",
    "along_training",
    "apply",
    "compare",
    "compare_repairs",
    "data",
    "diagnose",
    "driving",
    "embed",
    "errors",
    "freeze",
    "navsim",
    "ops",
    "post_train",
    "remember",
    "repair",
    "reverses",
    "stats",
    "targets",
    "train",
    "write_targets",
    "zoo",
]

_HOMES = {
    "frpt.diagnosis": ("Diagnosis", "Trajectory", "along_training", "diagnose"),
    "frpt.errors": ("FrptError",),
    "frpt.options": (
        "Bounded", "Composite", "Convolutions", "Gate", "LikeliestWinning", "Limits", "NearestWinning", "Preset",
        "Reach",
    ),
    "frpt.reference": ("Reference",),
    "frpt.repairs": ("Fix", "Memory", "Patch", "RepairComparison", "apply", "compare_repairs", "remember", "repair"),
    "frpt.reverse.reconstruction": ("Reconstruction", "UnitReport"),
    "frpt.reverser": ("Reverser",),
    "frpt.rules.registry": ("reverses",),
    "frpt.targets": ("TargetDataset", "TargetStore", "write_targets"),
    "frpt.train": (
        "Comparison", "FeatureTap", "LossBalance", "Metric", "Result", "Training", "compare", "freeze", "post_train",
    ),
}  # fmt: skip
_ROOMS = ("data", "driving", "embed", "errors", "navsim", "ops", "stats", "targets", "train", "zoo")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name on its first use; it is kept, so that this runs once for each."""
    if name in _ROOMS or name in _HOME_OF:
        with without_a_trace():
            room = import_module(_HOME_OF.get(name, f"frpt.{name}"))
        value: Any = room if name in _ROOMS else getattr(room, name)
    else:
        raise AttributeError(f"module 'frpt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
