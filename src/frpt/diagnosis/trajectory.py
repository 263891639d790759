"""Deviation against accuracy along training (paper IV-C1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from scipy import stats
from torch import nn

from frpt.common.text import table
from frpt.datasets.labelled import LabelledSamples
from frpt.diagnosis.checkpoints import Checkpoint, named, weights
from frpt.diagnosis.findings import Array
from frpt.diagnosis.score import scored
from frpt.errors import OptionError, UnknownLayerError
from frpt.files.progress import Progress
from frpt.graph.names import OUTPUT
from frpt.reverser import Reverser, UnmeasuredOptions, make_reverser, network_of

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Correlation:
    """Pearson's and Spearman's correlation of deviation and score over checkpoints, with two-sided p-values."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Several checkpoints of one model. score: (k,); deviation: (k, layers), mean over samples to be corrected."""

    checkpoints: tuple[str, ...]
    layers: tuple[str, ...]
    score_name: str
    score: Array
    deviation: Array

    def correlation(self, layer: str) -> Correlation:
        """Of deviation and score at a layer; NaN with fewer than 3 checkpoints, or where either never changes."""
        if layer not in self.layers:
            raise UnknownLayerError(layer, self.layers)
        deviation = self.deviation[:, self.layers.index(layer)]
        kept = np.isfinite(deviation) & np.isfinite(self.score)
        a, b = deviation[kept], self.score[kept]
        if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
            return Correlation(math.nan, math.nan, math.nan, math.nan)
        r, rho = stats.pearsonr(a, b), stats.spearmanr(a, b)
        return Correlation(float(r.statistic), float(r.pvalue), float(rho.statistic), float(rho.pvalue))

    def to_pandas(self) -> pd.DataFrame:
        """A row per checkpoint and layer."""
        import pandas as pd

        rows = [
            {"checkpoint": name, "layer": layer, self.score_name: float(self.score[i]), "deviation": float(d)}
            for i, name in enumerate(self.checkpoints)
            for layer, d in zip(self.layers, self.deviation[i], strict=True)
        ]
        return pd.DataFrame(rows, columns=["checkpoint", "layer", self.score_name, "deviation"])

    def figure(self, path: str | Path | None = None) -> Figure:
        """Score against deviation, a panel per layer, with their correlations. path: where to write it, if anywhere."""
        from frpt.diagnosis.figures.curves import trajectory

        return trajectory(self, path)

    def __str__(self) -> str:
        head = ("checkpoint", self.score_name, *self.layers)
        rows = [
            (name, f"{self.score[i]:.4g}", *(f"{d:.3g}" for d in self.deviation[i]))
            for i, name in enumerate(self.checkpoints)
        ]
        found = [self.correlation(layer) for layer in self.layers]
        rows.append(("Pearson r", "", *(_tested(c.pearson, c.pearson_p) for c in found)))
        rows.append(("Spearman rho", "", *(_tested(c.spearman, c.spearman_p) for c in found)))
        return f"relative deviation along {len(self.checkpoints)} checkpoints\n" + table(head, rows)


def _tested(value: float, p: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.2f} (p {p:.2g})"


def along_training(
    model: nn.Module | Reverser,
    checkpoints: Iterable[Checkpoint] | Mapping[str, Checkpoint],
    dataset: Any,
    at: str | Sequence[str],
    *,
    batch_size: int = 64,
    workers: int = 0,
    progress: bool = True,
    **options: Unpack[UnmeasuredOptions],
) -> Trajectory:
    """Score and relative deviation ‖a* − â‖/‖â‖ at layers, of several checkpoints of one model.

    checkpoints: state dicts, modules or files (.safetensors, or state dicts in .pt and .pth; a directory holds
    ``model.safetensors``), in a list or by name. Each goes into a copy of the model, which stays as it is.
    dataset: map-style, pairs (inputs, label). The score is the accuracy, or the mean squared error where labels are no
    class ids. model: the network, or a Reverser on it, whose options hold; its reference does not, it belongs to one
    checkpoint's weights. options: those of ``Reverser``, where the network was given.
    """
    layers = [at] if isinstance(at, str) else list(at)
    if not layers:
        raise OptionError("at names no layer; pass at least one")
    if batch_size < 1:
        raise OptionError(f"batch_size must be positive, got {batch_size}")
    given = named(checkpoints)
    copy = deepcopy(network_of(model, options)).eval()
    for name, checkpoint in given.items():  # all of them before any work
        weights(name, checkpoint, copy)
    first = next((p for p in copy.parameters()), None)
    source = LabelledSamples(dataset, workers, None if first is None else first.device)
    example = next(iter(source.batches([range(min(batch_size, source.count))], batch_size)))[1]
    measured = []
    with Progress("", len(given) * source.count, shown=progress) as bar:
        for name, checkpoint in given.items():
            bar.describe(name)
            copy.load_state_dict(weights(name, checkpoint, copy))
            if isinstance(model, Reverser):
                rev = model.on(copy).measured_by(None)
            else:
                rev = make_reverser(copy, example, options)
            measured.append(_measure(rev, source, layers, batch_size, bar))
    scores = np.array([m.score for m in measured])
    deviations = np.stack([m.deviation(layers) for m in measured])
    return Trajectory(tuple(given), tuple(layers), measured[0].name, scores, deviations)


@dataclass
class _Sums:
    """Sums over the batches of one checkpoint."""

    name: str = ""
    total: float = 0.0
    seen: int = 0
    corrected: int = 0
    deviations: dict[str, float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        return self.total / self.seen

    def deviation(self, layers: Sequence[str]) -> Array:
        """(layers,); NaN where no sample needs a correction."""
        return np.array([self.deviations[n] / self.corrected if self.corrected else math.nan for n in layers])


def _measure(rev: Reverser, source: LabelledSamples, layers: list[str], batch_size: int, bar: Progress) -> _Sums:
    sums = _Sums(deviations=dict.fromkeys(layers, 0.0))
    for part, x, y in source.batches([range(source.count)], batch_size):
        found = rev.reconstruct(x, y, at=[OUTPUT, *(n for n in layers if n != OUTPUT)])
        sums.name, values = scored(rev, found[OUTPUT].anchor, y)
        sums.total, sums.seen = sums.total + float(values.nansum()), sums.seen + int(values.isfinite().sum())
        sums.corrected += int(found[OUTPUT].corrected.sum())
        for layer in layers:
            sums.deviations[layer] += float(found[layer].deviation[found[layer].corrected].sum())
        bar.advance(len(part))
    return sums
