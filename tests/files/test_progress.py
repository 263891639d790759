"""What the progress bar shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from frpt.files import progress
from frpt.files.progress import Progress


def text(bar: Progress, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(bar._bar.get_renderable())
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_it_shows_what_is_done_how_fast_and_some_words() -> None:
    out = Console(file=io.StringIO())
    with Progress("targets", 40, done=10, console=out) as bar:
        for _ in range(5):
            bar.advance(4, "30 % corrected")
        assert "30/40" in text(bar)
        assert bar.rate.endswith(" samples/s")
        assert f"{bar.rate}, 30 % corrected" in text(bar)
        bar.describe("trust")
        bar.advance(2)
        assert text(bar).startswith("trust ")
        assert "32/40" in text(bar)
        assert "30 % corrected" in text(bar), "words stay until others come"
        assert len(text(bar, 80).splitlines()) == 1


def test_slow_work_is_counted_by_the_minute() -> None:
    bar = Progress("runs", 4, unit="runs", shown=False)
    task = bar._bar.tasks[0]
    assert bar.rate == ""
    seconds = iter(range(0, 4000, 40))
    bar._bar.get_time = lambda: float(next(seconds))
    task._get_time = bar._bar.get_time
    bar._bar.start_task(task.id)
    bar.advance()
    bar.advance()
    bar.advance()
    assert bar.rate.endswith(" runs/min")


def test_what_was_done_before_does_not_count_for_the_rate() -> None:
    bar = Progress("diagnosing", 1000, shown=False)
    bar.jump_to(990)
    assert bar.rate == ""
    assert "990/1000" in text(bar)


def test_nothing_is_shown_where_nothing_shall_be() -> None:
    out = Console(file=io.StringIO())
    with Progress("targets", 3, shown=False, console=out) as bar:
        bar.advance(3)
    assert out.file.getvalue() == ""  # type: ignore[attr-defined]


class Clocked:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_without_a_terminal_there_are_plain_lines_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clocked(monkeypatch), Console(file=io.StringIO(), width=40)
    with Progress("diagnosing", 1000, console=out) as bar:
        for _ in range(10):
            clock.now += 40
            bar.advance(100, "3 wrong")
        clock.now += 5
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "diagnosing: about 7 min for 1,000 samples"
    assert lines[1].startswith("diagnosing: 200/1,000 (20 %), ")
    assert lines[1].endswith("3 wrong, 5 min left")
    assert lines[-1] == "diagnosing: 1,000 samples in 7 min, 2.5 samples/s, 3 wrong"
    assert len(lines) == 10
    assert not any(sign in line for sign in "━\x1b" for line in lines)


def test_quick_work_says_one_line_and_what_was_done_before_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clocked(monkeypatch), Console(file=io.StringIO())
    with Progress("targets", 1000, done=900, console=out) as bar:
        for _ in range(100):
            clock.now += 0.1
            bar.advance()
    assert out.file.getvalue() == "targets: 1,000 samples in 10 s, 10 samples/s\n"  # type: ignore[attr-defined]


def test_long_work_tells_its_time_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clocked(monkeypatch), Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress("targets", 1000, console=out) as bar:
        clock.now += 30
        bar.advance(10)
    assert "targets: about 50 min for 1,000 samples" in out.file.getvalue()  # type: ignore[attr-defined]


def test_times_in_words() -> None:
    assert [progress.duration(s) for s in (2.34, 40, 99, 700, 12_000)] == [
        "2.3 s",
        "40 s",
        "99 s",
        "12 min",
        "3 h 20 min",
    ]
