"""Everything about a run that is not the model or the data, checked before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor, nn
from torch.optim import Optimizer

from frpt.embed import Embed
from frpt.errors import OptionError
from frpt.graph.inputs import Picker
from frpt.options import Preset
from frpt.solvers.variation import Variations
from frpt.train.balance import check_c_rec
from frpt.train.metrics import Metric, TaskLoss

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeSchedule = Callable[[Optimizer, int], Any]
"""(optimizer, total number of steps) -> a learning-rate scheduler; it is stepped after every step."""


class Options(TypedDict, total=False):
    """What ``post_train`` and ``compare`` take alike; their meaning is in ``Settings``."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    optimizer: MakeOptimizer | None
    schedule: MakeSchedule | None
    task_loss: TaskLoss | None
    metric: str | Metric | Callable[[Tensor, Tensor], Tensor | float] | None
    preset: str | Preset | None
    embed: str | Embed | None
    margin: float | None
    output: Picker
    reference: Variations | None
    every: int
    workers: int
    accelerator: str
    devices: int | None
    precision: str | None
    checkpoint_steps: int | None
    progress: bool


@dataclass(frozen=True)
class Settings:
    """c_rec: strength of the feature supervision. epochs, batch_size (over all processes), lr, weight_decay: of AdamW.

    optimizer, schedule: what to use instead, made from the parameters and from (optimizer, steps). task_loss, metric:
    functions of (outputs, labels); metric also by name. preset, embed, margin, output, reference: as ``Reverser`` has
    them. every: online targets each so many steps, the task loss alone in between. workers: processes that load data.
    accelerator, devices, precision: as lightning-fabric takes them; precision None: the model's own. preset None:
    "online" for online targets, else "default". checkpoint_steps: save inside epochs as well, each so many steps.
    """

    c_rec: float = 0.3
    epochs: int = 10
    seed: int = 0
    batch_size: int = 64
    lr: float = 1e-4
    weight_decay: float = 5e-2
    optimizer: MakeOptimizer | None = None
    schedule: MakeSchedule | None = None
    task_loss: TaskLoss | None = None
    metric: str | Metric | Callable[[Tensor, Tensor], Tensor | float] | None = None
    preset: str | Preset | None = None
    embed: str | Embed | None = None
    margin: float | None = None
    output: Picker = None
    reference: Variations | None = None
    every: int = 1
    workers: int = 0
    accelerator: str = "auto"
    devices: int | None = None
    precision: str | None = None
    checkpoint_steps: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        check_c_rec(self.c_rec)
        whole = {"epochs": 1, "batch_size": 1, "every": 1, "seed": 0, "workers": 0}
        if self.checkpoint_steps is not None:
            whole["checkpoint_steps"] = 1
        for name, least in whole.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise OptionError(f"{name} must be a number of at least 0, got {value!r}")
        for name in ("optimizer", "schedule", "task_loss"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise OptionError(f"{name} must be a function, got {type(value).__name__}; see frpt.train.Settings")

    def lasting(self) -> dict[str, Any]:
        """What must be the same for a stopped run to continue to the same numbers."""
        names = ("c_rec", "epochs", "seed", "batch_size", "lr", "weight_decay", "every", "precision", "margin")
        digest = None if self.reference is None else self.reference.digest
        return {**{name: getattr(self, name) for name in names}, "reference": digest}


@dataclass(frozen=True)
class Places:
    """Where a run writes: log_dir gets CSV and TensorBoard logs, checkpoint what a stopped run continues from."""

    log_dir: Path | None = None
    checkpoint: Path | None = None
