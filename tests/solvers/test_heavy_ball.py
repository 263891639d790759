"""Gradient steps with momentum: what they gain where Gauss–Newton stops, and the laws."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from frpt.options import Gate
from frpt.solvers.base import Range, row_norm
from frpt.solvers.blocks.heavy_ball import HeavyBall
from frpt.solvers.blocks.min_norm_newton import MinNormNewton
from frpt.solvers.blocks.problem import Limits, Problem


def kinked(seed: int = 0, samples: int = 6) -> Problem:
    """A deep path of ReLUs to eight numbers, features at zero or above, targets of features that lie far off."""
    torch.manual_seed(seed)
    sizes = [48, 64, 64, 64, 64]
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(64, 8)).double().requires_grad_(False)
    for p in net.parameters():
        p.mul_(1.7)
    g = torch.Generator().manual_seed(seed)
    anchor, other = torch.randn(2, samples, 48, generator=g, dtype=torch.float64).relu()
    return Problem(
        lambda a, _: net(a), anchor, net(other), net(anchor), Gate(), Limits(), Range(low=0.0), stop_at=1e-3
    )  # fmt: skip


def test_it_goes_on_where_gauss_newton_stops() -> None:
    """Less than a third is left of what four Gauss–Newton steps leave, on average, and nobody loses; in the range."""
    p = kinked()
    begun = MinNormNewton(steps=4).solve(p).value
    answer = HeavyBall().solve(replace(p, start=(begun, p.run(begun))))
    left, before = row_norm(p.target - p.run(answer.value)), row_norm(p.target - p.run(begun))
    assert (left <= before).all()
    assert float(left.mean()) < 0.3 * float(before.mean())
    assert (answer.value >= 0).all()


def test_met_targets_cost_nothing_and_samples_are_alone() -> None:
    p = kinked(1)
    met = replace(p, target=p.target.index_copy(0, torch.tensor([1]), p.output[1:2]))
    together = HeavyBall(periods=2).solve(met)
    assert torch.equal(together.value[1], p.anchor[1])
    assert int(together.iterations[1]) == 0
    alone = HeavyBall(periods=2).solve(met.part(torch.tensor([2])))
    torch.testing.assert_close(alone.value[0], together.value[2], rtol=1e-6, atol=1e-9)


def test_a_path_that_overflows_gives_the_best_point() -> None:
    """exp of far features is infinite: such steps are refused and the answer is finite and no worse."""
    p = kinked(2)
    steep = replace(
        p, fn=lambda a, _: (a[:, :8] ** 2).exp(), target=torch.full((6, 8), 1e6, dtype=torch.float64),
        output=(p.anchor[:, :8] ** 2).exp(),
    )  # fmt: skip
    answer = HeavyBall().solve(steep)
    assert torch.isfinite(answer.value).all()
    assert (row_norm(steep.target - steep.run(answer.value)) <= row_norm(steep.target - steep.output)).all()


def test_a_target_out_of_reach_is_not_chased() -> None:
    """tanh never gives 1.5: without a price the feature runs away for nothing, with it the answer stays near."""
    g = torch.Generator().manual_seed(3)
    weight = torch.randn(6, 3, generator=g, dtype=torch.float64)
    anchor = torch.randn(5, 6, generator=g, dtype=torch.float64)

    def fn(a: Tensor, _: Tensor) -> Tensor:
        return (a @ weight).tanh()

    output = fn(anchor, torch.arange(5))
    p = Problem(fn, anchor, torch.full_like(output, 1.5), output, Gate(), Limits(), stop_at=1e-3)
    chased, near = (HeavyBall(price=price).solve(p).value for price in (1e-9, 0.01))
    far, close = (row_norm(value - anchor) / row_norm(anchor) for value in (chased, near))
    lost, left = (row_norm(p.target - p.run(value)) / row_norm(p.target - output) for value in (chased, near))
    assert (close < far).all()
    assert float(close.max()) < 2
    assert float((left - lost).max()) < 0.07
