"""Fewer of torch's threads where there is little work for each: they wait for each other in every small step.

On a processor that others keep busy, such a wait lasts until the other thread gets its turn again.
Called by ``frpt.reverser`` around every reconstruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import torch

_WORTH = 2**22
"""Bytes of a pass that a thread is worth. Set by hand on five networks: with less than twice that a second one brought
14 % at most. What busy neighbours do then: benchmarks/threads.py."""


@contextmanager
def threads_for(nbytes: int) -> Iterator[None]:
    """As many of torch's threads as a pass is worth, in this thread only; afterwards it has its own number again.

    nbytes: what the values of the pass take.
    """
    usual = torch.get_num_threads()
    fitting = min(usual, max(1, nbytes // _WORTH))
    if fitting == usual:
        yield
        return
    # The number is this thread's, and that of threads that first use torch from now on: another one gives these theirs.
    begun = Event()

    def restore() -> None:
        begun.wait()
        torch.set_num_threads(usual)

    other = Thread(target=restore)
    other.start()
    try:
        torch.set_num_threads(fitting)
        begun.set()
        other.join()
        yield
    finally:
        begun.set()
        torch.set_num_threads(usual)
