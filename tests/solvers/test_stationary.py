"""The average derivative of a block on maps: what it is, when there is none, and what it saves."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frpt
from frpt.options import Gate, Limits
from frpt.solvers.base import row_norm
from frpt.solvers.blocks.mean_jacobian import MeanJacobian, Stationary, folded, unfolded
from frpt.solvers.blocks.problem import Problem
from tests.solvers.blocks import solve

learn = MeanJacobian().learn


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def circular(weight: Tensor, a: Tensor, stride: int = 1) -> Tensor:
    return F.conv2d(F.pad(a, (1, 1, 1, 1), mode="circular"), weight, stride=stride)


def learnt(stride: int = 1, seed: int = 0) -> tuple[Stationary, Tensor, Tensor]:
    """A circular convolution is stationary through and through. Returns also its weight and an anchor."""
    g = generator(seed)
    weight = torch.randn(3, 3, 3, 3, generator=g, dtype=torch.float64) / 5
    weight[:, :, 1, 1] += torch.eye(3, dtype=torch.float64)
    anchor = torch.randn(8, 3, 12, 16, generator=g, dtype=torch.float64)
    found = learn(lambda a, _: circular(weight, a, stride), anchor, circular(weight, anchor, stride))
    assert found is not None
    return found, weight, anchor


def true_response(weight: Tensor, found: Stationary) -> Tensor:
    """K(f) of the convolution, (f, o, i), from its answers to unit impulses."""
    o, c, fold, space = *weight.shape[:2], found.fold, found.space
    columns = []
    for channel, *place in product(range(c), *map(range, fold)):
        x = torch.zeros(1, c, *(n * s for n, s in zip(space, fold, strict=True)), dtype=weight.dtype)
        x[0, channel, place[0], place[1]] = 1.0
        columns.append(torch.fft.rfft2(circular(weight, x, fold[0])[0]).reshape(o, -1).T)
    return torch.stack(columns, 2)


def through(matrices: Tensor, x: Tensor, space: tuple[int, ...]) -> Tensor:
    spectrum = torch.fft.rfft2(x).flatten(2).permute(2, 1, 0)
    out = (matrices @ spectrum).permute(2, 1, 0)
    return torch.fft.irfft2(out.reshape(*out.shape[:2], space[0], space[1] // 2 + 1), s=space)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_its_own_average(stride: int) -> None:
    """Steps and scaling, learnt from noise, are what the equations give for the convolution's own K and G = KᴴK."""
    found, weight, anchor = learnt(stride)
    assert found.explained > 0.9
    K = true_response(weight, found)
    gram, G = K @ K.mH, K.mH @ K
    size, power = (float(t.diagonal(dim1=-2, dim2=-1).real.mean()) for t in (gram, G))
    ridge = (1 - found.explained) / found.explained * size
    r = torch.randn(2, K.shape[1], *found.space, generator=generator(3), dtype=torch.float64)
    wanted = unfolded(through(K.mH @ torch.linalg.inv(gram + ridge * torch.eye(len(K[0]))), r, found.space), found.fold)
    assert (found.step(r) - wanted).norm() < 0.25 * wanted.norm()
    g = torch.randn_like(anchor[:2])
    metric = torch.linalg.inv(G + 0.3 * power * torch.eye(K.shape[2]))
    wanted = unfolded(through(metric, folded(g, found.fold), found.space), found.fold)
    assert (found.scaled(g) - wanted).norm() < 0.25 * wanted.norm()


@pytest.mark.parametrize("stride", [1, 2])
def test_every_place_is_treated_alike_and_the_metric_is_positive(stride: int) -> None:
    found, weight, anchor = learnt(stride)
    r = torch.randn(2, weight.shape[0], *found.space, generator=generator(3), dtype=torch.float64)
    moved = found.step(r).roll((stride, 2 * stride), (2, 3))
    torch.testing.assert_close(found.step(r.roll((1, 2), (2, 3))), moved, rtol=1e-8, atol=1e-10)
    g = torch.randn_like(anchor[:2])
    moved = found.scaled(g).roll((stride, 2 * stride), (2, 3))
    torch.testing.assert_close(found.scaled(g.roll((stride, 2 * stride), (2, 3))), moved, rtol=1e-8, atol=1e-10)
    assert ((found.scaled(g) * g).flatten(1).sum(1) > 0).all()


@pytest.mark.parametrize(
    ("shape", "fold"), [((2, 3, 4, 6), (2, 3)), ((2, 3, 4, 6), (1, 1)), ((1, 2, 4, 2, 6), (2, 1, 3))]
)
def test_folding_loses_nothing(shape: tuple[int, ...], fold: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    y = folded(x, fold)
    assert y.shape[2:] == tuple(n // s for n, s in zip(shape[2:], fold, strict=True))
    assert torch.equal(unfolded(y, fold), x)
    if fold == (2, 3):
        assert torch.equal(y[:, 1], x[:, 0, ::2, 1::3])


def test_none_where_a_block_is_not_of_that_kind() -> None:
    x = torch.randn(4, 6, 8, 8)
    assert learn(lambda a, _: a.flatten(1)[:, :5], x, x.flatten(1)[:, :5]) is None  # no map behind it
    assert learn(lambda a, _: a[:, :, :5, :5], x, x[:, :, :5, :5]) is None  # no whole stride
    mixed = torch.randn(384, 384) / 20
    assert learn(lambda a, _: (a.flatten(1) @ mixed).reshape_as(a), x, (x.flatten(1) @ mixed).reshape_as(x)) is None
    assert learn(lambda a, _: a, torch.zeros_like(x), torch.zeros_like(x)) is None  # nothing to be probed around
    assert learn(lambda a, _: a * 0.0, x, x * 0.0) is None  # a dead block


class Block(nn.Module):
    """A residual block whose derivative varies widely, as after training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        for p in self.inner.parameters():
            p.data *= 2.2

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


def test_it_saves_passes() -> None:
    """The residual left after ten passes is a third at most of what is left without it, at about the same deviation."""
    block = Block().requires_grad_(False)
    typical, anchor = (
        torch.randn(8, 8, 16, 16, generator=generator(1)),
        torch.randn(4, 8, 16, 16, generator=generator(2)),
    )
    target = block(anchor + 0.1 * torch.randn(anchor.shape, generator=generator(3)))
    limits = Limits(iterations=10)
    plain = Problem(lambda a, _: block(a), anchor, target, block(anchor), Gate(), limits)
    known = replace(plain, stationary=learn(plain.fn, typical, block(typical)))
    assert known.stationary is not None
    answers = [solve(p, "secant") for p in (plain, known)]
    left = [row_norm(target - block(a.value)).mean() for a in answers]
    moved = [row_norm(a.value - anchor).mean() for a in answers]
    assert left[1] < left[0] / 3
    assert moved[1] < 1.3 * moved[0]
    assert all((a.iterations <= 10).all() for a in answers)


class Branches(nn.Module):
    """Two branches side by side; half of the inner units are switched off by a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one = nn.Conv2d(12, 4, 1)
        self.two = nn.Sequential(nn.Conv2d(12, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        for p in self.parameters():
            p.data *= 1.5

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.two(x)], 1)


def test_units_that_are_switched_off_are_seen_by_the_average_not_by_gradients() -> None:
    """At 20 passes, against gradients alone, plain ones and those in the metric."""
    block = Branches().requires_grad_(False)
    typical, anchor = (torch.randn(b, 12, 14, 14, generator=generator(b)).relu() for b in (8, 4))
    target = block(anchor + 0.1 * torch.randn(anchor.shape, generator=generator(3)))
    limits = Limits(iterations=20)
    plain = Problem(lambda a, _: block(a), anchor, target, block(anchor), Gate(), limits)
    found = learn(plain.fn, typical, block(typical))
    assert found is not None
    known = replace(plain, stationary=found)
    only_gradients = replace(plain, stationary=OnlyGradients(found))  # type: ignore[arg-type]
    left = [float(row_norm(target - block(solve(p, "secant").value)).mean()) for p in (known, plain, only_gradients)]
    assert left[0] < left[1] / 3
    assert left[0] < left[2] / 3


class OnlyGradients:
    """A block's metric without its average derivative: steps by K go nowhere."""

    def __init__(self, found: Stationary) -> None:
        self.explained, self.scaled = 0.0, found.scaled

    def step(self, r: Tensor) -> Tensor:
        return torch.zeros_like(r)


def test_a_reverser_learns_from_its_example_inputs_alone() -> None:
    """So a sample's target does not depend on what else is in its batch, or on the batches before."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), Block(), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(128, 5)
    ).eval()  # fmt: skip
    x = torch.randn(6, 3, 16, 16, generator=generator(0))
    y = (model(x).argmax(1) + 1) % 5
    together = frpt.Reverser(model, x[:3]).reconstruct(x, y, at="0")
    other = frpt.Reverser(model, x[:3])
    other.reconstruct(x[:2], y[:2], at="0")
    alone = other.reconstruct(x[4:5], y[4:5], at="0")
    torch.testing.assert_close(together.target[4:5], alone.target, rtol=1e-4, atol=1e-5)
