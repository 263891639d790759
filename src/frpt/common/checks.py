"""Checks of options: the option classes of every room make them of themselves, functions of their arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any

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


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_seed(seed: Any) -> None:
    """Refuse what is no seed of NumPy's and torch's generators; numbers of NumPy are."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**64:
        raise OptionError(f"seed must be a whole number of at least 0 and below 2**64, got {seed!r}")


def check_normalisation(mean: Any, std: Any) -> None:
    """Refuse what no inputs are normalised by: each is None, a number, or one for each channel."""
    import numpy as np  # the command line loads this module for --help as well

    for name, given, above in (("mean", mean, -math.inf), ("std", std, 0.0)):
        values = np.asarray([] if given is None else given, dtype=float)
        if not (np.isfinite(values) & (values > above)).all():
            raise OptionError(f"{name} must be finite{' and above 0' if above == 0 else ''}, got {given!r}")


def require_one_of(owner: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a field whose value is not one of a few words."""
    value = getattr(owner, name)
    if value not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise OptionError(f"{type(owner).__name__}.{name} must be {known}, got {value!r}")
