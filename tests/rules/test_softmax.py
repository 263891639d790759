"""Softmax and log-softmax against the formula, the shift against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch._ops import OpOverload

from frpt.rules import RULES
from tests.rules.cases import Draw, site
from tests.tolerance import assert_close

aten = torch.ops.aten
OPS = {
    "softmax": (aten.softmax.int, ()),
    "_softmax": (aten._softmax.default, (False,)),
    "log_softmax": (aten.log_softmax.int, ()),
    "_log_softmax": (aten._log_softmax.default, (False,)),
}
ops = pytest.mark.parametrize(("op", "extra"), OPS.values(), ids=OPS.keys())


def is_log(op: OpOverload) -> bool:
    return "log" in str(op)


@ops
@given(k=st.integers(2, 7), spread=st.floats(0.1, 5), seed=st.integers(0, 10_000))
def test_logits_up_to_the_nearest_shift(
    op: OpOverload, extra: tuple[bool, ...], k: int, spread: float, seed: int
) -> None:
    """z = log t + c: consistent for every c, and scipy finds no nearer c."""
    d = Draw(torch.float64, torch.Generator().manual_seed(seed))
    anchor = d.normal(2, k, 3, scale=spread)
    t = torch.softmax(d.normal(2, k, 3, scale=spread), 1)
    at = site(op, anchor, 1, *extra)
    target = t.log() if is_log(op) else t
    value = RULES["default"][op].solve(at, target).value
    for i in range(2):
        for j in range(3):
            log_t, a = np.log(t[i, :, j].numpy()), anchor[i, :, j].numpy()
            shift = minimize_scalar(lambda c, log_t=log_t, a=a: ((log_t + c - a) ** 2).sum(), tol=1e-12).x
            assert_close(value[i, :, j], torch.from_numpy(log_t + shift), torch.float32)
    assert_close(at.forward(value), target, slack=10)


def test_a_one_hot_target_is_raised_to_the_floor() -> None:
    """log t = log 1e-12 where t = 0, and t is normalised: z is finite and reaches the target to 1e-11."""
    anchor = torch.tensor([[1.0, -0.5, 0.3]], dtype=torch.float64)
    target = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    value = RULES["default"][aten.softmax.int].solve(site(aten.softmax.int, anchor, 1), target).value
    assert_close(torch.softmax(value, 1), target)
    log_t = torch.tensor([[math.log(1e-12), 0.0, math.log(1e-12)]], dtype=torch.float64)
    assert_close(value, log_t + (anchor - log_t).mean())


@pytest.mark.parametrize("masked", [-40.0, -90.0, -1e4, -1e9])
@pytest.mark.parametrize("model", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_masked_entries_are_left_alone(masked: float, model: torch.dtype) -> None:
    """A probability below the floor that should stay what it is asks for nothing, and shifts no neighbour."""
    anchor = torch.tensor([[0.0, 1.0, masked]], dtype=model)
    at = site(aten.softmax.int, anchor, 1)
    target = torch.softmax(torch.tensor([[0.5, 1.0, masked]], dtype=model), 1).double()
    value = RULES["default"][aten.softmax.int].solve(at, target).value
    assert_close(torch.softmax(value, 1), target, model)
    assert float((value - at.anchor).norm()) <= 0.5


def test_a_masked_entry_sinks_with_its_slice() -> None:
    """Here the nearest shift sinks the slice by 15.8: an entry just below the floor follows, one far below stays."""
    anchor = torch.tensor([[0.0, -25.0, -25.0, -28.0, -500.0]], dtype=torch.float64)
    at = site(aten.softmax.int, anchor, 1)
    target = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]], dtype=torch.float64) / 3
    value = RULES["default"][aten.softmax.int].solve(at, target).value
    assert_close(torch.softmax(value, 1), target)
    assert float(value[0, 3]) < -28.0
    assert float(value[0, 4]) == -500.0


@ops
def test_targets_are_normalised(op: OpOverload, extra: tuple[bool, ...]) -> None:
    """Twice the probabilities are the same probabilities."""
    d = Draw(torch.float64, torch.Generator().manual_seed(1))
    at = site(op, d.normal(2, 5), 1, *extra)
    t = torch.softmax(d.normal(2, 5), 1)
    once, twice = (t.log(), t.log() + math.log(2)) if is_log(op) else (t, 2 * t)
    rule = RULES["default"][op]
    assert_close(rule.solve(at, twice).value, rule.solve(at, once).value)


@ops
def test_slices_that_are_met_keep_their_anchor(op: OpOverload, extra: tuple[bool, ...]) -> None:
    d = Draw(torch.float64, torch.Generator().manual_seed(2))
    at = site(op, d.normal(2, 4, 5), 2, *extra)
    target = at.output.clone()
    target[0, 1] = at.forward(d.normal(2, 4, 5))[0, 1]
    value = RULES["default"][op].solve(at, target).value
    assert torch.equal(value[0, [0, 2, 3]], at.anchor[0, [0, 2, 3]])
    assert torch.equal(value[1], at.anchor[1])
    assert not torch.equal(value[0, 1], at.anchor[0, 1])
