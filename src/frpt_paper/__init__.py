"""The paper's experiments: grids of independent runs, one table of results, the paper's statistics of it."""

from frpt_paper.bench import Options, Report
from frpt_paper.catalogue import EXPERIMENTS, reproduce
from frpt_paper.jobs import Job, grid
from frpt_paper.results import Results
from frpt_paper.summary import metrics, paired_table
from frpt_paper.sweep import sweep

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
