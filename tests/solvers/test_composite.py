"""Composite solvers: the paper's two routes step by step, their dispatch, and what no iteration may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.errors import InputError
from frpt.options import PRESETS, Gate, Limits
from frpt.solvers.base import row_norm
from frpt.solvers.blocks import gauss_newton
from frpt.solvers.blocks.problem import Problem
from tests.solvers.blocks import solve

SOLVERS = ("gauss_newton", "secant", "newton_krylov", "adam")
PAPER = PRESETS["paper"].composite.limits


def problem(fn: Callable[[Tensor], Tensor], anchor: Tensor, target: Tensor, limits=PAPER, gate=Gate()) -> Problem:  # type: ignore[no-untyped-def]
    with torch.no_grad():
        return Problem(lambda a, _: fn(a), anchor, target, fn(anchor), gate, limits)


def small(outputs: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, outputs)).double().requires_grad_(False)
    g = torch.Generator().manual_seed(1)
    anchor = torch.randn(3, 6, generator=g, dtype=torch.float64)
    return net, anchor, net(anchor + 0.5 * torch.randn(3, 6, generator=g, dtype=torch.float64))


@pytest.mark.parametrize("outputs", [4, 6])
def test_the_papers_gauss_newton(outputs: int) -> None:
    """Damping 0.8, step norm at most 10, backtracking by 0.8 up to eight trials, until 1e-6: against a plain loop."""
    net, anchor, target = small(outputs)
    answer = solve(problem(net, anchor, target), "gauss_newton", "paper")
    nominal = (~answer.fallback).nonzero().flatten().tolist()
    assert len(nominal) >= 2
    for x in nominal:
        a = anchor[x].clone()
        for _ in range(20):
            r = target[x] - net(a)
            if r.norm() <= 1e-6 * target[x].norm():
                break
            J = torch.autograd.functional.jacobian(net, a)
            step = torch.linalg.pinv(J) @ r
            step = step * min(1.0, 10.0 / float(step.norm()))
            for k in range(8):
                point = a + 0.8 * 0.8**k * step
                if (target[x] - net(point)).norm() < r.norm():
                    a = point
                    break
            else:
                break
        torch.testing.assert_close(answer.value[x], a, rtol=1e-7, atol=1e-8)


def test_the_papers_adam() -> None:
    """Twenty steps of rate 0.01 on the batch mean of the squared relative residual, best iterate kept."""
    net, anchor, target = small()
    answer = solve(problem(net, anchor, target), "adam", "paper")
    m, v, a = torch.zeros_like(anchor), torch.zeros_like(anchor), anchor.clone()
    best, least = anchor.clone(), (net(anchor) - target).norm(dim=1) / target.norm(dim=1)
    for t in range(1, 21):
        point = a.clone().requires_grad_(True)
        with torch.enable_grad():
            loss = ((net(point) - target).square().sum(1) / (target.square().sum(1) + 1e-12)).mean()
        (g,) = torch.autograd.grad(loss, point)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        a = a - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        error = (net(a) - target).norm(dim=1) / target.norm(dim=1)
        best = torch.where((error < least)[:, None], a, best)
        least = torch.minimum(error, least)
    torch.testing.assert_close(answer.value, best, rtol=1e-8, atol=1e-10)
    assert (answer.iterations == 20).all()


def test_adam_returns_the_anchor_where_its_last_check_fails() -> None:
    """A bound on magnitudes that any step violates."""
    net, anchor, target = small()
    gate = Gate(magnitude=float(anchor.abs().max()) * 0.5)
    answer = solve(problem(lambda a: 100 * net(a), anchor * 0.4, -100 * target, gate=gate), "adam", "paper")
    tight = Gate(deviation=1e-9)
    held = solve(problem(net, anchor, target, gate=tight), "adam", "paper")
    assert torch.isfinite(answer.value).all()
    assert ((held.value - anchor).norm(dim=1) <= 1e-9 * anchor.norm(dim=1) * (1 + 1e-6)).all()
    assert held.fallback.all()


def test_dispatch_by_the_size_of_a_samples_jacobian() -> None:
    """The paper: explicit up to 5e7 entries, then Adam. Ours: explicit up to 300 inputs and outputs, then secant."""

    def size(inputs: int, outputs: int, preset: str) -> str:
        anchor, target = torch.zeros(1, inputs), torch.zeros(1, outputs)
        return PRESETS[preset].composite.chosen(Problem(lambda a, _: a, anchor, target, target, Gate()))

    assert size(5000, 10_000, "paper") == "gauss_newton"
    assert size(5001, 10_000, "paper") == "adam"
    assert size(300, 300, "default") == "gauss_newton"
    assert size(301, 300, "default") == "secant"


def test_a_whole_model_with_the_papers_routes() -> None:
    """Blocks whole, twenty steps at most, no closing unit."""
    from tests.models import ResNet

    torch.manual_seed(0)
    model = ResNet(width=4).eval()
    x = torch.randn(2, 3, 16, 16)
    y = (model(x).argmax(1) + 1) % 5
    rec = frpt.Reverser(model, x, preset="paper").reconstruct(x, y, at="layer1")
    blocks = [u for u in rec.units if u.rule == "composite"]
    assert len(blocks) == 2
    assert all((u.iterations <= 20).all() and (u.ccp < u.ccp_before).all() for u in blocks)
    assert "closing" not in [u.name for u in rec.units]


def test_jacobians_are_made_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples go through in parts, with the same result."""
    net, anchor, target = small()
    together = solve(problem(net, anchor, target), "gauss_newton", "paper")
    most = []
    made = gauss_newton.jacobians

    def counted(p: Problem, a: Tensor, index: Tensor) -> Tensor:
        most.append(len(a))
        return made(p, a, index)

    monkeypatch.setattr(gauss_newton, "jacobians", counted)
    tight = replace(PAPER, budget=2 * 5 * 8 * 36)
    parts = solve(problem(net, anchor, target, tight), "gauss_newton", "paper")
    assert max(most) == 2
    torch.testing.assert_close(parts.value, together.value)


@pytest.mark.parametrize("solver", SOLVERS)
def test_nan_inside_the_iteration_leaves_the_best_finite_iterate(solver: str) -> None:
    """log is not defined where sample 0 is asked to go; sample 1 is not disturbed."""
    anchor = torch.tensor([[0.3, 0.2], [1.0, 2.0]], dtype=torch.float64)

    def fn(a: Tensor) -> Tensor:
        return a + torch.log(a)

    target = torch.tensor([[-300.0, -300.0], [1.5, 3.0]], dtype=torch.float64)
    limits = Limits(iterations=60)
    answer = solve(problem(fn, anchor, target, limits), solver)
    assert torch.isfinite(answer.value).all()
    assert (row_norm(target - fn(answer.value)) <= row_norm(target - fn(anchor))).all()
    alone = solve(problem(fn, anchor[1:], target[1:], limits), solver)
    if solver != "adam":  # its loss is a mean over the batch
        torch.testing.assert_close(answer.value[1:], alone.value)


@pytest.mark.parametrize("solver", SOLVERS)
def test_targets_out_of_reach_get_the_best_fit_and_say_so(solver: str) -> None:
    """tanh never reaches 2: the residual falls, what is left is reported, and the bounds hold."""
    anchor = torch.full((2, 3), 0.2, dtype=torch.float64)
    target = torch.full((2, 3), 2.0, dtype=torch.float64)
    found = frpt.ops.composite(anchor, target, torch.tanh, solver=solver, gate=Gate(deviation=5.0))
    assert (found.ccp < found.ccp_before).all()
    assert (found.ccp > 0.49).all()
    assert (found.deviation <= 5.0 * (1 + 1e-6)).all()


def test_a_bound_that_holds_a_sample_is_a_fallback() -> None:
    anchor = torch.full((2, 3), 0.2, dtype=torch.float64)
    target = torch.stack([torch.full((3,), 40.0), torch.full((3,), 0.4)]).double()
    for solver in ("secant", "newton_krylov"):
        found = frpt.ops.composite(anchor, target, lambda a: a * 1.5, solver=solver, gate=Gate(deviation=5.0))
        assert found.fallback.tolist() == [True, False]
        assert found.ccp[1] < 1e-4


@pytest.mark.parametrize(
    "fn",
    [lambda a: torch.ones_like(a), lambda a: a.detach() * 2, lambda a: a.argsort(1)],
    ids=["constant", "cut", "ints"],
)
def test_an_output_that_does_not_depend_on_the_input_is_refused(fn: Callable[[Tensor], Tensor]) -> None:
    a = torch.randn(2, 4)
    with pytest.raises(InputError, match="does not depend"):
        frpt.ops.composite(a, torch.zeros(2, 4), fn)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_derivative_of_zero_returns_the_anchor_and_says_so(solver: str) -> None:
    a = torch.randn(2, 4)
    found = frpt.ops.composite(a, torch.ones(2, 4), lambda a: a * 0.0, solver=solver)
    assert torch.equal(found.value, a)
    assert found.fallback.all()
