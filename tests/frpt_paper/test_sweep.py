"""Grids, the table of results, sweeps that are stopped and go on, and the paired table."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frpt import stats
from frpt.errors import OptionError, SweepError
from frpt_paper import PostTrainingJob, RunsTable, grid, metrics, paired_table, sweep
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT, Job


def jobs(seeds: int = 3) -> list[PostTrainingJob]:
    return grid("mnist", "simple_cnn", l_r=["1", "out"], c_rec=[0, 0.1, 0.3], seeds=range(seeds), epochs=2)


def accuracy(job: PostTrainingJob, epoch: int) -> float:
    """A gain from c_rec at the output alone, and noise that the seed decides."""
    noise = np.random.default_rng([job.seed, epoch, round(100 * job.c_rec)]).normal()
    gain = job.c_rec if job.l_r == "out" and job.arm == FRPT else 0.0
    return 0.6 + 0.1 * gain + 0.001 * noise


def fake(job: PostTrainingJob) -> list[dict[str, float | None]]:
    return [{"epoch": e, "metric": accuracy(job, e), "start": 0.5, "rec_loss": None} for e in (1, 2)]


def moody(job: PostTrainingJob) -> list[dict[str, float | None]]:
    if job.seed == 1:
        raise ValueError("not today")
    return fake(job)


def one_is_endless(job: PostTrainingJob) -> list[dict[str, float | None]]:
    if job.l_r == "out":
        time.sleep(1000)
    return fake(job)


def test_the_grid_has_matched_controls_once() -> None:
    found = grid("cifar10", "simple_cnn", l_r=["3"], c_rec=[0.1, 0.3], seeds=[4], presets=["default", "paper"])
    ways = [(j.arm, j.c_rec, j.preset) for j in found]
    assert ways == [
        (BACKPROP, 0.0, ""), (ANCHOR, 0.1, ""), (FRPT, 0.1, "default"), (FRPT, 0.1, "paper"),
        (ANCHOR, 0.3, ""), (FRPT, 0.3, "default"), (FRPT, 0.3, "paper"),
    ]  # fmt: skip
    assert len(jobs()) == 3 * 2 * 5
    assert [j.seed for j in jobs()] == sorted(j.seed for j in jobs())


def test_keys_tell_jobs_apart() -> None:
    job = PostTrainingJob("mnist", "simple_cnn", "1", 0.1, 0)
    others = [replace(job, seed=1), replace(job, c_rec=0.3), replace(job, l_r="2"), replace(job, lr=1e-3)]
    assert len({j.key for j in [job, *others]}) == 5
    assert PostTrainingJob("mnist", "simple_cnn", "1", 0.1, 0).key == job.key
    with pytest.raises(OptionError, match="anchor-only"):
        replace(job, arm="bp")
    with pytest.raises(OptionError, match="c_rec must be 0"):
        replace(job, c_rec=0.0)


def test_a_sweep_runs_every_job_once(tmp_path: Path) -> None:
    results, seen = RunsTable(tmp_path / "deep" / "runs.csv"), []

    def run(job: PostTrainingJob) -> list[dict[str, float | None]]:
        seen.append(job.key)
        return fake(job)

    sweep(jobs(2), run, results)
    assert len(seen) == len(jobs(2))
    sweep(jobs(3), run, results)
    assert sorted(seen) == sorted(j.key for j in jobs(3))
    frame = results.frame()
    assert len(frame) == 2 * len(seen)
    row = frame[(frame["l_r"] == "out") & (frame["arm"] == FRPT) & (frame["c_rec"] == 0.3) & (frame["seed"] == 2)]
    job = next(j for j in jobs() if (j.l_r, j.arm, j.c_rec, j.seed) == ("out", FRPT, 0.3, 2))
    assert row["metric"].tolist() == [accuracy(job, 1), accuracy(job, 2)]
    assert frame["l_r"].unique().tolist() == ["1", "out"]
    assert frame["rec_loss"].isna().all()
    assert set(frame["preset"]) == {"", "default"}


@pytest.mark.parametrize("cut", [1, 40, 400, 1000])
def test_a_killed_writer_costs_only_the_job_it_was_at(tmp_path: Path, cut: int) -> None:
    results = RunsTable(tmp_path / "runs.csv")
    sweep(jobs(1), fake, results)
    whole = results.frame()
    data = results.path.read_bytes()
    results.path.write_bytes(data[:-cut])
    left = results.frame()
    assert 0 < len(left) < len(whole)
    assert left["job"].value_counts().eq(2).all()
    sweep(jobs(1), fake, results)
    again = results.frame().sort_values(["job", "epoch"], ignore_index=True)
    assert again.equals(whole.sort_values(["job", "epoch"], ignore_index=True))


def test_failures_are_named_and_tried_again(tmp_path: Path) -> None:
    results = RunsTable(tmp_path / "runs.csv")
    with pytest.raises(SweepError, match=r"10 of 30 runs failed[\s\S]*not today"):
        sweep(jobs(), moody, results)
    assert set(results.frame()["seed"]) == {0, 2}
    sweep(jobs(), fake, results)
    assert len(results.done()) == 30


def test_processes_give_the_same_table(tmp_path: Path) -> None:
    one, many, ended = RunsTable(tmp_path / "one.csv"), RunsTable(tmp_path / "many.csv"), []
    sweep(jobs(1), fake, one)
    sweep(jobs(1), fake, many, workers=2, progress=lambda job, n, of: ended.append((n, of)))
    a, b = (r.frame().sort_values(["job", "epoch"], ignore_index=True) for r in (one, many))
    assert a.equals(b)
    assert ended == [(i, 10) for i in range(1, 11)]


def test_a_sweep_that_is_stopped_does_not_wait_for_what_is_running(tmp_path: Path) -> None:
    def interrupted(job: Job, ended: int, of: int) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sweep(jobs(1), one_is_endless, RunsTable(tmp_path / "runs.csv"), workers=2, progress=interrupted)
    assert time.monotonic() - begun < 200
    assert signal.getsignal(signal.SIGINT) is before
    assert not multiprocessing.active_children()


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    results, job = RunsTable(tmp_path / "runs.csv"), jobs()[0]
    results.append(job, [{"epoch": 1, "metric": 0.5}])
    with pytest.raises(SweepError, match="another"):
        results.append(jobs()[1], [{"epoch": 1, "loss": 0.5}])
    with pytest.raises(SweepError, match="no rows"):
        results.append(jobs()[1], [])
    with pytest.raises(OptionError, match="workers"):
        sweep(jobs(), fake, results, workers=0)


def test_the_papers_metrics_and_paired_table(tmp_path: Path) -> None:
    results = RunsTable(tmp_path / "runs.csv")
    sweep(jobs(6), fake, results)
    runs = metrics(results.frame())
    some = next(j for j in jobs(6) if (j.l_r, j.arm, j.c_rec, j.seed) == ("out", FRPT, 0.1, 3))
    values = [100 * accuracy(some, e) for e in (1, 2)]
    row = runs[(runs["l_r"] == "out") & (runs["arm"] == FRPT) & (runs["c_rec"] == 0.1) & (runs["seed"] == 3)].iloc[0]
    assert (row["best"], row["mean"], row["epoch 1"]) == pytest.approx((max(values), np.mean(values), values[0]))
    table = paired_table(runs)
    assert len(table) == 2 * 3  # two layers; best, mean, epoch 1
    out = table[(table["l_r"] == "out") & (table["metric"] == "mean")].iloc[0]
    assert (out["c_rec_star"], out["reference"], out["n"]) == (0.3, 0.0, 6)
    means = {
        c: [np.mean([100 * accuracy(j, e) for e in (1, 2)]) for j in jobs(6)
            if j.l_r == "out" and j.c_rec == c and j.arm in (FRPT, BACKPROP)]
        for c in (0.0, 0.3)
    }  # fmt: skip
    reference = stats.paired(means[0.3], means[0.0])
    assert (out["delta_pp"], out["p_t"]) == pytest.approx((reference.delta, reference.p_t))
    assert (table["p_holm"] >= table["p_bh"]).all()
    assert (table["p_bh"] >= table["p_t"]).all()
    assert table["p_holm"].min() == pytest.approx(6 * table["p_t"].min())
    anchored = paired_table(runs, arm=ANCHOR, names=["mean"])
    assert anchored[anchored["l_r"] == "out"]["delta_pp"].iloc[0] < 1
    with pytest.raises(OptionError, match="FR-PT"):
        paired_table(runs, arm="bp")


class FakeRay:
    """As much of Ray as a sweep uses; the second task is lost with its node."""

    def __init__(self) -> None:
        self.started, self.tasks = False, 0

    def is_initialized(self) -> bool:
        return self.started

    def init(self) -> None:
        self.started = True

    def remote(self, function: Callable[..., Any]) -> Any:
        def submit(*arguments: Any) -> tuple[int, Any]:
            self.tasks += 1
            return self.tasks, function(*arguments) if self.tasks != 2 else None

        return SimpleNamespace(remote=lambda *a: _Reference(*submit(*a)))

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[-1:], references[:-1]

    def get(self, reference: Any) -> Any:
        if reference.value is None:
            raise ConnectionError("the node died")
        return reference.value


class _Reference:
    def __init__(self, number: int, value: Any) -> None:
        self.number, self.value = number, value


def test_a_ray_cluster_by_the_same_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray, one, many = FakeRay(), RunsTable(tmp_path / "one.csv"), RunsTable(tmp_path / "many.csv")
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(SweepError, match=r"1 of 10 runs failed[\s\S]*the node died"):
        sweep(jobs(1), fake, many, cluster="ray")
    assert ray.started
    sweep(jobs(1), fake, many, cluster="ray")  # the third task of all: not lost
    sweep(jobs(1), fake, one)
    a, b = (r.frame().sort_values(["job", "epoch"], ignore_index=True) for r in (one, many))
    assert a.equals(b)


def test_a_cluster_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"frpt\[ray\]"):
        sweep(jobs(1), fake, RunsTable(tmp_path / "runs.csv"), cluster="ray")
    with pytest.raises(OptionError, match="unknown cluster"):
        sweep(jobs(1), fake, RunsTable(tmp_path / "runs.csv"), cluster="slurm")
