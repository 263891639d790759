"""A path's output target, reached: what is given up of it where the last of it lies far away."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from frpt.errors import OptionError
from frpt.options import Gate
from frpt.solvers.base import Range, row_norm
from frpt.solvers.blocks.problem import Limits, Problem
from frpt.solvers.blocks.reach import Reach
from frpt.solvers.variation import Gatherer

SLOPES = torch.tensor([1.0, 0.3, 0.01], dtype=torch.float64)


def straight(*missing: float, anchor: float = 2.0) -> Problem:
    """Three numbers, the third of which hardly moves with its feature; anchors of norm ``anchor``."""
    a = torch.tensor([[anchor, 0.0, 0.0]] * 2, dtype=torch.float64)
    out = a * SLOPES
    target = out + torch.tensor(missing, dtype=torch.float64) * torch.tensor([[1.0], [0.1]], dtype=torch.float64)
    return Problem(lambda v, _: v * SLOPES, a, target, out, Gate(), Limits(), stop_at=1e-3)


def left_and_far(p: Problem, value: Tensor) -> tuple[Tensor, Tensor]:
    """Share of the residual that is left, deviation."""
    left = row_norm(p.target - p.run(value)) / row_norm(p.target - p.output)
    return left, row_norm(value - p.anchor) / p.length


def test_the_last_of_a_residual_is_spared_where_it_lies_more_than_a_norm_away() -> None:
    """No more than a tenth is left, by the nearest feature that leaves as little (a ridge, by root finding)."""
    p = straight(1.0, 0.2, 0.04)  # the third number wants 4 of its feature, of which the anchor has 2 in all
    full, _ = Reach(spare=0.0).solve(p)
    near, _ = Reach().solve(p)
    left, far = left_and_far(p, full.value)
    assert float(left.max()) <= 1e-3
    assert float(far[0]) > 2 > 1 > float(far[1])
    left, far = left_and_far(p, near.value)
    assert float(left[0]) <= 0.1
    wanted = p.target[0] - p.output[0]

    def ridge(alpha: float) -> Tensor:
        return SLOPES / (SLOPES**2 + alpha) * wanted

    def over(alpha: float) -> float:
        return float((wanted - SLOPES * ridge(alpha)).norm() / wanted.norm()) - float(left[0])

    least = ridge(brentq(over, 1e-8, 1.0)).norm() / 2
    assert float(far[0]) <= 1.01 * float(least) < 1
    assert torch.equal(near.value[1], full.value[1])  # within a norm nothing is spared


def test_a_target_that_is_as_far_for_the_most_part_stays_met() -> None:
    """A well-conditioned map: the last tenth costs a tenth of the way, so that nothing is won by leaving it."""
    g = torch.Generator().manual_seed(0)
    weight = torch.linalg.qr(torch.randn(9, 5, generator=g, dtype=torch.float64))[0]
    a, missing = 0.1 * torch.randn(4, 9, generator=g, dtype=torch.float64), torch.randn(4, 5, generator=g).double()
    p = Problem(lambda v, _: v @ weight, a, a @ weight + missing, a @ weight, Gate(), Limits(), stop_at=1e-3)
    value = Reach().solve(p)[0].value
    left, far = left_and_far(p, value)
    assert float(far.min()) > 1
    assert float(left.max()) <= 1e-3
    torch.testing.assert_close(value, a + missing @ weight.T, rtol=1e-2, atol=1e-3)


def test_what_is_spared_does_not_depend_on_companions() -> None:
    p = straight(1.0, 0.2, 0.04)
    together = Reach().solve(p)[0].value
    alone = Reach().solve(p.part(torch.tensor([0])))[0].value
    torch.testing.assert_close(alone[0], together[0])


def test_labels_are_never_spared() -> None:
    """Where any output will do in which labels win, all of what is missing counts."""
    p = straight(1.0, 0.2, 0.04)

    def aim(out: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        near = out.maximum(p.target[rows])
        return near, row_norm(out - near)

    value = Reach(stop_at=1e-6).solve(p, aim)[0].value
    assert float((p.target - p.run(value)).max()) < 1e-4


@pytest.mark.parametrize("spare", [-0.1, 1, float("nan")])
def test_spare_is_a_share(spare: float) -> None:
    with pytest.raises(OptionError, match=r"Reach\.spare"):
        Reach(spare=spare)


def test_in_a_layers_variation_the_same() -> None:
    p = straight(1.0, 0.2, 0.04)
    gathered = Gatherer(torch.Size([3]))
    gathered.add(torch.randn(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), None)
    variation = gathered.variation(0.0).to(p.anchor)
    left, _ = left_and_far(p, Reach().solve_within(p, variation)[0].value)
    assert float(left[1]) <= 1e-3
    assert 1e-3 < float(left[0]) <= 0.1


def test_what_the_range_stops_near_the_anchor_goes_on() -> None:
    """In a layer's variation with bounds, no sample within a norm keeps a part of its residual."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 12, generator=g, dtype=torch.float64)
    a, to = (torch.randn(40, 12, generator=g, dtype=torch.float64).relu() for _ in range(2))

    def out(v: Tensor, _: Tensor | None = None) -> Tensor:
        return torch.tanh(0.3 * v @ weight.T)

    near = a + 0.2 * (to - a)
    p = Problem(out, a, out(near), out(a), Gate(), Limits(), Range(low=0.0), stop_at=1e-3)
    gathered = Gatherer(torch.Size([12]))
    gathered.add(torch.randn(300, 12, generator=g, dtype=torch.float64).relu(), None)
    value = Reach().solve_within(p, gathered.variation(0.0).to(a))[0].value
    left, far = left_and_far(p, value)
    assert float(left[far < 0.5].max()) <= 1e-3
