"""A diagnosis in the terminal: the verdict in words, layers and confused pairs as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from frpt.common.text import table
from frpt.diagnosis.findings import Diagnosis
from frpt.diagnosis.report.verdict import verdict
from frpt.diagnosis.tables import class_name
from frpt.graph.names import OUTPUT

LAYERS = ("layer", "deviation", "in reference", "label wins", "sensitivity", "fault", "rank")
PAIRS = ("label", "taken for", "samples", "moves most in", "by")


def summary(d: Diagnosis) -> Group:
    """What a rich console prints."""
    parts: list[Text | Table] = [Text(sentence) for sentence in _sentences(d)]
    for columns, rows in _tables(d):
        shown = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            shown.add_row(*(Text(cell) for cell in row))
        parts += [Text(""), shown]
    return Group(*parts)


def text(d: Diagnosis) -> str:
    """The same as plain text."""
    return "\n\n".join(["\n".join(_sentences(d)), *(table(columns, rows) for columns, rows in _tables(d))])


def show(d: Diagnosis, console: Console | None = None) -> None:
    (console or Console()).print(summary(d))


def _sentences(d: Diagnosis) -> list[str]:
    advised = ", ".join(d.advice.layers) or "none"
    return [*verdict(d).sentences, f"Layers to be trusted as l_R: {advised}. {d.advice.reason}"]


def _tables(d: Diagnosis) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    rank = {name: str(i) for i, name in enumerate(d.ranking, 1)}
    layers = [
        (f.name, f"{f.deviation:.4f}", _number(f.reference_deviation), f"{100 * f.wins:.1f} %",
         _number(f.sensitivity), f"{100 * f.fault:.1f} %", rank[f.name])
        for f in d.layers
    ]  # fmt: skip
    pairs = []
    for p in d.pairs:
        inner = {name: moved for name, moved in p.deviation.items() if name != OUTPUT} or p.deviation
        most = max(inner, key=lambda name: inner[name])
        names = (class_name(d, p.label), class_name(d, p.predicted))
        pairs.append((*names, str(p.count), most, f"{p.deviation[most]:.4f}"))
    return [(LAYERS, layers), *([(PAIRS, pairs)] if pairs else [])]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
