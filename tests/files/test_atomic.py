"""Files and directories appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frpt.errors import StoreError
from frpt.files.atomic import check_folder, create_atomic, staged, sweep, write_atomic


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def test_a_file_takes_its_place_when_the_block_ends(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    with staged(file) as part:
        part.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert names(tmp_path) == {"page.html"}


def test_a_directory_replaces_one_that_holds_something(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with staged(tmp_path / "state") as part:
            part.mkdir()
            (part / text).write_text(text)
    assert names(tmp_path / "state") == {"second"}
    assert names(tmp_path) == {"state"}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")

    def fail() -> None:
        with staged(file) as part:
            part.write_text("ne")
            raise error

    with pytest.raises(error):
        fail()
    assert file.read_text() == "old"
    assert names(tmp_path) == {"page.html"}


def test_long_names_leave_room_for_the_suffix(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 250)
    with staged(file) as part:
        part.write_text("x")
    assert names(tmp_path) == {file.name}


def test_the_first_creator_wins(tmp_path: Path) -> None:
    assert create_atomic(tmp_path / "manifest", b"one", rank=0)
    assert not create_atomic(tmp_path / "manifest", b"two", rank=1)
    assert (tmp_path / "manifest").read_bytes() == b"one"
    assert names(tmp_path) == {"manifest"}


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    for owner in (0, 1, 5):
        (tmp_path / f"shard.{owner}.tmp").write_bytes(b"")
    sweep(tmp_path, rank=0, world=2)
    assert names(tmp_path) == {"shard.1.tmp"}


def test_a_disk_that_refuses_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="could not be written"):
        write_atomic(tmp_path / "missing" / "file", b"data")


def test_new_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomic(tmp_path / "file", b"data")
    assert os.stat(tmp_path / "file").st_mode == os.stat(tmp_path / "plain").st_mode


def test_a_place_that_cannot_be_written_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    check_folder(tmp_path / "deep" / "er")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="is no directory"):
            check_folder(place)
