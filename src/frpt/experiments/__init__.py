"""The paper's experiments: grids of independent runs, one table of results, the paper's statistics of it."""

from frpt.experiments.bench import Options, Report
from frpt.experiments.catalogue import EXPERIMENTS, reproduce
from frpt.experiments.jobs import Job, grid
from frpt.experiments.results import Results
from frpt.experiments.summary import metrics, paired_table
from frpt.experiments.sweep import sweep

__all__ = [
    "EXPERIMENTS",
    "Job",
    "Options",
    "Report",
    "Results",
    "grid",
    "metrics",
    "paired_table",
    "reproduce",
    "sweep",
]
