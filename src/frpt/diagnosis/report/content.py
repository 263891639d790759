"""What the page's script draws: the findings of a diagnosis as plain numbers. Called by ``page.py``.

The limits keep the page readable and below 15 MB (tests/diagnosis/test_report.py); the page says what it left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from frpt.diagnosis.findings import Array, Findings, LayerFinding, PairFinding
from frpt.diagnosis.report.pictures import TOP, drawings, inputs, responses, shrink
from frpt.diagnosis.report.words import class_name
from frpt.diagnosis.report.worst_classes import worst_first

HEAT_CLASSES = 30  # classes in the map of layers and classes
CHOICES = 200  # classes to choose from, besides those in the gallery
CONFUSION_CLASSES = 50  # classes up to which the confusion matrix is drawn
PAIRS = 100  # confused pairs to choose from
SPECIMENS = 400  # samples of the gallery
WORDS = 512  # tokens of a sample that are written out
_CELLS = 32  # cells along a side of a map of positions: finer ones cannot be told apart on the page


def content(d: Findings) -> dict[str, Any]:
    """Everything but the runs. Classes and layers are numbers; a class of −1 is all of them."""
    worst = worst_first(d)
    gallery = d.gallery[:SPECIMENS]
    chosen = worst[:CHOICES]
    chosen += sorted({s.label for s in gallery if 0 <= s.label < len(d.class_names)} - set(chosen))
    seen = {*chosen, *(c for p in d.pairs[:PAIRS] for c in (p.label, p.predicted)), *(s.predicted for s in gallery)}
    named = seen | set(range(len(d.class_names))) if len(d.class_names) <= CONFUSION_CLASSES else seen
    return {
        "names": {c: class_name(d.class_names, c) for c in sorted(named)},
        "classes": chosen,
        "heat": worst[:HEAT_CLASSES],
        "layers": [_layer(f, chosen) for f in d.layers],
        "start": max((i for i, f in enumerate(d.layers) if d.ranking[:1] == (f.name,)), default=0),
        "units": [{k: getattr(u, k) for k in _UNIT} for u in d.units],
        "confusion": d.confusion if 0 < len(d.class_names) <= CONFUSION_CLASSES else None,
        "pairs": [_pair(p) for p in d.pairs[:PAIRS]],
        "gallery": _gallery(d),
    }


_UNIT = ("name", "path", "op", "rule", "layer", "ccp", "fallback", "rho", "bound", "sigma_max", "sigma_min")


def _layer(f: LayerFinding, chosen: Iterable[int]) -> dict[str, Any]:
    return {
        "name": f.name,
        "kind": f.kind,
        "deviation": f.deviation,
        "closed": f.closed,
        "fault": f.fault,
        "byClass": {c: f.by_class[c] for c in chosen},
        "width": len(f.channels),
        "channels": {-1: _top(f.channels), **{c: _top(f.channels_by_class[c]) for c in chosen}},
        "positions": None if f.positions.size == 0 else _positions(f.positions),
    }


def _top(shares: Array) -> list[tuple[int, float]]:
    """(channel, share) of the largest; those with none are left out."""
    values = np.nan_to_num(np.asarray(shares, dtype=float))
    return [(int(i), float(values[i])) for i in np.argsort(-values, kind="stable")[:TOP] if values[i] > 0]


def _positions(shares: Array) -> dict[str, Any]:
    """Shares per cell of a grid that is no finer than a reader can see; the total is kept."""
    grid = shrink(shares, _CELLS)
    total, kept = float(np.nansum(shares)), float(grid.sum())
    return {"size": grid.shape, "of": shares.shape, "values": (grid * (total / kept if kept else 0.0)).ravel()}


def _pair(p: PairFinding) -> dict[str, Any]:
    return {
        "label": p.label,
        "predicted": p.predicted,
        "count": p.count,
        "deviation": p.deviation,
        "channels": {name: _top(shares) for name, shares in p.channels.items()},
    }


def _gallery(d: Findings) -> list[dict[str, Any]]:
    gallery = d.gallery[:SPECIMENS]
    return [
        {
            "index": s.index,
            "label": s.label,
            "predicted": s.predicted,
            "image": image,
            "deviation": s.deviation,
            "closed": s.closed,
            "responses": maps,
            "drawings": drawn,
            "name": s.name,
            "words": s.words[:WORDS],
            "says": s.says,
        }
        for s, image, maps, drawn in zip(gallery, inputs(gallery), responses(gallery), drawings(gallery), strict=True)
    ]
