"""Networks that end in a softmax or a sigmoid are remembered, repaired and post-trained as their scores are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frpt
from frpt.common.asked import divergence, scores
from frpt.train.metrics import task_loss
from tests.train.toys import blobs, network


def ending_in(end: nn.Module) -> nn.Sequential:
    return nn.Sequential(*network(), end).eval()


def test_a_repair_is_that_of_the_scores() -> None:
    """Same weights, same labels: the same outputs afterwards, and the same KL is predicted."""
    x, y = blobs(300, seed=3).tensors
    failing = (network()(x).argmax(1) != y).nonzero()[:12, 0]
    fixes = []
    for model in (network(), ending_in(nn.Softmax(1))):
        memory = frpt.remember(model, blobs(300, seed=4).tensors[0], progress=False)
        fixes.append(frpt.repair(model, x[failing], y[failing], memory))
    plain, ours = fixes
    assert torch.equal(ours.fixed, plain.fixed)
    assert ours.predicted_kl == pytest.approx(plain.predicted_kl, rel=0.02)
    torch.testing.assert_close(ours.model(x), plain.model(x).softmax(1), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("end", ["softmax", "sigmoid"])
def test_losses_and_divergences_are_those_of_the_scores(end: str) -> None:
    g = torch.Generator().manual_seed(0)
    z, other = 3 * torch.randn(2, 20, 5, generator=g, dtype=torch.float64)
    y = torch.randint(5, (20,), generator=g)

    def p(v: Tensor) -> Tensor:
        return v.softmax(1) if end == "softmax" else v.sigmoid()

    torch.testing.assert_close(task_loss(p(z), y, ends=end), F.cross_entropy(z, y))
    was, now = z.log_softmax(1), other.log_softmax(1)
    torch.testing.assert_close(divergence(p(z), p(other), "classification", end), (was.exp() * (was - now)).sum(1))
    assert torch.equal(scores(p(z), "regression", end), p(z))


def test_post_training_minimises_the_loss_of_the_scores() -> None:
    data = blobs(64)
    losses = [
        frpt.post_train(model, data, at="3", targets="anchor", c_rec=0, epochs=1, lr=1e-9, seed=0).last.task_loss
        for model in (network(), ending_in(nn.Softmax(1)))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    x, y = data.tensors
    assert losses[1] == pytest.approx(float(F.cross_entropy(network()(x), y)), rel=0.02)


def test_a_probability_of_zero_has_no_gradient_but_a_loss() -> None:
    p = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = task_loss(p, torch.tensor([1]), ends="softmax")
    (gradient,) = torch.autograd.grad(loss, p)
    assert float(loss) > 80
    assert torch.isfinite(gradient).all()
