"""diagnose(): one pass over the data set, then a closer look at some of its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from torch import nn

from frpt.datasets.labelled import LabelledSamples, fitting_batch, spread
from frpt.diagnosis.findings import Diagnosis
from frpt.diagnosis.layers import chosen
from frpt.diagnosis.look import REFIT, Look
from frpt.diagnosis.partial import Checkpoint
from frpt.diagnosis.trust import advise
from frpt.errors import OptionError
from frpt.files.digest import options_of, sha256_of_item, weights_of
from frpt.files.progress import Progress
from frpt.graph.names import OUTPUT
from frpt.reference import Reference
from frpt.reverser import Reverser, UnmeasuredOptions, make_reverser, network_of

_EXAMPLE, _REFERENCE = 8, 512
"""Samples to capture the network with, and to fit a reference to."""
_BATCH = 1024
"""Most samples looked at together: more are no faster."""


def diagnose(
    model: nn.Module | Reverser,
    dataset: Any,
    at: str | Sequence[str] | None = None,
    *,
    class_names: Sequence[str] | None = None,
    reference: Reference | Literal[False] | None = None,
    samples: int | None = None,
    gallery: int = 48,
    pairs: int = 8,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layouts: Mapping[str, str] | None = None,
    batch_size: int | None = None,
    workers: int = 0,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    **options: Unpack[UnmeasuredOptions],
) -> Diagnosis:
    """Where a network goes wrong: how far its layers are from what the rest needs, on which samples, and why.

    model: the network, or a Reverser on it. dataset: map-style, pairs (inputs, label). at: layers, by default the
    outermost modules; the output is always among them. reference: how features vary; by default the Reverser's, or
    one fitted to 512 of these samples; False does without.
    samples: look at so many, evenly spaced, instead of all. gallery: samples shown with response maps; pairs:
    confused pairs of classes looked into. mean, std: of the inputs' normalisation, to show them as pictures. layouts:
    "channels_first" or "channels_last" for layers whose axes are taken wrongly. checkpoint: a file that an interrupted
    diagnosis goes on from. options: those of ``Reverser``, where the network was given. The model is not changed.
    """
    _check(samples, gallery, pairs, batch_size)
    network = network_of(model, options)
    source = LabelledSamples(dataset, workers, next((p.device for p in network.parameters()), None))
    looked = range(source.count) if samples is None else spread(source.count, samples)
    example = next(iter(source.batches([looked[:_EXAMPLE]], _EXAMPLE)))[1]
    rev = make_reverser(model, example, options)
    layers = chosen(rev, at)
    if strange := set(layouts or {}) - set(layers):
        raise OptionError(f"layouts names {', '.join(map(repr, sorted(strange)))}, not among the layers {layers}")
    rev, measure = _with_reference(rev, source, layers, reference, seed, progress)
    size = batch_size or fitting_batch(source, map(rev.sample_shape, layers), _BATCH)
    look = Look(rev, source, layers, layouts, class_names)
    saved = Checkpoint(checkpoint, {**_settings(rev, source, layers, looked, size), "reference": measure})
    with Progress("diagnosing", len(looked), shown=progress) as bar:
        table = look.over(looked, size, bar, saved)
        confusion = look.confusion(table)
        bar.describe("trust")
        trusted = look.trust(table, seed)
        bar.describe("ranking layers")
        faults = look.faults(looked, min(size, REFIT), seed)
        bar.describe("response maps")
        shown = look.gallery(table, gallery, mean, std)
        confused = look.pairs(table, confusion, pairs)
    saved.done()
    findings = look.findings(table, faults, trusted)
    return Diagnosis(
        model=type(network).__name__,
        preset=rev.preset.name,
        class_names=look.class_names,
        score_name=look.score_name,
        score=look.rows.score,
        layers=findings,
        units=trusted.units,
        ranking=tuple(sorted(layers, key=lambda name: -faults[name])),
        advice=advise(findings),
        confusion=confusion,
        pairs=confused,
        samples=table,
        gallery=shown,
    )


def _with_reference(
    rev: Reverser,
    source: LabelledSamples,
    layers: Sequence[str],
    reference: Reference | Literal[False] | None,
    seed: int,
    progress: bool,
) -> tuple[Reverser, str]:
    """The Reverser measured by the reference given, by one fitted to the samples themselves, or by none; and which."""
    inner = [name for name in layers if name != OUTPUT]
    if reference is False or rev.preset.nearest is None or not inner:
        return rev.measured_by(None), "none"
    if reference is not None:
        reference.check(rev)
        return rev.measured_by(reference), reference.digest
    if rev.reference is not None:
        rev.reference.check(rev)
        return rev, rev.reference.digest
    if source.count < 2:
        return rev, "none"
    own = Reference.of_reverser(rev, source, inner, _REFERENCE, seed, progress, lenient=True)
    return rev.measured_by(own), f"{_REFERENCE} samples, seed {seed}"


def _settings(
    rev: Reverser, source: LabelledSamples, layers: Sequence[str], looked: Sequence[int], size: int
) -> dict[str, Any]:
    """What a saved diagnosis belongs to."""
    weights = weights_of(rev.model)
    first, last = (sha256_of_item(source.item(i)[0]) for i in (looked[0], looked[-1]))
    return {
        "weights": weights, "preset": options_of(rev.preset), "embedding": options_of(rev.embedder), "layers": layers,
        "blocks": rev.blocks, "output": rev.output, "samples": [len(looked), source.count, size, first, last],
    }  # fmt: skip


def _check(samples: int | None, gallery: int, pairs: int, batch_size: int | None) -> None:
    for name, value, least in (
        ("samples", samples, 1), ("gallery", gallery, 0), ("pairs", pairs, 0), ("batch_size", batch_size, 1),
    ):  # fmt: skip
        if value is not None and (not isinstance(value, int) or value < least):
            raise OptionError(f"{name} must be a whole number, at least {least}, got {value!r}")
