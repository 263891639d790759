"""`frpt train`: post-train a model before a layer, alone or beside its controls.

A thin skin over ``frpt.post_train`` and ``frpt.compare``; ``cli/main.py`` makes it a command.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from frpt.cli.models import load_data, load_model
from frpt.cli.shared import SHARDS, ModelSpec, Output, console, errors, loaded, picker
from frpt.files.atomic import check_folder, make_folder

Folder = Path | None
STATES = f"state-{10 * '[0-9]'}"
"""Of half-done runs (``frpt.train.resume``), as a pattern of names; those that are being written end otherwise."""


def train(
    model: ModelSpec,
    data: Annotated[str, typer.Option(metavar="package.module:factory", help="The data set, or (train, val).")],
    at: Annotated[str, typer.Option(help="Parameters before this layer are trained, all others frozen.")],
    out: Annotated[Path, typer.Option(help="Directory for the trained model and the results.")],
    val: Annotated[str | None, typer.Option(metavar="package.module:factory", help="The validation set.")] = None,
    weights: Annotated[Folder, typer.Option(help="A safetensors file to load into the model first.")] = None,
    targets: Annotated[
        str | None, typer.Option(help="A target store, online, or anchor; without it targets are written first.")
    ] = None,
    c_rec: Annotated[float, typer.Option(help="Strength of feature supervision, 0 to 1; 0: back-propagation.")] = 0.3,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 10,
    seed: Annotated[int, typer.Option(help="Order of the samples and everything random.")] = 0,
    seeds: Annotated[int, typer.Option(help="With --compare: how many seeds, from --seed on.")] = 5,
    compare_arms: Annotated[
        bool, typer.Option("--compare", help="Back-propagation, anchor-only and FR-PT over several seeds.")
    ] = False,
    batch_size: Annotated[int, typer.Option(help="Samples a step, over all processes.")] = 64,
    lr: Annotated[float, typer.Option(help="Learning rate of AdamW.")] = 1e-4,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW.")] = 5e-2,
    batch_norm: Annotated[str, typer.Option(help="Mode of batch norm in the trained part: eval or train.")] = "eval",
    metric: Annotated[
        str | None, typer.Option(help="accuracy, top5, mse, ade, fde; by default from the labels.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="default, paper or online.")] = None,
    output: Output = None,
    every: Annotated[int, typer.Option(help="Online targets each so many steps.")] = 1,
    store: Annotated[Folder, typer.Option(help="Where targets written now are kept.")] = None,
    partial: Annotated[Folder, typer.Option(help="Directory for a half-done run, to go on from if stopped.")] = None,
    log_dir: Annotated[Folder, typer.Option(help="CSV and TensorBoard logs; by default the output directory.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that load samples.")] = 0,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    devices: Annotated[int | None, typer.Option(help="Devices; under torchrun one for each of its processes.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds that processes wait for each other; half an hour.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="32-true, bf16-mixed, 16-mixed ...; the model's own.")] = None,
) -> None:
    """Post-train the part of a model before a layer; run again after an interruption, it goes on where it was."""
    from frpt.train import Training, compare, post_train  # lightning_fabric loads with this command only

    half_done = partial or out / "partial"

    def kept() -> bool:
        """A state of a run, or targets that it has written."""
        return any(half_done.rglob(STATES)) or (store is not None and any(store.glob(SHARDS)))

    with errors(kept):
        for folder in (out, store, partial, log_dir):
            if folder is not None:
                check_folder(folder)
        trained, tests = _data(data, val)
        source = load_model(model) if weights is None else loaded(load_model(model), weights)
        training = Training(
            epochs=epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay, metric=metric, every=every,
            workers=workers, accelerator=accelerator, devices=devices, precision=precision, timeout=timeout,
            batch_norm=cast("Literal['train', 'eval']", batch_norm),
        )  # fmt: skip
        make_folder(out)
        logs, first = log_dir or out, os.environ.get("RANK", "0") == "0"
        if compare_arms:
            comparison = compare(
                source, trained, at, c_rec=c_rec, seeds=range(seed, seed + seeds), val=tests, targets=targets,
                training=training, store=store, log_dir=logs, partial=half_done, preset=preset, output=picker(output),
            )  # fmt: skip
            text = str(comparison)
            if first:
                comparison.to_pandas().to_csv(out / "comparison.csv", index=False)
                (out / "comparison.txt").write_text(text + "\n")
        else:
            result = post_train(
                source, trained, at, targets=targets, c_rec=c_rec, seed=seed, val=tests, training=training, store=store,
                log_dir=logs, partial=half_done, preset=preset, output=picker(output),
            )  # fmt: skip
            if first:
                result.save(out)
            text = str(result)
        if first:
            if partial is None:
                shutil.rmtree(half_done, ignore_errors=True)
            console.print(text, markup=False, highlight=False)
            console.print(f"written to {out}", markup=False, highlight=False)


def _data(data: str, val: str | None) -> tuple[Any, Any]:
    """(training set, validation set): the factory returns one or both."""
    from torch import Tensor

    made = load_data(data)
    if isinstance(made, tuple) and len(made) == 2 and not isinstance(made[0], Tensor):
        return made if val is None else (made[0], load_data(val))
    return made, None if val is None else load_data(val)
