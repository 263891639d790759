"""Random streams that a key of numbers decides alone, and a user's random state left as it was.

Called by ``frpt.train``, which draws every batch from a stream of its own, so that a run can be stopped, continued or
spread over processes without other numbers coming out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stream(*key: int) -> int:
    """A seed for the random stream of this key; streams of different keys are independent."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_all(*key: int) -> None:
    """Start torch's, numpy's and Python's generators at the stream of a key."""
    seed = stream(*key)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same on CPU, without noting where it was called from for devices that never come
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def own_random() -> Iterator[None]:
    """Leaves the random states of torch, numpy and Python as they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
