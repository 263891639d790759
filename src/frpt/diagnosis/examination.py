"""The examination behind ``diagnose``: one pass over the data set that sums up, then closer looks at some samples.

``survey.py`` drives it. The pass reconstructs every layer of every batch and adds to the sums; trust, the ranking of
layers and the gallery then look at a few samples again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from frpt.common.text import counted, percent
from frpt.datasets.labelled import LabelledSamples, sample_bytes
from frpt.diagnosis.findings import Array, LayerFinding, PairFinding, SampleTable, Specimen
from frpt.diagnosis.layer_axes import axes
from frpt.diagnosis.report.words import yes_words
from frpt.diagnosis.responses import picture, responses
from frpt.diagnosis.sample_views import Words, segmentation, words_of
from frpt.diagnosis.sums import LayerTally, PartialDiagnosis, SampleTally, answers, classes, scored
from frpt.diagnosis.trust import TRUST, Trust, trust
from frpt.embed import class_dim
from frpt.errors import OptionError
from frpt.files.progress import Progress
from frpt.graph.final import doubts
from frpt.graph.names import OUTPUT
from frpt.repairs import ranking
from frpt.repairs.ranking import Fault, Ranking
from frpt.reverse.reconstruction import Reconstruction
from frpt.reverser import Reverser

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Pictures = Callable[[int, Mapping[str, Tensor]], Figure]
    """(sample's index, {"before": its output, "target": its label, "after": its output from a target}) → a figure."""

_GALLERY = 64  # samples of the gallery at a time: their response maps need gradients of every layer; changes no result
_LOOK = 64  # samples whose outputs tell probabilities from scores: a choice
_WORSE = 1.5
# Losses of equal chances from which on a network is worse than a guess: of 208 networks with a planted fault (RNet,
# seeds 0 to 2; MNIST, 202 to 205; CIFAR-10, 202 and 203, --falls 0.5) all 4 wrong names are beyond it, and 18 of 73
# right ones (benchmarks/planted_faults.py).
_NUMBERS = 4  # outputs up to which label and prediction are written out


class Examination:
    """A network and a data set, with everything summed up so far."""

    def __init__(
        self,
        rev: Reverser,
        source: LabelledSamples,
        layers: Sequence[str],
        layouts: Mapping[str, str] | None,
        class_names: Sequence[str] | Mapping[Any, str] | None,
    ) -> None:
        self.rev, self.source, self.layers, self.layouts = rev, source, list(layers), layouts
        self.rows = SampleTally(self.layers, 0)
        self._whole = True
        self._guesses = 0.0  # the loss before refits, in losses of equal chances
        _, x, y = next(iter(source.batches([range(min(2, source.count))], 2)))
        out = rev.reconstruct(x, y, at=OUTPUT).anchor
        dense, known, several = _class_maps(rev, out, y), classes(rev, out, y), answers(rev, out, y)
        named = class_names if dense is None and several is None else None
        self.class_names = _names(named, 0 if known is None else known[0])
        self.pixel_classes = () if dense is None else _names(class_names, dense[0].shape[-1])
        self.output_names = () if several is None else _names(class_names, several[0].shape[1])
        self.score_name, _ = scored(rev, out, y)
        self.tallies = {
            name: LayerTally(axes(rev, name, layouts), rev.batch_axis(name), len(self.class_names)) for name in layers
        }

    def pass_over(self, looked: Sequence[int], size: int, bar: Progress, saved: PartialDiagnosis) -> SampleTable:
        """The pass over all samples, from where it was interrupted."""
        self.rows = SampleTally(self.layers, len(looked))
        self._restore(saved.load())
        bar.jump_to(len(self.rows))
        try:
            for part, x, y in self.source.batches([looked[len(self.rows) :]], size):
                self._add(part, x, y)
                bar.advance(len(part))
                if saved.due:
                    saved.save(self._state())
            saved.save(self._state())  # what follows may be stopped as well
        except BaseException:
            if self._whole and len(self.rows):  # not in the middle of a batch's sums
                saved.save(self._state())
            raise
        return self.rows.table()

    def _add(self, part: Sequence[int], x: Any, y: Tensor) -> None:
        """One batch, reconstructed first and summed up then."""
        recs = self.rev.reconstruct(x, y, at=self.layers)
        out = recs[OUTPUT].anchor
        _, ids, predicted = classes(self.rev, out, y) or (0, None, None)
        _, values = scored(self.rev, out, y)
        self._whole = False
        for name, rec in recs.items():
            self.tallies[name].add(rec, ids, predicted)
        self.rows.add(part, ids, predicted, values, recs, answers(self.rev, out, y))
        self._whole = True

    def _state(self) -> dict[str, Array]:
        layers = {f"layers/{name}/{k}": v for name, tally in self.tallies.items() for k, v in tally.state().items()}
        return {**{f"samples/{k}": v for k, v in self.rows.state().items()}, **layers}

    def _restore(self, state: Mapping[str, Array]) -> None:
        if not state:
            return

        def part(name: str) -> dict[str, Array]:
            return {k.rpartition("/")[2]: v for k, v in state.items() if k.rpartition("/")[0] == name}

        self.rows.extend(part("samples"))
        for name, tally in self.tallies.items():
            tally.restore(part(f"layers/{name}"))

    def cautions(self) -> tuple[str, ...]:
        """Why to mistrust what is found, in sentences."""
        _, x, y = next(iter(self.source.batches([range(min(_LOOK, self.source.count))], _LOOK)))
        found, out = [], self.rev.reconstruct(x, y, at=OUTPUT).anchor
        end, yes_no = self.rev.node(OUTPUT)[0].output, self.rev.embedder.yes_no(out, y)
        if self.rev.embedder.picks(y) and (doubt := doubts(end, out, yes_no)):
            found.append(f"Beware: {doubt}")
        if self._guesses > _WORSE:
            found.append(
                f"The loss is {self._guesses:.1f} times that of equal chances: refits that begin there can get stuck, "
                "and the layer named can be another than the one at fault."
            )
        if ranking.coarse(self.rev):
            found.append(
                "No layer is named, because the weights are in bfloat16, whose rounding hides what refitting a layer "
                "takes back: diagnose model.float()."
            )
        return tuple(found)

    def confusion(self, table: SampleTable) -> Array:
        """(classes, classes), a row per label; labels that are ignored are in none."""
        count = np.zeros((len(self.class_names),) * 2, dtype=np.int64)
        labelled = table.label >= 0
        np.add.at(count, (table.label[labelled], table.predicted[labelled]), 1)
        return count

    def trust(self, table: SampleTable, seed: int) -> Trust:
        """Measured on some of the samples that need a correction."""
        wrong = table.index[table.corrected]
        if len(wrong) == 0:
            return Trust((), dict.fromkeys(self.layers, 0.0))
        some = np.random.default_rng(seed).permutation(wrong)[: TRUST.samples]
        _, x, y = next(iter(self.source.batches([some.tolist()], TRUST.samples)))
        return trust(self.rev, x, y, self.layers, seed)

    def ranked(
        self, table: SampleTable, looked: Sequence[int], size: int, seed: int, loss: str | None = None
    ) -> Ranking:
        """The layers by what refitting each alone takes back of the loss, on held-out samples; none if all is right."""
        each = sample_bytes(self.source, map(self.rev.sample_shape, self.layers))
        most = max(ranking.LEAST_SAMPLES, min(ranking.SAMPLES, ranking.MEMORY // each))
        some = np.random.default_rng(seed).permutation(np.asarray(looked))[:most].tolist()
        half = len(some) // 2
        if half == 0 or not table.corrected.any():
            return Ranking(dict.fromkeys(self.layers, Fault(0.0)), ())
        one, other = ([(x, y) for _, x, y in self.source.batches([p], size)] for p in (some[:half], some[half:]))
        refits = ranking.refit(self.rev, one, other, self.layers, loss)
        if self.class_names and loss != "mse":
            self._guesses = float(refits.before.mean()) / math.log(len(self.class_names))
        return refits.ranked(seed)

    def gallery(
        self,
        table: SampleTable,
        most: int,
        mean: Any,
        std: Any,
        pictures: Pictures | None,
        name: Callable[[int], str] = lambda i: "",
        words: Words | None = None,
    ) -> tuple[Specimen, ...]:
        """The samples that move most, class by class in turn. name: of a sample. words: a vocabulary for its tokens."""
        rows = _worst(table, most)
        specimens: list[Specimen] = []
        for part, x, y in self.source.batches([table.index[rows].tolist()] if len(rows) else [], _GALLERY):
            recs = self.rev.reconstruct(x, y, at=self.layers)
            maps = responses(self.rev, x, y, recs, layouts=self.layouts)
            items = [self.source.item(index)[0] for index in part]
            images = [picture(item, mean, std) for item in items]
            drawings = self._drawings(part, x, y, recs, pictures, images)
            says = self._said(recs[OUTPUT].anchor, y)
            for i, (index, response) in enumerate(zip(part, maps, strict=True)):
                row = rows[len(specimens)]
                specimens.append(
                    Specimen(
                        index=int(index),
                        label=int(table.label[row]),
                        predicted=int(table.predicted[row]),
                        image=images[i],
                        deviation={n: float(r.deviation[i]) for n, r in recs.items()},
                        closed={n: float(r.closed[i]) for n, r in recs.items()},
                        responses=response,
                        drawings=drawings[i],
                        name=name(int(index)),
                        words=words_of(items[i], words),
                        says=says[i],
                    )
                )
        return tuple(specimens)

    def _drawings(
        self,
        part: Sequence[int],
        x: Any,
        y: Tensor,
        recs: Mapping[str, Reconstruction],
        pictures: Pictures | None,
        images: Sequence[Array | None],
    ) -> list[dict[str, Array]]:
        """Of some samples, by layer: the output as it is, the label, the output from the layer's target."""
        if pictures is None and not self.pixel_classes:
            return [{} for _ in part]
        front, found = self.rev.batch_axis(OUTPUT).front, [dict[str, Array]() for _ in part]
        before = front(recs[OUTPUT].anchor).detach().cpu()
        for layer, rec in recs.items():
            after = front(rec.target if layer == OUTPUT else self.rev.run(x, layer, rec.target)).detach().cpu()
            for k, index in enumerate(part):
                outputs = {"before": before[k], "target": y[k].cpu(), "after": after[k]}
                found[k][layer] = self._drawing(int(index), outputs, pictures, images[k])
        return found

    def _drawing(
        self, index: int, outputs: Mapping[str, Tensor], pictures: Pictures | None, image: Array | None
    ) -> Array:
        """One sample as the user draws it, or else as maps of classes over the input."""
        if pictures is not None:
            from frpt.diagnosis.figures.canvas import pixels

            return pixels(pictures(index, outputs))
        axis = _class_axis(self.rev, outputs["before"][None], outputs["target"][None]) - 1
        maps = {title: (out if title == "target" else out.argmax(axis)).numpy() for title, out in outputs.items()}
        return segmentation(image, maps, self.pixel_classes, self.rev.embedder.ignore_index)

    def _said(self, out: Tensor, y: Tensor) -> list[str]:
        """Label and prediction in words for every sample, where they are no class ids.

        The names of what is said yes to, a few numbers, or a share.
        """
        if self.class_names:
            return [""] * len(y)
        if (several := answers(self.rev, out, y)) is not None:
            label, predicted = ([yes_words(self.output_names, row) for row in rows.tolist()] for rows in several)
            return [f"label: {a}; predicted: {b}" for a, b in zip(label, predicted, strict=True)]
        front = self.rev.batch_axis(OUTPUT).front(out).detach().cpu()
        if self.score_name == "accuracy":
            return [f"{percent(float(v))} of its labels are right" for v in scored(self.rev, out, y)[1]]
        if front[0].numel() > _NUMBERS:
            return [f"mean squared error {float(v):.3g}" for v in scored(self.rev, out, y)[1]]
        return [
            f"label {_numbers(label)}, predicted {_numbers(said)}" for label, said in zip(y.cpu(), front, strict=True)
        ]

    def pairs(self, table: SampleTable, confusion: Array, most: int) -> tuple[PairFinding, ...]:
        """The most frequent confusions: what would have to move."""
        result = []
        for label, predicted, count in _confused(confusion, most):
            own = (table.label == label) & (table.predicted == predicted) & table.corrected
            deviation = {n: float(table.deviation[own, i].mean()) for i, n in enumerate(self.layers)}
            channels = {n: tally.mean_of_pair(label, predicted) for n, tally in self.tallies.items()}
            result.append(PairFinding(label, predicted, count, deviation, channels))
        return tuple(result)

    def findings(self, table: SampleTable, faults: Mapping[str, Fault], trusted: Trust) -> tuple[LayerFinding, ...]:
        """What all samples say about each layer."""
        wrong, result = table.corrected, []
        for i, name in enumerate(self.layers):
            tally = self.tallies[name]
            moved, inside, wins, closed = (
                column[wrong, i] for column in (table.deviation, table.reference_deviation, table.wins, table.closed)
            )
            result.append(
                LayerFinding(
                    name=name,
                    shape=self.rev.sample_shape(name),
                    kind=tally.where.kind,
                    depth=len(self.rev.plan(name)),
                    deviation=float(moved.mean()) if len(moved) else 0.0,
                    reference_deviation=float(inside.mean()) if len(inside) else 0.0,
                    wins=float(wins.mean()) if len(wins) else 1.0,
                    closed=float(closed.mean()) if len(closed) else 1.0,
                    by_class=_by_class(moved, table.label[wrong], len(self.class_names)),
                    channels=tally.mean_channels(),
                    channels_by_class=tally.mean_by_class(),
                    positions=tally.mean_positions(),
                    fault=faults[name].share,
                    fault_interval=(faults[name].low, faults[name].high),
                    sensitivity=trusted.sensitivity[name],
                )
            )
        return tuple(result)


def _numbers(values: Tensor) -> str:
    return ", ".join(f"{float(v):.3g}" for v in values.flatten())


def _class_axis(rev: Reverser, out: Tensor, y: Tensor) -> int:
    """The axis of the classes, counted from the front; the batch is axis 0."""
    chosen = rev.embedder.class_dim
    axis = class_dim(out, y) if chosen is None else chosen
    return axis % out.dim()


def _class_maps(rev: Reverser, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """(scores (b, h, w, c), labels (b, h, w)) where there is a class id at every pixel; else None."""
    if y.is_floating_point() or y.dim() != 3 or out.dim() != 4 or rev.embedder.how == "regression":
        return None
    if rev.embedder.yes_no(out, y):
        return None
    scores = out.movedim(_class_axis(rev, out, y), -1)
    return (scores, y) if scores.shape[:-1] == y.shape else None


def _names(given: Sequence[str] | Mapping[Any, str] | None, classes: int) -> tuple[str, ...]:
    """A name for each class; the numbers where none are given."""
    if isinstance(given, Mapping):
        given = _by_number(given, classes)
    if given is not None and len(given) != classes:
        raise OptionError(
            f"class_names has {counted(len(given), 'name')}, the output {classes} classes; pass one name for each "
            "class (of labels of yes and no, for each output)"
            if classes
            else "class_names was given, but the labels are neither class ids, one for each sample, nor yes and no to "
            "each of a few outputs (b, outputs); leave class_names out"
        )
    return tuple(map(str, range(classes))) if given is None else tuple(map(str, given))


def _by_number(given: Mapping[Any, Any], classes: int) -> list[str]:
    """Names that are given by class id, as a configuration's ``id2label`` has them, or the reverse."""
    if all(isinstance(number, int) for number in given.values()):  # of a folder of images, as torchvision has them
        given = {number: name for name, number in given.items()}
    names = {str(number): name for number, name in given.items()}
    if missing := [number for number in range(classes) if str(number) not in names]:
        raise OptionError(
            f"class_names has no name for class {missing[0]}; its keys are the class ids, 0 to {classes - 1}"
        )
    return [names[str(number)] for number in range(classes)]


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
