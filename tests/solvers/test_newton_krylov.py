"""Matrix-free Gauss–Newton against the explicit one, and on what breaks iterations."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

import frpt
from frpt.options import Gate
from frpt.solvers.base import Range, row_norm
from frpt.solvers.blocks.problem import Limits, Problem
from tests.solvers.blocks import solve

LIMITS = Limits(iterations=200, tolerance=1e-5)


def problem(width: int = 12, outputs: int = 7, seed: int = 0, **more: object) -> Problem:
    """A small network, samples in rows; the target comes from a feature moved by a tenth."""
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, outputs)).double().requires_grad_(False)
    anchor = torch.randn(5, width, generator=g, dtype=torch.float64)
    target = net(anchor + 0.1 * torch.randn(5, width, generator=g, dtype=torch.float64))
    return Problem(lambda a, _: net(a), anchor, target, net(anchor), Gate(), LIMITS, **more)  # type: ignore[arg-type]


def test_it_finds_what_gauss_newton_finds() -> None:
    """The same residual, about the same deviation."""
    p = problem()
    mine, explicit = solve(p, "newton_krylov"), solve(p, "gauss_newton")
    for answer in (mine, explicit):
        assert (row_norm(p.target - p.fn(answer.value, torch.arange(5))) <= 2e-5 * row_norm(p.target)).all()
    moved = [row_norm(a.value - p.anchor) for a in (mine, explicit)]
    assert (moved[0] <= 1.05 * moved[1]).all()
    assert not mine.fallback.any()


def test_as_many_outputs_as_inputs() -> None:
    """Badly conditioned, eight inner steps at a time: the residual keeps falling."""
    p = problem(outputs=12)
    answer = solve(p, "newton_krylov")
    after = row_norm(p.target - p.fn(answer.value, torch.arange(5)))
    assert (after <= 1e-2 * row_norm(p.target - p.output)).all()


def test_a_met_target_costs_nothing() -> None:
    p = problem()
    answer = solve(replace(p, target=p.output), "newton_krylov")
    assert torch.equal(answer.value, p.anchor)
    assert (answer.iterations == 0).all()


def test_the_limit_holds_and_samples_do_not_wait_for_each_other() -> None:
    p = replace(problem(), limits=replace(LIMITS, iterations=15))
    target = p.target.clone()
    target[0] = p.output[0]
    answer = solve(replace(p, target=target), "newton_krylov")
    assert int(answer.iterations[0]) == 0
    assert (answer.iterations <= 15).all()
    alone = solve(
        Problem(p.fn, p.anchor[2:3], target[2:3], p.output[2:3], p.gate, p.limits), "newton_krylov"
    )  # fmt: skip
    torch.testing.assert_close(alone.value[0], answer.value[2], rtol=1e-6, atol=1e-6)


def test_it_stays_in_its_range() -> None:
    p = problem(within=Range(0.0, float("inf")))
    p = replace(p, anchor=p.anchor.abs(), output=p.fn(p.anchor.abs(), torch.arange(5)))
    answer = solve(p, "newton_krylov")
    assert float(answer.value.min()) >= 0


def test_nan_on_the_way_leaves_the_best_finite_iterate() -> None:
    """log of a step too far is NaN for some samples; they keep what they had."""

    def fn(a: Tensor, _: Tensor) -> Tensor:
        return torch.log(a).cumsum(1)

    anchor = torch.rand(4, 6, dtype=torch.float64) + 0.05
    target = fn(anchor, anchor) - 3.0
    p = Problem(fn, anchor, target, fn(anchor, anchor), Gate(), LIMITS)
    answer = solve(p, "newton_krylov")
    assert torch.isfinite(answer.value).all()
    after = row_norm(p.target - fn(answer.value, anchor))
    assert (after <= row_norm(p.target - p.output)).all()


def test_an_output_that_does_not_depend_on_the_input_keeps_the_anchor() -> None:
    found = frpt.ops.composite(torch.randn(3, 4), torch.ones(3, 4), lambda a: a * 0.0, solver="newton_krylov")
    assert torch.isfinite(found.value).all()
    assert found.fallback.all()
