"""Random networks, seeded: answers are finite and say what they do, errors are ours, nothing hangs or is changed.

The long run is ``benchmarks/fuzz.py``; what it found is here by its seed.
"""

from __future__ import annotations

import pytest

from tests.faults.fuzz import DRAWS, outcome


@pytest.mark.parametrize("seed", [architecture * DRAWS + architecture % DRAWS for architecture in range(12)])
def test_a_random_network(seed: int) -> None:
    found, details = outcome(seed)
    assert found.startswith(("right", "refused", "not made")), details


def test_an_output_that_overflows_does_not_win() -> None:
    """Seed 5703, 1/(x + ε) in bfloat16: a feature whose scores were −∞ and ∞ was said to win, with ``closed`` NaN."""
    found, details = outcome(5703)
    assert found == "right", details
