"""``post_train``: one run, from a trained model to a better one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn

from frpt.embed import Embed
from frpt.errors import OptionError
from frpt.graph.inputs import Picker
from frpt.options import Preset
from frpt.reverser import Reverser
from frpt.solvers.variation import Variations, check_known
from frpt.train.loop import run
from frpt.train.metrics import Metric, TaskLoss
from frpt.train.result import Result
from frpt.train.settings import MakeOptimizer, MakeSchedule, Places, Settings
from frpt.train.setup import ONLINE, Job, Targets


def post_train(
    model: nn.Module,
    dataset: Any,
    at: str,
    *,
    targets: Targets = None,
    c_rec: float = 0.3,
    val: Any = None,
    epochs: int = 10,
    seed: int = 0,
    batch_size: int = 64,
    lr: float = 1e-4,
    weight_decay: float = 5e-2,
    optimizer: MakeOptimizer | None = None,
    schedule: MakeSchedule | None = None,
    task_loss: TaskLoss | None = None,
    metric: str | Metric | Callable[[Tensor, Tensor], Tensor | float] | None = None,
    preset: str | Preset | None = None,
    embed: str | Embed | None = None,
    margin: float | None = None,
    output: Picker = None,
    reference: Variations | None = None,
    reverser: Reverser | None = None,
    every: int = 1,
    store: str | Path | None = None,
    workers: int = 0,
    fabric: Fabric | None = None,
    accelerator: str = "auto",
    devices: int | None = None,
    precision: str | None = None,
    log_dir: str | Path | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_steps: int | None = None,
    progress: bool = True,
) -> Result:
    """Train a copy of the model before the layer ``at`` on task loss + λ · MSE(target, feature); the rest stays.

    dataset, val: map-style, items (inputs, label). targets: a store or its directory; None: reconstructed once, into
    ``store`` or a temporary one; "online": from the feature of each step; "anchor": the starting model's own features.
    c_rec = 0 is the matched back-propagation reference: same seed, order and trainable set, no targets. checkpoint: a
    directory from which the same call goes on after an interruption, to the same numbers. reverser: one on this model,
    where preset, embed, margin, output and reference do not say enough, or to save making another. The rest is in
    ``Settings``.
    """
    settings = Settings(
        c_rec=c_rec, epochs=epochs, seed=seed, batch_size=batch_size, lr=lr, weight_decay=weight_decay,
        optimizer=optimizer, schedule=schedule, task_loss=task_loss, metric=metric, preset=preset, embed=embed,
        margin=margin, output=output if reverser is None else reverser.output, reference=reference,
        every=every, workers=workers, accelerator=accelerator, devices=devices,
        precision=precision, checkpoint_steps=checkpoint_steps, progress=progress,
    )  # fmt: skip
    if reverser is not None and any(option is not None for option in (preset, embed, margin, output, reference)):
        raise OptionError(
            "preset, embed, margin, output and reference belong to the Reverser: give them to it, or leave it out"
        )
    if reference is not None:
        if targets is not None and targets != ONLINE:
            raise OptionError("reference= belongs to targets made now (targets=None or 'online'), not to those passed")
        check_known(reference, [at])
    if not isinstance(model, nn.Module):
        raise OptionError(f"model must be an nn.Module, got {type(model).__name__}")
    return run(Job(model, dataset, at, settings, targets, val, store, places(log_dir, checkpoint), fabric, reverser))


def places(log_dir: str | Path | None, checkpoint: str | Path | None) -> Places:
    return Places(None if log_dir is None else Path(log_dir), None if checkpoint is None else Path(checkpoint))
