"""The paper's laboratory: every table and figure of the FR-PT paper, run again with ``frpt`` and set beside the paper.

Called by ``frpt reproduce`` and by benchmarks; it imports public names of ``frpt`` only. ``experiments`` has a function
per table or figure, ``runs`` makes the runs they consist of, ``tables`` turns runs into statistics, tables and figures.

    from frpt_paper import ReproduceOptions, reproduce
    print(reproduce("mnist", ReproduceOptions(scale="small")).markdown())
"""

from frpt_paper.catalogue import EXPERIMENTS, reproduce
from frpt_paper.experiments.workbench import ExperimentReport, ReproduceOptions
from frpt_paper.runs.jobs import PostTrainingJob, grid
from frpt_paper.runs.runs_table import RunsTable
from frpt_paper.runs.sweep import sweep
from frpt_paper.tables.statistics import metrics, paired_table

__all__ = [
    "EXPERIMENTS",
    "ExperimentReport",
    "PostTrainingJob",
    "ReproduceOptions",
    "RunsTable",
    "grid",
    "metrics",
    "paired_table",
    "reproduce",
    "sweep",
]
