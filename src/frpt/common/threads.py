"""Fewer of torch's threads where there is little work for each: they wait for each other in every small step.

On a processor that others keep busy, such a wait lasts until the other thread gets its turn again.
Called by ``frpt.reverser`` around every reconstruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORTH = 2**22
"""Values of a pass that a thread is worth. benchmarks/threads.py"""


@contextmanager
def threads_for(values: int) -> Iterator[None]:
    """One thread for every so many values of a pass, of those that torch has; afterwards it has them all again."""
    usual = torch.get_num_threads()
    fitting = min(usual, max(1, values // _WORTH))
    if fitting == usual:
        yield
        return
    torch.set_num_threads(fitting)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
