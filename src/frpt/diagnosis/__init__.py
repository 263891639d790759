"""Diagnosis: which layer goes wrong, for which samples, whether its targets can be trusted; figures and a report."""

from frpt.diagnosis.diagnosis import Diagnosis
from frpt.diagnosis.survey import diagnose
from frpt.diagnosis.trajectory import Trajectory, along_training

__all__ = ["Diagnosis", "Trajectory", "along_training", "diagnose"]
