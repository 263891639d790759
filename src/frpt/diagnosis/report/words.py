"""Numbers and names as a reader sees them, in tables, figures and on the page; and JSON that is safe inside a page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from frpt.common.text import percent
from frpt.diagnosis.findings import Findings

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def number(value: float | None, digits: int = 4) -> str:
    """Significant digits; a dash for what is not a number."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def score(name: str, value: float) -> str:
    """A share if the name says so, a number otherwise."""
    return percent(value) if "accuracy" in name and 0 <= value <= 1 else number(value)


def class_name(names: Sequence[str], number: int, none: str = "–") -> str:
    """The class's name, or its number where it has none. none: for a negative number, which is no class."""
    if number < 0:
        return none
    return names[number] if number < len(names) and names[number].strip() else f"class {number}"


def yes_words(names: Sequence[str], row: Sequence[bool]) -> str:
    """The names of the outputs that are yes, one after the other. row: (outputs,)."""
    return ", ".join(class_name(names, i) for i, yes in enumerate(row) if yes) or "none"


def answers_of(d: Findings, row: int, none: str = "–") -> tuple[str, str]:
    """(label, prediction) of a row of the table of samples in words. none: where there are no classes, or no label."""
    s = d.samples
    if s.label_yes is not None and s.predicted_yes is not None:
        return yes_words(d.output_names, s.label_yes[row]), yes_words(d.output_names, s.predicted_yes[row])
    return class_name(d.class_names, int(s.label[row]), none), class_name(d.class_names, int(s.predicted[row]), none)


def safe_json(value: Any) -> str:
    """JSON that cannot end the script block it stands in; NaN and infinity are null."""
    text = json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def _plain(value: Any) -> Any:
    """Built-in types only; floats with six digits."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None
