"""What a run shows and writes while it goes on: a progress bar, a CSV file, TensorBoard."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from frpt.errors import OptionError
from frpt.train.objective import Losses
from frpt.train.result import COLUMNS, Epoch


class Report:
    """Progress and logs of the first process; nothing for the others. A resumed run continues its logs."""

    def __init__(self, title: str, epochs: int, samples: int, log_dir: Path | None, progress: bool, main: bool) -> None:
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._epochs, self._samples, self._title = epochs, samples, title
        self._folder = log_dir if main else None
        self._board: Any = None
        if progress and main:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"),
                       TimeRemainingColumn(), TextColumn("{task.fields[state]}"))  # fmt: skip
            self._bar = Progress(*columns, transient=True)
            self._task = self._bar.add_task(title, total=epochs * samples, rate="", state="")

    def __enter__(self) -> Report:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._board is not None:
            self._board.close()

    def begin(self, epoch: int, seen: int, step: int, history: Sequence[Epoch]) -> None:
        """Start, or go on after ``seen`` samples of an epoch (from 0)."""
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch * self._samples + seen)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._board = _board(self._folder, step)
            self._write(history)

    def step(self, epoch: int, step: int, samples: int, losses: Losses) -> None:
        if self._bar is not None:
            speed = self._bar.tasks[0].speed
            self._bar.update(
                self._task,
                advance=samples,
                description=f"{self._title} epoch {epoch + 1}/{self._epochs}",
                rate=f"{speed:,.0f} samples/s" if speed else "",
                state=f"task {losses.task:.3g}" + (f" rec {losses.rec:.3g}" if losses.rec is not None else ""),
            )
        if self._board is not None:
            self._board.add_scalar("step/task_loss", losses.task, step)
            if losses.rec is not None:
                self._board.add_scalar("step/rec_loss", losses.rec, step)
                self._board.add_scalar("step/lambda", losses.weight, step)

    def epoch(self, history: Sequence[Epoch]) -> None:
        """Write what the epoch just ended measured."""
        if self._folder is None:
            return
        row = history[-1]
        for name, value in asdict(row).items():
            if name != "epoch" and value is not None:
                self._board.add_scalar(f"epoch/{name}", value, row.epoch)
        self._board.flush()
        self._write(history)

    def _write(self, history: Sequence[Epoch]) -> None:
        assert self._folder is not None
        part = self._folder / ".epochs.csv"
        with part.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(asdict(row) for row in history)
        os.replace(part, self._folder / "epochs.csv")


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OptionError("log_dir= writes TensorBoard logs: pip install tensorboard") from error
    return SummaryWriter(str(folder), purge_step=step or None)
