"""Progress bars: samples a second, the corrected share, the deviation, the time left, and a unit that takes long."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor

from frpt.common.clock import at_work

_NEW = 0.1
"""Weight of the latest batch in the deviation shown."""


class UnitColumn(ProgressColumn):
    """The unit that has been at work for long: bars stand still meanwhile."""

    def render(self, task: Task) -> Text:
        return Text(at_work(), style="yellow")


class WriteProgress:
    """How far the writing of targets has come."""

    def __init__(self, total: int, done: int, shown: bool) -> None:
        columns = (
            TextColumn("targets"), BarColumn(5), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[text]}"), TimeRemainingColumn(), UnitColumn(),
        )  # fmt: skip
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self._task = self._bar.add_task("targets", total=total, completed=done, text="")
        self._seen = self._corrected = 0
        self._deviation: float | None = None

    def __enter__(self) -> WriteProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, corrected: Tensor, deviations: Sequence[Tensor]) -> None:
        """One more batch. corrected, and the deviations at each layer: (b,)."""
        self._seen += len(corrected)
        self._corrected += int(corrected.sum())
        if bool(corrected.any()):
            now = sum(float(d[corrected].mean()) for d in deviations) / len(deviations)
            old = now if self._deviation is None else self._deviation
            self._deviation = (1 - _NEW) * old + _NEW * now
        self._bar.update(self._task, advance=len(corrected), text=self.text())

    def text(self) -> str:
        speed = self._bar.tasks[0].speed
        rate = f"{speed:,.0f} samples/s, " if speed else ""
        moved = "" if self._deviation is None else f", deviation {self._deviation:.3g}"
        return f"{rate}{100 * self._corrected / self._seen:.1f} % corrected{moved}"


def verify_progress(shown: bool) -> Progress:
    """A bar over the bytes of a store."""
    columns = (TextColumn("verify"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not shown)


def progress_bar(shown: bool) -> Progress:
    """A bar over a data set: samples done, samples a second, the time left, and a unit that takes long."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), UnitColumn(),
    )  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), disable=not shown)


def advance(bar: Progress, samples: int) -> None:
    """Some samples more, and the rate."""
    speed = bar.tasks[0].speed
    bar.update(bar.tasks[0].id, advance=samples, rate=f"{speed:,.0f} samples/s" if speed else "")
