"""Gauss–Newton for few outputs: the nearest point to the anchor in its range, against scipy; and what breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from frpt.options import Gate
from frpt.solvers.base import UNBOUNDED, Range, row_norm
from frpt.solvers.blocks.composite import BlockSolver
from frpt.solvers.blocks.gauss_newton import GaussNewton
from frpt.solvers.blocks.min_norm_newton import MinNormNewton
from frpt.solvers.blocks.problem import Limits, Problem
from frpt.solvers.blocks.secant import Secant


def problem(within: Range = UNBOUNDED, seed: int = 0, width: int = 12) -> tuple[nn.Module, Problem]:
    """A small smooth network, anchors at zero or above, attainable targets."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(width, 20), nn.Tanh(), nn.Linear(20, 3)).double().requires_grad_(False)
    g = torch.Generator().manual_seed(seed)
    anchor = torch.rand(4, width, generator=g, dtype=torch.float64)
    anchor = torch.where(anchor < 0.4, 0.0, anchor)
    moved = (anchor + 0.4 * torch.randn(4, width, generator=g, dtype=torch.float64)).clamp_min(0)
    return net, Problem(lambda a, _: net(a), anchor, net(moved), net(anchor), Gate(), Limits(), within, stop_at=1e-5)


@pytest.mark.parametrize("within", [UNBOUNDED, Range(low=0.0)])
def test_it_finds_the_nearest_point_in_the_range(within: Range) -> None:
    """min ‖a − â‖ subject to Φ(a) = t and the bounds, by scipy."""
    net, p = problem(within)
    answer = MinNormNewton().solve(p)
    assert (row_norm(p.target - net(answer.value)) <= p.enough).all()
    assert (answer.value >= within.low).all()
    for x in range(len(p.anchor)):
        near, target = p.anchor[x].numpy(), p.target[x]
        best = minimize(
            lambda a, near=near: ((a - near) ** 2).sum(),
            near,
            jac=lambda a, near=near: 2 * (a - near),
            constraints={"type": "eq", "fun": lambda a, t=target: (net(torch.from_numpy(a)) - t).numpy()},
            bounds=[(within.low, within.high)] * len(near),
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 300},
        )
        assert float((answer.value[x] - p.anchor[x]).norm()) <= 1.02 * best.fun**0.5


def test_met_targets_cost_nothing_and_samples_are_alone() -> None:
    _, p = problem()
    target = p.target.clone()
    target[1] = p.output[1]
    together = MinNormNewton().solve(Problem(p.fn, p.anchor, target, p.output, p.gate, p.limits, stop_at=1e-5))
    assert torch.equal(together.value[1], p.anchor[1])
    assert int(together.iterations[1]) == 0
    alone = MinNormNewton().solve(p.part(torch.tensor([2])))
    torch.testing.assert_close(together.value[2:3], alone.value)


def test_targets_out_of_reach_and_nan_leave_the_best_finite_point() -> None:
    anchor = torch.tensor([[0.5, 0.5], [2.0, 1.0]], dtype=torch.float64)

    def fn(a: Tensor, _: Tensor) -> Tensor:
        return torch.log(a).sum(1, keepdim=True).tanh()

    target = torch.tensor([[-3.0], [0.5]], dtype=torch.float64)
    p = Problem(fn, anchor, target, fn(anchor, anchor), Gate(), stop_at=1e-4)
    answer = MinNormNewton().solve(p)
    assert torch.isfinite(answer.value).all()
    after = row_norm(target - fn(answer.value, anchor))
    assert (after <= row_norm(target - p.output)).all()
    assert after[1] <= p.enough[1]


def test_a_graph_of_fixed_batch_size_gets_its_own_rows_of_the_jacobian() -> None:
    """There, each sample has one place in the batch: laid out several times, all its rows would be their sum."""
    net, p = problem()

    def whole(a: Tensor, index: Tensor) -> Tensor:
        return net(p.anchor.index_copy(0, index, a))[index]

    fixed = replace(p, fn=whole, repeats=False)
    torch.testing.assert_close(MinNormNewton().solve(fixed).value, MinNormNewton().solve(p).value)


@pytest.mark.parametrize("solver", [MinNormNewton(), Secant(), GaussNewton()])
def test_samples_go_through_in_parts_where_the_budget_is_small(solver: BlockSolver) -> None:
    _, p = problem()
    seen = []

    def counted(a: Tensor, index: Tensor) -> Tensor:
        seen.append(len(set(index.tolist())))
        return p.fn(a, index)

    together = solver.solve(p)
    parts = solver.solve(replace(p, fn=counted, limits=replace(p.limits, budget=1)))
    assert max(seen) == 1
    torch.testing.assert_close(parts.value, together.value)


def test_a_first_step_that_makes_matters_worse_is_refused() -> None:
    """exp(20 a) = 50: the linear model's first step overshoots by 18 powers of ten; a refused one costs one pass."""
    anchor = torch.zeros(1, 2, dtype=torch.float64)

    def steep(a: Tensor, _: Tensor) -> Tensor:
        return (20 * a[:, :1]).exp()

    target = torch.full((1, 1), 50.0, dtype=torch.float64)
    p = Problem(steep, anchor, target, steep(anchor, anchor), Gate(), Limits(), stop_at=1e-5, unit=1.0)
    answer = MinNormNewton().solve(p)
    assert (row_norm(target - steep(answer.value, anchor)) <= p.enough).all()
    assert int(answer.iterations) <= 30
