"""What the progress bar shows."""

from __future__ import annotations

import io
import threading
import time
import warnings

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


def test_without_a_terminal_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is finished, and in stages after the counted work, a line says what is being done."""
    clock, out = Clocked(monkeypatch), Console(file=io.StringIO())
    with Progress("diagnosing", 100, console=out) as bar:
        for _ in range(4):
            clock.now += 10
            bar._break_silence()
        bar.advance(100, "3 wrong")
        bar.describe("ranking layers")
        for _ in range(4):
            clock.now += 10
            bar._break_silence()
    assert out.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "diagnosing: 0/100, 20 s so far",
        "diagnosing: 0/100, 40 s so far",
        "ranking layers: 20 s so far",
        "ranking layers: 40 s so far",
        "diagnosing: 100 samples in 80 s, 1.2 samples/s, 3 wrong",
    ]


def test_long_work_breaks_silence_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clocked(monkeypatch), Console(file=io.StringIO())
    with Progress("diagnosing", 100, console=out) as bar:
        for _ in range(3600):
            clock.now += 10
            bar._break_silence()
    assert 100 < len(out.file.getvalue().splitlines()) < 200  # type: ignore[attr-defined]


def test_silence_is_broken_by_a_thread_that_ends_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SILENCE", (0.1, 0.0))
    monkeypatch.setattr(progress, "_LOOKS", 0.05)
    out, before = Console(file=io.StringIO()), threading.active_count()
    with Progress("diagnosing", 100, console=out):
        time.sleep(0.5)
    assert "diagnosing: 0/100, 0." in out.file.getvalue()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_units_without_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clocked(monkeypatch), Console(file=io.StringIO())
    with Progress("repairing", 6, unit="strengths", rated=False, console=out) as bar:
        clock.now += 20
        bar.advance(1, "20 of 30 right")
        bar.describe("the end")
    assert out.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "repairing: at most about 2 min for 6 strengths",
        "repairing: 1 strength in 20 s, 20 of 30 right",
    ]


def test_work_that_ends_early_gives_no_estimate_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clocked(monkeypatch), Console(file=io.StringIO())
    with Progress("repairing", 6, unit="strengths", rated=False, console=out) as bar:
        clock.now += 60
        bar.advance(last=True)
        assert "1/1" in text(bar)
    assert out.file.getvalue() == "repairing: 1 strength in 60 s\n"  # type: ignore[attr-defined]


def test_times_in_words() -> None:
    assert [progress.duration(s) for s in (2.34, 40, 99, 700, 12_000)] == [
        "2.3 s",
        "40 s",
        "99 s",
        "12 min",
        "3 h 20 min",
    ]


def test_a_notebook_without_widgets_gets_lines_and_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ipywidgets are missing, rich only warns and draws nothing."""
    monkeypatch.setattr("frpt.files.progress.find_spec", lambda name: None)
    out = Console(file=io.StringIO(), force_jupyter=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Progress("repairing", 4, console=out) as bar:
            bar.advance(4)
    assert not bar._bar.live.is_started
    assert bar._lines
