"""Runs that another run decides: λ at its bound; against runs that were made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from frpt_paper import Job, Results
from frpt_paper.classification import runs_line, weights
from frpt_paper.jobs import ANCHOR, FRPT
from frpt_paper.known import CAP, capped, decided
from frpt_paper.lab import Lab
from frpt_paper.pretrain import Recipe

JOB = Job("mnist", "simple_cnn", "1", 0.1, 0, FRPT, "default", epochs=2)


def table(path: Path, job: Job, weights: tuple[float, float]) -> pd.DataFrame:
    rows = [
        {"epoch": e, "metric": 0.5 + e / 10, "weight": w, "deviation": None, "seconds": 3.0, "wall": 7.0}
        for e, w in enumerate(weights, 1)
    ]
    results = Results(path / "runs.csv")
    results.append(job, rows)
    return results.frame()


@pytest.mark.parametrize(
    ("job", "weight", "found"),
    [
        (replace(JOB, c_rec=0.3), CAP, True),
        (replace(JOB, c_rec=0.3), 0.99 * CAP, False),
        (replace(JOB, c_rec=0.05), CAP, False),
        (replace(JOB, c_rec=0.3, seed=1), CAP, False),
        (replace(JOB, c_rec=0.3, epochs=3), CAP, False),
        (replace(JOB, preset="paper"), CAP, False),
    ],
)
def test_a_weight_at_its_bound_decides_larger_strengths(job: Job, weight: float, found: bool, tmp_path: Path) -> None:
    rows = decided(job, table(tmp_path, JOB, (CAP, weight)))
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
        kept = lab.results if share else Results(tmp_path / "elsewhere.csv")
        start = lab.starts("digits", "simple_cnn", Recipe(1, 64, 5e-3, 1e-3))[-1]
        jobs = [Job("digits", "simple_cnn", "2", c, 0, ANCHOR, "", "", start.name, 2) for c in (0.1, 0.9)]
        lab.write_stores(jobs, progress=False)
        for job in jobs:
            kept.append(job, lab.run(job))
        frames.append(kept.frame())
    shared, made = frames
    assert capped(made) == set(made["job"])
    assert (shared["wall"] > 0).tolist() == [True, True, False, False]
    assert (made["wall"] > 0).all()
    measured = [c for c in made.columns if c not in ("seconds", "wall")]
    pd.testing.assert_frame_equal(shared[measured], made[measured])
    assert "2 runs of 2 epochs over seeds 0 to 0, 1 of them decided by others; " in runs_line(shared)
    assert "decided" not in runs_line(made)
    found = weights(made)
    assert found["c_rec"].tolist() == [0.1, 0.9]
    assert found["weight"].tolist() == [CAP, CAP]
    assert found["at_bound"].tolist() == [1.0, 1.0]
