"""Training: everything about a run that is neither the model nor the data, checked before any work.

Users pass ``training=Training(...)`` to ``post_train`` and ``compare``, or its fields by name beside the options of
``Reverser``; ``sort_options`` tells the two kinds apart. ``prepare`` and ``post`` read the fields.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, cast

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from frpt.common.checks import check_whole
from frpt.errors import OptionError
from frpt.files.digest import described
from frpt.reverser import ReverserOptions, check_names
from frpt.train.metrics import Metric, TaskLoss

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeSchedule = Callable[[Optimizer, int], Any]
"""(optimizer, total number of steps) -> a learning-rate scheduler; it is stepped after every step."""
_CALLED_WITH = {"optimizer": ("parameters",), "schedule": ("optimizer", "steps"), "task_loss": ("outputs", "labels")}
MetricChoice = str | Metric | Callable[[Tensor, Tensor], Tensor | float] | None


@dataclass(frozen=True)
class Training:
    """How a model is post-trained: the same for every arm of a comparison.

    The defaults of ``lr`` and ``weight_decay`` are a choice, small enough that a trained network stays near where it
    is; the paper names neither. Its classification runs take 10 epochs (IV, image classification).

    Args:
        epochs: passes over the data set.
        batch_size: samples of a step, over all processes together.
        lr: learning rate of AdamW.
        weight_decay: of AdamW.
        optimizer: makes another optimizer from the parameters to train; ``lr`` and ``weight_decay`` are not used then.
        schedule: makes a learning-rate scheduler from the optimizer and the number of steps in all; it is stepped after
            every step. Without one the rate is constant.
        task_loss: a function of (outputs, labels). By default cross-entropy for class ids, binary cross-entropy for yes
            and no, mean squared error for floating-point labels.
        metric: what is measured on the validation set: "accuracy", "top5", "mse", "ade", "fde", a ``Metric``, or a
            function of (outputs, labels). By default accuracy or mean squared error, as the labels are.
        every: with ``targets="online"``, reconstruct at each so many steps; the task loss alone in between.
        workers: processes that load samples; 0 loads them in this one.
        accelerator: as lightning-fabric takes it: "auto", "cpu", "cuda", "mps".
        devices: how many of them; under torchrun one for each of its processes.
        timeout: seconds that processes wait for each other before the run ends with ``ProcessError``; by default
            torch's half an hour. The longest step, and the longest time by which targets of one process are written
            later than those of another, have to fit. A ``fabric=`` that is given has its own.
        precision: as lightning-fabric takes it, e.g. "bf16-mixed"; by default the model's own.
        whole_train: let the part after the layer follow ``train()`` too, as the paper's code does: its dropout is on,
            and the statistics of its normalisations move. By default it stays in eval mode.
        batch_norm: mode of batch norm in the part that is trained. "eval": with the running statistics of the starting
            model, which stay, as targets are made; better or no worse where measured (benchmarks/batch_norm.py).
            "train": with each batch's own statistics, and the running ones move, as networks are trained usually and as
            the paper's code does; where that moves features by more than 5 %, a warning says by how much.
        partial_steps: with ``partial=``, save inside epochs as well, each so many steps.

    Raises:
        OptionError: for a value that is out of range or of the wrong kind.

    Example:
        >>> short = frpt.Training(epochs=2, lr=1e-3)
        >>> short.epochs, short.batch_size
        (2, 64)
    """

    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e-4
    weight_decay: float = 5e-2
    optimizer: MakeOptimizer | None = None
    schedule: MakeSchedule | None = None
    task_loss: TaskLoss | None = None
    metric: MetricChoice = None
    every: int = 1
    workers: int = 0
    accelerator: str = "auto"
    devices: int | None = None
    timeout: float | None = None
    precision: str | None = None
    partial_steps: int | None = None
    whole_train: bool = False
    batch_norm: Literal["train", "eval"] = "eval"

    def __post_init__(self) -> None:
        for name, least in {"epochs": 1, "batch_size": 1, "every": 1, "workers": 0}.items():
            check_whole(name, getattr(self, name), least)
        if self.partial_steps is not None:
            check_whole("partial_steps", self.partial_steps, 1)
        if self.devices is not None:
            check_whole("devices", self.devices, 1)
        if self.timeout is not None and not (isinstance(self.timeout, int | float) and 0 < self.timeout < 1e9):
            raise OptionError(f"timeout must be a number of seconds above 0, got {self.timeout!r}")
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise OptionError(f"{name} must be a finite number of at least 0, got {value!r}")
        if not isinstance(self.whole_train, bool):
            raise OptionError(f"whole_train must be True or False, got {self.whole_train!r}")
        if self.batch_norm not in ("train", "eval"):
            raise OptionError(f"batch_norm must be 'train' or 'eval', got {self.batch_norm!r}")
        for name in ("optimizer", "schedule", "task_loss"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise OptionError(f"{name} must be a function, got {type(value).__name__}; see frpt.Training")
            if value is not None:
                _check_call(name, value)

    def lasting(self) -> dict[str, Any]:
        """What must be the same for a stopped run to continue to the same numbers."""
        names = ("epochs", "batch_size", "lr", "weight_decay", "every", "precision", "whole_train", "batch_norm")
        functions = {"task loss": self.task_loss, "schedule": self.schedule, "optimizer made by": self.optimizer}
        return {name: getattr(self, name) for name in names} | {n: described(f) for n, f in functions.items()}


class TrainingOptions(TypedDict, total=False):
    """The fields of ``Training`` as keywords. Type checkers cannot derive these from it; a test compares the two."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    optimizer: MakeOptimizer | None
    schedule: MakeSchedule | None
    task_loss: TaskLoss | None
    metric: MetricChoice
    every: int
    workers: int
    accelerator: str
    devices: int | None
    timeout: float | None
    precision: str | None
    partial_steps: int | None
    whole_train: bool
    batch_norm: Literal["train", "eval"]


class ShortOptions(ReverserOptions, TrainingOptions, total=False):
    """What ``post_train`` and ``compare`` take by name: any option of ``Reverser`` and any field of ``Training``."""


def sort_options(
    training: Training | None, options: ShortOptions | Mapping[str, Any], dataset: Any = None
) -> tuple[Training, ReverserOptions]:
    """(the training with the fields that were given by name, the Reverser's options); other names are refused.

    dataset: a loader's batch size and workers are the defaults where no ``training`` is given.
    """
    check_names(options, ShortOptions.__annotations__)
    if training is not None and not isinstance(training, Training):
        raise OptionError(f"training must be a frpt.Training, got {type(training).__name__}")
    fields = {name: value for name, value in options.items() if name in TrainingOptions.__annotations__}
    if isinstance(dataset, DataLoader) and training is None:
        fields = {
            "workers": dataset.num_workers,
            **({"batch_size": dataset.batch_size} if dataset.batch_size else {}),
            **fields,
        }
    rest = {name: value for name, value in options.items() if name in ReverserOptions.__annotations__}
    return replace(training or Training(), **cast(Any, fields)), cast(ReverserOptions, rest)


def _check_call(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called as it will be."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C, and it does not say what it takes
        return
    try:
        signature.bind(*_CALLED_WITH[name])
    except TypeError as error:
        called = ", ".join(_CALLED_WITH[name])
        shown = getattr(function, "__name__", type(function).__name__)
        raise OptionError(f"{name}= is called with ({called}), and {shown}{signature} does not take that") from error
