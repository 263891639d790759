"""What the progress bar shows."""

from __future__ import annotations

import io

from rich.console import Console

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
