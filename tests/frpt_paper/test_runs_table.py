"""Runs that another run decides: λ at its bound; against runs that were made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from frpt_paper import PostTrainingJob, RunsTable
from frpt_paper.experiments.classification import runs_line, weights
from frpt_paper.runs.jobs import ANCHOR, FRPT
from frpt_paper.runs.lab import Lab
from frpt_paper.runs.pretraining import Recipe
from frpt_paper.runs.runs_table import LARGEST_WEIGHT, always_at_bound, decided

JOB = PostTrainingJob("mnist", "simple_cnn", "1", 0.1, 0, FRPT, "default", epochs=2)


def table(path: Path, job: PostTrainingJob, weights: tuple[float, float]) -> pd.DataFrame:
    rows = [
        {"epoch": e, "metric": 0.5 + e / 10, "weight": w, "deviation": None, "seconds": 3.0, "wall": 7.0}
        for e, w in enumerate(weights, 1)
    ]
    results = RunsTable(path / "runs.csv")
    results.append(job, rows)
    return results.frame()


@pytest.mark.parametrize(
    ("job", "weight", "found"),
    [
        (replace(JOB, c_rec=0.3), LARGEST_WEIGHT, True),
        (replace(JOB, c_rec=0.3), 0.99 * LARGEST_WEIGHT, False),
        (replace(JOB, c_rec=0.05), LARGEST_WEIGHT, False),
        (replace(JOB, c_rec=0.3, seed=1), LARGEST_WEIGHT, False),
        (replace(JOB, c_rec=0.3, epochs=3), LARGEST_WEIGHT, False),
        (replace(JOB, preset="paper"), LARGEST_WEIGHT, False),
    ],
)
def test_a_weight_at_its_bound_decides_larger_strengths(
    job: PostTrainingJob, weight: float, found: bool, tmp_path: Path
) -> None:
    rows = decided(job, table(tmp_path, JOB, (LARGEST_WEIGHT, weight)))
    assert [row["metric"] for row in rows] == ([0.6, 0.7] if found else [])
    assert all(row["deviation"] is None and row["wall"] == row["seconds"] == 0 for row in rows)


def test_presets_differ_at_the_output_too(tmp_path: Path) -> None:
    """The default's label wins by a hair, the paper's ties."""
    at_out = replace(JOB, l_r="out")
    frame = table(tmp_path, at_out, (1.0, 1.0))
    assert not decided(replace(at_out, preset="paper"), frame)


def test_a_decided_run_equals_the_one_that_is_made(tmp_path: Path) -> None:
    """Anchor-only starts at its targets, so that λ is at its bound; the same labs, once with and once without."""
    frames = []
    for share in (True, False):
        lab = Lab(tmp_path / str(share), None, 192, 50)
        kept = lab.table if share else RunsTable(tmp_path / "elsewhere.csv")
        start = lab.starting_models("digits", "simple_cnn", Recipe(1, 64, 5e-3, 1e-3))[-1]
        jobs = [PostTrainingJob("digits", "simple_cnn", "2", c, 0, ANCHOR, "", "", start.name, 2) for c in (0.1, 0.9)]
        lab.write_stores(jobs, progress=False)
        for job in jobs:
            kept.append(job, lab.run(job))
        frames.append(kept.frame())
    shared, made = frames
    assert always_at_bound(made) == set(made["job"])
    assert (shared["wall"] > 0).tolist() == [True, True, False, False]
    assert (made["wall"] > 0).all()
    measured = [c for c in made.columns if c not in ("seconds", "wall")]
    pd.testing.assert_frame_equal(shared[measured], made[measured])
    assert "2 runs of 2 epochs over seeds 0 to 0, 1 of them decided by others; " in runs_line(shared)
    assert "decided" not in runs_line(made)
    found = weights(made)
    assert found["c_rec"].tolist() == [0.1, 0.9]
    assert found["weight"].tolist() == [LARGEST_WEIGHT, LARGEST_WEIGHT]
    assert found["at_bound"].tolist() == [1.0, 1.0]
    least = (made["c_rec"] * made["task_loss"] / made["rec_loss"]).groupby(made["c_rec"]).min()
    assert found["unbounded"].tolist() == least.tolist()
    assert least.min() > LARGEST_WEIGHT
