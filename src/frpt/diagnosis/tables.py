"""A diagnosis as pandas frames and CSV files, class names as text."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frpt.diagnosis.findings import Diagnosis, UnitFinding
from frpt.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd


def class_name(d: Diagnosis, number: int) -> str:
    """The name of a class; "" for a number that is none, as without classes."""
    return d.class_names[number] if 0 <= number < len(d.class_names) else ""


def layers(d: Diagnosis) -> pd.DataFrame:
    """A row per layer, output first. rank: 1 is the likeliest place of the fault. trusted: advised as l_R."""
    rank = {name: i for i, name in enumerate(d.ranking, 1)}
    columns = (
        "layer", "kind", "shape", "depth", "deviation", "reference_deviation", "wins", "closed", "fault", "sensitivity",
        "rank", "trusted",
    )  # fmt: skip
    rows = [
        (f.name, f.kind, "x".join(map(str, f.shape)), f.depth, f.deviation, f.reference_deviation, f.wins,
         f.closed, f.fault, f.sensitivity, rank.get(f.name), f.name in d.advice.layers)
        for f in d.layers
    ]  # fmt: skip
    frame = _frame(rows, columns)
    frame["rank"] = frame["rank"].astype("Int64")
    return frame


def units(d: Diagnosis) -> pd.DataFrame:
    """A row per step of the reverse path, output first; columns as in ``UnitFinding``."""
    return _frame([tuple(asdict(u).values()) for u in d.units], tuple(f.name for f in fields(UnitFinding)))


def classes(d: Diagnosis) -> pd.DataFrame:
    """A row per layer and class. samples, corrected: how many of the class there are, and need a correction."""
    label, corrected = np.asarray(d.samples.label), np.asarray(d.samples.corrected, bool)
    counts = [(int((label == k).sum()), int((corrected & (label == k)).sum())) for k in range(len(d.class_names))]
    rows = [
        (f.name, name, k, *counts[k], float(f.by_class[k])) for f in d.layers for k, name in enumerate(d.class_names)
    ]
    return _frame(rows, ("layer", "class", "class_id", "samples", "corrected", "deviation"))


def samples(d: Diagnosis) -> pd.DataFrame:
    """A row per sample; ``deviation/<layer>`` and ``closed/<layer>`` for every layer."""
    s, names = d.samples, [f.name for f in d.layers]
    columns: dict[str, Any] = {
        "index": s.index,
        "label": [class_name(d, int(k)) for k in s.label],
        "predicted": [class_name(d, int(k)) for k in s.predicted],
        "label_id": s.label,
        "predicted_id": s.predicted,
        "corrected": s.corrected,
    }
    columns |= {f"deviation/{n}": s.deviation[:, i] for i, n in enumerate(names)}
    columns |= {f"closed/{n}": s.closed[:, i] for i, n in enumerate(names)}
    import pandas as pd

    return pd.DataFrame(columns)


def channels(d: Diagnosis) -> pd.DataFrame:
    """A row per layer, class and channel with its share of the correction; class "" and class_id -1 are all samples."""
    rows: list[tuple[Any, ...]] = []
    for f in d.layers:
        parts = [("", -1, f.channels), *((n, k, f.channels_by_class[k]) for k, n in enumerate(d.class_names))]
        rows += [(f.name, name, k, c, float(v)) for name, k, shares in parts for c, v in enumerate(shares)]
    return _frame(rows, ("layer", "class", "class_id", "channel", "share"))


def pairs(d: Diagnosis) -> pd.DataFrame:
    """A row per confused pair and layer. channel, share: the channel that carries most of the pair's correction."""
    rows = []
    for p in d.pairs:
        names = (class_name(d, p.label), class_name(d, p.predicted), p.label, p.predicted, p.count)
        for layer, deviation in p.deviation.items():
            shares = p.channels[layer]
            top = int(np.argmax(shares))
            rows.append((*names, layer, deviation, top, float(shares[top])))
    columns = (
        "label", "predicted", "label_id", "predicted_id", "count", "layer", "deviation", "channel", "share",
    )  # fmt: skip
    return _frame(rows, columns)


TABLES = {make.__name__: make for make in (layers, units, classes, samples, channels, pairs)}


def table(d: Diagnosis, name: str) -> pd.DataFrame:
    """The table of that name."""
    if name not in TABLES:
        raise OptionError(f"there is no table {name!r}: there are {', '.join(TABLES)}")
    return TABLES[name](d)


def write_csv(d: Diagnosis, folder: str | Path) -> list[Path]:
    """Write ``layers.csv``, ``units.csv``, ``classes.csv``, ``samples.csv``, ``channels.csv`` and ``pairs.csv``."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, make in TABLES.items():
            make(d).to_csv(place / f"{name}.csv", index=False)
    except OSError as error:
        raise OptionError(
            f"the tables could not be written to {str(place)!r}: {error.strerror or error}. Pass a directory that may "
            "be written to."
        ) from error
    return [place / f"{name}.csv" for name in TABLES]


def _frame(rows: list[Any], columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
