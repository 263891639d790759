"""Files and directories appear whole or not at all."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from frpt.errors import StoreError
from frpt.files.atomic import check_file, check_folder, create_atomic, staged, sweep, write_atomic


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


def device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("only root makes devices")


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


@pytest.mark.parametrize(("make", "word"), [(device, "a device"), (os.mkfifo, "a pipe"), (bound, "a socket")])
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], word: str, linked: bool
) -> None:
    special, path = tmp_path / "special", tmp_path / "page.html"
    make(special)
    path = path if linked else special
    if linked:
        path.symlink_to(special)
    before = os.lstat(special)
    for write in (lambda: write_atomic(path, b"data"), lambda: check_file(path)):
        with pytest.raises(StoreError, match=f"it is {word}, which is left as it is"):
            write()
    if not linked:
        with pytest.raises(StoreError, match=word):
            write_atomic(path, b"data", links=False)
    after = os.lstat(special)
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
    assert names(tmp_path) == {special.name, path.name}


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real, link, dangling, loop = (tmp_path / name for name in ("there/real.html", "link.html", "dangling", "loop"))
    real.write_text("old")
    link.symlink_to("there/real.html")
    dangling.symlink_to("there/new.html")
    loop.symlink_to(loop)
    write_atomic(link, b"new")
    write_atomic(dangling, b"new")
    assert link.is_symlink()
    assert real.read_text() == (tmp_path / "there" / "new.html").read_text() == "new"
    with pytest.raises(StoreError, match="a link to itself"):
        write_atomic(loop, b"new")
    write_atomic(link, b"newer", links=False)
    assert not link.is_symlink()
    assert real.read_text() == "new"
    assert names(tmp_path / "there") == {"real.html", "new.html"}


def test_a_file_that_cannot_be_written_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_file(tmp_path / "file")
    check_file(tmp_path / "deep" / "page.html")
    with pytest.raises(StoreError, match="it is a directory; name a file"):
        check_file(tmp_path)
    with pytest.raises(StoreError, match="is no directory"):
        check_file(tmp_path / "file" / "page.html")
    assert names(tmp_path) == {"file"}
