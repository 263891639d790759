"""One tidy CSV table that grows by a job's rows at a time, and survives being killed at any moment."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from frpt.errors import SweepError
from frpt_paper.jobs import Job

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, float | int | str | None]
_TEXT = ("job", "dataset", "model", "l_r", "arm", "preset", "embed", "checkpoint", "corruption")


class Results:
    """Rows of finished jobs: the job's digest, which of how many rows it is, the job's fields, what was measured."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def repair(self) -> None:
        """Cut off a last line that a killed writer left unfinished."""
        if self.path.is_file():
            data = self.path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(self.path, whole)

    def append(self, job: Job, rows: Sequence[Row]) -> None:
        """Add a job's rows in one write."""
        if not rows:
            raise SweepError(f"the run of {job} gave no rows")
        columns = ("job", "row", "rows", *asdict(job), *rows[0])
        known = self.columns()
        if known and known != columns:
            raise SweepError(
                f"{str(self.path)!r} has the columns {list(known)}, a run gave {list(columns)}: it is of another "
                "experiment or version; write another table"
            )
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        if not known:
            writer.writeheader()
        for number, row in enumerate(rows):
            if tuple(row) != tuple(rows[0]):
                raise SweepError(f"rows of one run must measure the same: {list(rows[0])} and {list(row)}")
            writer.writerow({"job": job.key, "row": number, "rows": len(rows), **asdict(job), **row})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text.getvalue().encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def columns(self) -> tuple[str, ...]:
        """The columns of the table; none before the first job has ended."""
        if not self.path.is_file():
            return ()
        with open(self.path, newline="") as stream:
            return tuple(next(csv.reader(stream), ()))

    def done(self) -> set[str]:
        """Digests of the jobs whose rows are all there."""
        frame = self.frame()
        return set() if frame.empty else set(frame["job"])

    def frame(self) -> pd.DataFrame:
        """The rows of finished jobs; half-written jobs and repetitions are left out."""
        import pandas as pd

        data = self.path.read_bytes() if self.path.is_file() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return pd.DataFrame()
        missing = {c: [""] for c in self.columns() if c not in _TEXT}
        kinds = {c: str for c in self.columns() if c in _TEXT}
        frame = pd.read_csv(io.BytesIO(whole), dtype=kinds, keep_default_na=False, na_values=missing)
        frame = frame.drop_duplicates(["job", "row"], keep="last")
        counts = frame.groupby("job")["rows"].transform("size")
        return frame[counts == frame["rows"]].reset_index(drop=True)
