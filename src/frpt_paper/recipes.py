"""Pretraining recipes by data set and model, and checkpoints: trained once, kept as safetensors, found again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from frpt.data import Images
from frpt.errors import CheckpointError, OptionError
from frpt_paper.pretrain import Recipe, make_model, pretrain

RECIPES = {
    ("digits", "simple_cnn"): Recipe(30, 64, 5e-3, 1e-3),
    ("mnist", "simple_cnn"): Recipe(20, 64, 5e-3, 1e-3),
    ("cifar10", "simple_cnn"): Recipe(40, 64, 4e-3, 0.1),
    ("cifar100", "simple_cnn"): Recipe(40, 64, 4e-3, 0.1),
}
"""Without augmentation, so that offline targets belong to what pretraining saw."""
_OTHERS = {"simple_cnn": Recipe(40, 64, 2e-3, 0.1), "resnet": Recipe(60, 128, 1e-3, 5e-2, augment=True),
           "simple_vit": Recipe(100, 128, 1e-3, 5e-2, augment=True)}  # fmt: skip


def recipe_of(dataset: str, model: str) -> Recipe:
    """The recipe of a pair; other profiles of a SimpleCNN are trained like the SimpleCNN of their data set."""
    family = model.split("-")[0]
    found = RECIPES.get((dataset, family))
    if found is None:
        found = next((r for name, r in _OTHERS.items() if family.startswith(name)), None)
    if found is None:
        raise OptionError(f"there is no recipe for {model!r} on {dataset!r}; pass one")
    return found


@dataclass(frozen=True)
class Start:
    """A pretrained model to start from. name: of its file and in tables; accuracy: on the test split, in [0, 1]."""

    name: str
    epoch: int
    accuracy: float
    path: Path


def pretrained(
    folder: Path,
    model: str,
    train: Images,
    test: Images,
    recipe: Recipe,
    *,
    seed: int = 0,
    keep: Iterable[int] = (),
    each: Callable[[int, float], None] | None = None,
) -> list[Start]:
    """Checkpoints after the epochs ``keep`` and after the last, trained if the folder does not hold them yet.

    each: called with (epoch, accuracy) while it trains.
    """
    dataset = train.info.name
    epochs = sorted({*keep, recipe.epochs})
    if epochs[0] < 1 or epochs[-1] > recipe.epochs:
        raise OptionError(f"checkpoints can be kept of epochs 1 to {recipe.epochs}, got {epochs}")
    made = {"dataset": dataset, "model": model, "recipe": asdict(recipe), "seed": seed, "keep": epochs}
    made |= {"train": len(train), "test": len(test)}
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]
    index = folder / f"{dataset}-{model}-{digest}.json"
    if index.is_file():
        return _found(index, folder)
    folder.mkdir(parents=True, exist_ok=True)
    saved: list[dict[str, Any]] = []

    def after(epoch: int, trained: nn.Module, accuracy: float) -> None:
        if epoch in epochs:
            saved.append(
                {"epoch": epoch, "accuracy": accuracy, "name": _save(folder, dataset, model, trained, accuracy)}
            )
        if each is not None:
            each(epoch, accuracy)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    history = pretrain(
        make_model(model, dataset, seed), train, test, recipe, seed=seed, device=device, each=after
    ).history
    _write(index, json.dumps({**made, "history": history, "saved": saved}, indent=1).encode())
    return _found(index, folder)


def load_start(path: Path, model: str, dataset: str) -> nn.Module:
    """The model with a checkpoint's weights, in eval mode."""
    if not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint {str(path)!r}; run the experiment's first call where it is written"
        )
    made = make_model(model, dataset)
    try:
        made.load_state_dict(load_file(path))
    except Exception as error:
        raise CheckpointError(f"the checkpoint {str(path)!r} is not one of {model} for {dataset}: {error}") from error
    return made.eval()


def _found(index: Path, folder: Path) -> list[Start]:
    saved: Sequence[dict[str, Any]] = json.loads(index.read_text())["saved"]
    starts = [Start(s["name"], s["epoch"], s["accuracy"], folder / f"{s['name']}.safetensors") for s in saved]
    for start in starts:
        if not start.path.is_file():
            raise CheckpointError(f"{str(start.path)!r} is gone; delete {str(index)!r} to train it again")
    return starts


def _save(folder: Path, dataset: str, model: str, trained: nn.Module, accuracy: float) -> str:
    """Write the weights under a name that tells their accuracy and ends in a digest of them."""
    data = save({k: v.detach().cpu().contiguous().clone() for k, v in trained.state_dict().items()})
    name = f"{dataset}_{model}_{accuracy:.4f}_{hashlib.sha256(data).hexdigest()[:8]}"
    _write(folder / f"{name}.safetensors", data)
    return name


def _write(path: Path, data: bytes) -> None:
    """All of the file or nothing of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    os.replace(part, path)
