"""The table of runs: a CSV that grows by one job's rows at a time and survives being killed at any moment.

Beside it is a file of checksums, a line for each of its lines: rows that are not what was written are named, and no run
goes on from them.

``sweep`` appends to it, experiments read it as a data frame. ``decided`` looks up runs that need not be made because a
run in the table has every number of theirs already; ``Lab.run`` asks it first.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import frpt
from frpt.errors import SweepError
from frpt_paper.runs.jobs import Job, PostTrainingJob

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, float | int | str | None]
_TEXT = ("job", "dataset", "model", "l_r", "arm", "preset", "embed", "checkpoint", "corruption", "method", "scenes")
LARGEST_WEIGHT = frpt.LossBalance().clip[1]
"""Upper bound of the weight λ of the reconstruction loss (10, paper III)."""


class RunsTable:
    """Rows of finished jobs: the job's key, which of how many rows it is, the job's fields, what was measured."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checksums = self.path.with_name(f"{self.path.name}.sha256")

    def cut_unfinished_line(self) -> None:
        """Cut off a last line that a killed writer left unfinished, in the table and in its checksums."""
        for path in (self.path, self.checksums):
            data = path.read_bytes() if path.is_file() else b""
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(path, whole)

    def append(self, job: Job, rows: Sequence[Row]) -> None:
        """Add a job's rows in one write."""
        if not rows:
            raise SweepError(f"the run of {job} gave no rows")
        columns = ("job", "row", "rows", *asdict(job), *rows[0])
        present = self.columns()
        if present and present != columns:
            raise SweepError(
                f"{str(self.path)!r} has the columns {list(present)}, a run gave {list(columns)}: it is of another "
                "experiment or version; write another table"
            )
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        if not present:
            writer.writeheader()
        for number, row in enumerate(rows):
            if tuple(row) != tuple(rows[0]):
                raise SweepError(f"rows of one run must measure the same: {list(rows[0])} and {list(row)}")
            writer.writerow({"job": job.key, "row": number, "rows": len(rows), **asdict(job), **row})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = text.getvalue().encode()
        self._begin_checksums()
        _append(self.checksums, b"".join(_line_checksum(line) for line in data.splitlines(keepends=True)))
        _append(self.path, data)  # after its checksums: killed in between, there are more of those than lines

    def _begin_checksums(self) -> None:
        """A table of an earlier version is taken as it is now: its first line has the length and checksum of that."""
        there = self.path.read_bytes() if self.path.is_file() else b""
        whole = there[: there.rfind(b"\n") + 1]
        try:
            descriptor = os.open(self.checksums, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(f"{len(whole)} {hashlib.sha256(whole).hexdigest()}\n".encode())

    def check(self, data: bytes) -> None:
        """Refuse lines that are not what was written; data: the table's whole lines."""
        if not self.checksums.is_file():
            return  # of an earlier version, or kept without them
        known = self.checksums.read_bytes().splitlines(keepends=True)
        length, _, digest = known[0].decode(errors="replace").strip().partition(" ") if known else ("", "", "")
        before = int(length) if length.isdecimal() else 0
        damaged = [1] if hashlib.sha256(data[:before]).hexdigest() != digest else []
        lines, first = data[before:].splitlines(keepends=True), data[:before].count(b"\n") + 1
        written = set(known[1:])
        damaged += [number for number, line in enumerate(lines, first) if _line_checksum(line) not in written]
        if damaged:
            raise SweepError(
                f"{str(self.path)!r} is damaged: {len(damaged)} of its lines, the first of them number {damaged[0]}, "
                "are not what was written. Remove these lines, and the same call runs them again; or remove "
                f"{self.checksums.name} to take the table as it is."
            )

    def columns(self) -> tuple[str, ...]:
        """The columns of the table; none before the first job has ended."""
        if not self.path.is_file():
            return ()
        with open(self.path, newline="") as stream:
            return tuple(next(csv.reader(stream), ()))

    def done(self) -> set[str]:
        """Keys of the jobs whose rows are all there."""
        frame = self.frame()
        return set() if frame.empty else set(frame["job"])

    def frame(self) -> pd.DataFrame:
        """The rows of finished jobs; jobs with rows missing and repetitions are left out."""
        import pandas as pd

        data = self.path.read_bytes() if self.path.is_file() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return pd.DataFrame()
        self.check(whole)
        # Text columns keep their words ("" and "2" stay text); only numbers may be missing.
        missing = {c: [""] for c in self.columns() if c not in _TEXT}
        kinds = {c: str for c in self.columns() if c in _TEXT}
        frame = pd.read_csv(io.BytesIO(whole), dtype=kinds, keep_default_na=False, na_values=missing)
        frame = frame.drop_duplicates(["job", "row"], keep="last")
        counts = frame.groupby("job")["rows"].transform("size")
        return frame[counts == frame["rows"]].reset_index(drop=True)


def _append(path: Path, data: bytes) -> None:
    """One write to a file opened for appending: several processes may add to one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line_checksum(line: bytes) -> bytes:
    return f"{hashlib.sha256(line).hexdigest()}\n".encode()


def decided(job: PostTrainingJob, frame: pd.DataFrame) -> list[Row]:
    """The rows of a finished run that equals the job's in every step; none if there is no such run.

    λ = min(c_rec · task loss / reconstruction loss, bound): a weight that was at its upper bound in every step would
    have been there with any larger c_rec as well, and the two runs are the same to the last bit.
    frame: ``RunsTable.frame()``.
    """
    if frame.empty:
        return []
    fields = asdict(job)
    for name in fields.keys() - {"c_rec"}:
        frame = frame[frame[name] == fields[name]]
    smaller_at_bound = frame["job"].isin(always_at_bound(frame)) & (frame["c_rec"] < job.c_rec)
    frame = frame[smaller_at_bound | (frame["c_rec"] == job.c_rec)]
    first = frame[frame["job"] == frame["job"].iloc[0]] if len(frame) else frame
    measured = [c for c in frame.columns if c not in ("job", "row", "rows", *fields)]
    rows = first[measured].assign(seconds=0.0, wall=0.0)
    return [{k: None if v != v else v for k, v in row.items()} for row in rows.to_dict("records")]


def always_at_bound(frame: pd.DataFrame) -> set[str]:
    """Keys of the runs whose weight λ was at its upper bound in every step."""
    least = frame.groupby("job")["weight"].min()
    return set(least.index[least >= LARGEST_WEIGHT])
