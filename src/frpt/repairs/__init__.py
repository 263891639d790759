"""Repair: fix failing samples with the nearest weights, measured by what the network does on its old inputs."""

from frpt.repairs.fix import Fix, Kept, Moved, Tried
from frpt.repairs.memory import Memory, remember
from frpt.repairs.patch import Patch, apply
from frpt.repairs.repair import repair
from frpt.repairs.repair_comparison import Outcome, RepairComparison, compare_repairs

__all__ = [
    "Fix",
    "Kept",
    "Memory",
    "Moved",
    "Outcome",
    "Patch",
    "RepairComparison",
    "Tried",
    "apply",
    "compare_repairs",
    "remember",
    "repair",
]
