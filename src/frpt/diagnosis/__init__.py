"""Diagnosis: deviation, trust, response maps, the ranking of layers, the report."""

from frpt.diagnosis.findings import Diagnosis
from frpt.diagnosis.survey import diagnose
from frpt.diagnosis.trajectory import Trajectory, along_training

__all__ = ["Diagnosis", "Trajectory", "along_training", "diagnose"]
