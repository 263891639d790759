"""What the diagnosis says, in plain words: for the top of the page (``page.py``) and the terminal (``tables.py``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from frpt.common.text import percent
from frpt.diagnosis.findings import Findings, LayerFinding
from frpt.diagnosis.report.words import class_name, score
from frpt.diagnosis.report.worst_classes import Shares, standing_out
from frpt.graph.names import OUTPUT
from frpt.repairs.ranking import ALIKE, CLEAR, FEWEST, MANY


@dataclass(frozen=True)
class Fact:
    """A number to remember: label, value and what to know about it. code: the value is a layer's name."""

    label: str
    value: str
    note: str = ""
    code: bool = False


@dataclass(frozen=True)
class Verdict:
    """suspects: the likeliest places of the fault, none if no layer stands out. wrong: samples to be corrected."""

    suspects: tuple[str, ...]
    wrong: int
    sentences: list[str]
    facts: list[Fact]


def verdict(d: Findings) -> Verdict:
    count = len(d.samples)
    wrong = int(np.count_nonzero(d.samples.corrected))
    first = next((f for name in d.ranking for f in d.layers if f.name == name), None) if wrong else None
    said = score(d.score_name, d.score)
    measured = f"has {_article(d.score_name)} of {said}" if math.isfinite(d.score) else "was diagnosed"
    sentences = [f"{d.model} {measured} on {count:,} {_plural(count, 'sample')}."]
    if wrong == 0:
        sentences.append("No sample needs a correction: the output target is met everywhere, so no layer is at fault.")
    else:
        needs = f"{wrong:,} of them ({percent(wrong / count)}) {'needs' if wrong == 1 else 'need'} a correction"
        several = d.score_name == "accuracy" and not d.class_names
        sentences.append(
            f"{needs}: at least one of {'its' if wrong == 1 else 'their'} labels is wrong." if several else f"{needs}."
        )
        sentences += _of_classes(d)
    sentences += d.cautions
    if first is not None:
        sentences.append(_of_fault(d, first))
        if d.loss:
            sentences.append(f"The loss is {d.loss}.")
        inner = _first_inner(d)
        if inner is not None and math.isfinite(inner.deviation) and math.isfinite(inner.closed):
            sentences.append(_of_layer(inner, bool(d.class_names)))
        sentences += [f"At {layer} {note}." for layer, note in d.unmoved.items()]
    return Verdict(d.suspects if wrong else (), wrong, sentences, _facts(d, said, count, wrong, first))


def about_targets(d: Findings) -> str:
    """How the targets were made: op by op, as the likeliest features, or as the least change."""
    asked = "in which the label wins" if d.class_names else "that give the output asked for"
    if d.units:
        return "The targets were made op by op, as the paper does."
    if d.reference:
        return (
            f"The targets are the likeliest features {asked}, judged by how the features of each layer vary over "
            f"{d.reference} (a reference)."
        )
    return (
        f"The targets are the least change: the nearest features {asked}, whether or not the network ever produces "
        "such features. With a reference they would be the likeliest."
    )


def _of_fault(d: Findings, first: LayerFinding) -> str:
    taken = f"refitting it alone takes back {_share(first)} of the loss on samples it was not fitted to"
    if d.suspects == (first.name,):
        second = max((f for f in d.layers if f.name != first.name), key=lambda f: f.fault, default=None)
        more = "" if second is None else f", the next best, {_called(second.name)}, {_share(second)}"
        return f"The fault is most likely in {_called(first.name)}: {taken}{more}."
    if not d.suspects and len(d.samples) < FEWEST:
        return (
            f"No layer is named: fewer than {FEWEST} samples are too few to tell layers apart. Samples that are right "
            "count as well."
        )
    if len(d.layers) == 1:
        return f"Only {_called(first.name)} was looked at, and nothing is told apart: {taken}. Name more layers (at)."
    place = min(int(MANY * len(d.layers)), len(d.layers) - 1)
    many = sorted(d.layers, key=lambda f: -f.fault)[place]  # too many for a list, if it is alike
    if not d.suspects and first.fault_interval[0] >= CLEAR and _alike(first, many):
        return (
            "No single layer stands out: these samples do not tell which one carries a fault, or whether one does. "
            "Refitting one alone takes back, of the loss on samples it was not fitted to, "
            f"{_called(first.name)} {_share(first)}, the best of {len(d.layers)}, and {_called(many.name)} "
            f"{_share(many)}, number {place + 1}: too close for these samples."
        )
    if first.fault <= 0:
        return (
            "No single layer stands out: refitting any of them alone did not lower the loss on samples it was not "
            "fitted to, which says nothing of where a fault is."
        )
    if not d.suspects:
        return f"No single layer stands out: {_called(first.name)} is the best of them, and {taken}."
    *some, last = map(_called, d.suspects)
    alike = [f"{_called(f.name)} {_share(f)}" for name in d.suspects for f in d.layers if f.name == name]
    behind = [name for name in d.suspects[1:] if name in d.recurrent]
    return (
        f"No single layer stands out: these samples do not tell the fault of {', '.join(some)} from that of {last}. "
        f"Refitting one alone takes back, of the loss on samples it was not fitted to: {', '.join(alike)}."
        + (f" A few steps refit little of a recurrent layer: {', '.join(behind)} is not ruled out." if behind else "")
    )


def _alike(first: LayerFinding, other: LayerFinding) -> bool:
    """Whether two layers' intervals meet, once the first is taken for as much as is not told from it."""
    return other.fault_interval[1] >= ALIKE * first.fault_interval[0]


def _called(layer: str) -> str:
    """A layer in a sentence."""
    return f"{layer} (the output)" if layer == OUTPUT else layer


def _share(f: LayerFinding) -> str:
    low, high = f.fault_interval
    if low == high:
        return percent(f.fault)
    return f"{percent(f.fault)} ({percent(low)} to {percent(high)})"


def _of_classes(d: Findings) -> list[str]:
    """A sentence on the classes that go wrong most; none where no class stands out."""
    shares = Shares.of(d)
    worst = standing_out(shares)
    if not worst:
        return []
    wrong, others = int(shares.wrong[worst].sum()), int(shares.wrong.sum() - shares.wrong[worst].sum())
    rest = percent(others / int(shares.samples.sum() - shares.samples[worst].sum()))
    names = _listed([class_name(d.class_names, c).removeprefix("class ") for c in worst])
    counted = [(f"{shares.wrong[c]:,}", f"{shares.samples[c]:,}", f"({percent(shares.share[c])})") for c in worst]
    if len(worst) == 1:
        of, goes = f"class {names}", f"Class {names} goes"
        counts = "{} of its {} samples {}".format(*counted[0])
    else:
        of, goes = f"the classes {names}", f"The classes {names} go"
        counts = _listed([f"{count} of {all_of} {share}" for count, all_of, share in counted]) + " of their samples"
    start = f"Most of what is wrong is of {of}" if wrong > others else f"{goes} wrong most"
    return [f"{start}: {counts}, against {rest} of all other samples."]


def _listed(words: list[str]) -> str:
    *some, last = words
    return f"{', '.join(some)} and {last}" if some else last


def _first_inner(d: Findings) -> LayerFinding | None:
    """The inner layer that stands first in the ranking: that features of the output would have to move says nothing."""
    inner = [name for name in d.ranking if name != OUTPUT]
    return next((f for f in d.layers if inner[:1] == [f.name]), None)


def _of_layer(f: LayerFinding, classes: bool) -> str:
    moved = f"The features of {_called(f.name)} would have to move by {percent(f.deviation)} of their norm on average"
    if classes:
        return f"{moved}; the network run on from there predicts the label in {percent(f.wins)} of these samples."
    return f"{moved}, which closes {percent(f.closed)} of what is missing at the output."


def _facts(d: Findings, said: str, count: int, wrong: int, first: LayerFinding | None) -> list[Fact]:
    facts = [
        Fact(d.score_name, said, f"on {count:,} {_plural(count, 'sample')}"),
        Fact("need a correction", percent(wrong / count) if count else "–", f"{wrong:,} of {count:,}"),
    ]
    if first is not None:
        refitted = "it" if d.suspects == (first.name,) else _called(first.name)
        note = f"refitting {refitted} takes back {_share(first)} of the loss"
        facts.append(Fact("likeliest fault", " or ".join(d.suspects) or "none stands out", note, code=bool(d.suspects)))
    shares = Shares.of(d)
    for c in standing_out(shares)[:1]:
        note = f"{shares.wrong[c]:,} of its {shares.samples[c]:,} samples"
        facts.append(Fact("goes wrong most", class_name(d.class_names, c), note))
    pair = max(d.pairs, key=lambda p: p.count, default=None)
    if pair is not None:
        label, taken = class_name(d.class_names, pair.label), class_name(d.class_names, pair.predicted)
        facts.append(Fact("most confused", f"{label} → {taken}", f"{pair.count:,} {_plural(pair.count, 'sample')}"))
    layers = d.advice.layers
    if layers:
        value = layers[0] if len(layers) == 1 else f"{layers[0]} … {layers[-1]}"
        facts.append(Fact("trusted layers", value, f"{len(layers)} {_plural(len(layers), 'layer')}", code=True))
    else:
        facts.append(Fact("trusted layers", "none"))
    return facts


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
