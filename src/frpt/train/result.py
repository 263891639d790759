"""What a run returns: the trained model, and a row for every epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import nn

from frpt.common.text import table
from frpt.train.balance import BOUNDS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Epoch:
    """One epoch. metric: on ``val``. task_loss, rec_loss, weight (λ), deviation (‖â − a*‖/‖a*‖): means over its steps.

    closed: share of the output's residual that online targets close, of the samples that need a correction.
    fixed, broken: samples of ``val`` that are better and worse than under the starting model. None: not measured.
    """

    epoch: int
    metric: float | None
    task_loss: float
    rec_loss: float | None
    weight: float
    deviation: float | None
    closed: float | None
    fixed: int | None
    broken: int | None
    seconds: float
    samples_per_second: float


COLUMNS = tuple(f.name for f in fields(Epoch))


def shown(value: float | int | None, digits: int = 4) -> str:
    """A number for a table; a dash for None."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


@dataclass(frozen=True)
class Result:
    """A finished run. model: after the last epoch. start: the metric before the first. history: a row per epoch."""

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
        """Write ``model.safetensors`` (the model's state dict) and ``result.json`` into a directory."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: t.detach().cpu().contiguous().clone() for name, t in self.model.state_dict().items()}
        save_file(state, folder / "model.safetensors")
        (folder / "result.json").write_text(json.dumps(self.summary(), indent=1))
        return folder

    def summary(self) -> dict[str, Any]:
        """Everything but the weights, as JSON holds it."""
        names = ("at", "c_rec", "seed", "targets", "metric", "higher", "start")
        return {**{n: getattr(self, n) for n in names}, "history": [asdict(row) for row in self.history]}

    def __str__(self) -> str:
        head = f"post-training before {self.at!r}: c_rec {self.c_rec:g}, targets {self.targets}, seed {self.seed}"
        if self.start is not None:
            head += f"; {self.metric} {self.start:.4g} at the start, best {shown(self.best.metric)}"
        if self.at_bound:
            head += f"\nlambda was at its upper bound of {BOUNDS[1]:g} in every step: a larger c_rec changes nothing"
        return head + "\n" + epoch_table(self.metric, self.history)


def epoch_table(metric: str, rows: Sequence[Epoch]) -> str:
    """The rows of some epochs as text."""
    head = ("epoch", metric, "task loss", "rec. loss", "lambda", "deviation", "fixed", "broken", "samples/s")
    body = [
        (str(r.epoch), shown(r.metric), shown(r.task_loss), shown(r.rec_loss), shown(r.weight, 3),
         shown(r.deviation, 3), shown(r.fixed), shown(r.broken), f"{r.samples_per_second:,.0f}")
        for r in rows
    ]  # fmt: skip
    return table(head, body)
