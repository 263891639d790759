"""Pretrained checkpoints that post-training starts from: trained once, kept as safetensors, found again by later calls.

``Lab.starting_models`` and benchmarks/networks.py call it. An index file (JSON) beside the weights has in its name a
digest of everything that decides them: data set, model, recipe, seed, epochs kept, numbers of samples.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from frpt.data import Images
from frpt.errors import CheckpointError, OptionError
from frpt_paper.runs.pretraining import PlateauRecipe, Recipe, make_model, pretrain


@dataclass(frozen=True)
class StartingModel:
    """A pretrained checkpoint. name: of its file and in tables; accuracy: on the test split, in [0, 1]."""

    name: str
    epoch: int
    accuracy: float
    path: Path


def starting_models(
    folder: Path,
    model: str,
    train: Images,
    test: Images,
    recipe: Recipe,
    *,
    seed: int = 0,
    keep: Iterable[int] = (),
    each: Callable[[int, float], None] | None = None,
) -> list[StartingModel]:
    """Checkpoints after the epochs ``keep`` and after the last, trained if the folder does not hold them yet.

    With a ``PlateauRecipe`` they are those of its marks and, as the last, the best on the test split. each: called with
    (epoch, accuracy) while it trains.
    """
    dataset = train.info.name
    chosen_on_test = isinstance(recipe, PlateauRecipe)
    epochs = sorted({*keep, *recipe.marks} if isinstance(recipe, PlateauRecipe) else {*keep, recipe.epochs})
    if epochs and (epochs[0] < 1 or epochs[-1] > recipe.epochs):
        raise OptionError(f"checkpoints can be kept of epochs 1 to {recipe.epochs}, got {epochs}")
    # Names and order in this dictionary go into the digest: a change would train every checkpoint anew.
    settings = {"dataset": dataset, "model": model, "recipe": asdict(recipe), "seed": seed, "keep": epochs}
    settings |= {"train": len(train), "test": len(test)}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    index = folder / f"{dataset}-{model}-{digest}.json"
    if index.is_file():
        return _listed(index, folder)
    folder.mkdir(parents=True, exist_ok=True)
    saved: list[dict[str, Any]] = []
    best: tuple[float, int, nn.Module] = (-1.0, 0, nn.Identity())

    def kept(epoch: int, trained: nn.Module, accuracy: float) -> dict[str, Any]:
        return {"epoch": epoch, "accuracy": accuracy, "name": save_weights(folder, dataset, model, trained, accuracy)}

    def after(epoch: int, trained: nn.Module, accuracy: float) -> None:
        nonlocal best
        if epoch in epochs:
            saved.append(kept(epoch, trained, accuracy))
        if chosen_on_test and accuracy > best[0]:
            best = accuracy, epoch, deepcopy(trained)
        if each is not None:
            each(epoch, accuracy)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    fresh = make_model(model, dataset, seed)
    history = pretrain(fresh, train, test, recipe, seed=seed, device=device, each=after).history
    if chosen_on_test:
        accuracy, epoch, trained = best
        saved.append(kept(epoch, trained, accuracy))
    write_file(index, json.dumps({**settings, "history": history, "saved": saved}, indent=1).encode())
    return _listed(index, folder)


def load_model(path: Path, model: str, dataset: str) -> nn.Module:
    """The model with a checkpoint's weights, in eval mode."""
    return load_weights(path, make_model(model, dataset), f"{model} for {dataset}")


def load_weights(path: Path, into: nn.Module, what: str) -> nn.Module:
    """A fresh model with a checkpoint's weights, in eval mode. what: the model's name, for the error."""
    if not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint {str(path)!r}; run the experiment's first call where it is written"
        )
    try:
        into.load_state_dict(load_file(path))
    except Exception as error:
        raise CheckpointError(f"the checkpoint {str(path)!r} is not one of {what}: {error}") from error
    return into.eval()


def _listed(index: Path, folder: Path) -> list[StartingModel]:
    """The checkpoints of an index file, all of which must be there."""
    saved: Sequence[dict[str, Any]] = json.loads(index.read_text())["saved"]
    starts = [StartingModel(s["name"], s["epoch"], s["accuracy"], folder / f"{s['name']}.safetensors") for s in saved]
    for start in starts:
        if not start.path.is_file():
            raise CheckpointError(f"{str(start.path)!r} is gone; delete {str(index)!r} to train it again")
    return starts


def save_weights(folder: Path, dataset: str, model: str, trained: nn.Module, accuracy: float) -> str:
    """Write the weights under a name that tells their accuracy and ends in a digest of them."""
    data = save({k: v.detach().cpu().contiguous().clone() for k, v in trained.state_dict().items()})
    name = f"{dataset}_{model}_{accuracy:.4f}_{hashlib.sha256(data).hexdigest()[:8]}"
    write_file(folder / f"{name}.safetensors", data)
    return name


def write_file(path: Path, data: bytes) -> None:
    """Write beside the file, then rename: a killed process leaves all of the file or nothing of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    os.replace(part, path)
