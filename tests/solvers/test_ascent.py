"""Far starts: labels that a mixed-integer program proves reachable are reached, and nobody else pays for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

import frpt
from frpt.errors import OptionError
from frpt.options import Ascent, Gate, NearestWinning
from frpt.solvers.base import UNBOUNDED, Range
from frpt.solvers.contest import Contest
from tests.solvers.reachable import proved, random_network

GATE = Gate(deviation=10.0)
LOCAL = NearestWinning(ascent=None)


def contest(seed: int, layer: int, samples: int = 4) -> Contest:
    """Random networks of width 8 behind a layer, with every label that is not predicted."""
    model = random_network(seed)
    x = torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        anchor, predicted = model[: layer + 1](x), model(x).argmax(1)
    label = torch.cat([(predicted + shift) % 4 for shift in (1, 2, 3)])
    rest, within = model[layer + 1 :], Range(0.0) if isinstance(model[layer], nn.ReLU) else UNBOUNDED
    return Contest(lambda a, rows: rest(a), anchor.repeat(3, 1), label, torch.full((len(label),), 1e-6), GATE, within)


def lost_and_proved(seed: int, layer: int) -> tuple[Contest, Tensor]:
    """(the samples that are lost without far starts, the program's answers for those whose label is proved to win)."""
    whole = contest(seed, layer)
    lost = whole.part((~LOCAL.solve(whole).wins).nonzero().squeeze(1))
    rest = random_network(seed)[layer + 1 :]
    answers = [proved(rest, a, int(y), whole.within.low) for a, y in zip(lost.anchor, lost.label, strict=True)]
    rows = torch.tensor([i for i, a in enumerate(answers) if a is not None], dtype=torch.long)
    return lost.part(rows), torch.stack([a for a in answers if a is not None])


@pytest.mark.parametrize(("seed", "layer"), [(106, 1), (124, 1), (148, 0)])
def test_labels_that_can_be_proved_to_win_do(seed: int, layer: int) -> None:
    lost, answers = lost_and_proved(seed, layer)
    assert len(lost.label) >= 2
    found = NearestWinning().solve(lost)
    assert bool(found.wins.all())
    ours, theirs = (torch.linalg.vector_norm(v - lost.anchor, dim=1) for v in (found.value, answers))
    assert float((ours / theirs).median()) < 2
    assert bool((found.value >= lost.within.low).all())


def in_its_region(rest: nn.Sequential, seen: Tensor, label: int, low: float, centre: Tensor) -> Tensor | None:
    """A linear program: a feature with the ReLUs of ``seen``, within ten norms of the centre, in which the label wins.

    On one activation pattern the rest is the affine map s = A a + b, and the pattern itself is 2k linear inequalities.
    """
    A, b = torch.eye(len(seen), dtype=torch.float64), torch.zeros(len(seen), dtype=torch.float64)
    rows, limits = [], []
    for layer in rest:
        if isinstance(layer, nn.Linear):
            W = layer.weight.detach().double()
            A, b = W @ A, W @ b + layer.bias.detach().double()
        else:
            sign = torch.where(A @ seen.double() + b > 0, 1.0, -1.0).double()
            rows.append(-sign[:, None] * A)
            limits.append(sign * b)
            A, b = A * (sign > 0)[:, None], b * (sign > 0)
    others = [j for j in range(len(b)) if j != label]
    rows.append(A[others] - A[label])
    limits.append(b[label] - b[others] - 1e-4)
    side = float(10 * centre.norm() / len(centre) ** 0.5)  # the cube in the ball
    bounds = [(max(float(c) - side, low), float(c) + side) for c in centre]
    found = linprog(torch.zeros(len(seen)), torch.cat(rows), torch.cat(limits), bounds=bounds)
    if found.status != 0:
        return None
    feature = torch.as_tensor(found.x, dtype=seen.dtype)
    with torch.no_grad():
        return feature if int(rest(feature[None]).argmax()) == label else None


def test_every_label_that_a_linear_program_proves_is_reached() -> None:
    """Widths 8-8-8-4, four layers, every label that is not predicted. A label that wins at once is its own proof; the
    others are proved by linear programs in the regions of random features, and all of those have to win as well."""
    at_once = proofs = 0
    for seed, layer in product(range(300, 308), range(4)):
        whole, rest = contest(seed, layer), random_network(seed)[layer + 1 :]
        low, draw = whole.within.low, torch.Generator().manual_seed(seed)
        near = LOCAL.solve(whole).wins
        rows = []
        for i in (~near).nonzero().squeeze(1).tolist():
            anchor, label = whole.anchor[i], int(whole.label[i])
            spread = anchor.norm() * torch.logspace(-1, 0.5, 20)[:, None]
            seen = (anchor + spread * torch.randn(20, 8, generator=draw)).clamp_min(low)
            if any(in_its_region(rest, s, label, low, anchor) is not None for s in seen):
                rows.append(i)
        found = NearestWinning().solve(whole.part(torch.tensor(rows, dtype=torch.long)))
        assert bool(found.wins.all()), (seed, layer, rows)
        at_once, proofs = at_once + int(near.sum()), proofs + len(rows)
    assert proofs >= 10
    assert at_once + proofs >= 317


def test_far_starts_do_not_depend_on_the_batch_or_on_whether_samples_may_repeat() -> None:
    lost, _ = lost_and_proved(106, 1)
    found = NearestWinning().solve(lost)
    order = torch.randperm(len(lost.label), generator=torch.Generator().manual_seed(1))
    assert torch.equal(NearestWinning().solve(lost.part(order)).wins, found.wins[order])
    alone = torch.cat([NearestWinning().solve(lost.part(order[i : i + 1])).value for i in range(2)])
    torch.testing.assert_close(alone, found.value[order[:2]], rtol=1e-3, atol=1e-3)
    fn = lost.fn

    def once(a: Tensor, rows: Tensor) -> Tensor:
        assert len(rows) == len(rows.unique())
        return fn(a, rows)

    few = NearestWinning(ascent=Ascent(rounds=(4,)))
    apart = few.solve(replace(lost, fn=once, repeats=False))
    torch.testing.assert_close(apart.value, few.solve(lost).value, rtol=1e-3, atol=1e-3)


def test_samples_that_are_found_at_once_cost_nothing_more() -> None:
    whole = contest(100, 2)
    near, far = LOCAL.solve(whole), NearestWinning().solve(whole)
    assert bool(near.wins.all())
    assert torch.equal(near.value, far.value)
    assert torch.equal(near.forwards, far.forwards)


def test_a_label_that_comes_no_nearer_is_given_up_after_the_first_round() -> None:
    anchor, label = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 1, 1])

    def faint(a: Tensor, rows: Tensor) -> Tensor:
        return torch.stack([1 + 0 * a.sum(1), 1e-4 * torch.tanh(a.sum(1))], 1)

    hopeless = Contest(faint, anchor, label, torch.full((3,), 1e-6), GATE)
    options = NearestWinning(ascent=Ascent(rounds=(4, 400)))
    found = options.solve(hopeless)
    assert not bool(found.wins.any())
    assert torch.equal(found.value, anchor)
    assert int(found.iterations.max()) <= 2 * LOCAL.steps + 4 * Ascent.steps


def test_a_whole_network_reaches_them_too() -> None:
    model, x = random_network(106), torch.randn(4, 8, generator=torch.Generator().manual_seed(106))
    with torch.no_grad():
        y = (model(x).argmax(1) + 1) % 4
    rev = frpt.Reverser(model, x)
    rec = rev.reconstruct(x, y, at="1")
    rest = model[2:]
    for i in range(4):
        assert bool(rec.wins[i]) or proved(rest, rec.anchor[i], int(y[i]), 0.0) is None
    assert float(rec.deviation.max()) <= 10.001
    assert torch.equal(rev.run(x, "1", rec.target).argmax(1)[rec.wins], y[rec.wins])


def test_numbers_are_checked() -> None:
    with pytest.raises(OptionError, match=r"Ascent\.steps"):
        Ascent(steps=0)
