"""The bar over a data set: samples done, samples a second, the time left, and a unit that takes long."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from frpt.targets.progress import UnitColumn


def progress_bar(shown: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), UnitColumn(),
    )  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), disable=not shown)


def advance(bar: Progress, samples: int) -> None:
    """Some samples more, and the rate."""
    speed = bar.tasks[0].speed
    bar.update(bar.tasks[0].id, advance=samples, rate=f"{speed:,.0f} samples/s" if speed else "")
