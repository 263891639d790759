"""Works off the jobs that are not in the table of runs yet: here, in a pool of processes, or on a Ray cluster.

Called by ``Workbench.sweep``. Each job's rows are appended when it ends, so a sweep that is killed goes on from there.
"""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import torch

from frpt.errors import OptionError, SweepError
from frpt_paper.runs.jobs import Job
from frpt_paper.runs.runs_table import Row, RunsTable

RunJob = Callable[[Any], Sequence[Row]]
Outcome = tuple[Job, Sequence[Row] | Exception]
CLUSTERS = ("ray",)


def sweep(
    jobs: Iterable[Job],
    run: RunJob,
    table: RunsTable,
    *,
    workers: int = 1,
    cluster: str | None = None,
    progress: Callable[[Job, int, int], None] | None = None,
) -> None:
    """Run every job once. A sweep that was stopped goes on with what is missing when the same call is made again.

    Jobs that fail do not stop the others; they are named in one error at the end, and are tried again the next time.

    Args:
        jobs: what is to be run; those whose rows are in the table are left out.
        run: gives a job's rows, e.g. one per epoch. A function of a module: other processes import it.
        table: where rows are kept.
        workers: processes of one thread each; 1 runs the jobs here.
        cluster: "ray" runs them as tasks of the Ray cluster at hand instead; its nodes must see the same files.
        progress: called with (job, jobs ended, jobs to do).

    Raises:
        SweepError: some runs failed.
        OptionError: no such cluster, or Ray is not installed.
    """
    if workers < 1:
        raise OptionError(f"workers must be at least 1, got {workers}")
    check_cluster(cluster)
    table.cut_unfinished_line()
    done = table.done()
    missing = list({job.key: job for job in jobs if job.key not in done}.values())
    failed: list[tuple[Job, Exception]] = []
    if cluster is not None:
        outcomes = _on_ray(missing, run)
    else:
        outcomes = _here(missing, run) if workers == 1 else _pool(missing, run, workers)
    for ended, (job, outcome) in enumerate(outcomes, 1):
        if isinstance(outcome, Exception):
            failed.append((job, outcome))
        else:
            table.append(job, outcome)
        if progress is not None:
            progress(job, ended, len(missing))
    if failed:
        listing = "\n".join(f"  - {job}: {type(error).__name__}: {error}" for job, error in failed[:3])
        raise SweepError(
            f"{len(failed)} of {len(missing)} runs failed; the others are in {str(table.path)!r}:\n{listing}\n"
            "The same call tries them again."
        ) from failed[0][1]


def check_cluster(cluster: str | None) -> None:
    """Refuse a cluster that does not exist, or whose package is not installed; before anything is trained."""
    if cluster is not None and cluster not in CLUSTERS:
        raise OptionError(
            f"unknown cluster {cluster!r}: there is {', '.join(CLUSTERS)}; leave it out for processes here"
        )
    if cluster is not None and sys.modules.get(cluster) is None and importlib.util.find_spec(cluster) is None:
        raise OptionError("cluster='ray' needs Ray: pip install 'frpt[ray]', or leave it out for processes here")


def _here(jobs: Sequence[Job], run: RunJob) -> Iterator[Outcome]:
    for job in jobs:
        yield _attempt(run, job)


def _attempt(run: RunJob, job: Job) -> Outcome:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return job, run(job)
    except Exception as error:
        return job, error
    finally:
        torch.set_num_threads(threads)


def _pool(jobs: Sequence[Job], run: RunJob, workers: int) -> Iterator[Outcome]:
    """In fresh processes, in the order they end."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin)
    try:
        with _ctrl_c_ignored():  # workers inherit that: Ctrl-C is for this process, which ends them
            futures = {pool.submit(run, job): job for job in jobs}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield futures[future], future.result() if error is None else error
    except BaseException:  # stopped: what is being run is not waited for
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Processes that are started meanwhile do not hear of Ctrl-C. Other threads than the main one cannot say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin() -> None:
    """A worker's start: one thread, and a watch that ends it when the process that started it was killed."""
    torch.set_num_threads(1)  # so that numbers depend neither on the machine nor on the number of workers
    _keep_memory()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _keep_memory() -> None:
    """Have the C library keep freed memory: giving it back after every step costs page faults at the next one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        trim_threshold, mmap_threshold, most = -1, -3, 2**30
        mallopt(trim_threshold, most)
        mallopt(mmap_threshold, most)


def _follow(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _on_ray(jobs: Sequence[Job], run: RunJob) -> Iterator[Outcome]:
    """As Ray tasks of one processor each, in the order they end."""
    import ray

    if not ray.is_initialized():
        ray.init()
    task = ray.remote(_attempt)
    pending = {task.remote(run, job): job for job in jobs}
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1)
        for reference in ready:
            job = pending.pop(reference)
            try:
                yield ray.get(reference)
            except Exception as error:  # the task itself is lost: a node that died, no memory
                yield job, error
