"""What a run would fail on later, tried on a few samples before targets are written.

``prepare`` calls it: the places to write to, the loss and the metric, the validation set, the optimizer, and batch norm
on a last batch of one sample.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from frpt.datasets.labelled import spread
from frpt.datasets.pairs import fetch
from frpt.errors import InputError, OptionError, PartialError, StoreError
from frpt.files.atomic import check_folder
from frpt.graph.inputs import Inputs, Picker, pick
from frpt.graph.refused import of_types, wrong_type
from frpt.train.batches import MapStyle, on_device
from frpt.train.frozen import fails_alone
from frpt.train.metrics import Metric, TaskLoss, check_labels, checked_loss
from frpt.train.objective import blame_data
from frpt.train.training import Training

_LOOKS = 64  # validation samples that are looked at: a choice, one batch of the default size


def check_places(store: Path | None, log_dir: Path | None, partial: Path | None) -> None:
    """Refuse directories that are files or cannot be written to."""
    for path in (store, log_dir):
        if path is not None:
            check_folder(path)
    if partial is not None:
        try:
            check_folder(partial)
        except StoreError as error:
            raise PartialError(f"the half-done run cannot be used: {error}") from error


def output_of(model: nn.Module, example: Inputs, output: Picker, what: str = "data set") -> Tensor:
    """What the model makes of some samples. what: whose they are."""
    try:
        with torch.no_grad():
            made = model(*example.args, **example.kwargs)
    except (RuntimeError, IndexError) as error:
        if of_types(error):
            raise wrong_type({t.dtype for t in example.tensors}, model, str(error)) from error
        sizes = ", ".join(str(tuple(t.shape)) for t in example.tensors)
        raise InputError(f"the model fails on the first samples of the {what}, {sizes}: {error}") from error
    return pick(made, output)


def try_loss(task_loss: TaskLoss, out: Tensor, labels: Tensor) -> None:
    """Refuse a task loss that returns no single number, or one that no gradient comes from.

    A copy of it is called, since an object may count its calls. One that cannot be copied, or that wants a whole batch
    and not a few samples, is left to the first step.
    """
    try:
        value = deepcopy(task_loss)(out.detach().clone().requires_grad_(), labels.to(out.device))
    except Exception:  # whatever the user's own code raises
        return
    checked_loss(value)


def try_validation(val: MapStyle, model: nn.Module, output: Picker, metric: Metric, device: torch.device) -> None:
    """Refuse a validation set that the model does not take, and a metric that gives no numbers on it."""
    inputs, labels = fetch(val, spread(len(val), _LOOKS))
    call = on_device(Inputs.of(inputs), device)
    blame_data(call, labels, "the validation set (val=)")
    out = output_of(model, call, output, "validation set")
    check_labels(labels, out, "the validation set")
    metric.values(out, labels.to(device))


def optimizer_for(training: Training, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """AdamW, or what ``optimizer=`` makes: of these parameters only, and stepped without a closure."""
    if training.optimizer is None:
        return AdamW(parameters, lr=training.lr, weight_decay=training.weight_decay)
    made = training.optimizer(parameters)
    if not isinstance(made, Optimizer):
        raise OptionError(f"optimizer= returned a {type(made).__name__}, not a torch.optim.Optimizer")
    own = {id(p) for p in parameters}
    strange = [p for group in made.param_groups for p in group["params"] if id(p) not in own]
    if strange:
        raise OptionError(
            f"optimizer= made an optimizer with {len(strange)} parameters that are frozen; use the ones it is given"
        )
    if any(p.default is p.empty for p in _arguments(made)):
        raise OptionError(
            f"optimizer= made a {type(made).__name__}, whose step() needs a closure that computes the loss again; each "
            "step computes it once here. Use an optimizer that is stepped by gradients, e.g. torch.optim.SGD or AdamW."
        )
    return made


def _arguments(optimizer: Optimizer) -> Iterable[inspect.Parameter]:
    """What its step has to be called with."""
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p for p in inspect.signature(optimizer.step).parameters.values() if p.kind in named]


def check_last_batch(training: Training, model: nn.Module, dataset: Any, world: int, device: torch.device) -> None:
    """Refuse batch norm in train mode where a process gets a batch of one sample, of which it has no statistics.

    Called when a ``Frozen`` holds in eval mode what stays.
    """
    sizes = {min(training.batch_size, len(dataset)), len(dataset) % training.batch_size or training.batch_size}
    shares = {max(size // world, 1) for size in sizes}
    moves = training.batch_norm == "train" or training.whole_train
    if not moves or 1 not in shares:
        return
    if (why := fails_alone(model, on_device(Inputs.of(fetch(dataset, [0])[0]), device))) is not None:
        together = "" if world == 1 else f", shared by {world} processes"
        raise OptionError(
            f"of {len(dataset)} samples in batches of {training.batch_size}{together}, a batch has a single sample, "
            f"and batch norm in train mode fails on it ({why}). Choose another batch_size=, leave a sample out, or "
            'pass batch_norm="eval" (and whole_train=False).'
        )
