"""Runs and checkpoints under ``results/`` are found again: a change of their keys would make everything anew."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from frpt_paper import PostTrainingJob, RunsTable
from frpt_paper.experiments.adaptation import AdaptationJob
from frpt_paper.experiments.adapting import AdaptingJob
from frpt_paper.runs.jobs import Job, ProtocolJob
from frpt_paper.runs.planner_repairs import RepairJob
from frpt_paper.runs.planners import PlannerJob
from frpt_paper.runs.pretraining import PlateauRecipe, Recipe
from frpt_paper.runs.starting_models import starting_models

RESULTS = Path(__file__).parents[2] / "results"
TABLES = sorted([*RESULTS.glob("*/runs.csv"), *RESULTS.glob("*/repairs.csv")])
INDICES = sorted((RESULTS / "checkpoints").glob("*.json"))
KINDS: dict[str, type[Job]] = {
    "pull": AdaptingJob,
    "images": ProtocolJob,
    "corruption": AdaptationJob,
    "failing": RepairJob,
    "height": PlannerJob,
}
"""A column → the jobs that have it, the first that fits."""


class Split:
    """As much of a split as names a checkpoint."""

    def __init__(self, dataset: str, count: int) -> None:
        self.info, self.count = SimpleNamespace(name=dataset), count

    def __len__(self) -> int:
        return self.count


def test_there_are_some() -> None:
    assert TABLES
    assert INDICES


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_keys_of_runs(path: Path) -> None:
    frame = RunsTable(path).frame().drop_duplicates("job")
    kind = next((job for column, job in KINDS.items() if column in frame), PostTrainingJob)
    names = [field.name for field in fields(kind)]
    rows = frame[names].to_dict("records")
    assert [kind(**row).key for row in rows] == frame["job"].tolist()


@pytest.mark.parametrize("path", INDICES, ids=lambda path: path.stem)
def test_checkpoints_are_not_trained_again(path: Path) -> None:
    index = json.loads(path.read_text())
    splits = Split(index["dataset"], index["train"]), Split(index["dataset"], index["test"])
    kind = PlateauRecipe if "marks" in index["recipe"] else Recipe
    recipe, keep = kind(**index["recipe"]), index["keep"]
    before = sorted(path.parent.iterdir())
    starts = starting_models(path.parent, index["model"], *splits, recipe, seed=index["seed"], keep=keep)  # type: ignore[arg-type]
    assert [start.name for start in starts] == [saved["name"] for saved in index["saved"]]
    assert sorted(path.parent.iterdir()) == before
