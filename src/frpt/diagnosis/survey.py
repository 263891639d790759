"""``frpt.diagnose``: which layers, measured how, then one pass over the data set and closer looks at some samples.

Users call it; so does the command line. The work is done in ``examination.py``, what comes out is a ``Diagnosis``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from torch import nn

from frpt.common.checks import check_normalisation, check_seed
from frpt.datasets.labelled import LabelledSamples, digests_of_data, fitting_batch, spread
from frpt.datasets.pairs import CollateFn
from frpt.datasets.seeds import own_random
from frpt.diagnosis.diagnosis import Diagnosis
from frpt.diagnosis.examination import Examination
from frpt.diagnosis.sample_views import Names, Words, namer
from frpt.diagnosis.sums import PartialDiagnosis
from frpt.diagnosis.trust import advise
from frpt.errors import OptionError
from frpt.files.atomic import check_file
from frpt.files.digest import described, options_of, weights_of
from frpt.files.progress import Progress
from frpt.graph.names import OUTPUT
from frpt.reference import Reference
from frpt.repairs import ranking
from frpt.repairs.refitting import LOSSES
from frpt.reverser import Layer, Reverser, UnmeasuredOptions, layer_names, make_reverser, network_of

if TYPE_CHECKING:
    from frpt.diagnosis.examination import Pictures

_EXAMPLE = 8  # samples to capture the network with; any number above one does
_REFERENCE = 512  # samples to fit a reference to: the default of Reference.fit
_COMPARED = 256  # samples that tell a half-done diagnosis its data set: chosen, some seconds of decoding
_BATCH = 1024  # most samples together: more were no faster and took more memory (benchmarks/diagnose.py)


def diagnose(
    model: nn.Module | Reverser,
    dataset: Any,
    at: Layer | Sequence[Layer] | None = None,
    *,
    class_names: Sequence[str] | Mapping[Any, str] | None = None,
    reference: Reference | Literal[False] | None = None,
    loss: str | None = None,
    samples: int | None = None,
    gallery: int = 48,
    pairs: int = 8,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layouts: Mapping[str, str] | None = None,
    pictures: Pictures | None = None,
    sample_names: Names | None = None,
    tokens: Words | None = None,
    batch_size: int | None = None,
    workers: int = 0,
    seed: int = 0,
    partial: str | Path | None = None,
    progress: bool = True,
    collate_fn: CollateFn | None = None,
    **options: Unpack[UnmeasuredOptions],
) -> Diagnosis:
    """Where a network goes wrong: how far its layers are from what the rest needs, on which samples, and why.

    Args:
        model: the trained network, or a Reverser on it; it is not changed.
        dataset: pairs (inputs, label) or dicts with a label: a map-style data set, a ``DataLoader`` of one, whose
            collate_fn is taken over, or a stream (an iterable data set, an iterator), which is read once and held in
            memory.
        at: layers; by default the outermost modules. The output is always among them.
        class_names: one for each class, or for each output that labels say yes or no to, in a list or by its number;
            their numbers by default.
        reference: how features vary. By default the Reverser's, or one fitted to 512 of these samples, and targets are
            the likeliest features in which the label wins; False does without, and targets are the least change.
        loss: that refitting a layer shall take back: "cross_entropy", "bce" (binary, an answer for each output) or
            "mse". By default what fits the labels and the softmax or sigmoid that the output ends in, if any; the first
            two are of the values before that. The diagnosis says which.
        samples: look at so many, evenly spaced, instead of all; of a stream the first.
        gallery: samples shown with response maps, those that move most.
        pairs: confused pairs of classes to look into, the most frequent.
        mean: of the inputs' normalisation, to show them as pictures.
        std: the same.
        layouts: layer → "channels_first" or "channels_last", where its axes are taken wrongly.
        pictures: draws a sample of the gallery: (index, {"before": output, "target": label, "after": output}) → a
            matplotlib figure, once for every layer: "after" is the output when the network runs on from the layer's
            target. By default the data set's own method ``picture``, if it has one; where every pixel has a label, maps
            of the classes.
        sample_names: one for each sample of the data set, or a function of its index. By default the data set's own
            method ``sample_name``, or the file names that a data set of torchvision's kind has in ``samples``.
        tokens: for inputs of token ids, a vocabulary or a function from ids to texts, such as a tokenizer's
            ``convert_ids_to_tokens``; the report then shows the words. By default the data set's own method ``tokens``.
        batch_size: samples reconstructed together; by default as many as fit into 64 MiB.
        workers: processes that load samples.
        seed: of the choice of samples that are looked at more closely.
        partial: a file for half-done work. An interrupted diagnosis leaves it behind, the same call goes on from it,
            and it is removed at the end. It is refused for another network, other options, samples or labels (all of
            them in a ``TensorDataset``; elsewhere up to 256 are compared).
        progress: show a bar.
        collate_fn: makes a batch (inputs, labels), or a dict, of a list of items.
        **options: those of ``Reverser`` (preset, embed, margin, output, class_dim, blocks), where the network is given.

    Returns:
        The diagnosis: findings per layer, class, sample, channel and pair, in words, tables and figures.

    Raises:
        OptionError: for options out of range, class names that are too many or too few, a layer named twice, or a
            partial file of another diagnosis.
        UnknownLayerError: for a layer that is not there.

    Example:
        >>> diagnosis = frpt.diagnose(net, data, at=["0"], gallery=4, progress=False)
        >>> diagnosis.score_name, round(diagnosis.score, 2), [layer.name for layer in diagnosis.layers]
        ('accuracy', 0.25, ['out', '0'])
        >>> page = diagnosis.to_html(folder / "report.html")
    """
    _check(samples, gallery, pairs, batch_size)
    if partial is not None:
        check_file(partial)
    check_seed(seed)
    check_normalisation(mean, std)
    if loss is not None and loss not in LOSSES:
        raise OptionError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
    network = network_of(model, options)
    device = next((p.device for p in network.parameters()), None)
    source = LabelledSamples(dataset, workers, device, collate_fn=collate_fn, model=network, once=True, most=samples)
    looked = range(source.count) if samples is None else spread(source.count, samples)
    example = next(iter(source.batches([looked[:_EXAMPLE]], _EXAMPLE)))[1]
    rev = make_reverser(model, example, options)
    layers, name = _chosen_layers(rev, at), namer(dataset, sample_names)
    if strange := set(layouts or {}) - set(layers):
        raise OptionError(f"layouts names {', '.join(map(repr, sorted(strange)))}, not among the layers {layers}")
    rev, measure = _with_reference(rev, source, layers, reference, seed, progress)
    size = batch_size or fitting_batch(source, map(rev.sample_shape, layers), _BATCH)
    exam = Examination(rev.quickly(), source, layers, layouts, class_names)
    owner = {} if partial is None else _settings(rev, source, layers, looked, size, measure)
    saved = PartialDiagnosis(partial, owner)
    with Progress("diagnosing", len(looked), shown=progress) as bar:
        table = exam.pass_over(looked, size, bar, saved)
        confusion = exam.confusion(table)
        bar.describe("trust")
        trusted = exam.trust(table, seed)
        bar.describe("ranking layers")
        ranked = exam.ranked(table, looked, min(size, ranking.BATCH), seed, loss)
        bar.describe("response maps")
        draw = pictures or getattr(dataset, "picture", None)
        shown = exam.gallery(table, gallery, mean, std, draw, name, tokens or getattr(dataset, "tokens", None))
        confused = exam.pairs(table, confusion, pairs)
    saved.done()
    findings = exam.findings(table, ranked.faults, trusted)
    return Diagnosis(
        model=type(network).__name__,
        preset=rev.preset.name,
        class_names=exam.class_names,
        score_name=exam.score_name,
        score=exam.rows.score,
        layers=findings,
        units=trusted.units,
        ranking=tuple(ranked.faults) if table.corrected.any() else (),
        suspects=ranked.suspects,
        advice=advise(findings, exam.score_name == "mse"),
        confusion=confusion,
        pairs=confused,
        samples=table,
        gallery=shown,
        reference=_fitted_to(rev),
        normalisation=(mean, std),
        loss=ranked.loss,
        sample_names={int(i): said for i in table.index[table.corrected] if (said := name(int(i)))},
        source=source,
        recurrent=ranked.recurrent,
        unmoved={layer: note for layer in layers if (note := rev.plan(layer).note)},
        output_names=exam.output_names,
        cautions=exam.cautions(),
    )


def _chosen_layers(rev: Reverser, at: Layer | Sequence[Layer] | None) -> list[str]:
    """The layers asked for and the output, output first; without any, the outermost modules of the network."""
    if at is None:
        names = ranking.outermost(rev)
    else:
        names = layer_names(rev.model, at)
        if len(set(names)) != len(names):
            raise OptionError(f"at names a layer twice: {names}")
        for name in names:
            rev.plan(name)
    return ranking.output_first(rev, names)


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


def _fitted_to(rev: Reverser) -> str:
    """What the Reverser's reference was fitted to, in words; "" without one."""
    return f"{rev.reference.samples:,} samples" if isinstance(rev.reference, Reference) else ""


def _settings(
    rev: Reverser, source: LabelledSamples, layers: Sequence[str], looked: Sequence[int], size: int, measure: str
) -> dict[str, Any]:
    """What a partial file belongs to, by what an error calls it. A loss is not among it: it is of the ranking alone."""
    with own_random():
        inputs, labels = digests_of_data(source.dataset, [looked[i] for i in spread(len(looked), _COMPARED)])
    return {
        "weights": weights_of(rev.model),
        "ops of the network": [str(node.target) for node in rev.node(OUTPUT)[0].nodes],
        "layers": layers,
        "options of the reconstruction": [
            options_of(rev.preset), options_of(rev.embedder), described(rev.blocks), described(rev.output),
        ],
        "reference": measure,
        "number of samples": [len(looked), source.count],
        "batch size": size,
        "samples": inputs,
        "labels": labels,
    }  # fmt: skip


def _check(samples: int | None, gallery: int, pairs: int, batch_size: int | None) -> None:
    for name, value, least in (
        ("samples", samples, 1), ("gallery", gallery, 0), ("pairs", pairs, 0), ("batch_size", batch_size, 1),
    ):  # fmt: skip
        if value is not None and (not isinstance(value, int) or value < least):
            raise OptionError(f"{name} must be a whole number, at least {least}, got {value!r}")
