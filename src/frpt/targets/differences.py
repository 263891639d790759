"""How a store differs from the model, the labels and the data set it is asked to serve, one sentence a difference.

Called by everything that opens a store for use: writing on, rewriting, ``TargetStore.check``, ``TargetDataset``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from frpt.datasets.labelled import LabelledSamples, spread
from frpt.datasets.seeds import own_random
from frpt.files.digest import label_bytes, sha256_of_bytes, weights_of
from frpt.reverser import Reverser
from frpt.targets.manifest import LayerInfo, Manifest, ShardInfo

_SHOWN = 4
"""Names that a sentence lists; it counts the others."""
_LOOKS = 16
"""Samples of a data set that are compared with the store's: the first of so many shards, spread evenly."""


def layer_differences(manifest: Manifest, rev: Reverser, at: Sequence[str]) -> list[str]:
    """How the model differs from the one a store was written with: layers, shapes, the weights before and after."""
    differences: list[str] = []
    layers = set(rev.layers)
    present = dict(chain(rev.model.named_parameters(), rev.model.named_buffers()))
    now: dict[str, str] = {}
    for name in at:
        if name not in manifest.layers:
            differences.append(_no_layer(manifest, name))
            continue
        if name not in layers:
            differences.append(f"the model has no layer {name!r}")
            continue
        info = manifest.layers[name]
        if rev.sample_shape(name) != info.shape:
            differences.append(
                f"{name!r} has samples of shape {info.shape} in the store and {rev.sample_shape(name)} in the model"
            )
        names = {n for n in (*info.frozen, *info.upstream) if n in present and n not in now}
        now |= weights_of(rev.model, names)
        differences += _part_differences(manifest, rev, name, info, now)
    return differences


def _part_differences(manifest: Manifest, rev: Reverser, layer: str, info: LayerInfo, now: dict[str, str]) -> list[str]:
    parts = [
        (f"the frozen part after {layer!r}", info.frozen, rev.frozen(layer)),
        (f"the upstream part before {layer!r}, which makes the anchors,", info.upstream, rev.upstream(layer)),
    ]
    differences = []
    for part, before, after in parts:
        missing, new = set(before) - set(after), set(after) - set(before)
        changed = [n for n in before if n not in missing and now[n] != manifest.weights[n]]
        if missing:
            differences.append(f"{part} lacks {_some(sorted(missing))}")
        if new:
            differences.append(f"{part} has {_some(sorted(new))}, which the store does not know")
        if changed:
            differences.append(f"{part} has other values in {_some(changed)}")
    return differences


def label_differences(manifest: Manifest, labels: Any) -> list[str]:
    """Where labels differ from those a store was written with."""
    rows = label_bytes(labels)
    if len(rows) != manifest.count:
        return [f"it has targets for {manifest.count} samples, there are {len(rows)} labels"]
    for shard in manifest.shards:
        if sha256_of_bytes(*rows[shard.start : shard.start + shard.count]) != shard.labels:
            return [_other_labels(shard)]
    return []


def _other_labels(shard: ShardInfo) -> str:
    return f"labels of samples {shard.start} to {shard.start + shard.count - 1} are others than in the store"


def dataset_differences(
    manifest: Manifest, dataset: Any, layers: Sequence[str], model: nn.Module | None = None
) -> list[str]:
    """Layers a store does not have, and where a data set is not the one it was written for, as ``changed_data`` looks.

    model: that the inputs are for. Without one, inputs are not compared where the user may yet turn them into others.
    """
    differences = [_no_layer(manifest, name) for name in layers if name not in manifest.layers]
    samples = LabelledSamples(dataset, model=model)
    length = samples.count
    if length != manifest.count:
        return [*differences, f"it has targets for {manifest.count} samples, the data set has {length}"]
    with own_random():
        final = model is not None or _plain(samples.item(0)[0])
        return differences + changed_data(samples, manifest.shards, inputs=final, most=_LOOKS)


def _plain(inputs: Any) -> bool:
    """Whether inputs are tensors; of a dict a model may take a part, and others have yet to be made tensors."""
    leaves = pytree.tree_leaves(inputs)
    return not isinstance(inputs, Mapping) and all(isinstance(leaf, Tensor | np.ndarray) for leaf in leaves)


def setting_differences(stored: Manifest, planned: Manifest) -> list[str]:
    """What a store was begun with and what is asked for now, where they differ, shapes and weights aside."""
    if stored.layers.keys() != planned.layers.keys():
        return [f"it is being written for the layers {_some(list(stored.layers))}, not {_some(list(planned.layers))}"]
    before, now = stored.settings(), planned.settings()
    keys = [k for k in before.keys() | now.keys() if not k.startswith(("weights.", "layers.")) or k.endswith(".dtype")]
    return [
        f"{k} is {before.get(k)!r} in the store, {now.get(k)!r} now"
        for k in sorted(keys)
        if before.get(k) != now.get(k)
    ]


def _no_layer(manifest: Manifest, name: str) -> str:
    return f"it has no layer {name!r}; it has {', '.join(map(repr, manifest.layers))}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def changed_data(
    samples: LabelledSamples, shards: Sequence[ShardInfo], *, inputs: bool = True, most: int | None = None
) -> list[str]:
    """Differences between a data set and what shards were written with.

    All labels are compared where the data set gives many samples in one call, else those of the shards' first samples;
    and the inputs of these, unless random augmentation makes them others at every look.

    inputs: whether inputs are compared. most: of the first samples, spread evenly over the shards.
    """
    numbers = {shard.start: range(shard.start, shard.start + shard.count) for shard in shards}
    known = {shard.start: samples.labels_of(numbers[shard.start]) for shard in shards}
    differences = [_other_labels(shard) for shard in shards if known[shard.start] not in (None, shard.labels)][:_SHOWN]
    others = []
    for shard in [shards[i] for i in spread(len(shards), len(shards) if most is None else most)]:
        first, label = samples.first_of(numbers[shard.start])
        if known[shard.start] is None and label != shard.first_label:
            differences.append(f"the label of sample {shard.start} is another than in the store")
        if inputs and first != shard.first_inputs:
            others.append(f"the inputs of sample {shard.start} are others than in the store")
    if others and samples.changing() is None:
        differences += others[:_SHOWN]
    return differences
