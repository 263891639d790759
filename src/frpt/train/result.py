"""What a run measures: a row per epoch, logged while it goes on (``RunLog``), returned at its end (``Result``).

``post_train`` returns a ``Result``; ``compare`` collects them; the diagnosis report shows them.
"""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import nn

from frpt.common.text import html_table, table
from frpt.errors import OptionError
from frpt.files.atomic import make_folder, write_atomic
from frpt.files.progress import Progress
from frpt.train.objective import BOUNDS, Losses

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Epoch:
    """What one epoch measured; None stands for something that was not.

    Attributes:
        epoch: its number, from 1.
        metric: mean over the validation set, after the epoch.
        task_loss: mean over its steps.
        rec_loss: MSE(target, feature), mean over the steps with targets.
        weight: λ, mean over the steps with targets; 0 without any.
        distance: ‖feature − target‖/‖target‖, mean over samples and over the steps with targets.
        closed: share of the output's residual that online targets close, of the samples that need a correction.
        fixed: samples of the validation set that are better than under the starting model.
        broken: samples that are worse.
        seconds: of its training steps, without the validation.
        samples_per_second: of the same.
    """

    epoch: int
    metric: float | None
    task_loss: float
    rec_loss: float | None
    weight: float
    distance: float | None
    closed: float | None
    fixed: int | None
    broken: int | None
    seconds: float
    samples_per_second: float


_CLOSING = 2.0
"""Seconds that logs are waited for when a run has failed or was interrupted."""
COLUMNS = tuple(f.name for f in fields(Epoch))
_SHOWN = ("task loss", "rec. loss", "lambda", "distance", "fixed", "broken", "samples/s")


@dataclass(frozen=True)
class Result:
    """A finished run; prints as a table.

    Attributes:
        model: the trained copy, as it is after the last epoch.
        at: the layer; parameters before it were trained.
        c_rec: strength of the feature supervision.
        seed: of the order of samples and of everything random.
        targets: "offline", "online", "anchor", or "none" where c_rec is 0.
        metric: the name of what was measured.
        higher: whether more of it is better.
        start: the metric before the first epoch; None without a validation set.
        history: a row per epoch.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)
        >>> result = frpt.post_train(model, data, at="1", c_rec=0, val=data, epochs=2, progress=False)
        >>> len(result.history), result.targets, result.metric
        (2, 'none', 'accuracy')
    """

    model: nn.Module
    at: str
    c_rec: float
    seed: int
    targets: str
    metric: str
    higher: bool
    start: float | None
    history: list[Epoch]

    @property
    def best(self) -> Epoch:
        """The epoch with the best metric, the first of equals; without ``val``, the one with the lowest task loss."""
        if self.history[0].metric is None:
            return min(self.history, key=lambda row: row.task_loss)
        sign = 1 if self.higher else -1
        return max(self.history, key=lambda row: sign * (row.metric or 0.0))

    @property
    def last(self) -> Epoch:
        """The last epoch: what ``model`` is measured to be."""
        return self.history[-1]

    @property
    def at_bound(self) -> bool:
        """Whether λ was at its upper bound in every step; a larger c_rec would then have changed nothing."""
        return all(row.weight >= BOUNDS[1] for row in self.history)

    def to_pandas(self) -> pd.DataFrame:
        """A row per epoch."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.history], columns=list(COLUMNS))

    def save(self, path: str | Path) -> Path:
        """Write ``model.safetensors`` (the model's state dict) and ``result.json`` into a directory; returns it."""
        folder = make_folder(path)
        state = {name: t.detach().cpu().contiguous().clone() for name, t in self.model.state_dict().items()}
        write_atomic(folder / "model.safetensors", save(state))
        write_atomic(folder / "result.json", json.dumps(self.summary(), indent=1).encode())
        return folder

    def summary(self) -> dict[str, Any]:
        """Everything but the weights, as JSON holds it."""
        names = ("at", "c_rec", "seed", "targets", "metric", "higher", "start")
        return {**{n: getattr(self, n) for n in names}, "history": [asdict(row) for row in self.history]}

    def __str__(self) -> str:
        return self._title() + "\n" + table(("epoch", self.metric, *_SHOWN), self._rows())

    def __repr__(self) -> str:
        return f"<Result of {self._title().splitlines()[0]}; print it for the table of its {len(self.history)} epochs>"

    def _repr_html_(self) -> str:
        return html_table(self._title(), ("epoch", self.metric, *_SHOWN), self._rows())

    def _title(self) -> str:
        title = f"post-training before {self.at!r}: c_rec {self.c_rec:g}, targets {self.targets}, seed {self.seed}"
        if self.start is not None:
            title += f"; {self.metric} {self.start:.4g} at the start, best {_text(self.best.metric)}"
        if self.at_bound:
            title += f"\nlambda was at its upper bound of {BOUNDS[1]:g} in every step: a larger c_rec changes nothing"
        return title

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (str(r.epoch), _text(r.metric), _text(r.task_loss), _text(r.rec_loss), _text(r.weight, 3),
             _text(r.distance, 3), _text(r.fixed), _text(r.broken), f"{r.samples_per_second:,.0f}")
            for r in self.history
        ]  # fmt: skip


def _text(value: float | int | None, digits: int = 4) -> str:
    """A number for a table; a dash for None."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


@dataclass
class Tally:
    """Sums over the steps of an epoch so far."""

    steps: int = 0
    supervised: int = 0
    task: float = 0.0
    rec: float = 0.0
    weight: float = 0.0
    distance: float = 0.0
    corrected: int = 0
    closed: float = 0.0
    seconds: float = 0.0

    def add(self, losses: Losses) -> None:
        """One step more."""
        self.steps += 1
        self.task += losses.task
        if losses.rec is not None and losses.distance is not None:
            self.supervised += 1
            self.rec += losses.rec
            self.weight += losses.weight
            self.distance += losses.distance
        if losses.closed is not None:
            self.corrected += 1
            self.closed += losses.closed

    def row(self, epoch: int, samples: int, metric: float | None, flips: tuple[int, int] | None) -> Epoch:
        """The finished epoch. samples: how many it had."""
        n = self.supervised
        fixed, broken = flips or (None, None)
        rec, distance = (self.rec / n, self.distance / n) if n else (None, None)
        closed = self.closed / self.corrected if self.corrected else None
        return Epoch(
            epoch, metric, self.task / self.steps, rec, self.weight / n if n else 0.0, distance, closed,
            fixed, broken, self.seconds, samples / max(self.seconds, 1e-9),
        )  # fmt: skip


class RunLog:
    """Progress bar, CSV file and TensorBoard of the first process; nothing for the others. A resumed run goes on."""

    def __init__(self, title: str, epochs: int, samples: int, log_dir: Path | None, progress: bool, main: bool) -> None:
        self._shown = progress and main
        self._bar = Progress(title, epochs * samples, shown=self._shown, transient=True)
        self._epochs, self._samples, self._title = epochs, samples, title
        self._folder = log_dir if main else None
        self._board: Any = None

    def __enter__(self) -> RunLog:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)
        if self._board is None:
            return
        if kind is None:
            self._board.close()
            return
        # The writer's queue may have been interrupted while it was locked: closing it would wait without end.
        closing = threading.Thread(target=self._board.close, daemon=True)
        closing.start()
        closing.join(_CLOSING)

    def begin(self, epoch: int, seen: int, step: int, history: Sequence[Epoch]) -> None:
        """Start, or go on after ``seen`` samples of an epoch (from 0)."""
        self._bar.jump_to(epoch * self._samples + seen)
        if self._folder is not None:
            make_folder(self._folder)
            self._board = _board(self._folder, step)
            self._write(history)

    def step(self, epoch: int, step: int, samples: int, losses: Losses) -> None:
        """One step more, of so many samples."""
        if self._shown:  # a bar that nobody sees would still add up its rate, in every step
            rec = "" if losses.rec is None else f" rec {losses.rec:.3g}"
            self._bar.describe(f"{self._title} epoch {epoch + 1}/{self._epochs}")
            self._bar.advance(samples, f"task {losses.task:.3g}{rec}")
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
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(row) for row in history)
        write_atomic(self._folder / "epochs.csv", text.getvalue().encode())


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OptionError("log_dir= writes TensorBoard logs: pip install tensorboard") from error
    return SummaryWriter(str(folder), purge_step=step or None)
