"""Normalisations: stored statistics against the formula, own statistics against scipy over scale and shift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from frpt.rules import RULES
from tests.rules.cases import NORMS, Case, Draw, site
from tests.rules.reference import asked, assert_least_change
from tests.tolerance import assert_close

aten = torch.ops.aten
STORED = {aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default, aten.instance_norm.default}


def draw(seed: int = 0) -> Draw:
    return Draw(torch.float64, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("case", [c for c in NORMS if c.op in STORED], ids=str)
def test_stored_statistics_least_change(case: Case) -> None:
    assert_least_change(case)


def test_batch_norm_formula_and_zero_gamma() -> None:
    """z = (t − β)√(var + ε)/γ + mean; channels with γ = 0 keep their anchor."""
    d = draw()
    x, gamma, beta, mean, var = d.normal(3, 4, 2), d.positive(4), d.normal(4), d.normal(4), d.positive(4)
    gamma[1] = 0.0
    at = site(aten.batch_norm.default, x, gamma, beta, mean, var, False, 0.1, 1e-5, False, slot="input")
    target = asked(at)
    value = RULES["default"][aten.batch_norm.default].solve(at, target).value
    used = [0, 2, 3]

    def column(v: Tensor) -> Tensor:
        return v[used, None]

    expected = (target[:, used] - column(beta)) * (column(var) + 1e-5).sqrt() / column(gamma) + column(mean)
    assert_close(value[:, used], expected)
    assert torch.equal(value[:, 1], x[:, 1])


def test_statistics_of_the_batch_have_no_rule() -> None:
    x = torch.ones(2, 3, 4)
    for op, flag in ((aten.batch_norm.default, True), (aten.instance_norm.default, True)):
        at = site(op, x, None, None, None, None, flag, 0.1, 1e-5, False, slot="input")
        assert not RULES["default"][op].applies(at)


@pytest.mark.parametrize(
    "op",
    [
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten._native_batch_norm_legit_no_training.default,
    ],
)
def test_side_outputs_have_no_rule(op: Any) -> None:
    """The mean and the reciprocal deviation that native norms also return are not the normalised tensor."""
    case = next(c for c in NORMS if c.op is op)
    at = site(op, *case.build(draw()), slot="input", pick=1)
    assert not RULES["default"][op].applies(at)


# --- the input's own statistics ---------------------------------------------------------------------------------------


def _nearest_on_the_ray(anchor: np.ndarray, u: np.ndarray, centred: bool) -> np.ndarray:
    """argmin ‖μ + c u − â‖ over c > 0 and, if centred, μ; by scipy."""

    def point(p: np.ndarray) -> np.ndarray:
        return np.exp(p[0]) * u + (p[1] if centred else 0.0)

    start = np.array([0.0, anchor.mean()])
    found = minimize(lambda p: ((point(p) - anchor) ** 2).sum(), start, method="BFGS", options={"gtol": 1e-10})
    return point(found.x)


@given(k=st.integers(3, 9), size=st.floats(0.02, 0.5), affine=st.booleans(), seed=st.integers(0, 10_000))
def test_layer_norm_is_nearest_of_its_direction(k: int, size: float, affine: bool, seed: int) -> None:
    """Direction of the output is that of the target; no other positive scale and shift is nearer to the anchor."""
    d = draw(seed)
    x = d.normal(3, k)
    gamma, beta = (d.positive(k), d.normal(k)) if affine else (None, None)
    at = site(aten.layer_norm.default, x, [k], gamma, beta, 1e-10, slot="input")
    target = asked(at, size, seed)
    value = RULES["default"][aten.layer_norm.default].solve(at, target).value
    u = (target - (0 if beta is None else beta)) / (1 if gamma is None else gamma)
    u = u - u.mean(1, keepdim=True)
    for i in range(3):
        inner = float(((x[i] - x[i].mean()) * u[i]).sum())
        if inner <= 0.05 * float(x[i].std() * u[i].std()):  # opposite directions: the nearest positive scale is zero
            continue
        expected = torch.from_numpy(_nearest_on_the_ray(x[i].numpy(), u[i].numpy(), centred=True))
        assert_close(value[i], expected, torch.float32)
        reached = torch.nn.functional.layer_norm(value[i], [k], eps=1e-10)
        assert_close(reached, u[i] / u[i].square().mean().sqrt(), torch.float32)


def test_layer_norm_over_several_axes_equals_the_flattened_one() -> None:
    d = draw(2)
    x, gamma, beta = d.normal(3, 2, 6), d.positive(2, 6), d.normal(2, 6)
    rule = RULES["default"][aten.layer_norm.default]
    at = site(aten.layer_norm.default, x, [2, 6], gamma, beta, 1e-5, slot="input")
    flat = site(aten.layer_norm.default, x.flatten(1), [12], gamma.flatten(), beta.flatten(), 1e-5, slot="input")
    target = asked(at)
    assert_close(rule.solve(at, target).value.flatten(1), rule.solve(flat, target.flatten(1)).value)


@pytest.mark.parametrize("eps", [1e-5, 1e-3])
def test_layer_norm_reaches_an_attainable_target_to_eps(eps: float) -> None:
    """|Φ(a) − t| ≤ 2 ε/var, element by element."""
    d = draw(4)
    x = d.normal(4, 8)
    at = site(aten.layer_norm.default, x, [8], None, None, eps, slot="input")
    near = x + 0.1 * d.normal(4, 8)
    target = at.forward(near)
    value = RULES["default"][aten.layer_norm.default].solve(at, target).value
    room = 2 * eps / near.var(1, unbiased=False, keepdim=True)
    assert bool(((at.forward(value) - target).abs() <= room * target.abs().amax(1, keepdim=True)).all())


def test_layer_norm_of_a_constant_row() -> None:
    """A row without spread has no direction of its own: the target's direction is taken, and reached."""
    x = torch.full((2, 6), 3.0, dtype=torch.float64)
    at = site(aten.layer_norm.default, x, [6], None, None, 1e-5, slot="input")
    target = torch.nn.functional.layer_norm(draw(7).normal(2, 6), [6], eps=1e-5)
    value = RULES["default"][aten.layer_norm.default].solve(at, target).value
    assert_close(at.forward(value), target, torch.bfloat16)
    assert_close(value.mean(1), x.mean(1))


def test_a_constant_target_keeps_the_anchor() -> None:
    """No row has a constant non-zero normal form, and no direction is better than another."""
    x = draw(8).normal(2, 6)
    at = site(aten.layer_norm.default, x, [6], None, None, 1e-5, slot="input")
    value = RULES["default"][aten.layer_norm.default].solve(at, torch.full_like(x, 2.0)).value
    assert torch.equal(value, x)


def test_an_opposite_target_keeps_the_spread() -> None:
    x = draw(9).normal(2, 6)
    at = site(aten.layer_norm.default, x, [6], None, None, 1e-5, slot="input")
    value = RULES["default"][aten.layer_norm.default].solve(at, -at.output).value
    assert_close(at.forward(value), -at.output, torch.float32)
    assert_close(value.std(1), x.std(1), torch.float32)


@given(k=st.integers(2, 9), size=st.floats(0.02, 0.5), seed=st.integers(0, 10_000))
def test_rms_norm_is_nearest_of_its_direction(k: int, size: float, seed: int) -> None:
    """c = ⟨â, u⟩/⟨u, u⟩ with u = t/γ: the projection of the anchor on the target's ray."""
    d = draw(seed)
    x, gamma = d.normal(3, k), d.positive(k)
    at = site(aten.rms_norm.default, x, [k], gamma, 1e-10, slot="input")
    target = asked(at, size, seed)
    value = RULES["default"][aten.rms_norm.default].solve(at, target).value
    u = target / gamma
    for i in range(3):
        if float(x[i] @ u[i]) > 0.05 * float(x[i].norm() * u[i].norm()):
            expected = torch.from_numpy(_nearest_on_the_ray(x[i].numpy(), u[i].numpy(), centred=False))
            assert_close(value[i], expected, torch.float32)


def test_group_norm_equals_layer_norm_of_the_groups() -> None:
    d = draw(3)
    x, gamma, beta = d.normal(2, 4, 3, 2), d.positive(4), d.normal(4)
    at = site(aten.group_norm.default, x, 2, gamma, beta, 1e-6, slot="input")
    target = asked(at)
    value = RULES["default"][aten.group_norm.default].solve(at, target).value
    for g in range(2):
        part = slice(2 * g, 2 * g + 2)
        w, b = (v[part, None].expand(2, 6).flatten() for v in (gamma, beta))
        row = site(aten.layer_norm.default, x[:, part].flatten(1), [12], w, b, 1e-6, slot="input")
        expected = RULES["default"][aten.layer_norm.default].solve(row, target[:, part].flatten(1)).value
        assert_close(value[:, part].flatten(1), expected)


def test_rows_that_are_met_keep_their_anchor_beside_rows_that_are_not() -> None:
    d = draw(5)
    at = site(aten.layer_norm.default, d.normal(2, 3, 6), [6], slot="input")
    target = at.output.clone()
    target[0, 1] += 0.3 * d.normal(6)
    value = RULES["default"][aten.layer_norm.default].solve(at, target).value
    assert torch.equal(value[0, [0, 2]], at.anchor[0, [0, 2]])
    assert not torch.equal(value[0, 1], at.anchor[0, 1])


def test_entries_with_zero_gamma_keep_their_anchor() -> None:
    d = draw(6)
    gamma = d.positive(6)
    gamma[2] = 0.0
    at = site(aten.layer_norm.default, d.normal(2, 6), [6], gamma, slot="input")
    value = RULES["default"][aten.layer_norm.default].solve(at, asked(at)).value
    assert torch.equal(value[:, 2], at.anchor[:, 2])


def test_paper_layer_norm_formula() -> None:
    """z = u√(ε/(1 − q)) + mean(ẑ − …) with q = mean(u²) < 1, here well below 1 where it is well conditioned."""
    d = draw(10)
    x, gamma, beta = d.normal(3, 6), d.positive(6), d.normal(6)
    at = site(aten.layer_norm.default, x, [6], gamma, beta, 1e-3, slot="input")
    near = 0.02 * d.normal(3, 6)  # var ~ ε: q is about a quarter
    target = at.forward(near)
    value = RULES["paper"][aten.layer_norm.default].solve(at, target).value
    assert_close(at.forward(value), target, torch.float64, slack=10)
    assert_close(value - value.mean(1, keepdim=True), near - near.mean(1, keepdim=True))
    assert_close(value.mean(1), x.mean(1))
