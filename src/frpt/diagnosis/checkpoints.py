"""Weights of one architecture from state dicts, modules and files, checked against the model they go into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from frpt.errors import CheckpointError, OptionError

Checkpoint = Mapping[str, Any] | nn.Module | str | Path
_SHOWN = 3
_INSIDE = ("state_dict", "model_state_dict", "model")
"""Where training scripts keep the weights in a file that holds more."""


def named(checkpoints: Iterable[Checkpoint] | Mapping[str, Checkpoint]) -> dict[str, Checkpoint]:
    """The checkpoints by name: as given, by their files' names where those differ, else by number."""
    if isinstance(checkpoints, Mapping):
        if any(isinstance(v, Tensor) for v in checkpoints.values()):
            raise OptionError("checkpoints is a single state dict; pass a list of them")
        found = dict(checkpoints)
    elif isinstance(checkpoints, str | Path | nn.Module):
        raise OptionError("checkpoints must be several; pass a list of state dicts, modules or paths")
    else:
        items = list(checkpoints)
        names = [Path(c).stem if isinstance(c, str | Path) else str(i) for i, c in enumerate(items)]
        unique = len(set(names)) == len(names)
        found = {name if unique else str(i): c for i, (name, c) in enumerate(zip(names, items, strict=True))}
    if not found:
        raise OptionError("there are no checkpoints; pass at least one")
    return found


def weights(name: str, checkpoint: Checkpoint, model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a checkpoint, checked to fit the model."""
    if isinstance(checkpoint, nn.Module):
        state: Any = checkpoint.state_dict()
    elif isinstance(checkpoint, str | Path):
        state = _read(name, Path(checkpoint))
    else:
        state = checkpoint
    for key in _INSIDE:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in _tensors(state).values()):
        raise CheckpointError(f"the checkpoint {name!r} is no state dict: {type(state).__name__}")
    if differences := _differences(_tensors(state), model):
        listing = "".join(f"\n  - {text}" for text in differences)
        raise CheckpointError(
            f"the checkpoint {name!r} does not fit the model ({type(model).__name__}):{listing}\n"
            "Pass the model it was made with."
        )
    return dict(state)


def _tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a state dict holds but for modules' extra state, which may be anything."""
    return {k: v for k, v in state.items() if not str(k).endswith("_extra_state")}


def _read(name: str, path: Path) -> Any:
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        if file.suffix in (".pt", ".pth"):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises pickle's own, and others, for what is no plain data
        reason = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(
            f"the checkpoint {name!r} ({path}) cannot be read: {type(error).__name__}: {reason} Weights are read from "
            "safetensors, or from a state dict that torch.save wrote; nothing else in a file is run."
        ) from error
    raise CheckpointError(
        f"the checkpoint {name!r} ({path}) is no .safetensors, .pt or .pth file; load it yourself and pass its state "
        "dict"
    )


def _differences(state: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    own: dict[str, Tensor] = _tensors(model.state_dict())
    missing, more = [k for k in own if k not in state], [k for k in state if k not in own]
    shapes = [
        f"{k} has the shape {tuple(state[k].shape)}, the model's {tuple(own[k].shape)}"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    bad = [
        f"{k} holds NaN or infinity"
        for k, _ in model.named_parameters()
        if k in state and state[k].is_floating_point() and not bool(torch.isfinite(state[k]).all())
    ]
    found = [f"{what} {_few(keys)}" for what, keys in (("it lacks", missing), ("it also has", more)) if keys]
    found += [_few(texts) for texts in (shapes, bad) if texts]
    return found


def _few(items: list[str]) -> str:
    rest = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + rest
