"""A sweep's table and a half-done diagnosis: what is not as it was written is named, and nothing goes on from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import frpt
from frpt.errors import FrptError, OptionError, SweepError
from frpt.files.progress import Progress
from frpt_paper import PostTrainingJob, RunsTable
from frpt_paper.runs.jobs import FRPT
from tests.faults.damage import HOSTILE, flips
from tests.train.toys import blobs, reverser

JOB = PostTrainingJob("mnist", "simple_cnn", "1", 0.1, 0, FRPT, "default", epochs=2)


def filled(path: Path, seeds: int = 4) -> RunsTable:
    table = RunsTable(path)
    for seed in range(seeds):
        rows = [{"epoch": e, "metric": 0.5 + e / 10 + seed / 7, "weight": 3.25} for e in (1, 2)]
        table.append(replace(JOB, seed=seed), rows)
    return table


def test_every_flipped_bit_of_a_table_is_noticed(tmp_path: Path) -> None:
    table = filled(tmp_path / "runs.csv")
    sound = table.frame()
    assert len(sound) == 8
    for _ in flips(table.path, 100):
        with pytest.raises(SweepError, match=r"runs\.csv.*damaged"):
            table.frame()
    for _ in flips(table.checksums, 30):
        with pytest.raises(SweepError, match="damaged"):
            table.frame()
    assert table.frame().equals(sound)


def test_a_table_of_an_earlier_version_is_taken_as_it_is_and_guarded_from_then_on(tmp_path: Path) -> None:
    table = filled(tmp_path / "runs.csv", 2)
    table.checksums.unlink()
    assert len(table.frame()) == 4
    table.append(replace(JOB, seed=9), [{"epoch": 1, "metric": 0.5, "weight": 1.0}] * 2)
    assert len(table.frame()) == 6
    for _ in flips(table.path, 40, seed=1):
        with pytest.raises(SweepError):
            table.frame()


def test_a_writer_that_is_killed_between_checksums_and_rows_leaves_a_sound_table(tmp_path: Path) -> None:
    table = filled(tmp_path / "runs.csv", 2)
    data, known = table.path.read_bytes(), table.checksums.read_bytes()
    filled(tmp_path / "more.csv", 3)
    more = (tmp_path / "more.csv.sha256").read_bytes()
    for cut in (len(known) + 1, len(known) + 40, len(more) - 1, len(more)):
        table.checksums.write_bytes(more[:cut])
        table.path.write_bytes(data)
        table.cut_unfinished_line()
        assert len(table.frame()) == 4
        table.append(replace(JOB, seed=2), [{"epoch": 1, "metric": 0.5, "weight": 1.0}] * 2)
        assert len(table.frame()) == 6


def stopped(path: Path) -> None:
    """A diagnosis that is interrupted in its second batch."""

    def advance(self: Progress, *_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "advance", advance)
        with pytest.raises(KeyboardInterrupt):
            diagnosed(path)


def diagnosed(path: Path) -> frpt.Diagnosis:
    return frpt.diagnose(
        reverser(), blobs(), ["3"], reference=False, gallery=0, batch_size=16, partial=path, progress=False
    )


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diagnosis") / "partial"
    stopped(path)
    return path


def test_every_flipped_bit_of_a_half_done_diagnosis_is_noticed(half_done: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(half_done, tmp_path / "partial"))
    for _ in flips(path, 40):
        with pytest.raises(OptionError, match="damaged"):
            diagnosed(path)
    assert (diagnosed(path).samples.deviation == diagnosed(tmp_path / "new").samples.deviation).all()
    assert not path.exists()


@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_a_hostile_file_is_no_half_done_diagnosis(
    half_done: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = Path(shutil.copy(half_done, tmp_path / "partial"))
    harm(path)
    words = "damaged" if path.is_file() else "could not be written"  # before the work: a folder, a link to nowhere
    with pytest.raises(FrptError, match=words):
        diagnosed(path)
