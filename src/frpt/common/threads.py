"""Fewer of torch's threads where there is little work for each: they wait for each other in every small step.

On a processor that others keep busy, such a wait lasts until the other thread gets its turn again.
Called by ``frpt.reverser`` around every reconstruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import torch

_WORTH = 2**22
"""Bytes of a pass that a thread is worth. benchmarks/threads.py: with less, two were not quicker than one."""


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
    try:
        torch.set_num_threads(fitting)
        # The number is this thread's, and that of threads that will first use torch: these get the usual one back.
        other = Thread(target=torch.set_num_threads, args=(usual,))
        other.start()
        other.join()
        yield
    finally:
        torch.set_num_threads(usual)
