"""The nearest winning feature: against scipy's SLSQP and a linear program, and its laws."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls
from torch import Tensor, nn

from frpt.options import Gate, NearestWinning
from frpt.solvers.base import UNBOUNDED, Range
from frpt.solvers.contest import Contest
from frpt.solvers.nearest import Winning, complementary

GATE = Gate(deviation=100.0)
OPTIONS = NearestWinning()


def solve(contest: Contest, options: NearestWinning) -> Winning:
    return options.solve(contest)


def network(seed: int, *widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Weights as large as trained ones: with PyTorch's first ones another label wins only many norms away."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
        nn.init.kaiming_normal_(layers[-2].weight)  # type: ignore[arg-type]
    return nn.Sequential(*layers[:-1]).double().eval()


def contest(
    model: nn.Module, anchor: Tensor, label: Tensor, margin: float = 1e-3, within: Range = UNBOUNDED
) -> Contest:
    return Contest(lambda a, rows: model(a), anchor, label, torch.full((len(anchor),), margin).to(anchor), GATE, within)


def wrong_labels(model: nn.Module, anchor: Tensor, shift: int = 1) -> Tensor:
    with torch.no_grad():
        out = model(anchor)
    return (out.argmax(1) + shift) % out.shape[1]


def brute(model: nn.Module, anchor: Tensor, label: int, margin: float, low: float, starts: int = 6) -> float:
    """The least distance that SLSQP finds from many starts, in double, with autograd's gradients."""
    centre = anchor.numpy()

    def scores(v: np.ndarray) -> Tensor:
        return model(torch.as_tensor(v)[None])[0]

    def leads(v: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            out = scores(v)
        return (out[label] - out - margin).numpy()[np.arange(len(out)) != label]

    def jacobian(v: np.ndarray) -> np.ndarray:
        J = torch.autograd.functional.jacobian(lambda t: model(t[None])[0], torch.as_tensor(v))
        return (J[label] - J).numpy()[np.arange(len(J)) != label]  # type: ignore[index]

    rng, best = np.random.default_rng(0), np.inf
    for i in range(starts):
        start = np.maximum(centre + (0 if i == 0 else rng.normal(size=len(centre))), low)
        found = minimize(
            lambda v: 0.5 * ((v - centre) ** 2).sum(), start, jac=lambda v: v - centre, method="SLSQP",
            constraints={"type": "ineq", "fun": leads, "jac": jacobian}, bounds=[(low, None)] * len(centre),
            options={"maxiter": 150, "ftol": 1e-12},
        )  # fmt: skip
        if (leads(found.x) >= -1e-7).all():
            best = min(best, float(np.linalg.norm(found.x - centre)))
    return best


def test_as_near_as_slsqp_from_many_starts() -> None:
    """Small networks with strong kinks, on which both find local solutions: the median to 3 %, four of five to 35 %."""
    ratios, lost = [], 0
    for seed in range(24):
        activation, bounded = (nn.Tanh, nn.ReLU)[seed % 2], seed % 4 > 1
        model = network(seed, 6, 12, 8, 4, activation=activation)
        anchor = torch.randn(1, 6, dtype=torch.float64)
        anchor = anchor.relu() if bounded else anchor
        label = wrong_labels(model, anchor, 1 + seed % 3)
        reference = brute(model, anchor[0], int(label), 1e-3, 0.0 if bounded else -np.inf)
        if not np.isfinite(reference):
            continue
        found = solve(contest(model, anchor, label, within=Range(low=0.0) if bounded else UNBOUNDED), OPTIONS)
        assert not bounded or float(found.value.min()) >= 0
        lost += int(not found.wins)
        if found.wins:
            ratios.append(float((found.value - anchor).norm()) / reference)
    assert len(ratios) >= 15
    assert lost <= 3
    assert np.median(ratios) < 1.03
    assert np.quantile(ratios, 0.8) < 1.35


def test_a_linear_path_is_solved_exactly() -> None:
    """min ‖v − â‖ with Wv + b in favour of the label: a quadratic program; to the share that a last step has to win."""
    for seed in range(8):
        torch.manual_seed(seed)
        model, anchor = nn.Linear(5, 4).double(), torch.randn(1, 5, dtype=torch.float64)
        label = wrong_labels(model, anchor, 2)
        if brute(model, anchor[0], int(label), 1e-3, -np.inf, starts=1) > GATE.deviation / 20:
            continue
        found = solve(contest(model, anchor, label), NearestWinning(looks=20))
        reference = brute(model, anchor[0], int(label), 1e-3, -np.inf, starts=1)
        assert float((found.value - anchor).norm()) == pytest.approx(reference, rel=1.2e-2)


def seen(model: nn.Sequential, anchor: Tensor, label: int) -> bool:
    """Whether the label wins at one of 300 random points around the anchor."""
    rng = torch.Generator().manual_seed(0)
    points = anchor + 2 * torch.randn(300, len(anchor), generator=rng, dtype=torch.float64)
    with torch.no_grad():
        return bool((model(points).argmax(1) == label).any())


def test_labels_that_win_somewhere_near_are_reached() -> None:
    """Random 8-8-8-4 ReLU networks, half of whose units are off: nine of ten labels that random points find."""
    tried = reached = 0
    for seed in range(40):
        model = network(seed, 8, 8, 8, 4, activation=nn.ReLU)
        anchor = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        label = wrong_labels(model, anchor, 1 + seed % 3)
        found = solve(contest(model, anchor, label, 1e-6), OPTIONS)
        there = torch.tensor([seen(model, anchor[i], int(label[i])) for i in range(4)])
        tried, reached = tried + int(there.sum()), reached + int((found.wins & there).sum())
    assert tried > 80
    assert reached >= 0.9 * tried


def test_complementary_against_nonnegative_least_squares() -> None:
    """With K = GGᵀ and r = Gb, λ is the solution of min ‖Gᵀλ − b‖ over λ ≥ 0."""
    g = torch.Generator().manual_seed(0)
    for _ in range(50):
        G, b = torch.randn(3, 6, generator=g, dtype=torch.float64), torch.randn(6, generator=g, dtype=torch.float64)
        weight = complementary((G @ G.T)[None], (G @ b)[None])[0]
        torch.testing.assert_close(weight, torch.as_tensor(nnls(G.T.numpy(), b.numpy())[0]), rtol=1e-5, atol=1e-6)


@given(st.integers(0, 1000), st.sampled_from([2, 3, 10]))
def test_wins_strictly_within_the_range_and_the_rest_is_the_anchor(seed: int, classes: int) -> None:
    model = network(seed, 5, 9, classes, activation=nn.ReLU)
    anchor = torch.randn(6, 5, dtype=torch.float64).relu()
    label = torch.randint(classes, (6,), generator=torch.Generator().manual_seed(seed))
    found = solve(contest(model, anchor, label, within=Range(low=0.0)), OPTIONS)
    with torch.no_grad():
        out = model(found.value)
    lead = out.gather(1, label[:, None]) - out
    lead = lead.scatter(1, label[:, None], torch.inf).amin(1)
    assert bool((lead[found.wins] >= 1e-3).all())
    assert torch.equal(found.value[~found.wins], anchor[~found.wins])
    assert float(found.value.min()) >= 0


def test_many_classes_ties_and_twins() -> None:
    """1,000 classes; equal scores are no win; of two equal classes none can win strictly, and the anchor stays."""
    model = network(5, 64, 128, 1000)
    anchor = torch.randn(4, 64, dtype=torch.float64)
    label = torch.tensor([3, 500, 999, 0])
    found = solve(contest(model, anchor, label), OPTIONS)
    assert bool(found.wins.all())
    twins = nn.Linear(4, 3).double()
    with torch.no_grad():
        twins.weight[1], twins.bias[1] = twins.weight[0], twins.bias[0]
    start = torch.randn(3, 4, dtype=torch.float64)
    same = solve(contest(twins, start, torch.tensor([0, 1, 2])), OPTIONS)
    assert same.wins.tolist() == [False, False, True]
    assert torch.equal(same.value[:2], start[:2])


def test_a_path_that_overflows_does_not_carry_nan_out() -> None:
    class Wild(nn.Module):
        def forward(self, a: Tensor) -> Tensor:
            return torch.stack([a.sum(1), (a.abs().sum(1) - 4).clamp_min(0).sqrt().log(), -a.sum(1)], 1)

    anchor = torch.full((2, 3), 2.0, dtype=torch.float64)
    found = solve(contest(Wild(), anchor, torch.tensor([1, 2])), OPTIONS)
    assert bool(torch.isfinite(found.value).all())
    assert bool(found.wins[1])


def test_the_gate_bounds_how_far_a_target_may_be() -> None:
    """A label that wins only far away: the anchor, and no win."""
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1e-3, 0.0], [-1e-3, 0.0]]))
        model.bias.copy_(torch.tensor([-1.0, 1.0]))
    anchor = torch.ones(1, 2, dtype=torch.float64)
    far = Contest(lambda a, rows: model(a), anchor, torch.tensor([0]), anchor[:, 0] * 1e-3, Gate(deviation=10.0))
    found = solve(far, OPTIONS)
    assert not bool(found.wins)
    assert torch.equal(found.value, anchor)


def test_a_metric_is_the_same_problem_in_other_coordinates() -> None:
    """min ‖L⁻¹(a − â)‖ is the Euclidean problem of z = L⁻¹a."""
    model = network(2, 5, 10, 4)
    L = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 2 * torch.eye(5)

    class Made:
        def spread(self, rows: Tensor) -> Tensor:
            return rows @ (L @ L.T)

        def norm(self, d: Tensor) -> Tensor:
            return torch.linalg.solve(L, d.T).norm(dim=0)

    anchor = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    label = wrong_labels(model, anchor)
    margin = torch.full((6,), 1e-3, dtype=torch.float64)
    found = solve(Contest(lambda a, rows: model(a), anchor, label, margin, GATE, metric=Made()), OPTIONS)
    other = solve(
        Contest(lambda z, rows: model(z @ L.T), torch.linalg.solve(L, anchor.T).T, label, margin, GATE), OPTIONS
    )
    assert bool(found.wins.all())
    lengths = [Made().norm(value - anchor) for value in (found.value, other.value @ L.T)]
    torch.testing.assert_close(*lengths, rtol=2.5e-2, atol=0)
