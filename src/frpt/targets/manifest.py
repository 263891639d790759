"""The manifest of a target store: what was reconstructed, from what, and the checksum of every shard.

Called by the modules of this room only; ``TargetStore.manifest`` shows it to users.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from frpt.common.batch_axis import BatchAxis
from frpt.errors import StoreError
from frpt.files.digest import sha256_of_bytes
from frpt.files.untrusted import parse_json, read_regular

FORMAT, VERSION = "frpt targets", 1
FILE = "manifest.json"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Mode = Literal["dense", "delta"]
_LARGEST = 2**36
"""Bytes of one sample's target; a manifest that says more is a trap (chosen: no feature comes near)."""


@dataclass(frozen=True)
class LayerInfo:
    """One layer of a store. shape: of one sample, with the samples first (``samples.front(value)[i]``).

    dtype: on the disk. frozen, upstream: names of the weights after and before the layer.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    samples: BatchAxis
    frozen: tuple[str, ...]
    upstream: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Size of one sample's target on the disk."""
        return self.dtype.itemsize * math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape), "dtype": str(self.dtype).removeprefix("torch.")}

    @staticmethod
    def of(data: dict[str, Any]) -> LayerInfo:
        return LayerInfo(
            tuple(data["shape"]),
            DTYPES[data["dtype"]],
            BatchAxis(**data["samples"]),
            tuple(data["frozen"]),
            tuple(data["upstream"]),
        )


@dataclass(frozen=True)
class ShardInfo:
    """One shard: samples start … start + count − 1.

    settings: sha256 of everything that decides its bytes. sha256: of the file. labels: of the samples' labels.
    first_inputs, first_label: of the first sample. corrected: how many are. deviation: their mean, by layer.
    """

    name: str
    start: int
    count: int
    nbytes: int
    settings: str
    sha256: str
    labels: str
    first_inputs: str
    first_label: str
    corrected: int
    deviation: dict[str, float]

    def to_text(self) -> bytes:
        body = asdict(self)
        return dump({**body, "checksum": sha256_of_bytes(dump(body))})


@dataclass(frozen=True)
class Manifest:
    """What a store holds. ``shards`` is empty until the last one is finished."""

    count: int
    mode: Mode
    batch_size: int
    shard_size: int
    layers: dict[str, LayerInfo]
    weights: dict[str, str]
    """Dtype, shape and sha256 of every parameter and buffer the output depends on."""
    preset: dict[str, Any]
    embedding: dict[str, Any]
    shards: tuple[ShardInfo, ...] = ()

    @property
    def complete(self) -> bool:
        return len(self.shards) == self.shard_count

    @property
    def shard_count(self) -> int:
        return -(-self.count // self.shard_size)

    @property
    def corrected(self) -> int:
        """Number of corrected samples in the finished shards."""
        return sum(shard.corrected for shard in self.shards)

    def mean_deviation(self, layer: str) -> float:
        """‖target − anchor‖/‖anchor‖ at a layer, over the corrected samples; 0 without any."""
        total = sum(shard.corrected * shard.deviation[layer] for shard in self.shards)
        return total / max(self.corrected, 1)

    def samples_of(self, shard: int) -> range:
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.count))

    def to_text(self) -> bytes:
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        body["layers"] = {name: layer.to_json() for name, layer in self.layers.items()}
        return dump({**body, "checksum": sha256_of_bytes(dump(body))})

    def settings(self) -> dict[str, Any]:
        """Everything that decides the bytes of the shards, as flat names and values."""
        body = json.loads(replace(self, shards=()).to_text())
        return _flat({k: v for k, v in body.items() if k not in ("checksum", "shards", "format", "version")})

    @cached_property
    def settings_digest(self) -> str:
        return sha256_of_bytes(dump(self.settings()))


def shard_name(shard: int) -> str:
    return f"shard-{shard:06d}.safetensors"


def note_name(shard: str) -> str:
    """The file beside a shard that says it is finished."""
    return shard.removesuffix(".safetensors") + ".json"


def load_manifest(path: Path) -> Manifest:
    """The manifest of a store; a damaged one is refused."""
    file = path / FILE
    try:
        text = read_regular(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"{str(path)!r} is not a target store: it has no {FILE}. Write one with frpt.write_targets."
        ) from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{str(file)!r} cannot be read: {error}") from error
    damaged = StoreError(
        f"{str(file)!r} is damaged. Remove it and make the same frpt.write_targets call again; finished shards stay."
    )
    try:
        body = parse_json(text)
    except ValueError as error:
        raise damaged from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise damaged
    if body.get("version") != VERSION:
        raise StoreError(
            f"{str(file)!r} has format version {body.get('version')}, this frpt reads {VERSION}; "
            "upgrade frpt, or write the store again"
        )
    try:
        manifest = _manifest(body)
        same = manifest.to_text() == text
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged from error
    if not same:
        raise damaged
    if reason := _impossible(manifest):
        raise StoreError(f"{str(file)!r} cannot be of a target store: {reason}. Write the store again.")
    return manifest


def load_note(file: Path) -> ShardInfo | None:
    """What a finished shard says of itself; None where there is none, or none that can be read."""
    try:
        data = parse_json(read_regular(file))
        checksum = data.pop("checksum", None)
        return ShardInfo(**data) if checksum == sha256_of_bytes(dump(data)) else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def fits(manifest: Manifest, number: int, shard: ShardInfo) -> bool:
    """Whether a shard can be the store's number so and so: its name, its samples, and room for what it holds."""
    samples = manifest.samples_of(number)
    numbers = (shard.start, shard.count, shard.nbytes, shard.corrected)
    if shard.name != shard_name(number) or not all(_whole(n, 0) for n in numbers):
        return False
    if (shard.start, shard.count) != (samples.start, len(samples)) or shard.corrected > shard.count:
        return False
    words = (shard.settings, shard.sha256, shard.labels, shard.first_inputs, shard.first_label)
    known = isinstance(shard.deviation, dict) and shard.deviation.keys() == manifest.layers.keys()
    if not known or not all(isinstance(word, str) for word in words):
        return False
    rows = shard.count if manifest.mode == "dense" else shard.corrected
    least = shard.count + rows * sum(info.nbytes for info in manifest.layers.values())
    return shard.nbytes >= least and all(isinstance(d, int | float) for d in shard.deviation.values())


def _impossible(manifest: Manifest) -> str | None:
    """Why no store can have such a manifest, whose checksum fits; None where one can."""
    for name in ("count", "batch_size", "shard_size"):
        if not _whole(getattr(manifest, name), 1):
            return f"{name} is {getattr(manifest, name)!r}"
    if manifest.mode not in ("dense", "delta") or not manifest.layers:
        return f"mode is {manifest.mode!r}, with {len(manifest.layers)} layers"
    if not isinstance(manifest.weights, dict) or not _words([*manifest.weights, *manifest.weights.values()]):
        return "its weights are no names with a checksum each"
    for name, info in manifest.layers.items():
        if not all(_whole(n, 0) for n in info.shape) or info.nbytes > _LARGEST:
            return f"the samples of {name!r} have the shape {info.shape}"
        if not _whole(info.samples.dim, 0) or not _whole(info.samples.outer, 1) or not _whole(info.samples.inner, 1):
            return f"the samples of {name!r} are on {info.samples}"
        parts = (*info.frozen, *info.upstream)
        if not _words(parts) or not manifest.weights.keys() >= set(parts):
            return f"the weights before or after {name!r} are not among its weights"
    for options, key in ((manifest.preset, "name"), (manifest.embedding, "how")):
        if not isinstance(options, dict) or not isinstance(options.get(key), str):
            return "its preset or its embedding has no name"
    if "margin" not in manifest.embedding:
        return "its embedding has no margin"
    if manifest.shards and len(manifest.shards) != manifest.shard_count:
        return f"it lists {len(manifest.shards)} of {manifest.shard_count} shards"
    wrong = [shard.name for i, shard in enumerate(manifest.shards) if not fits(manifest, i, shard)]
    return f"its shard {wrong[0]!r} does not fit" if wrong else None


def _words(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 2**63


def dump(data: dict[str, Any]) -> bytes:
    """JSON in one canonical form: the same data is the same bytes."""
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _manifest(body: dict[str, Any]) -> Manifest:
    fields = {k: v for k, v in body.items() if k not in ("format", "version", "checksum")}
    fields["layers"] = {name: LayerInfo.of(layer) for name, layer in fields["layers"].items()}
    fields["shards"] = tuple(ShardInfo(**shard) for shard in fields["shards"])
    return Manifest(**fields)


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
