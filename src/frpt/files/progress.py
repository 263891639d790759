"""The one progress bar: what is done and of how much, how fast, a few words, the time left, a unit that takes long.

Called by every long work: writing and verifying targets, references, diagnoses, training, the demo.
"""

from __future__ import annotations

from types import TracebackType

from rich import progress as bars
from rich.console import Console
from rich.table import Column
from rich.text import Text

from frpt.common.clock import at_work

_PERIOD = 3600.0
"""Seconds the rate averages over, at most (rich keeps 1000 steps); its default of 30 shows none for slow steps."""


class Progress:
    """A bar on the standard error stream, for the time of a ``with`` block.

    Args:
        description: What is being done, in a word or two.
        total: How many units there are.
        done: How many of them were done before.
        unit: What is counted, for the rate: "samples/s".
        shown: False shows nothing.
        transient: The bar goes when the work is done.
        console: Where to show it, instead of the standard error stream.
    """

    def __init__(
        self,
        description: str,
        total: int,
        *,
        done: int = 0,
        unit: str = "samples",
        shown: bool = True,
        transient: bool = False,
        console: Console | None = None,
    ) -> None:
        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(None),
            bars.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            bars.TextColumn("{task.fields[text]}"),
            bars.TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True, min_width=7)),
            _SlowUnit(),
        )
        self._bar = bars.Progress(
            *columns,
            console=console or Console(stderr=True),
            disable=not shown,
            transient=transient,
            speed_estimate_period=_PERIOD,
        )
        self._task = self._bar.add_task(description, total=total, completed=done, text="")
        self._unit, self._words = unit, ""

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refreshing = getattr(self._bar.live, "_refresh_thread", None)  # rich tells it to end and does not wait
        self._bar.stop()
        if refreshing is not None:
            refreshing.join()

    @property
    def rate(self) -> str:
        """How fast it goes: per second, or per minute where that is less than one a second; empty at the start."""
        speed = self._bar.tasks[0].speed
        if not speed:
            return ""
        if speed < 1:
            return f"{60 * speed:.1f} {self._unit}/min"
        return f"{speed:,.{0 if speed >= 10 else 1}f} {self._unit}/s"

    def advance(self, count: int = 1, words: str | None = None) -> None:
        """So many units more. words: shown beside the rate from now on."""
        self._words = self._words if words is None else words
        self._bar.advance(self._task, count)
        self._bar.update(self._task, text=", ".join(part for part in (self.rate, self._words) if part))

    def describe(self, description: str) -> None:
        """What is being done from now on."""
        self._bar.update(self._task, description=description)

    def jump_to(self, done: int) -> None:
        """So many units are done, e.g. after a state was restored; the rate does not count them."""
        self._bar.reset(self._task, completed=done)


class _SlowUnit(bars.ProgressColumn):
    """The unit of the network that has been at work for long: the bar stands still meanwhile."""

    def render(self, task: bars.Task) -> Text:
        return Text(at_work(), style="yellow")
