"""What a diagnosis keeps of a data set: numbers per sample, sums per layer, and the file they are saved to meanwhile.

Features are never kept. Per layer, over the samples that need a correction, the mean of the shares

    s_c = Σ_p (a* − â)²_{cp} / ‖a* − â‖²        of channel c (and the same of position p)

``examination.py`` adds batch after batch; ``trajectory.py`` uses the score alone. An interrupted diagnosis goes on from
a ``PartialDiagnosis``, a safetensors file of these sums.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from frpt.common.batch_axis import BatchAxis
from frpt.diagnosis.findings import Array, SampleTable
from frpt.diagnosis.layer_axes import LayerAxes
from frpt.errors import OptionError
from frpt.files.atomic import write_atomic
from frpt.files.digest import sha256_of_bytes, sha256_of_json
from frpt.files.untrusted import parse_json, parse_tensors, read_regular
from frpt.reverse.reconstruction import Reconstruction
from frpt.reverser import Reverser

_PAIRS = 4096
# Confused pairs of classes whose channels are summed apart: all pairs of 64 classes. With more classes the pairs that
# turn up first are kept, so that memory stays bounded (4096 pairs × 512 channels × 8 bytes = 16 MiB a layer).
_OUTPUTS = 1000
# Outputs of yes and no up to which a sample's answers are kept, so that memory stays bounded: a choice. 2 kB a sample.
_EVERY = 30.0
# Seconds between two savings: chosen so that little is lost and little is written; it changes no result.
_SETTINGS, _CHECKSUM = "settings", "checksum"


def scored(rev: Reverser, out: Tensor, y: Tensor) -> tuple[str, Tensor]:
    """The name of the score and its value for each sample: (b,).

    "accuracy" is the share of a sample's labels that win, strictly as everywhere (a tie is not right), NaN where all
    are ignored; "mse" the mean squared error, where labels are no class ids.
    """
    y = y.to(out.device)
    named = rev.embedder.yes_no(out, y)
    if not named and (y.is_floating_point() or y.shape == out.shape):
        return "mse", (out.double() - y.double()).square().reshape(len(y), -1).mean(1)
    counts = (y != rev.embedder.ignore_index).reshape(len(y), -1)
    wins = (rev.embedder.leads(out, y) > 0).reshape(len(y), -1) & counts
    return "accuracy", wins.sum(1).double() / counts.sum(1)


def classes(rev: Reverser, out: Tensor, y: Tensor) -> tuple[int, Tensor, Tensor] | None:
    """(how many classes there are, class ids, predicted ones), if each sample has one: of an output (b, c), or of one
    logit for two classes. Both: (b,)."""
    if rev.embedder.yes_no(out, y):
        if out[0].numel() != 1:
            return None
        return 2, y.reshape(-1).long(), (out.reshape(-1) > rev.embedder.threshold).long()
    if y.dim() == 1 and not y.is_floating_point() and out.dim() == 2 and y.shape[0] == out.shape[0]:
        return out.shape[1], y.long(), out.argmax(1)
    return None


def answers(rev: Reverser, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """(what labels say yes to, what the network says yes to), both (b, outputs) bool, where there are several outputs.

    Of an output (b, outputs) with labels of yes and no; None otherwise, and from ``_OUTPUTS`` on. Ignored ones: no.
    """
    if not rev.embedder.yes_no(out, y) or out.dim() != 2 or not 1 < out.shape[1] <= _OUTPUTS:
        return None
    y = y.to(out.device).reshape(out.shape)
    looked = y != rev.embedder.ignore_index
    return (y == 1) & looked, (out > rev.embedder.threshold) & looked


class LayerTally:
    """One layer, over the samples that need a correction. Shares of ‖a* − â‖² per channel, class and position."""

    def __init__(self, where: LayerAxes, samples: BatchAxis, classes: int) -> None:
        self.where, self.samples = where, samples
        self.by_class = np.zeros((classes, where.channels))
        self.per_class = np.zeros(classes)
        self.channels = np.zeros(where.channels)
        self.positions = np.zeros(where.sites)
        self.pairs: dict[tuple[int, int], Array] = {}
        self.count = 0

    def add(self, rec: Reconstruction, labels: Tensor | None, predicted: Tensor | None) -> None:
        """One batch. labels, predicted: (b,) class ids, or None."""
        rows = rec.corrected.nonzero().squeeze(1)
        if len(rows) == 0:
            return
        channels, positions = self.shares(rec, rows)
        self.channels += channels.sum(0).cpu().numpy()
        if self.positions.size:
            self.positions += positions.sum(0).reshape(self.positions.shape).cpu().numpy()
        self.count += len(rows)
        if labels is not None and predicted is not None:
            self._add_classes(labels.to(rows.device)[rows].cpu().numpy(), predicted[rows].cpu().numpy(), channels)

    def _add_classes(self, ids: Array, predicted: Array, channels: Tensor) -> None:
        shares = channels.cpu().numpy()
        np.add.at(self.by_class, ids, shares)
        np.add.at(self.per_class, ids, 1)
        pairs, of = np.unique(np.stack([ids, predicted], 1), axis=0, return_inverse=True)
        sums = np.zeros((len(pairs), shares.shape[1]))
        np.add.at(sums, of.reshape(-1), shares)
        for (label, taken), total in zip(pairs.tolist(), sums, strict=True):
            if (label, taken) in self.pairs:
                self.pairs[label, taken] += total
            elif len(self.pairs) < _PAIRS:
                self.pairs[label, taken] = total.copy()

    def shares(self, rec: Reconstruction, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(k, channels) and (k, positions) of some samples, each summing to one."""
        moved = self.samples.take(rec.target, rows) - self.samples.take(rec.anchor, rows).to(rec.target)
        power = self.where.split(self.samples.front(moved)).double().square()
        power = power.reshape(len(rows), self.where.channels, -1)
        power = power / power.sum((1, 2), keepdim=True).clamp_min(1e-300)
        return power.sum(2), power.sum(1)

    def state(self) -> dict[str, Array]:
        """The sums, to go on from later."""
        held = {"by_class": self.by_class, "per_class": self.per_class, "channels": self.channels}
        keys = np.array(list(self.pairs), dtype=np.int64).reshape(-1, 2)
        sums = np.stack([*self.pairs.values()]) if self.pairs else np.zeros((0, len(self.channels)))
        more = {"positions": self.positions, "count": np.array([self.count]), "pairs": keys, "pair_sums": sums}
        return {**held, **more}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.by_class, self.per_class = state["by_class"].copy(), state["per_class"].copy()
        self.channels, self.positions = state["channels"].copy(), state["positions"].copy()
        self.count = int(state["count"][0])
        keys = [(int(a), int(b)) for a, b in state["pairs"]]
        self.pairs = dict(zip(keys, state["pair_sums"].copy(), strict=True))

    def mean_channels(self) -> Array:
        return self.channels / max(self.count, 1)

    def mean_by_class(self) -> Array:
        return self.by_class / np.maximum(self.per_class, 1)[:, None]

    def mean_of_pair(self, label: int, predicted: int) -> Array:
        total = self.pairs.get((label, predicted), np.zeros(len(self.channels)))
        share: Array = total / max(total.sum(), 1e-300)
        return share

    def mean_positions(self) -> Array:
        return self.positions / max(self.count, 1)


class SampleTally:
    """Numbers per sample, in arrays made once for all ``count``.

    Small arrays kept of every batch, among large ones that come and go, would split the heap further and further.
    """

    def __init__(self, layers: Sequence[str], count: int) -> None:
        self.layers, self.count = list(layers), count
        self._columns: dict[str, Array] = {}
        self._filled = 0

    def add(
        self,
        index: Sequence[int],
        labels: Tensor | None,
        predicted: Tensor | None,
        values: Tensor,
        recs: Mapping[str, Reconstruction],
        said: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """labels, predicted: (b,) class ids, None where there are none. values: (b,), the sample's score.

        said: as ``answers`` has it.
        """
        none = torch.full((len(index),), -1)
        ordered = [recs[name] for name in self.layers]
        row = {
            "index": torch.as_tensor(list(index)),
            "label": none if labels is None else labels,
            "predicted": none if predicted is None else predicted,
            "corrected": ordered[0].corrected,
            "deviation": torch.stack([r.deviation.float() for r in ordered], 1),
            "reference_deviation": torch.stack([_in_reference(r) for r in ordered], 1),
            "wins": torch.stack([r.wins for r in ordered], 1),
            "closed": torch.stack([r.closed.float() for r in ordered], 1),
            "value": values,
            **({} if said is None else {"label_yes": said[0], "predicted_yes": said[1]}),
        }
        self.extend({name: value.cpu().numpy() for name, value in row.items()})

    def __len__(self) -> int:
        return self._filled

    def state(self) -> dict[str, Array]:
        """All rows, to go on from later."""
        return {name: column[: self._filled] for name, column in self._columns.items()}

    def extend(self, columns: Mapping[str, Array]) -> None:
        """Rows after those that are here already."""
        if self._columns and set(columns) != set(self._columns):
            raise OptionError(
                f"the saved diagnosis has other columns, {sorted(self._columns)}, than this version's, "
                f"{sorted(columns)}. Remove the file that partial= names to start again."
            )
        first, last = self._filled, self._filled + len(columns["index"])
        for name, rows in columns.items():
            if name not in self._columns:
                self._columns[name] = np.empty((self.count, *rows.shape[1:]), rows.dtype)
            self._columns[name][first:last] = rows
        self._filled = last

    @property
    def score(self) -> float:
        return float(np.nanmean(self.state()["value"]))

    def table(self) -> SampleTable:
        return SampleTable(**{name: rows for name, rows in self.state().items() if name != "value"})


def _in_reference(rec: Reconstruction) -> Tensor:
    """The deviation in the reference's metric: (b,), NaN without one."""
    inside = rec.reference_deviation
    return torch.full_like(rec.deviation, torch.nan).float() if inside is None else inside.float()


def _checksum(arrays: Mapping[str, Array], settings: str) -> str:
    """Of the arrays, by name, and of what they belong to."""
    kinds = [settings, [(name, str(a.dtype), a.shape) for name, a in sorted(arrays.items())]]
    return sha256_of_bytes(sha256_of_json(kinds).encode(), *(arrays[name].tobytes() for name in sorted(arrays)))


class PartialDiagnosis:
    """A file that holds named arrays, and what they belong to; it is refused for another model, layers or data set.

    settings: what the file belongs to, by what an error calls it.
    """

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.settings = {name: sha256_of_json(value) for name, value in settings.items()}
        self._last = time.monotonic()

    def load(self) -> dict[str, Array]:
        """What was saved; nothing if there is no file yet."""
        if self.path is None or not self.path.exists():
            return {}
        try:
            data = read_regular(self.path)
            arrays = {name: t.numpy() for name, t in parse_tensors(data).items()}
            metadata = dict(parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"])
            if metadata.get(_CHECKSUM) != _checksum(arrays, metadata.get(_SETTINGS, "")):
                raise ValueError("it differs from its checksum")
            settings = dict(parse_json(metadata[_SETTINGS].encode()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OptionError(
                f"{str(self.path)!r} is no saved diagnosis of this version, or it is damaged: {error}. Remove it to "
                "start again, or name another file."
            ) from error
        names = {*self.settings, *settings}
        if other := sorted(name for name in names if self.settings.get(name) != settings.get(name)):
            raise OptionError(
                f"{str(self.path)!r} was saved by another diagnosis; what differs: {', '.join(other)}. Name another "
                "file, or remove it to start again."
            )
        return arrays

    @property
    def due(self) -> bool:
        """Whether half a minute has passed since the last saving."""
        return self.path is not None and time.monotonic() - self._last > _EVERY

    def save(self, arrays: Mapping[str, Array]) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        held = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        settings = json.dumps(self.settings, sort_keys=True)
        write_atomic(self.path, save(held, {_SETTINGS: settings, _CHECKSUM: _checksum(held, settings)}))
        self._last = time.monotonic()

    def done(self) -> None:
        """The file is of no more use."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
