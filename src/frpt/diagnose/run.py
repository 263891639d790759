"""diagnose(): one pass over the data set, then a closer look at some of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn

from frpt.diagnose import axes as axes_of
from frpt.diagnose.diagnosis import Array, Diagnosis, LayerFinding, PairFinding, SampleTable, Specimen
from frpt.diagnose.layers import chosen
from frpt.diagnose.maps import picture, responses
from frpt.diagnose.progress import advance, progress_bar
from frpt.diagnose.ranking import refit
from frpt.diagnose.score import class_ids, scored
from frpt.diagnose.tally import LayerTally, SampleTally
from frpt.diagnose.trust import Trust, advise, trust
from frpt.embed import Embed
from frpt.errors import OptionError
from frpt.graph.inputs import Picker
from frpt.graph.names import OUTPUT
from frpt.presets import Preset
from frpt.reverser import Reverser
from frpt.targets.source import Source, fitting_batch, spread

_TRUST, _REFIT, _PAIR, _CLOSER = 32, 1024, 64, 64
"""Samples to measure trust with, to refit layers with (half of them held out), of a pair, in a batch of the gallery."""
_EXAMPLE = 8


def diagnose(
    model: nn.Module,
    dataset: Any,
    at: str | Sequence[str] | None = None,
    *,
    class_names: Sequence[str] | None = None,
    preset: str | Preset = "default",
    embed: str | Embed | None = None,
    margin: float | None = None,
    output: Picker = None,
    class_dim: int | None = None,
    blocks: str | Sequence[str] | None = None,
    samples: int | None = None,
    gallery: int = 48,
    pairs: int = 8,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layouts: Mapping[str, str] | None = None,
    batch_size: int | None = None,
    workers: int = 0,
    seed: int = 0,
    progress: bool = True,
) -> Diagnosis:
    """Where a network goes wrong: how far its layers are from what the rest needs, on which samples, and why.

    dataset: map-style, pairs (inputs, label). at: layers, by default the outermost modules; the output is always among
    them. samples: look at so many, evenly spaced, instead of all. gallery: samples shown with response maps; pairs:
    confused pairs of classes looked into. mean, std: of the inputs' normalisation, to show them as pictures. layouts:
    "channels_first" or "channels_last" for layers whose axes are taken wrongly. The model is not changed.
    """
    _check(samples, gallery, pairs, batch_size)
    source = Source(dataset, workers, next((p.device for p in model.parameters()), None))
    looked = range(source.count) if samples is None else spread(source.count, samples)
    example = next(iter(source.batches([looked[:_EXAMPLE]], _EXAMPLE)))[1]
    rev = Reverser(
        model, example, output=output, preset=preset, embed=embed, margin=margin, class_dim=class_dim, blocks=blocks
    )
    layers = chosen(rev, at)
    size = batch_size or fitting_batch(rev, source, layers)
    look = _Look(rev, source, layers, layouts)
    with progress_bar(progress) as bar:
        bar.add_task("diagnosing", total=len(looked), rate="")
        look.over(looked, size, class_names, bar)
        table = look.table()
        bar.update(bar.tasks[0].id, description="trust")
        found = look.trust(table, seed)
        bar.update(bar.tasks[0].id, description="ranking layers")
        faults = look.faults(looked, min(size, _REFIT), seed)
        bar.update(bar.tasks[0].id, description="response maps")
        shown = look.gallery(table, gallery, mean, std)
        confused = look.pairs(table, pairs, size)
    findings = look.findings(table, faults, found)
    return Diagnosis(
        model=type(model).__name__,
        preset=rev.preset.name,
        class_names=look.class_names,
        score_name=look.score_name,
        score=look.score / len(looked),
        layers=findings,
        units=found.units,
        ranking=tuple(sorted(layers, key=lambda name: -faults[name])),
        advice=advise(findings),
        confusion=look.confusion,
        pairs=confused,
        samples=table,
        gallery=shown,
    )


class _Look:
    """A network and a data set, with everything summed up so far."""

    def __init__(self, rev: Reverser, source: Source, layers: Sequence[str], layouts: Mapping[str, str] | None) -> None:
        self.rev, self.source, self.layers, self.layouts = rev, source, list(layers), layouts
        self.class_names: tuple[str, ...] = ()
        self.score_name, self.score = "", 0.0
        self.confusion: Array = np.zeros((0, 0), dtype=np.int64)
        self.rows = SampleTally(layers)
        self.tallies: dict[str, LayerTally] = {}

    def over(self, looked: Sequence[int], size: int, class_names: Sequence[str] | None, bar: Progress) -> None:
        """The pass over all samples."""
        for part, x, y in self.source.batches([looked], size):
            found = self.rev.reconstruct(x, y, at=self.layers)
            out = found[OUTPUT].anchor
            ids = class_ids(out, y)
            if not self.tallies:
                self._begin(out, ids, class_names)
            self.score_name, values = scored(self.rev, out, y)
            self.score += float(values.sum())
            predicted = None if ids is None else out.argmax(1).cpu()
            if ids is not None and predicted is not None:
                np.add.at(self.confusion, (ids.cpu().numpy(), predicted.numpy()), 1)
            self.rows.add(part, ids, predicted, found)
            for name, rec in found.items():
                self.tallies[name].add(rec, ids)
            advance(bar, len(part))

    def _begin(self, out: Tensor, ids: Tensor | None, class_names: Sequence[str] | None) -> None:
        classes = 0 if ids is None else int(out.shape[1])
        if class_names is not None and len(class_names) != classes:
            raise OptionError(
                f"class_names has {len(class_names)} names, the output {classes} classes; pass one name for each class"
                if classes
                else "class_names was given, but the labels are no class ids, one for each sample"
            )
        self.class_names = tuple(map(str, range(classes))) if class_names is None else tuple(map(str, class_names))
        self.confusion = np.zeros((classes, classes), dtype=np.int64)
        for name in self.layers:
            where = axes_of.axes(self.rev, name, self.layouts)
            self.tallies[name] = LayerTally(where, self.rev.samples(name), classes)

    def table(self) -> SampleTable:
        return self.rows.table()

    def trust(self, table: SampleTable, seed: int) -> Trust:
        """Measured on some of the samples that need a correction."""
        wrong = table.index[table.corrected]
        if len(wrong) == 0:
            return Trust((), dict.fromkeys(self.layers, 0.0))
        some = np.random.default_rng(seed).permutation(wrong)[:_TRUST]
        _, x, y = next(iter(self.source.batches([some.tolist()], _TRUST)))
        return trust(self.rev, x, y, self.layers, seed)

    def faults(self, looked: Sequence[int], size: int, seed: int) -> dict[str, float]:
        """Layer → what refitting it alone takes back of the loss, on held-out samples."""
        some = np.random.default_rng(seed).permutation(np.asarray(looked))[:_REFIT].tolist()
        half = len(some) // 2
        if half == 0:
            return dict.fromkeys(self.layers, 0.0)
        fitted, held = ([(x, y) for _, x, y in self.source.batches([p], size)] for p in (some[:half], some[half:]))
        return refit(self.rev, fitted, held, self.layers)

    def gallery(self, table: SampleTable, most: int, mean: Any, std: Any) -> tuple[Specimen, ...]:
        """The samples that move most, class by class in turn."""
        rows = _worst(table, most)
        found: list[Specimen] = []
        for part, x, y in self.source.batches([table.index[rows].tolist()] if len(rows) else [], _CLOSER):
            recs = self.rev.reconstruct(x, y, at=self.layers)
            maps = responses(self.rev, x, y, recs, layouts=self.layouts)
            for i, (index, response) in enumerate(zip(part, maps, strict=True)):
                row = rows[len(found)]
                found.append(
                    Specimen(
                        index=int(index),
                        label=int(table.label[row]),
                        predicted=int(table.predicted[row]),
                        image=picture(self.source.item(index)[0], mean, std),
                        deviation={n: float(r.deviation[i]) for n, r in recs.items()},
                        closed={n: float(r.closed[i]) for n, r in recs.items()},
                        responses=response,
                    )
                )
        return tuple(found)

    def pairs(self, table: SampleTable, most: int, size: int) -> tuple[PairFinding, ...]:
        """The most frequent confusions: what would have to move, from up to 64 samples of each."""
        confused = list(_confused(self.confusion, most))
        mine = [np.flatnonzero((table.label == a) & (table.predicted == b) & table.corrected) for a, b, _ in confused]
        rows = np.concatenate([rows[:_PAIR] for rows in mine]) if mine else np.zeros(0, dtype=np.int64)
        parts: dict[str, list[Array]] = {name: [] for name in self.layers}
        for part, x, y in self.source.batches([table.index[rows].tolist()] if len(rows) else [], size):
            for name, rec in self.rev.reconstruct(x, y, at=self.layers).items():
                everyone = torch.arange(len(part), device=rec.target.device)
                parts[name].append(self.tallies[name].shares(rec, everyone)[0].cpu().numpy())
        shares = {name: np.concatenate(p) for name, p in parts.items() if p}
        found, first = [], 0
        for (label, predicted, count), own in zip(confused, mine, strict=True):
            here = slice(first, first := first + min(len(own), _PAIR))
            deviation = {n: float(table.deviation[own, i].mean()) for i, n in enumerate(self.layers)}
            channels = {name: share[here].mean(0) for name, share in shares.items()}
            found.append(PairFinding(label, predicted, count, deviation, channels))
        return tuple(found)

    def findings(self, table: SampleTable, faults: Mapping[str, float], found: Trust) -> tuple[LayerFinding, ...]:
        """What all samples say about each layer."""
        wrong, result = table.corrected, []
        for i, name in enumerate(self.layers):
            tally = self.tallies[name]
            moved, closed = table.deviation[wrong, i], table.closed[wrong, i]
            result.append(
                LayerFinding(
                    name=name,
                    shape=self.rev.sample_shape(name),
                    kind=tally.where.kind,
                    depth=len(self.rev.plan(name)),
                    deviation=float(moved.mean()) if len(moved) else 0.0,
                    closed=float(closed.mean()) if len(closed) else 1.0,
                    by_class=_by_class(moved, table.label[wrong], len(self.class_names)),
                    channels=tally.mean_channels(),
                    channels_by_class=tally.mean_by_class(),
                    positions=tally.mean_positions(),
                    fault=faults[name],
                    bound=found.bounds[name],
                )
            )
        return tuple(result)


def _by_class(values: Array, labels: Array, classes: int) -> Array:
    """(classes,) means; NaN for a class without values."""
    sums, counts = (np.bincount(labels, w, classes) if classes else np.zeros(0) for w in (values, None))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _worst(table: SampleTable, most: int) -> Array:
    """Rows of samples that need a correction, those that move most first, class by class in turn."""
    rows = np.flatnonzero(table.corrected)
    scale = table.deviation[rows].mean(0) if len(rows) else np.ones(0)
    moved = (table.deviation[rows] / np.where(scale > 0, scale, 1)).mean(1) if len(rows) else np.zeros(0)
    rows = rows[np.argsort(-moved, kind="stable")]
    turn = np.zeros(len(rows), dtype=np.int64)
    seen: dict[int, int] = {}
    for i, label in enumerate(table.label[rows]):
        turn[i] = seen[int(label)] = seen.get(int(label), -1) + 1
    return rows[np.argsort(turn, kind="stable")][:most]


def _confused(confusion: Array, most: int) -> Iterator[tuple[int, int, int]]:
    """(label, predicted, count) of the most frequent confusions."""
    off = confusion - np.diag(np.diag(confusion))
    for flat in np.argsort(-off, axis=None, kind="stable")[:most]:
        label, predicted = divmod(int(flat), len(off))
        if off[label, predicted] == 0:
            return
        yield label, predicted, int(off[label, predicted])


def _check(samples: int | None, gallery: int, pairs: int, batch_size: int | None) -> None:
    for name, value, least in (
        ("samples", samples, 1), ("gallery", gallery, 0), ("pairs", pairs, 0), ("batch_size", batch_size, 1),
    ):  # fmt: skip
        if value is not None and (not isinstance(value, int) or value < least):
            raise OptionError(f"{name} must be a whole number, at least {least}, got {value!r}")
