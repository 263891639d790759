"""Deviation against accuracy along training (paper IV-C1), and the weights of one architecture from dicts and files.

For each checkpoint of a model: its score over a data set, and per layer the mean of ‖a* − â‖/‖â‖ over the samples that
need a correction. Their correlation over checkpoints says whether a layer's deviation falls while the network learns.
Users call ``along_training``; ``figures/curves.py`` and ``report/runs.py`` show what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from frpt.common.text import html_table, table
from frpt.datasets.labelled import LabelledSamples
from frpt.datasets.pairs import CollateFn
from frpt.diagnosis.findings import Array
from frpt.diagnosis.sums import scored
from frpt.errors import CheckpointError, OptionError, UnknownLayerError
from frpt.files.progress import Progress
from frpt.files.weights import read_weights, state_dict_in, tensors_of
from frpt.graph.names import OUTPUT
from frpt.graph.refused import check_copyable, check_kind
from frpt.reverser import Layer, Reverser, UnmeasuredOptions, layer_names, make_reverser, network_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WeightsLike = Mapping[str, Any] | nn.Module | str | Path
"""Weights of a model: a state dict, a module that has them, or a file."""
_SHOWN = 3  # names in an error message; the rest is counted


@dataclass(frozen=True)
class Correlation:
    """How deviation and score go together over checkpoints.

    Attributes:
        pearson: Pearson's r.
        pearson_p: its two-sided p-value.
        spearman: Spearman's ρ.
        spearman_p: its two-sided p-value.
    """

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """Several checkpoints of one model: what ``frpt.along_training`` returns.

    Attributes:
        checkpoints: their names, in the order given.
        layers: names of layers.
        score_name: "accuracy", or "mse" where labels are no class ids.
        score: (k,), of each checkpoint.
        deviation: (k, layers), mean of ‖a* − â‖/‖â‖ over the samples that need a correction; NaN where none does.

    Example:
        >>> trajectory
        relative deviation along 2 checkpoints
        checkpoint    accuracy  0
        ------------  --------  ...
        start         0.25      ...
        end           ...
        Pearson r               -
        Spearman rho            -
    """

    checkpoints: tuple[str, ...]
    layers: tuple[str, ...]
    score_name: str
    score: Array
    deviation: Array

    def correlation(self, layer: str) -> Correlation:
        """The correlation of deviation and score at a layer.

        Args:
            layer: one of ``layers``.

        Returns:
            The correlation; NaN with fewer than 3 checkpoints, or where deviation or score never changes.

        Raises:
            UnknownLayerError: for another layer.

        Example:
            >>> trajectory.correlation("0").pearson
            nan
        """
        from scipy import stats

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
        """A data frame with a row per checkpoint and layer.

        Returns:
            Columns "checkpoint", "layer", the score's name and "deviation".

        Example:
            >>> list(trajectory.to_pandas().columns)
            ['checkpoint', 'layer', 'accuracy', 'deviation']
        """
        import pandas as pd

        rows = [
            {"checkpoint": name, "layer": layer, self.score_name: float(self.score[i]), "deviation": float(d)}
            for i, name in enumerate(self.checkpoints)
            for layer, d in zip(self.layers, self.deviation[i], strict=True)
        ]
        return pd.DataFrame(rows, columns=["checkpoint", "layer", self.score_name, "deviation"])

    def figure(self, path: str | Path | None = None) -> Figure:
        """Score against deviation, a panel per layer, with their correlations.

        Args:
            path: a file to write it to as well: .png, .svg or .pdf.

        Returns:
            The figure, which belongs to no window.

        Raises:
            OptionError: for another kind of file.

        Example:
            >>> figure = trajectory.figure(folder / "trajectory.png")
        """
        from frpt.diagnosis.figures.curves import trajectory

        return trajectory(self, path)

    def __str__(self) -> str:
        return f"{self._caption}\n{table(*self._cells())}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self._caption, *self._cells())

    @property
    def _caption(self) -> str:
        return f"relative deviation along {len(self.checkpoints)} checkpoints"

    def _cells(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row per checkpoint with the correlations below."""
        head = ("checkpoint", self.score_name, *self.layers)
        rows = [
            (name, f"{self.score[i]:.4g}", *(f"{d:.3g}" for d in self.deviation[i]))
            for i, name in enumerate(self.checkpoints)
        ]
        correlations = [self.correlation(layer) for layer in self.layers]
        rows.append(("Pearson r", "", *(_tested(c.pearson, c.pearson_p) for c in correlations)))
        rows.append(("Spearman rho", "", *(_tested(c.spearman, c.spearman_p) for c in correlations)))
        return head, rows


def _tested(value: float, p: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.2f} (p {p:.2g})"


def along_training(
    model: nn.Module | Reverser,
    checkpoints: Iterable[WeightsLike] | Mapping[str, WeightsLike],
    dataset: Any,
    at: Layer | Sequence[Layer],
    *,
    batch_size: int = 64,
    workers: int = 0,
    progress: bool = True,
    collate_fn: CollateFn | None = None,
    **options: Unpack[UnmeasuredOptions],
) -> Trajectory:
    """Score and relative deviation ‖a* − â‖/‖â‖ at layers, of several checkpoints of one model.

    Args:
        model: the architecture, or a Reverser on it, whose options hold (its reference does not: that belongs to one
            checkpoint's weights). Checkpoints are loaded into a copy, it stays as it is.
        checkpoints: state dicts, modules or files (.safetensors, or state dicts in .pt and .pth; a directory holds
            ``model.safetensors``), in a list or by name.
        dataset: pairs (inputs, label) or dicts with a label, as ``diagnose`` takes them.
        at: a layer or several.
        batch_size: samples reconstructed together.
        workers: processes that load samples.
        progress: show a bar.
        collate_fn: makes a batch (inputs, labels), or a dict, of a list of items.
        **options: those of ``Reverser``, where the network was given.

    Returns:
        The score (accuracy, or the mean squared error where labels are no class ids) and the deviations of every
        checkpoint, with their correlations.

    Raises:
        CaptureError: for a model without numbers, or of a kind that cannot be captured.
        CheckpointError: for weights that cannot be read or do not fit the model; all are looked at before any work.
        OptionError: for no checkpoint, no layer or one named twice, or a model that cannot be copied.

    Example:
        >>> checkpoints = {"start": start, "end": net.state_dict()}
        >>> trajectory = frpt.along_training(net, checkpoints, data, at="0", progress=False)
        >>> trajectory.deviation.shape
        (2, 1)
    """
    layers = layer_names(network_of(model, options), at)
    if not layers:
        raise OptionError("at names no layer; pass at least one")
    if len(set(layers)) != len(layers):
        raise OptionError(f"at names a layer twice: {layers}")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size must be a whole number, at least 1, got {batch_size!r}")
    given = _named(checkpoints)
    check_kind(network_of(model, options))
    check_copyable(network_of(model, options))
    copy = deepcopy(network_of(model, options)).eval()
    for name, checkpoint in given.items():  # all of them before any work
        _weights(name, checkpoint, copy)
    first = next((p for p in copy.parameters()), None)
    device = None if first is None else first.device
    source = LabelledSamples(dataset, workers, device, collate_fn=collate_fn, model=copy, once=True)
    example = next(iter(source.batches([range(min(batch_size, source.count))], batch_size)))[1]
    measured = []
    with Progress("", len(given) * source.count, shown=progress) as bar:
        for name, checkpoint in given.items():
            bar.describe(name)
            copy.load_state_dict(_weights(name, checkpoint, copy))
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
        recs = rev.reconstruct(x, y, at=[OUTPUT, *(n for n in layers if n != OUTPUT)])
        sums.name, values = scored(rev, recs[OUTPUT].anchor, y)
        sums.total, sums.seen = sums.total + float(values.nansum()), sums.seen + int(values.isfinite().sum())
        sums.corrected += int(recs[OUTPUT].corrected.sum())
        for layer in layers:
            sums.deviations[layer] += float(recs[layer].deviation[recs[layer].corrected].sum())
        bar.advance(len(part))
    return sums


def _named(checkpoints: Iterable[WeightsLike] | Mapping[str, WeightsLike]) -> dict[str, WeightsLike]:
    """The checkpoints by name: as given, by their files' names where those differ, else by number."""
    if isinstance(checkpoints, Mapping):
        if any(isinstance(v, Tensor) for v in checkpoints.values()):
            raise OptionError("checkpoints is a single state dict; pass a list of them")
        by_name = dict(checkpoints)
    elif isinstance(checkpoints, str | Path | nn.Module):
        raise OptionError("checkpoints must be several; pass a list of state dicts, modules or paths")
    elif not isinstance(checkpoints, Iterable):
        raise OptionError(
            f"checkpoints is a {type(checkpoints).__name__}; pass a list of state dicts, modules or paths"
        )
    else:
        items = list(checkpoints)
        names = [Path(c).stem if isinstance(c, str | Path) else str(i) for i, c in enumerate(items)]
        unique = len(set(names)) == len(names)
        by_name = {name if unique else str(i): c for i, (name, c) in enumerate(zip(names, items, strict=True))}
    if not by_name:
        raise OptionError("there are no checkpoints; pass at least one")
    return by_name


def _weights(name: str, checkpoint: WeightsLike, model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a checkpoint, checked to fit the model."""
    if isinstance(checkpoint, nn.Module):
        state: Any = checkpoint.state_dict()
    elif isinstance(checkpoint, str | Path):
        state = read_weights(checkpoint, name)
    else:
        state = state_dict_in(checkpoint, name)
    if differences := _differences(tensors_of(state), model):
        listing = "".join(f"\n  - {text}" for text in differences)
        raise CheckpointError(
            f"the checkpoint {name!r} does not fit the model ({type(model).__name__}):{listing}\n"
            "Pass the model it was made with."
        )
    return dict(state)


def _differences(state: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """What keeps weights from fitting a model, in words; nothing if they fit."""
    own: dict[str, Tensor] = tensors_of(model.state_dict())
    missing, more = [k for k in own if k not in state], [k for k in state if k not in own]
    shapes = [
        f"{k} has the shape {tuple(state[k].shape)}, the model's {tuple(own[k].shape)}"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    meta = [f"{k} is on the meta device, without numbers" for k in own if k in state and state[k].is_meta]
    odd = [
        f"{k} is {'quantised: pass its dequantize()' if state[k].is_quantized else 'sparse: pass its to_dense()'}"
        for k in own
        if k in state and (state[k].is_quantized or state[k].layout != torch.strided)
    ]
    bad = [
        f"{k} holds NaN or infinity"
        for k, _ in model.named_parameters()
        if not meta
        and not odd
        and k in state
        and state[k].is_floating_point()
        and not bool(torch.isfinite(state[k]).all())
    ]
    named = [f"{what} {_few(keys)}" for what, keys in (("it lacks", missing), ("it also has", more)) if keys]
    return named + [_few(texts) for texts in (shapes, meta, odd, bad) if texts]


def _few(items: list[str]) -> str:
    rest = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + rest
