"""The one progress bar: what is done and of how much, how fast, a few words, the time left, a unit that takes long.

Called by every long work: writing and verifying targets, references, diagnoses, repairs, training, the demo. Where
there is no terminal it writes a line now and then instead, also while nothing is finished. Work that will take long
says at its beginning how long.
"""

from __future__ import annotations

import threading
import time
from importlib.util import find_spec
from types import TracebackType

from rich import progress as bars
from rich.console import Console
from rich.table import Column
from rich.text import Text

from frpt.common.clock import at_work

_PERIOD = 3600.0
"""Seconds the rate averages over, at most (rich keeps 1000 steps); its default of 30 shows none for slow steps."""


_LONG = 60.0
"""Seconds from which on the time that work will take is told at its beginning (chosen)."""
_FIRST = 1.0
"""Seconds of work after which that is known well enough: the first samples take longer than others (chosen)."""
_LINES = (10.0, 300.0, 0.05)
"""Without a terminal: seconds between two lines at least; at most; share of the work between them (chosen)."""
_SILENCE = (15.0, 0.05)
"""Without a terminal: seconds of silence after which there is a line in any case; longer work waits for this share of
the time it has taken so far, so that a night's log stays short (chosen)."""
_LOOKS = 1.0
"""Seconds between two looks at how long it has been silent (chosen)."""


class Progress:
    """A bar on the standard error stream, or lines where that is no terminal, for the time of a ``with`` block.

    Args:
        description: What is being done, in a word or two.
        total: How many units there are.
        done: How many of them were done before.
        unit: What is counted, for the rate: "samples/s".
        shown: False shows nothing.
        transient: The bar goes when the work is done.
        rated: False for units that say nothing by how many there are in a second; ``total`` is then the most there can
            be.
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
        rated: bool = True,
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
        out = console or Console(stderr=True)
        live = out.is_terminal or (out.is_jupyter and find_spec("ipywidgets") is not None)  # else rich only warns
        self._bar = bars.Progress(
            *columns,
            console=out,
            disable=not shown or not live,
            transient=transient,
            speed_estimate_period=_PERIOD,
        )
        self._task = self._bar.add_task(description, total=total, completed=done, text="")
        self._name, self._unit, self._words, self._rated = description, unit, "", rated
        self._shown, self._lines, self._transient = shown, shown and not live, transient
        self._told = False
        self._begun = self._last = self._stage_begun = time.monotonic()
        self._ended = threading.Event()
        self._watching: threading.Thread | None = None
        self._before = self._line_at = float(done)

    def __enter__(self) -> Progress:
        self._bar.start()
        self._begun = self._last = self._stage_begun = time.monotonic()
        if self._lines:
            self._watching = threading.Thread(target=self._watch, daemon=True)
            self._watching.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._watching is not None:
            self._watching.join()
        refreshing = getattr(self._bar.live, "_refresh_thread", None)  # rich tells it to end and does not wait
        self._bar.stop()
        if refreshing is not None:
            refreshing.join()
        task = self._bar.tasks[0]
        if self._lines and kind is None and not self._transient and task.completed > self._before:
            taken = time.monotonic() - self._begun
            rate = self._per_time((task.completed - self._before) / max(taken, 1e-9))
            done = f"{self._name or task.description}: {self._counted(task.completed)} in {duration(taken)}"
            self._say(", ".join(part for part in (done, rate, self._words) if part))

    @property
    def rate(self) -> str:
        """How fast it goes: per second, or per minute where that is less than one a second; empty if not known."""
        speed = self._bar.tasks[0].speed
        return self._per_time(speed) if speed else ""

    def _per_time(self, speed: float) -> str:
        if not self._rated:
            return ""
        if speed < 1:
            return f"{60 * speed:.1f} {self._unit}/min"
        return f"{speed:,.{0 if speed >= 10 else 1}f} {self._unit}/s"

    def _counted(self, count: float) -> str:
        """A number of units in words: 1 sample, 2 samples."""
        return f"{count:,.0f} {self._unit.removesuffix('s') if count == 1 else self._unit}"

    def advance(self, count: float = 1, words: str | None = None, last: bool = False) -> None:
        """So many units more. words: shown beside the rate from now on. last: none will follow, whatever the total."""
        self._words = self._words if words is None else words
        self._bar.advance(self._task, count)
        if last:
            self._bar.update(self._task, total=self._bar.tasks[0].completed)
        self._bar.update(self._task, text=", ".join(part for part in (self.rate, self._words) if part))
        if self._shown:
            self._tell()

    def _tell(self) -> None:
        """How long it will take, once; and without a terminal, now and then, how far it is."""
        task, now = self._bar.tasks[0], time.monotonic()
        taken, total = now - self._begun, task.total or 0
        if taken < _FIRST or task.completed <= self._before or task.completed >= total:
            return
        left = (total - task.completed) * taken / (task.completed - self._before)
        if not self._told:
            self._told = True
            if taken + left >= _LONG:
                about = f"{'' if self._rated else 'at most '}about {duration(taken + left)}"
                self._say(f"{task.description}: {about} for {self._counted(total - self._before)}")
                self._last, self._line_at = now, task.completed
                return
        least, most, share = _LINES
        waited, more = now - self._last, task.completed - self._line_at
        if self._lines and (waited >= most or (waited >= least and more >= share * total)):
            done = f"{task.completed:,.0f}/{total:,.0f} ({100 * task.completed / total:.0f} %)"
            parts = (done, task.fields["text"], f"{duration(left)} left", at_work())
            self._say(f"{task.description}: {', '.join(part for part in parts if part)}")
            self._last, self._line_at = now, task.completed

    def _watch(self) -> None:
        """Look now and then whether it has been silent for long; in a thread of its own."""
        while not self._ended.wait(_LOOKS):
            self._break_silence()

    def _break_silence(self) -> None:
        """What is being done and for how long, after some time without a line."""
        task, now = self._bar.tasks[0], time.monotonic()
        least, share = _SILENCE
        if now - self._last < min(max(least, share * (now - self._begun)), _LINES[1]):
            return
        taken = f"{duration(now - self._stage_begun)} so far"
        if task.completed >= (task.total or 0):  # a stage after the counted work, of which the words said nothing
            parts = [taken, at_work()]
        else:
            parts = [f"{task.completed:,.0f}/{task.total:,.0f}", self._words, taken, at_work()]
        self._say(f"{task.description}: {', '.join(part for part in parts if part)}")
        self._last = now

    def _say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def describe(self, description: str) -> None:
        """What is being done from now on."""
        self._bar.update(self._task, description=description)
        self._stage_begun = time.monotonic()

    def jump_to(self, done: int) -> None:
        """So many units are done, e.g. after a state was restored; the rate does not count them."""
        self._bar.reset(self._task, completed=done)
        self._begun = self._last = time.monotonic()
        self._before = self._line_at = done


def duration(seconds: float) -> str:
    """A time in words: 40 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class _SlowUnit(bars.ProgressColumn):
    """The unit of the network that has been at work for long: the bar stands still meanwhile."""

    def render(self, task: bars.Task) -> Text:
        return Text(at_work(), style="yellow")
