"""The reliability gate and its Tikhonov fallback: singular, vanishing, badly scaled maps against closed formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frpt.errors import OptionError
from frpt.options import Convolutions, Gate
from frpt.rules import RULES, Site
from frpt.solvers.linear.cgls import CGLS, ConjugateGradients
from frpt.solvers.linear.dense import Batched, Dense
from frpt.solvers.linear.structured import Diagonal, Separable
from tests.rules.cases import Draw, site
from tests.rules.reference import asked, matrix_of
from tests.tolerance import assert_close

aten = torch.ops.aten
linear = RULES["default"][aten.linear.default]
FREE = Convolutions(dense_entries=1, cg=ConjugateGradients(500, 1e-12))


def draw(seed: int = 0) -> Draw:
    return Draw(torch.float64, torch.Generator().manual_seed(seed))


def paper_alpha(A: Tensor, anchor: Tensor, residual: Tensor, gate: Gate) -> float:
    """α = max{(σ_max/κ_eff)², ε max(σ_max², 1), (‖r‖ / 2 D_max)²} with D_max = M_∞ − ‖â‖∞, of one system."""
    sigma = float(torch.linalg.svdvals(A)[0])
    room = gate.magnitude - float(anchor.abs().max())
    magnitude = (float(residual.norm()) / (2 * room)) ** 2 if room > 0 else 0.0
    return max((sigma / gate.kappa) ** 2, torch.finfo(A.dtype).eps * max(sigma**2, 1.0), magnitude)


def tikhonov(A: Tensor, anchor: Tensor, residual: Tensor, gate: Gate) -> Tensor:
    """â + (AᵀA + αI)⁻¹Aᵀr, one system."""
    alpha = paper_alpha(A, anchor, residual, gate)
    normal = A.mT @ A + alpha * torch.eye(A.shape[1], dtype=A.dtype)
    return anchor + torch.linalg.solve(normal, A.mT @ residual)


def layer(weight: Tensor, rows: int = 3, **keywords: Any) -> Site:
    return site(aten.linear.default, draw(1).normal(rows, weight.shape[1]), weight, slot="input", **keywords)


def rank_one(m: int, n: int) -> Tensor:
    return draw(2).normal(m, 1) @ draw(3).normal(1, n)


WEIGHTS = {
    "zero": torch.zeros(4, 6, dtype=torch.float64),
    "zero-II": torch.zeros(6, 4, dtype=torch.float64),
    "rank-one": rank_one(4, 6),
    "rank-one-II": rank_one(6, 4),
    "tiny": 1e-12 * draw(4).normal(4, 6),
    "tiny-II": 1e-12 * draw(4).normal(6, 4),
    "graded": draw(4).normal(4, 4) @ torch.diag(torch.tensor([1.0, 1e-3, 1e-6, 1e-9], dtype=torch.float64)),
}
bad_weights = pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS.keys())


@bad_weights
@pytest.mark.parametrize("solver", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_bad_weights_are_finite_and_reported(weight: Tensor, solver: torch.dtype) -> None:
    at = layer(weight, precision=solver)
    solution = linear.solve(at, at.output + 1.0)
    assert bool(torch.isfinite(solution.value).all())
    assert solution.fallback.tolist() == [True] * 3
    bound = 1e3 * (1 + 1e-6)
    assert float(solution.value.abs().max()) <= bound


@bad_weights
def test_bad_weights_in_a_convolution(weight: Tensor) -> None:
    """The same matrices as 1×1 kernels, as explicit matrices of a one-pixel convolution, and matrix-free."""
    rule = RULES["default"][aten.conv1d.default]
    m, n = weight.shape
    x = draw(1).normal(3, n, 1)
    wide = torch.cat([weight[..., None], torch.zeros(m, n, 1, dtype=torch.float64)], 2)
    for kernel, padding, conv in [(weight[..., None], 0, None), (wide, 1, None), (wide, 1, FREE)]:
        at = site(aten.conv1d.default, x, kernel, None, [1], [padding], slot="input", conv=conv)
        solution = rule.solve(at, at.output + 1.0)
        assert bool(torch.isfinite(solution.value).all())
        assert float(solution.value.abs().max()) <= 1e3 * (1 + 1e-6)
        reached = (at.forward(solution.value) - at.output - 1.0).norm()
        assert float(reached) <= float(torch.ones_like(at.output).norm()) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["zero", "rank-one", "tiny", "tiny-II", "graded"])
def test_the_fallback_is_tikhonov_around_the_anchor(name: str) -> None:
    weight = WEIGHTS[name]
    at = layer(weight)
    target = asked(at, 0.1)
    solution = linear.solve(at, target)
    assert solution.fallback.tolist() == [True] * 3
    residual = target - at.output
    for i in range(3):
        expected = tikhonov(weight, at.anchor[i], residual[i], at.gate)
        moved = float((expected - at.anchor[i]).norm())
        assert moved < at.gate.deviation * float(at.anchor[i].norm())  # the bounds of the gate do not decide here
        assert_close(solution.value[i], expected, slack=1e3)


def test_a_singular_expanding_map_is_truncated() -> None:
    """Case II, rank one: the least-squares solution of least norm is optimal, and reported since A⁺ was truncated."""
    weight = WEIGHTS["rank-one-II"]
    at = layer(weight)
    target = asked(at, 1.0)
    solution = linear.solve(at, target)
    expected = at.anchor + (target - at.output) @ torch.linalg.pinv(weight).mT
    assert_close(solution.value, expected)
    assert solution.fallback.tolist() == [True] * 3


@given(m=st.integers(1, 7), n=st.integers(1, 7), seed=st.integers(0, 10_000), exponent=st.integers(-6, 3))
def test_damped_solves_of_every_solver(m: int, n: int, seed: int, exponent: int) -> None:
    """(AᵀA + αI)⁻¹Aᵀr, whoever computes it."""
    d = draw(seed)
    A, r = d.normal(m, n), d.normal(2, m)
    alpha = torch.full((2,), 10.0**exponent, dtype=torch.float64) * torch.tensor([1.0, 2.0])
    expected = torch.stack(
        [
            torch.linalg.solve(A.mT @ A + x * torch.eye(n, dtype=torch.float64), A.mT @ v)
            for x, v in zip(alpha, r, strict=True)
        ]
    )
    assert_close(Dense(A).damped(r, alpha), expected, slack=1e3)
    batched = Batched(A.expand(2, m, n)).damped(r[..., None], alpha)
    assert_close(batched.squeeze(-1), expected, slack=1e3)
    krylov = CGLS(
        lambda x: x @ A.mT, lambda y: y @ A, torch.zeros(1, n, dtype=torch.float64), ConjugateGradients(300, 1e-13)
    )
    assert_close(krylov.damped(r, alpha), expected, torch.float32)
    assert_close(Separable([A]).damped(r, alpha), expected, slack=1e3)


def test_damped_diagonal_and_separable() -> None:
    d = draw(6)
    scale, alpha = d.normal(2, 5), torch.tensor([0.1, 2.0], dtype=torch.float64)
    r = d.normal(2, 5)
    assert_close(Diagonal(scale).damped(r, alpha), scale * r / (scale**2 + alpha[:, None]))
    first, second, y = d.normal(3, 4), d.normal(2, 5), d.normal(2, 3, 2)
    A = torch.kron(first, second)
    expected = [
        torch.linalg.solve(A.mT @ A + x * torch.eye(20, dtype=torch.float64), A.mT @ v.flatten())
        for x, v in zip(alpha, y, strict=True)
    ]
    assert_close(Separable([first, second]).damped(y, alpha).flatten(1), torch.stack(expected), slack=10)


def test_a_singular_average_pool_falls_back() -> None:
    """A 3-wide mean over 5 entries, padded: its matrix has a zero eigenvalue, so most targets are out of reach."""
    at = site(aten.avg_pool1d.default, draw().normal(2, 1, 5), [3], [1], [1])
    A = matrix_of(replace_active(at, at.anchor[:1]))
    assert float(torch.linalg.svdvals(A).min()) < 1e-12
    target = asked(at, 1.0)
    solution = RULES["default"][aten.avg_pool1d.default].solve(at, target)
    assert solution.fallback.tolist() == [True, True]
    for i in range(2):
        expected = tikhonov(A, at.anchor[i, 0], (target - at.output)[i, 0], at.gate)
        assert_close(solution.value[i, 0], expected, slack=1e3)


def replace_active(at: Site, active: Tensor) -> Site:
    return replace(at, args={**at.args, at.slot: active})


def test_a_met_target_is_never_a_fallback() -> None:
    """Whatever the gate thinks of the map, there is nothing to solve."""
    at = layer(WEIGHTS["rank-one"])
    target = at.output.clone()
    target[1] += 1.0
    assert linear.solve(at, target).fallback.tolist() == [False, True, False]


def test_magnitude_and_deviation_bounds_hold() -> None:
    """A target far away is approached as far as M_∞ and M_dev admit."""
    weight = torch.eye(3, dtype=torch.float64)
    for gate in (Gate(), Gate(magnitude=5.0), Gate(deviation=0.5)):
        at = layer(weight, gate=gate)
        solution = linear.solve(at, at.output + 1e5)
        moved = (solution.value - at.anchor).norm(dim=1)
        assert bool(solution.fallback.all())
        assert bool((solution.value.abs().amax(1) <= torch.tensor(gate.magnitude).clamp_min(0) * (1 + 1e-9)).all())
        assert bool((moved <= gate.deviation * at.anchor.norm(dim=1) * (1 + 1e-9)).all())
        assert bool((moved > 0).all())


def test_an_anchor_above_the_magnitude_bound_is_no_reason_to_refuse() -> None:
    x = torch.full((1, 3), 5e3, dtype=torch.float64)
    at = site(aten.linear.default, x, torch.eye(3, dtype=torch.float64), slot="input")
    for step in (-1.0, 1.0):
        solution = linear.solve(at, at.output + step)
        assert solution.fallback.tolist() == [False]
        assert_close(solution.value, x + step)


def test_with_the_gate_off_the_nominal_solution_stands() -> None:
    weight = 1e-6 * draw(4).normal(2, 5)
    at = layer(weight, gate=Gate(enabled=False))
    target = asked(at, 1.0)
    solution = linear.solve(at, target)
    assert not bool(solution.fallback.any())
    assert_close(at.forward(solution.value), target)
    assert float(solution.value.abs().max()) > 1e3


def test_thresholds_by_precision_and_refused_options() -> None:
    assert Gate().thresholds(torch.float64) == pytest.approx((1e-4, 1e-3))
    assert Gate().thresholds(torch.float32) == pytest.approx((1e-3, 1e-2))
    assert Gate(residual=0.5).thresholds(torch.float32)[0] == 0.5
    with pytest.raises(OptionError, match="kappa"):
        Gate(kappa=0.0)
