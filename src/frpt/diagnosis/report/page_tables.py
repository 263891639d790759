"""The tables of the page: layers, units of the way back, classes, samples. ``page.py`` puts them into its template."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from frpt.common.text import percent
from frpt.diagnosis.findings import Findings
from frpt.diagnosis.report.words import answers_of, class_name, number
from frpt.diagnosis.report.worst_classes import Shares, mean_of, worst_first
from frpt.diagnosis.trust import MET, WON

ROWS = 500  # of the tables of samples and classes, worst first; all rows are in to_csv. More make the page slow to sort

Style = Literal["text", "code", "number", "percent", "flag"]
Value = str | int | float | bool | None


@dataclass(frozen=True)
class Column:
    """hint: what the number means, in a sentence."""

    label: str
    style: Style = "number"
    hint: str = ""

    @property
    def numeric(self) -> bool:
        return self.style in ("number", "percent")


@dataclass(frozen=True)
class Cell:
    """text: as shown. key: what to sort and export by, "" for a missing number."""

    text: str
    key: str


@dataclass(frozen=True)
class Row:
    """cells: one per column. tags: data attributes, for the script to find the row by."""

    cells: list[Cell]
    tags: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PageTable:
    """name: its id and the exported file's name. note: what was left out, if anything."""

    name: str
    caption: str
    columns: list[Column]
    rows: list[Row]
    note: str = ""


def row(columns: Sequence[Column], values: Sequence[Value], **tags: int) -> Row:
    return Row([_cell(c, v) for c, v in zip(columns, values, strict=True)], tags)


def _cell(column: Column, value: Value) -> Cell:
    if column.style == "flag":
        return Cell("yes" if value else "no", "1" if value else "0")
    if not column.numeric:
        return Cell(str(value) or "–", str(value))
    amount = math.nan if value is None else float(value)
    shown: Callable[[float], str] = percent if column.style == "percent" else number
    return Cell(shown(amount), "" if math.isnan(amount) else f"{amount:.6g}")


def layers_table(d: Findings) -> PageTable:
    columns = [
        Column("layer", "code"),
        Column("rank", hint="1: the likeliest place of the fault"),
        Column(
            "fault",
            hint="share of the loss that refitting this layer alone takes back, on samples it was not fitted to",
        ),
        Column("from", hint="lower end of the fault's 95 % interval, by the bootstrap over these samples"),
        Column("to", hint="its upper end"),
        Column("deviation", hint="mean of ‖a* − â‖/‖â‖ over the samples that need a correction"),
        Column(
            "in std. deviations", hint="the same change in standard deviations of the layer's features (a reference)"
        ),
        Column("closed", "percent", hint="share of what is missing at the output that is gone when run on from a*")
        if d.regression
        else Column("label wins", "percent", hint="samples whose label the network predicts when it runs on from a*"),
        Column(
            "trust",
            hint=f"0 to 1: the share of samples {MET if d.regression else WON}, times the share of a correction "
            "that stays when the feature it starts from is moved at random by a tenth of it",
        ),
        Column("depth", hint="reverse units between the output and the layer"),
        Column("kind", "text"),
        Column("shape", "text"),
    ]
    rank = {name: i + 1 for i, name in enumerate(d.ranking)}
    rows = [
        row(columns, (f.name, rank.get(f.name), f.fault, *f.fault_interval, f.deviation, f.reference_deviation,
                      f.closed if d.regression else f.wins, f.trust, f.depth, f.kind,
                      " × ".join(map(str, f.shape))), layer=i)
        for i, f in enumerate(d.layers)
    ]  # fmt: skip
    return PageTable("layers", "Layers, output first", columns, rows)


def units_table(d: Findings) -> PageTable:
    columns = [
        Column("#", hint="output first"),
        Column("unit", "code"),
        Column("module", "code"),
        Column("op", "code"),
        Column("rule", "text"),
        Column("arrives at", "code"),
        Column(
            "worst case",
            hint="Theorem 2's bound on the error at the unit's input, relative to ‖a − â‖ there: if all errors added "
            "up. How far a layer's target can be trusted is its trust, in the table of layers",
        ),
        Column("CCP before", hint="‖Φ(a) − t‖/‖t‖ at the anchor, mean; t is this op's own target, not the output's"),
        Column("CCP", hint="‖Φ(a) − t‖/‖t‖ at the solution, mean; of different ops, it is of different targets"),
        Column("worst CCP"),
        Column("fallback", "percent", hint="share of samples for which the gate fell back"),
        Column("iterations"),
        Column("deviation", hint="mean of ‖a − â‖/‖â‖"),
        Column("ρ", hint="measured ‖R(t + ξ) − R(t)‖/‖ξ‖: how much the unit amplifies an error"),
        Column("ε", hint="bound on the unit's own error, relative to ‖a − â‖"),
        Column("σ max"),
        Column("σ min"),
    ]
    rows = [
        row(columns, (i + 1, u.name, u.path, u.op, u.rule, u.layer, u.bound, u.ccp_before, u.ccp, u.worst, u.fallback,
                      u.iterations, u.deviation, u.rho, u.epsilon, u.sigma_max, u.sigma_min), unit=i)
        for i, u in enumerate(d.units)
    ]  # fmt: skip
    return PageTable("units", "Units of the way back, output first", columns, rows)


def classes_table(d: Findings) -> PageTable:
    columns = [
        Column("class", "text"),
        Column("samples"),
        Column("to correct", hint="samples that need a correction"),
        Column("share wrong", "percent", hint="those that need a correction, of the class's samples"),
        *(Column(f"deviation at {f.name}") for f in d.layers),
    ]
    shares, classes = Shares.of(d), worst_first(d)
    rows = [
        row(columns, (class_name(d.class_names, c), int(shares.samples[c]), int(shares.wrong[c]), shares.share[c],
                      *(f.by_class[c] for f in d.layers)),
            **{"class": int(c)})
        for c in classes[:ROWS]
    ]  # fmt: skip
    caption = "Classes, largest share wrong first"
    return PageTable("classes", caption, columns, rows, _cut("classes", len(rows), len(classes)))


def samples_table(d: Findings) -> PageTable:
    table = d.samples
    named = bool(d.class_names or d.output_names)
    columns = [
        Column("sample", hint="index in the data set"),
        *([Column("name", "text")] if d.sample_names else []),
        *([Column("label", "text"), Column("predicted", "text")] if named else []),
        Column("to correct", "flag"),
        *(Column(f"deviation at {f.name}") for f in d.layers),
        *(Column(f"closed at {f.name}", "percent") for f in d.layers),
    ]
    mean = mean_of(table.deviation)
    order = np.lexsort((np.asarray(table.index), -mean, ~np.asarray(table.corrected, dtype=bool)))[:ROWS]
    rows = [
        row(columns, (int(table.index[i]),
                      *([d.sample_names.get(int(table.index[i]), "")] if d.sample_names else []),
                      *(answers_of(d, int(i)) if named else ()),
                      bool(table.corrected[i]), *table.deviation[i], *table.closed[i]),
            sample=int(table.index[i]), **{"class": int(table.label[i])})
        for i in order
    ]  # fmt: skip
    return PageTable(
        "samples", "Samples, worst first", columns, rows, _cut("samples", len(rows), len(table))
    )  # fmt: skip


def _cut(what: str, shown: int, count: int) -> str:
    return "" if shown == count else f"The first {shown:,} of {count:,} {what}; the rest is left out of this page."
