"""sha256 of files, weights, labels, samples and options: what a file on disk belongs to, and whether it is intact.

Called by target stores, references, diagnoses, half-done training runs and the cache of decoded images.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Sha256 = hashlib.sha256
"""A digest that takes its bytes part by part."""
_CHUNK = 1 << 20


def sha256_of(file: Path) -> str:
    """Of a file's bytes, read a megabyte at a time."""
    digest = Sha256()
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_of_bytes(*parts: bytes) -> str:
    """Of some bytes, one after the other."""
    digest = Sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def sha256_of_json(data: Any) -> str:
    """Of what JSON can hold, in one canonical form; anything else by what it prints."""
    return sha256_of_bytes(json.dumps(data, sort_keys=True, default=str).encode())


def sha256_of_labels(labels: Any) -> str:
    """Of labels (n, ...), whatever they are kept in; see ``label_bytes``."""
    return sha256_of_bytes(*label_bytes(labels))


def label_bytes(labels: Any) -> list[bytes]:
    """The bytes of each label: class ids as int64, other labels as float32. labels: (n, ...)."""
    rows = isinstance(labels, list | tuple) and len(labels) > 0 and isinstance(labels[0], Tensor | np.ndarray)
    t = torch.stack([torch.as_tensor(row) for row in labels]) if rows else torch.as_tensor(labels)
    t = t.to("cpu", torch.float32 if t.is_floating_point() else torch.int64).contiguous()
    return [row.tobytes() for row in t.numpy().reshape(len(t), -1)]


def sha256_of_item(item: Any) -> str:
    """Of a sample's inputs: tensors by their bytes, anything else by what it prints."""
    digest = Sha256()
    leaves, spec = pytree.tree_flatten(item)
    digest.update(str(spec).encode())
    for leaf in leaves:
        value = torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
        digest.update((_describe(value) if isinstance(value, Tensor) else repr(value)).encode())
    return digest.hexdigest()


def weights_of(model: nn.Module, names: Iterable[str] | None = None) -> dict[str, str]:
    """Parameter or buffer → dtype, shape and sha256 of its bytes. names: of all by default."""
    tensors = dict(chain(model.named_parameters(), model.named_buffers()))
    return {name: _describe(tensors[name].detach()) for name in sorted(tensors if names is None else set(names))}


def other_weights(model: nn.Module, digests: Mapping[str, str]) -> str | None:
    """How a network differs from the one that digests were taken of, in a few words; None where it does not."""
    names = {n for n, _ in (*model.named_parameters(), *model.named_buffers())}
    if missing := sorted(set(digests) - names):
        return f"it was made with a network that has {missing[0]!r}; this one has not"
    now = weights_of(model, digests)
    if changed := [name for name in digests if now[name] != digests[name]]:
        return f"the weights have changed since, among them {changed[0]!r}"
    return None


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


def described(value: Any) -> Any:
    """What a function does, as far as it can be told, in words that stay the same from one process to the next.

    A function by its name, its code, its defaults and what it closes over; a module by its settings and weights; any
    other object by its class alone, because its state may change as it is used.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Tensor):
        return _describe(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [described(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): described(v) for k, v in value.items()}
    if isinstance(value, functools.partial):
        return (
            f"partial {described(value.func)} {sha256_of_json([described(value.args), described(value.keywords)])[:8]}"
        )
    if isinstance(value, types.FunctionType):
        cells = [described(cell.cell_contents) for cell in value.__closure__ or () if cell.cell_contents is not value]
        inside = [_code(value.__code__), described(value.__defaults__), described(value.__kwdefaults__), cells]
        return f"{value.__module__}.{value.__qualname__} {sha256_of_json(inside)[:8]}"
    if isinstance(value, nn.Module):
        settings = {k: v for k, v in vars(value).items() if isinstance(v, str | int | float) and k != "training"}
        return f"{_name(value)} {sha256_of_json([settings, repr(value), weights_of(value)])[:8]}"
    return _name(value)


def _code(code: types.CodeType) -> list[Any]:
    constants = [_code(c) if isinstance(c, types.CodeType) else described(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names)]


def _name(value: Any) -> str:
    owner = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}.{owner.__qualname__}"


def _describe(t: Tensor) -> str:
    data = t.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    kind = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
    return f"{kind} {hashlib.sha256(data.numpy().data).hexdigest()}"
