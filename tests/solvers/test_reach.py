"""A path's output target, reached: what is given up of it where the last of it lies far away."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from frpt.errors import OptionError
from frpt.options import Gate
from frpt.solvers.base import row_norm
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
    assert float(left[1]) <= 0.1
    assert 1e-3 < float(left[0]) <= 0.1
