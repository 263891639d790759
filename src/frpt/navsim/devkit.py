"""What is used of NAVSIM's devkit, versions 1.1 and 2: its classes, and the functions that read and write its cache.

Called by the other modules of this room, and nowhere else is the devkit imported. Its cache is gzip pickle: reading one
runs what is in it, so that a cache has to come from where one trusts.
"""

from __future__ import annotations

import inspect

from frpt.errors import DevkitError

try:
    from navsim.agents.abstract_agent import AbstractAgent
    from navsim.common.dataclasses import SensorConfig
    from navsim.planning.training.abstract_feature_target_builder import AbstractFeatureBuilder, AbstractTargetBuilder
    from navsim.planning.training.dataset import dump_feature_target_to_pickle, load_feature_target_from_pickle
    from nuplan.planning.simulation.trajectory.trajectory_sampling import TrajectorySampling
    from pytorch_lightning import Callback
except ImportError as error:
    strange = (error.name or "").startswith("navsim.")
    raise DevkitError(
        f"NAVSIM's devkit cannot be imported: {error}. "
        + ("The package 'navsim' that is installed is another project: the devkit is not on PyPI. " if strange else "")
        + "Clone github.com/autonomousvision/navsim (v1.1 for PDMS) and github.com/motional/nuplan-devkit, and install "
        "both with `pip install --no-deps --editable`; docs/navsim.md lists what they need beside."
    ) from error

__all__ = [
    "SECOND",
    "AbstractAgent",
    "AbstractFeatureBuilder",
    "AbstractTargetBuilder",
    "Callback",
    "SensorConfig",
    "TrajectorySampling",
    "dump_feature_target_to_pickle",
    "load_feature_target_from_pickle",
]

SECOND = "trajectory_sampling" in inspect.signature(AbstractAgent.__init__).parameters
"""Whether it is version 2, whose agents are made with the sampling of their trajectory."""
