"""Runs jobs that are not in the table yet, in this process or in a pool of them; rows are kept as jobs end."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from frpt.errors import OptionError, SweepError
from frpt.experiments.jobs import Job
from frpt.experiments.results import Results, Row

Run = Callable[[Job], Sequence[Row]]
Outcome = tuple[Job, Sequence[Row] | Exception]


def sweep(
    jobs: Iterable[Job],
    run: Run,
    results: Results,
    *,
    workers: int = 1,
    progress: Callable[[Job, int, int], None] | None = None,
) -> None:
    """Run every job once. A sweep that was stopped goes on with what is missing when the same call is made again.

    run: a function of a module (other processes import it) that gives a job's rows, e.g. one per epoch.
    workers: processes; 1 runs the jobs here. progress: called with (job, jobs ended, jobs to do).
    Jobs that fail do not stop the others; they are named in one error at the end, and are tried again the next time.
    """
    if workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    results.repair()
    done = results.done()
    missing = list({job.key: job for job in jobs if job.key not in done}.values())
    failed: list[tuple[Job, Exception]] = []
    outcomes = _here(missing, run) if workers == 1 else _pool(missing, run, workers)
    for ended, (job, outcome) in enumerate(outcomes, 1):
        if isinstance(outcome, Exception):
            failed.append((job, outcome))
        else:
            results.append(job, outcome)
        if progress is not None:
            progress(job, ended, len(missing))
    if failed:
        listing = "\n".join(f"  - {job}: {type(error).__name__}: {error}" for job, error in failed[:8])
        raise SweepError(
            f"{len(failed)} of {len(missing)} runs failed; the others are in {str(results.path)!r}:\n{listing}"
        ) from failed[0][1]


def _here(jobs: Sequence[Job], run: Run) -> Iterator[Outcome]:
    for job in jobs:
        try:
            yield job, run(job)
        except Exception as error:
            yield job, error


def _pool(jobs: Sequence[Job], run: Run, workers: int) -> Iterator[Outcome]:
    """In fresh processes that share the processors evenly."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,))
    try:
        futures = {pool.submit(run, job): job for job in jobs}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield futures[future], future.result() if error is None else error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
