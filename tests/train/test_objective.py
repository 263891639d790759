"""λ against the paper's formula."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import frpt
from frpt.errors import NonFiniteError, OptionError

losses = st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(0, 1e3)), min_size=1, max_size=12)


@given(losses, st.floats(0.01, 1))
def test_the_weight_follows_the_moving_averages(pairs: list[tuple[float, float]], c_rec: float) -> None:
    balance = frpt.LossBalance(c_rec)
    weights = 0.9 ** np.arange(len(pairs))[::-1] * np.where(np.arange(len(pairs)) > 0, 0.1, 1.0)
    for task, rec in pairs:
        found = balance.update(task, rec)
    task_mean, rec_mean = weights @ np.array(pairs)
    assert found == pytest.approx(np.clip(c_rec * task_mean / (rec_mean + 1e-8), 1e-5, 10), rel=1e-9)


def test_no_gradient_passes_through_the_weight() -> None:
    balance = frpt.LossBalance(0.5)
    x = torch.tensor(2.0, requires_grad=True)
    total = balance(x**2, 3 * x)
    total.backward()
    weight = 0.5 * 4 / 6
    assert float(total.detach()) == pytest.approx(4 + weight * 6)
    assert float(x.grad) == pytest.approx(4 + weight * 3)
    assert balance.weight == pytest.approx(weight)


def test_without_strength_the_task_loss_is_returned_itself() -> None:
    task, balance = torch.tensor(1.5), frpt.LossBalance(0)
    assert balance(task, torch.tensor(2.0)) is task
    assert balance.update(1.0, 1.0) == 0


def test_the_weight_is_clipped() -> None:
    assert frpt.LossBalance(1.0).update(1.0, 0.0) == 10
    assert frpt.LossBalance(0.1).update(1e-7, 1.0) == 1e-5
    assert frpt.LossBalance(1.0, clip=(0, 2.0)).update(5.0, 1.0) == 2


def test_its_state_goes_through_json() -> None:
    balance, other = frpt.LossBalance(), frpt.LossBalance()
    balance.update(2.0, 0.7)
    other.load_state_dict(json.loads(json.dumps(balance.state_dict())))
    assert other.update(1.0, 0.3) == balance.update(1.0, 0.3)
    with pytest.raises(OptionError, match="rec"):
        other.load_state_dict({"task": 1.0})


@pytest.mark.parametrize("bad", [{"c_rec": 1.5}, {"c_rec": -0.1}, {"c_rec": float("nan")}, {"beta": 1.0}, {"eps": 0.0}])
def test_options_out_of_range(bad: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(bad))):
        frpt.LossBalance(**bad)
    with pytest.raises(OptionError, match="clip"):
        frpt.LossBalance(clip=(2.0, 1.0))


def test_a_diverged_loss_is_named_and_changes_nothing() -> None:
    balance = frpt.LossBalance()
    balance.update(1.0, 1.0)
    with pytest.raises(NonFiniteError, match="reconstruction loss is inf"):
        balance.update(1.0, float("inf"))
    assert balance.state_dict() == {"task": 1.0, "rec": 1.0}
