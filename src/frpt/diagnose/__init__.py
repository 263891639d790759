"""Diagnosis: deviation, trust, response maps, the ranking of layers, the report."""

from frpt.diagnose.diagnosis import Diagnosis
from frpt.diagnose.run import diagnose
from frpt.diagnose.trajectory import Trajectory, along_training

__all__ = ["Diagnosis", "Trajectory", "along_training", "diagnose"]
