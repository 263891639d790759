"""A diagnosis as tables: pandas frames and CSV files, plain text, rich text for the terminal, HTML for a notebook.

``Diagnosis`` calls ``frame``, ``write_csv``, ``text``, ``brief`` and ``html``; the command line calls ``show``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from frpt.common.text import html_table, percent, table
from frpt.diagnosis.findings import Findings, UnitFinding
from frpt.diagnosis.report.verdict import verdict
from frpt.diagnosis.report.words import answers_of, class_name
from frpt.errors import OptionError
from frpt.graph.names import OUTPUT

if TYPE_CHECKING:
    import pandas as pd

LAYERS = ("layer", "deviation", "in reference", "label wins", "trust", "fault", "95 % interval", "rank")
PAIRS = ("label", "taken for", "samples", "moves most in", "by")


def layers(d: Findings) -> pd.DataFrame:
    """A row per layer, output first. rank: 1 is the likeliest place of the fault. trusted: advised as l_R."""
    rank = {name: i for i, name in enumerate(d.ranking, 1)}
    columns = (
        "layer", "kind", "shape", "depth", "deviation", "reference_deviation", "wins", "closed", "fault", "fault_low",
        "fault_high", "sensitivity", "trust", "rank", "trusted",
    )  # fmt: skip
    rows = [
        (f.name, f.kind, "x".join(map(str, f.shape)), f.depth, f.deviation, f.reference_deviation, f.wins,
         f.closed, f.fault, *f.fault_interval, f.sensitivity, f.trust, rank.get(f.name), f.name in d.advice.layers)
        for f in d.layers
    ]  # fmt: skip
    frame = _frame(rows, columns)
    frame["rank"] = frame["rank"].astype("Int64")
    return frame


def units(d: Findings) -> pd.DataFrame:
    """A row per op on the way back, output first; columns as in ``UnitFinding``."""
    return _frame([tuple(asdict(u).values()) for u in d.units], tuple(f.name for f in fields(UnitFinding)))


def classes(d: Findings) -> pd.DataFrame:
    """A row per layer and class. samples, corrected: how many of the class there are, and need a correction."""
    label, corrected = np.asarray(d.samples.label), np.asarray(d.samples.corrected, bool)
    counts = [(int((label == k).sum()), int((corrected & (label == k)).sum())) for k in range(len(d.class_names))]
    rows = [
        (f.name, name, k, *counts[k], float(f.by_class[k])) for f in d.layers for k, name in enumerate(d.class_names)
    ]
    return _frame(rows, ("layer", "class", "class_id", "samples", "corrected", "deviation"))


def samples(d: Findings) -> pd.DataFrame:
    """A row per sample; ``deviation/<layer>`` and ``closed/<layer>`` for every layer."""
    import pandas as pd

    s, names = d.samples, [f.name for f in d.layers]
    said = [answers_of(d, row, none="") for row in range(len(s))]
    columns: dict[str, Any] = {
        "index": s.index,
        **({"name": [d.sample_names.get(int(i), "") for i in s.index]} if d.sample_names else {}),
        "label": [label for label, _ in said],
        "predicted": [predicted for _, predicted in said],
        "label_id": s.label,
        "predicted_id": s.predicted,
        "corrected": s.corrected,
    }
    columns |= {f"deviation/{n}": s.deviation[:, i] for i, n in enumerate(names)}
    columns |= {f"closed/{n}": s.closed[:, i] for i, n in enumerate(names)}
    return pd.DataFrame(columns)


def channels(d: Findings) -> pd.DataFrame:
    """A row per layer, class and channel with its share of the correction; class "" and class_id -1 are all samples."""
    rows: list[tuple[Any, ...]] = []
    for f in d.layers:
        parts = [("", -1, f.channels), *((n, k, f.channels_by_class[k]) for k, n in enumerate(d.class_names))]
        rows += [(f.name, name, k, c, float(v)) for name, k, shares in parts for c, v in enumerate(shares)]
    return _frame(rows, ("layer", "class", "class_id", "channel", "share"))


def pairs(d: Findings) -> pd.DataFrame:
    """A row per confused pair and layer. channel, share: the channel that carries most of the pair's correction."""
    rows = []
    for p in d.pairs:
        names = (_class(d, p.label), _class(d, p.predicted), p.label, p.predicted, p.count)
        for layer, deviation in p.deviation.items():
            shares = p.channels[layer]
            top = int(np.argmax(shares))
            rows.append((*names, layer, deviation, top, float(shares[top])))
    columns = (
        "label", "predicted", "label_id", "predicted_id", "count", "layer", "deviation", "channel", "share",
    )  # fmt: skip
    return _frame(rows, columns)


FRAMES = {make.__name__: make for make in (layers, units, classes, samples, channels, pairs)}


def frame(d: Findings, name: str) -> pd.DataFrame:
    """The table of that name."""
    if name not in FRAMES:
        raise OptionError(f"there is no table {name!r}: there are {', '.join(FRAMES)}")
    return FRAMES[name](d)


def write_csv(d: Findings, folder: str | Path) -> list[Path]:
    """Write ``layers.csv``, ``units.csv``, ``classes.csv``, ``samples.csv``, ``channels.csv`` and ``pairs.csv``."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, make in FRAMES.items():
            make(d).to_csv(place / f"{name}.csv", index=False)
    except OSError as error:
        raise OptionError(
            f"the tables could not be written to {str(place)!r}: {error.strerror or error}. Pass a directory that may "
            "be written to."
        ) from error
    return [place / f"{name}.csv" for name in FRAMES]


def show(d: Findings, console: Console | None = None) -> None:
    """Print the verdict and the tables of layers and pairs to a terminal."""
    parts: list[Text | Table] = [Text(sentence) for sentence in _sentences(d)]
    for columns, rows in _tables(d):
        shown = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            shown.add_row(*(Text(cell) for cell in row))
        parts += [Text(""), shown]
    (console or Console()).print(Group(*parts))


def text(d: Findings) -> str:
    """The same as plain text."""
    return "\n\n".join(["\n".join(_sentences(d)), *(table(columns, rows) for columns, rows in _tables(d))])


def brief(d: Findings) -> str:
    """A line on the whole and the table of layers: what a notebook or a debugger shows."""
    return f"{_headline(d)}\n{table(_columns(d), _layer_rows(d))}"


def html(d: Findings) -> str:
    """The same as HTML."""
    return html_table(_headline(d), _columns(d), _layer_rows(d))


def _headline(d: Findings) -> str:
    count, wrong = len(d.samples), int(np.count_nonzero(d.samples.corrected))
    need = "needs" if wrong == 1 else "need"
    return (
        f"Diagnosis of {d.model}, preset {d.preset}: {d.score_name} {d.score:.4g} on {count:,} samples, "
        f"{wrong:,} {need} a correction"
    )


def _sentences(d: Findings) -> list[str]:
    advised = ", ".join(d.advice.layers) or "none"
    return [*verdict(d).sentences, f"Layers to be trusted as l_R: {advised}. {d.advice.reason}"]


def _tables(d: Findings) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    rows = []
    for p in d.pairs:
        inner = {name: moved for name, moved in p.deviation.items() if name != OUTPUT} or p.deviation
        most = max(inner, key=lambda name: inner[name])
        rows.append((_class(d, p.label), _class(d, p.predicted), str(p.count), most, f"{p.deviation[most]:.4f}"))
    return [(_columns(d), _layer_rows(d)), *([(PAIRS, rows)] if rows else [])]


def _columns(d: Findings) -> tuple[str, ...]:
    return tuple("closed" if d.regression and name == "label wins" else name for name in LAYERS)


def _layer_rows(d: Findings) -> list[tuple[str, ...]]:
    rank = {name: str(i) for i, name in enumerate(d.ranking, 1)}
    return [
        (f.name, f"{f.deviation:.4f}", _number(f.reference_deviation),
         percent(f.closed if d.regression else f.wins),
         f"{f.trust:.2f}", percent(f.fault), _span(f.fault_interval), rank.get(f.name, "-"))
        for f in d.layers
    ]  # fmt: skip


def _class(d: Findings, number: int) -> str:
    return class_name(d.class_names, int(number), none="")


def _span(interval: tuple[float, float]) -> str:
    if interval[0] == interval[1]:  # nothing was taken back of any sample's loss
        return "-"
    low, high = map(percent, interval)
    return f"{low.removesuffix(' %')} to {high}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _frame(rows: list[Any], columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
