"""Targets on disk: written once for a whole data set, verified, and joined to the samples they belong to.

Called by users who post-train, by ``frpt.post_train`` and by ``frpt targets`` in the shell.
"""

from frpt.targets.dataset import TargetDataset
from frpt.targets.manifest import LayerInfo, Manifest, ShardInfo
from frpt.targets.rewrite import rewrite_damaged
from frpt.targets.store import TargetStore
from frpt.targets.write import write_targets

__all__ = ["LayerInfo", "Manifest", "ShardInfo", "TargetDataset", "TargetStore", "rewrite_damaged", "write_targets"]
