"""Fingerprints of weights, labels and items, and the differences they show."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from frpt.reverser import Reverser
from frpt.targets.manifest import LayerInfo, Manifest

_SHOWN = 4


def weights_of(rev: Reverser, names: Iterable[str]) -> dict[str, str]:
    """Parameter or buffer → dtype, shape and sha256 of its bytes."""
    held = dict(chain(rev.model.named_parameters(), rev.model.named_buffers()))
    return {name: _describe(held[name].detach()) for name in sorted(set(names))}


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


def layer_differences(manifest: Manifest, rev: Reverser, at: Sequence[str]) -> list[str]:
    """How the model differs from the one a store was written with: layers, shapes, the weights before and after."""
    found: list[str] = []
    layers = set(rev.layers)
    present = dict(chain(rev.model.named_parameters(), rev.model.named_buffers()))
    now: dict[str, str] = {}
    for name in at:
        if name not in manifest.layers:
            found.append(f"it has no layer {name!r}; it has {', '.join(map(repr, manifest.layers))}")
            continue
        if name not in layers:
            found.append(f"the model has no layer {name!r}")
            continue
        info = manifest.layers[name]
        if rev.sample_shape(name) != info.shape:
            found.append(
                f"{name!r} has samples of shape {info.shape} in the store and {rev.sample_shape(name)} in the model"
            )
        names = {n for n in (*info.frozen, *info.upstream) if n in present and n not in now}
        now |= weights_of(rev, names)
        found += _part_differences(manifest, rev, name, info, now)
    return found


def _part_differences(manifest: Manifest, rev: Reverser, layer: str, info: LayerInfo, now: dict[str, str]) -> list[str]:
    parts = [
        (f"the frozen part after {layer!r}", info.frozen, rev.frozen(layer)),
        (f"the upstream part before {layer!r}, which makes the anchors,", info.upstream, rev.upstream(layer)),
    ]
    found = []
    for part, before, after in parts:
        missing, new = set(before) - set(after), set(after) - set(before)
        changed = [n for n in before if n not in missing and now[n] != manifest.weights[n]]
        if missing:
            found.append(f"{part} lacks {_some(sorted(missing))}")
        if new:
            found.append(f"{part} has {_some(sorted(new))}, which the store does not know")
        if changed:
            found.append(f"{part} has other values in {_some(changed)}")
    return found


def label_differences(manifest: Manifest, labels: Any) -> list[str]:
    """Where labels differ from those a store was written with."""
    rows = label_bytes(labels)
    if len(rows) != manifest.count:
        return [f"it has targets for {manifest.count} samples, there are {len(rows)} labels"]
    for shard in manifest.shards:
        mine = b"".join(rows[shard.start : shard.start + shard.count])
        if hashlib.sha256(mine).hexdigest() != shard.labels:
            return [f"labels of samples {shard.start} to {shard.start + shard.count - 1} are others than in the store"]
    return []


def setting_differences(stored: Manifest, wanted: Manifest) -> list[str]:
    """What a store was begun with and what is asked for now, where they differ, shapes and weights aside."""
    if stored.layers.keys() != wanted.layers.keys():
        return [f"it is being written for the layers {_some(list(stored.layers))}, not {_some(list(wanted.layers))}"]
    before, now = stored.settings(), wanted.settings()
    keys = [k for k in before.keys() | now.keys() if not k.startswith(("weights.", "layers.")) or k.endswith(".dtype")]
    return [
        f"{k} is {before.get(k)!r} in the store, {now.get(k)!r} now"
        for k in sorted(keys)
        if before.get(k) != now.get(k)
    ]


def _describe(t: Tensor) -> str:
    data = t.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    kind = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
    return f"{kind} {hashlib.sha256(data.numpy().data).hexdigest()}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
