"""Settings shared by all tests (one thread, reproducible hypothesis runs), and networks that are captured once."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from hypothesis import settings
from torch import nn

import frpt

torch.set_num_threads(1)
gc.set_threshold(
    100_000, 20, 50
)  # torch.export makes objects by the million: a fifth of the tests' time went into looking
settings.register_profile("frpt", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("frpt")

Captured = Callable[[type[nn.Module]], frpt.Reverser]


@pytest.fixture(scope="session")
def captured() -> Captured:
    """Network class of ``tests.models`` that takes images → a Reverser on one with the weights of seed 1.

    Capturing takes a second or more, and a Reverser leaves its model as it is: every test may have the same.
    """
    made: dict[type[nn.Module], frpt.Reverser] = {}

    def reverser_of(network: type[nn.Module]) -> frpt.Reverser:
        if network not in made:
            with torch.random.fork_rng():
                torch.manual_seed(1)
                made[network] = frpt.Reverser(network().eval(), torch.randn(4, 3, 16, 16))
        return made[network]

    return reverser_of
