"""Checks that options make of themselves: called from the ``__post_init__`` of the option classes in every room."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

from frpt.errors import OptionError


def require_positive(owner: object, *names: str) -> None:
    """Refuse a field that is not a number above zero."""
    for name in names:
        value = getattr(owner, name)
        if not (isinstance(value, int | float) and value > 0 and not math.isnan(value)):
            raise OptionError(f"{type(owner).__name__}.{name} must be a positive number, got {value!r}")


def require_numbers_positive(owner: object, *other: str) -> None:
    """Refuse any field of a dataclass that is declared int or float and is not above zero. other: left out."""
    numbers = [f.name for f in fields(owner) if f.type in ("int", "float")]  # type: ignore[arg-type]
    require_positive(owner, *(name for name in numbers if name not in other))


def require_one_of(owner: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a field whose value is not one of a few words."""
    value = getattr(owner, name)
    if value not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise OptionError(f"{type(owner).__name__}.{name} must be {known}, got {value!r}")
