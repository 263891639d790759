"""What a solve really takes, from the allocator's events, against the budget it was given."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import frpt
from frpt.options import Convolutions
from tests.solvers.kinds import Kind

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

WAYS: dict[str, dict[str, Any]] = {
    "matrix": {"method": "matrix"},
    "cg": {"method": "cg"},
    "fft_padded": {"method": "fft_padded"},
    "fft_boundary": {"method": "fft_boundary"},
    "seam": {"dense_entries": 1},
    "circulant": {"dense_entries": 1, "seam_entries": 1},
}


def peak(call: Callable[[], object]) -> int:
    """Most bytes that tensors made during a call hold at one time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = top = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        top = max(top, held)
    return top


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "kind", [Kind("I", (4, 8, 20, 20), (6, 8, 3, 3), 1, 1), Kind("II", (4, 4, 18, 18), (8, 4, 3, 3))]
)
def test_a_solve_stays_under_its_budget(kind: Kind, way: str) -> None:
    """The least budget, in steps of a fifth, at which the way is taken; the gate's fallback included (a far target)."""
    options = Convolutions(**WAYS[way], budget=2**33)
    conv = kind.map()
    assert options.choose(conv).way == way
    while True:
        less = replace(options, budget=options.budget * 4 // 5)
        try:
            if less.choose(conv).way != way:
                break
        except frpt.errors.BudgetError:
            break
        options = less
    anchor, weight = kind.anchor(), kind.weight()
    target = kind.forward(anchor, weight) + 1e4
    preset = replace(frpt.options.PRESETS["default"], conv=options)
    taken = peak(lambda: kind.solve(anchor, target, weight, preset=preset))
    around = 12 * anchor.element_size() * (anchor.numel() + target.numel())  # inputs, result and what measures them
    assert taken <= options.budget + around
