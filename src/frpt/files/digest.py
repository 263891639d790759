"""Digests of files, weights, labels, samples and options: what a file on disk belongs to."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_CHUNK = 1 << 20


def sha256_of(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def weights_of(model: nn.Module, names: Iterable[str] | None = None) -> dict[str, str]:
    """Parameter or buffer → dtype, shape and sha256 of its bytes. names: of all by default."""
    held = dict(chain(model.named_parameters(), model.named_buffers()))
    return {name: _describe(held[name].detach()) for name in sorted(held if names is None else set(names))}


def label_bytes(labels: Any) -> list[bytes]:
    """The bytes of each label: class ids as int64, other labels as float32. labels: (n, ...)."""
    rows = isinstance(labels, list | tuple) and len(labels) > 0 and isinstance(labels[0], Tensor | np.ndarray)
    t = torch.stack([torch.as_tensor(row) for row in labels]) if rows else torch.as_tensor(labels)
    t = t.to("cpu", torch.float32 if t.is_floating_point() else torch.int64).contiguous()
    return [row.tobytes() for row in t.numpy().reshape(len(t), -1)]


def sha256_of_labels(labels: Any) -> str:
    return hashlib.sha256(b"".join(label_bytes(labels))).hexdigest()


def sha256_of_item(item: Any) -> str:
    """Of a sample's inputs: tensors by their bytes, anything else by what it prints."""
    digest = hashlib.sha256()
    leaves, spec = pytree.tree_flatten(item)
    digest.update(str(spec).encode())
    for leaf in leaves:
        value = torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
        digest.update((_describe(value) if isinstance(value, Tensor) else repr(value)).encode())
    return digest.hexdigest()


def options_of(options: Any) -> dict[str, Any]:
    """A frozen options object as JSON can hold it."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, str | int | float | bool):
            return value
        if callable(value):
            return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
        return str(value)

    described: dict[str, Any] = plain(asdict(options))
    return described


def _describe(t: Tensor) -> str:
    data = t.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    kind = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
    return f"{kind} {hashlib.sha256(data.numpy().data).hexdigest()}"
