"""Runs that need not be made: another has decided every number of theirs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from frpt.train.objective import BOUNDS
from frpt_paper.jobs import Job
from frpt_paper.results import Row

if TYPE_CHECKING:
    import pandas as pd

CAP = BOUNDS[1]


def decided(job: Job, frame: pd.DataFrame) -> list[Row]:
    """The rows of a finished run that equals the job's in every step; none if there is no such run.

    A weight λ that never left its upper bound would not have left it under any larger c_rec either.
    frame: ``Results.frame()``.
    """
    if frame.empty:
        return []
    fields = asdict(job)
    for name in fields.keys() - {"c_rec"}:
        frame = frame[frame[name] == fields[name]]
    at_cap = frame["job"].isin(capped(frame)) & (frame["c_rec"] < job.c_rec)
    frame = frame[at_cap | (frame["c_rec"] == job.c_rec)]
    first = frame[frame["job"] == frame["job"].iloc[0]] if len(frame) else frame
    measured = [c for c in frame.columns if c not in ("job", "row", "rows", *fields)]
    rows = first[measured].assign(seconds=0.0, wall=0.0)
    return [{k: None if v != v else v for k, v in row.items()} for row in rows.to_dict("records")]


def capped(frame: pd.DataFrame) -> set[str]:
    """Digests of the runs whose λ was at its upper bound in every step."""
    least = frame.groupby("job")["weight"].min()
    return set(least.index[least >= CAP])
