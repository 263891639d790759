"""Weights of a model from a file: safetensors, or what ``torch.save`` wrote, of which nothing is run.

Called by diagnoses along training and by the planners for NAVSIM.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from frpt.errors import CheckpointError
from frpt.files.untrusted import open_regular

_INSIDE = ("state_dict", "model_state_dict", "model")  # where training scripts keep the weights in a file of more
_TORCH = (".pt", ".pth", ".ckpt")


def read_weights(path: str | Path, name: str | None = None) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU. name: as errors call it."""
    path = Path(path)
    return state_dict_in(_read(path.name if name is None else name, path), path.name if name is None else name)


def state_dict_in(content: Any, name: str) -> dict[str, Any]:
    """The state dict that a training script has saved, alone or beside other things."""
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in tensors_of(content).values()):
        raise CheckpointError(f"the checkpoint {name!r} is no state dict: {type(content).__name__}")
    return dict(content)


def tensors_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a state dict holds but for modules' extra state, which may be anything."""
    return {k: v for k, v in state.items() if not str(k).endswith("_extra_state")}


def _read(name: str, path: Path) -> Any:
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        if file.suffix in (".safetensors", *_TORCH):
            open_regular(file).close()  # the libraries would wait for a pipe
        if file.suffix == ".safetensors":
            return load_file(file)
        if file.suffix in _TORCH:
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises pickle's own, and others, for what is no plain data
        reason = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(
            f"the checkpoint {name!r} ({path}) cannot be read: {type(error).__name__}: {reason} Weights are read from "
            "safetensors, or from a state dict that torch.save wrote; nothing else in a file is run."
        ) from error
    raise CheckpointError(
        f"the checkpoint {name!r} ({path}) is no .safetensors, .pt, .pth or .ckpt file; load it yourself and pass its "
        "state dict"
    )
