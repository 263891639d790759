"""Targets on disk: written once, verified, and joined to the samples they belong to."""

from frpt.targets.dataset import TargetDataset
from frpt.targets.manifest import LayerInfo, Manifest, ShardInfo
from frpt.targets.repairs import repair
from frpt.targets.store import TargetStore
from frpt.targets.write import write_targets

__all__ = ["LayerInfo", "Manifest", "ShardInfo", "TargetDataset", "TargetStore", "repair", "write_targets"]
