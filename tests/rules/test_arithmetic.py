"""Arithmetic against the pseudo-inverse of its matrix, and elementwise inverses against bracketed roots."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frpt.options import Gate
from frpt.rules import RULES
from tests.rules.cases import ARITHMETIC, Case, site
from tests.rules.reference import assert_least_change, nearest_preimage
from tests.tolerance import assert_close

aten = torch.ops.aten
CURVED = {aten.exp.default, aten.log.default, aten.sqrt.default, aten.pow.Tensor_Scalar}
AFFINE = [case for case in ARITHMETIC if case.op not in CURVED]


@pytest.mark.parametrize("case", AFFINE, ids=str)
def test_least_change(case: Case) -> None:
    assert_least_change(case)


def test_entries_scaled_by_zero_keep_their_anchor() -> None:
    a = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    at = site(aten.mul.Tensor, a, torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64))
    z = RULES["default"][aten.mul.Tensor].solve(at, torch.tensor([[4.0, 5.0, -1.0]], dtype=torch.float64)).value
    assert_close(z, torch.tensor([[2.0, 2.0, 1.0]], dtype=torch.float64))


def test_a_broadcast_factor_is_fitted_by_least_squares() -> None:
    """One gate value for a whole channel (squeeze-and-excitation): s = Σ x t / Σ x²."""
    x = torch.tensor([[[1.0, 2.0, -1.0]]], dtype=torch.float64)
    s = torch.tensor([[[0.5]]], dtype=torch.float64)
    target = torch.tensor([[[1.0, 0.0, 3.0]]], dtype=torch.float64)
    at = site(aten.mul.Tensor, x, s, slot="other")
    z = RULES["default"][aten.mul.Tensor].solve(at, target).value
    assert z.item() == pytest.approx((1.0 * 1 + 2 * 0 - 1 * 3) / 6)


@given(anchor=st.floats(0.05, 5), target=st.floats(-3, 3))
def test_log_sqrt_exp(anchor: float, target: float) -> None:
    a = torch.tensor([[anchor]], dtype=torch.float64)
    t = torch.tensor([[target]], dtype=torch.float64)
    references = [
        (aten.log.default, nearest_preimage(math.log, target, anchor, [1e-3, 100.0])),
        (aten.sqrt.default, nearest_preimage(math.sqrt, max(target, 0.0), anchor, [0.0, 100.0])),
    ]
    if target > 1e-9:
        references.append((aten.exp.default, nearest_preimage(math.exp, target, anchor, [-50.0, 10.0])))
    for op, expected in references:
        z = RULES["default"][op].solve(site(op, a, gate=Gate(enabled=False)), t).value.item()
        assert z == pytest.approx(expected, abs=1e-9), op


def test_exp_of_nothing_is_far_left_and_finite() -> None:
    at = site(aten.exp.default, torch.tensor([[0.5, 1.0]], dtype=torch.float32), gate=Gate(enabled=False))
    z = RULES["default"][aten.exp.default].solve(at, torch.tensor([[0.0, -3.0]], dtype=torch.float64)).value
    assert_close(z.exp(), torch.zeros_like(z), torch.float32)


@given(anchor=st.floats(-5, 5), target=st.floats(-20, 20), p=st.sampled_from([1, 2, 3, 4, 0.5, 1.5, 2.5]))
def test_powers(anchor: float, target: float, p: float) -> None:
    """Both signs for even exponents, one for odd ones, none below zero for fractions."""
    anchor = abs(anchor) if p % 1 else anchor
    low = 0.0 if p % 1 else -1e3
    attainable = target if p % 2 == 1 else max(target, 0.0)
    expected = nearest_preimage(lambda z: float(z**p), attainable, anchor, [low, 0.0, 1e3])
    a, t = torch.tensor([[anchor]], dtype=torch.float64), torch.tensor([[target]], dtype=torch.float64)
    at = site(aten.pow.Tensor_Scalar, a, p, gate=Gate(enabled=False))
    z = RULES["default"][aten.pow.Tensor_Scalar].solve(at, t).value.item()
    assert abs(abs(z) - abs(expected)) < 1e-6
    assert abs(z - anchor) <= abs(expected - anchor) + 1e-6


def test_a_negative_exponent_is_left_to_the_composite_solver() -> None:
    rule = RULES["default"][aten.pow.Tensor_Scalar]
    assert not rule.applies(site(aten.pow.Tensor_Scalar, torch.ones(1, 1), -1.0))
