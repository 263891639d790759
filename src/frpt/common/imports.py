"""Loading other packages without a trace: some draw from Python's generator, or add filters of warnings, when imported.

Called where heavy rooms and their dependencies are loaded on first use.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_a_trace() -> Iterator[None]:
    """Python's random state and the warning filters are afterwards as they were."""
    state = random.getstate()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            random.setstate(state)
