"""A repair on the page: which samples it fixed and broke, which weights moved, what every strength would have cost.

``page.py`` makes it of the ``Fix`` that ``Diagnosis.to_html`` was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from frpt.common.text import percent
from frpt.diagnosis.findings import Array, Findings
from frpt.diagnosis.report.page_tables import ROWS, Column, PageTable, Value, row
from frpt.diagnosis.report.pictures import encoded
from frpt.diagnosis.report.recount import Recount, recount
from frpt.diagnosis.report.verdict import Fact
from frpt.diagnosis.report.words import class_name, number, yes_words
from frpt.diagnosis.responses import picture
from frpt.errors import OptionError
from frpt.graph.inputs import Inputs
from frpt.graph.names import OUTPUT
from frpt.repairs.fix import Explanation, Fix

SHOWN = 60  # pictures of a group; the tables have more rows
PICTURES = 1_000_000  # bytes for all of them together
WEIGHTS = 16  # weights drawn as bars, those that moved most; the table has all


@dataclass(frozen=True)
class RepairPart:
    """text: what it did, in a sentence. notes: what to know before trusting it. data: for the script.

    measured: whether there were old samples to count broken ones on.
    """

    text: str
    notes: tuple[str, ...]
    facts: list[Fact]
    tables: list[PageTable]
    data: dict[str, Any]
    measured: bool


@dataclass(frozen=True)
class _Sample:
    """What became of one sample. before, after: the class's name, or how far the output is from its target.

    given: whether the repair was given it; of samples of the diagnosis.
    """

    index: int
    state: str
    label: str
    before: str
    after: str
    given: bool = True


def repair_part(d: Findings, fix: Fix) -> RepairPart:
    """Everything the page says of a repair of the network that was diagnosed."""
    if not isinstance(fix, Fix):
        raise OptionError(f"repair is of type {type(fix).__name__!r}: pass what frpt.repair returned")
    if (name := type(fix.start.model).__name__) != d.model:
        raise OptionError(f"the repair is of a {name}, the diagnosis of a {d.model}: they are two networks")
    given, old, counted = _given(d, fix), _old(d, fix), recount(d, fix)
    known = set(fix.start.layers)
    explained = fix.explain([f.name for f in d.layers if f.name != OUTPUT and f.name in known])
    named = not fix.labels.is_floating_point()
    tables = [_samples_table("repaired", "Samples of the repair", given, named)]
    if fix.kept is not None:
        tables.append(_samples_table("old", "Old samples that changed", old, named))
    if counted is not None:
        caption = "Samples of this diagnosis that it fixed or broke"
        tables.append(_samples_table("recounted", caption, _recounted(d, fix, counted), named))
    tables += [_weights_table(fix), _strengths_table(fix)]
    if len(explained):
        tables.append(_features_table(explained))
    return RepairPart(
        text=" ".join([str(fix).split("\n", 1)[0] + ".", *([] if counted is None else [str(counted)])]),
        notes=fix.notes,
        facts=_facts(fix, counted),
        tables=tables,
        data={
            "groups": _groups(d, fix, given, old),
            "curve": _curve(fix),
            "weights": sorted(fix.diff.moved.items(), key=lambda item: -item[1])[:WEIGHTS],
            "features": [vars(m) for m in explained],
        },
        measured=fix.kept is not None and len(fix.curve) > 0,
    )


def _curve(fix: Fix) -> list[dict[str, Any]]:
    """The network as it was, then every strength that was tried; broken in percent."""
    nothing = {"strength": None, "fixed": float(fix.right_before.double().mean()), "kl": 0.0, "chosen": False}
    start = {**nothing, "broken": None if fix.kept is None else 0.0}
    tried = [
        {**vars(t), "broken": 100 * t.broken, "chosen": t.strength == fix.strength}
        for t in sorted(fix.curve, key=lambda t: -t.strength)
    ]
    return [start, *tried]


def _facts(fix: Fix, counted: Recount | None) -> list[Fact]:
    wrong = ~fix.right_before
    now, count = int((fix.fixed & wrong).sum()), int(wrong.sum())
    facts = [
        Fact("failing samples fixed", f"{now} of {count}", "found by running the repaired network"),
        Fact("predicted change", f"{number(fix.predicted_kl, 2)} nats", "KL of the outputs on old inputs"),
    ]
    if (kept := fix.kept) is not None:
        after = kept.right_before - len(kept.broken) + len(kept.mended)
        before, now_right = (percent(n / kept.count) for n in (kept.right_before, after))
        said = f"of {kept.count}: {len(kept.broken)} broken, {len(kept.mended)} mended"
        facts.append(Fact("old samples right", f"{before} → {now_right}", said))
    if counted is not None:
        facts += _facts_of_others(counted)
    if moved := fix.diff.moved:
        most = max(moved, key=lambda name: moved[name])
        facts.append(Fact("moved most", most, f"by {percent(moved[most])} of its norm", code=True))
    facts.append(Fact("took", f"{fix.seconds:.1f} s", f"{fix.rounds} steps, method {fix.method}"))
    return facts


def _facts_of_others(counted: Recount) -> list[Fact]:
    """What it did to diagnosed samples that it was not given."""
    if counted.others == 0:
        return []
    fixed, broke, right = f"{counted.others_fixed:,}", f"{counted.others_broken:,}", counted.right_before
    if right is None:
        said = f"of {counted.others:,} of this diagnosis that it was not given"
        return [Fact("others fixed", fixed, said), Fact("others broken", broke, f"{said}: farther from the target")]
    said = "of this diagnosis that it was not given"
    return [
        Fact("others fixed", f"{fixed} of {counted.others - right:,}", f"wrong samples {said}"),
        Fact("others broken", f"{broke} of {right:,}", f"right samples {said}"),
    ]


def _given(d: Findings, fix: Fix) -> list[_Sample]:
    """The samples of the repair: those that are not fixed first."""
    states = {
        (False, True): "fixed", (False, False): "not fixed", (True, True): "still right", (True, False): "lost",
    }  # fmt: skip
    before, after = fix.outputs()
    flags = zip(fix.right_before.tolist(), fix.fixed.tolist(), strict=True)
    state = [states[flag] for flag in flags]
    found = _described(d, fix, range(len(state)), state, fix.labels, before, after)
    return sorted(found, key=lambda s: ("lost", "not fixed", "fixed", "still right").index(s.state))


def _old(d: Findings, fix: Fix) -> list[_Sample]:
    """Old samples that changed sides: broken ones, then mended ones."""
    if fix.kept is None:
        return []
    rows = torch.cat([fix.kept.broken, fix.kept.mended])
    if len(rows) == 0:
        return []
    state = ["broken"] * len(fix.kept.broken) + ["mended"] * len(fix.kept.mended)
    labels = fix.kept.labels[rows.to(fix.kept.labels.device)]
    return _described(d, fix, rows.tolist(), state, labels, *fix.outputs(fix.kept.inputs.taken(rows)))


def _recounted(d: Findings, fix: Fix, counted: Recount) -> list[_Sample]:
    """Samples of the diagnosis that changed sides: broken ones, then fixed ones; those that were given last."""
    state = ["broken" if broken else "fixed" for broken in counted.broken.tolist()]
    found = _described(d, fix, counted.index, state, counted.labels, counted.before, counted.after)
    told = [replace(s, given=given) for s, given in zip(found, counted.known.tolist(), strict=True)]
    return sorted(told, key=lambda s: (s.state, s.given))


def _described(
    d: Findings, fix: Fix, rows: Sequence[int], states: Sequence[str], labels: Tensor, before: Tensor, after: Tensor
) -> list[_Sample]:
    if labels.is_floating_point():
        size = torch.linalg.vector_norm(labels.flatten(1).double(), dim=1).clamp_min(1e-12)
        sides = [
            [percent(float(v)) for v in torch.linalg.vector_norm((out - labels).flatten(1).double(), dim=1) / size]
            for out in (before, after)
        ]
        return [_Sample(i, s, "–", b, a) for i, s, b, a in zip(rows, states, *sides, strict=True)]
    if labels.dim() > 1:
        answers = (
            labels,
            *((out.reshape(labels.shape) > fix.start.embedder.threshold).long() for out in (before, after)),
        )
        named = [[_answers(d, row) for row in column.tolist()] for column in answers]
    else:
        columns = (labels, before.argmax(1), after.argmax(1))
        named = [[class_name(d.class_names, int(c)) for c in column] for column in columns]
    return [_Sample(i, s, y, b, a) for i, s, y, b, a in zip(rows, states, *named, strict=True)]


def _answers(d: Findings, row: Sequence[int]) -> str:
    """The class of one logit; of several the names of those that say yes."""
    if len(row) == 1:
        return class_name(d.class_names, row[0])
    return yes_words(d.output_names or [str(i) for i in range(len(row))], [value == 1 for value in row])


def _groups(d: Findings, fix: Fix, given: Sequence[_Sample], old: Sequence[_Sample]) -> list[dict[str, Any]]:
    """Pictures with what became of them: not fixed, fixed, broken, mended; none where inputs are no pictures."""
    kept = None if fix.kept is None else fix.kept.inputs
    shown = [
        (state, [s for s in samples if s.state == state], inputs)
        for state, samples, inputs in (
            ("not fixed", given, fix.inputs), ("lost", given, fix.inputs), ("fixed", given, fix.inputs),
            ("broken", old, kept), ("mended", old, kept),
        )
        if inputs is not None
    ]  # fmt: skip
    images = [[_image(d, inputs, s.index) for s in samples[:SHOWN]] for _, samples, inputs in shown]
    urls = iter(encoded([image for part in images for image in part], PICTURES))
    groups = []
    for (state, samples, _), part in zip(shown, images, strict=True):
        cards = [
            {"index": s.index, "label": s.label, "before": s.before, "after": s.after, "image": next(urls)}
            for s, _ in zip(samples, part, strict=False)
        ]
        if any(card["image"] for card in cards):
            groups.append({"state": state, "count": len(samples), "cards": [c for c in cards if c["image"]]})
    return groups


def _image(d: Findings, inputs: Inputs, index: int) -> Array | None:
    one = inputs.part(index, index + 1) if inputs.batch > 1 else inputs
    leaves = pytree.tree_map(
        lambda leaf: leaf[0] if isinstance(leaf, Tensor) and leaf.dim() else leaf, (one.args, one.kwargs)
    )
    image: Array | None = picture(leaves, *d.normalisation)
    return image


def _samples_table(name: str, caption: str, samples: Sequence[_Sample], classes: bool) -> PageTable:
    hint, diagnosed = "how far the output is from its target, relative to the target's norm", name == "recounted"
    columns = [
        Column("sample", hint=f"its place in {'the data set' if diagnosed else 'what repair was given'}"),
        Column("state", "text"),
        *([Column("given", "flag", "whether it is among the samples that the repair was given")] if diagnosed else []),
        *([Column("label", "text")] if classes else []),
        Column("before", "text", "" if classes else hint),
        Column("after", "text", "" if classes else hint),
    ]

    def values(s: _Sample) -> list[Value]:
        given = [s.given] if diagnosed else []
        return [s.index, s.state, *given, *([s.label] if classes else []), s.before, s.after]

    rows = [row(columns, values(s)) for s in samples[:ROWS]]
    note = "" if len(samples) <= ROWS else f"The first {ROWS:,} of {len(samples):,} samples."
    return PageTable(name, caption, columns, rows, note)


def _weights_table(fix: Fix) -> PageTable:
    columns = [
        Column("parameter", "code"),
        Column("moved", "percent", "‖W − W₀‖/‖W₀‖"),
        Column("shape", "text"),
    ]
    rows = [
        row(columns, (name, share, " × ".join(map(str, fix.diff.bits[name].shape))))
        for name, share in fix.diff.moved.items()
    ]
    return PageTable("moved", "Parameters that moved", columns, rows)


def _strengths_table(fix: Fix) -> PageTable:
    columns = [
        Column("strength λ", hint="how strongly the old behaviour was held on to"),
        Column("right", "percent", "of the samples that were given"),
        Column("predicted KL", hint="on old inputs, in nats"),
        Column("broken", "percent", "of the old samples that chose the strength, less those mended"),
        Column("taken", "flag"),
    ]
    rows = [row(columns, (t.strength, t.fixed, t.kl, t.broken, t.strength == fix.strength)) for t in fix.curve]
    return PageTable("strengths", "Strengths that were tried", columns, rows)


def _features_table(explained: Explanation) -> PageTable:
    columns = [
        Column("layer", "code"),
        Column("moved", "percent", "‖after − before‖/‖before‖ of the fixed samples' features, mean"),
        Column("target", "percent", "how far reconstruction's nearest target is, relative to the same norm"),
        Column("cosine", hint="of the two changes: near 1, the repair did there what the diagnosis asks for"),
    ]
    rows = [row(columns, (m.layer, m.deviation, m.asked, m.cosine)) for m in explained]
    of = "sample" if explained.samples == 1 else "samples"
    return PageTable("features", f"Features of {explained.samples} fixed {of}, beside their targets", columns, rows)
