"""Embeddings against scipy's projection and against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from frpt import embed
from frpt.errors import LabelError, OptionError


def projection(scores: np.ndarray, label: int, margin: float) -> np.ndarray:
    """min ‖a − scores‖² with a_label ≥ a_i + margin, by sequential quadratic programming."""
    others = [i for i in range(len(scores)) if i != label]
    constraints = [{"type": "ineq", "fun": lambda a, i=i: a[label] - a[i] - margin} for i in others]
    found = minimize(
        lambda a: ((a - scores) ** 2).sum() / 2,
        scores,
        jac=lambda a: a - scores,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 300},
    )
    return np.asarray(found.x)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-5, 5), min_size=2, max_size=6),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5]),
)
def test_nearest_is_the_projection(scores: list[float], label: int, margin: float) -> None:
    label %= len(scores)
    output = torch.tensor([scores], dtype=torch.float64)
    found = embed.nearest(output, torch.tensor([label]), margin=margin)
    np.testing.assert_allclose(found[0].numpy(), projection(np.array(scores), label, margin), atol=2e-5)


def test_nearest_leaves_a_winning_label_alone_bit_for_bit() -> None:
    output = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(embed.nearest(output, output.argmax(1)), output)
    assert embed.nearest(output, output.argmax(1)).dtype == output.dtype


def test_margin_is_kept_exactly_where_needed() -> None:
    output = torch.randn(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.randint(0, 7, (50,), generator=torch.Generator().manual_seed(1))
    target = embed.nearest(output, y, margin=0.3)
    own = target.gather(1, y[:, None])
    rest = target.scatter(1, y[:, None], -torch.inf).amax(1, keepdim=True)
    assert (own - rest >= 0.3 - 1e-9).all()


@pytest.mark.parametrize("function", [embed.nearest, embed.max_assign, embed.one_hot])
def test_class_axis_anywhere(function: object) -> None:
    output = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 5, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    at_one = function(output, y, dim=1)  # type: ignore[operator]
    last = function(output.movedim(1, -1), y, dim=-1)  # type: ignore[operator]
    assert torch.equal(at_one, last.movedim(-1, 1))
    flat = function(output.movedim(1, -1).reshape(-1, 5), y.flatten())  # type: ignore[operator]
    assert torch.equal(flat.reshape(2, 3, 4, 5).movedim(-1, 1), at_one)


def test_max_assign_and_one_hot() -> None:
    output = torch.tensor([[1.0, 3.0, 2.0]])
    assert embed.max_assign(output, torch.tensor([2])).tolist() == [[1.0, 3.0, 3.0]]
    assert embed.max_assign(output, torch.tensor([2]), margin=0.5).tolist() == [[1.0, 3.0, 3.5]]
    assert embed.max_assign(output, torch.tensor([1])).tolist() == output.tolist()
    assert embed.one_hot(output, torch.tensor([2])).tolist() == [[0.0, 0.0, 1.0]]


@pytest.mark.parametrize("function", [embed.nearest, embed.max_assign, embed.one_hot])
def test_ignored_labels_change_nothing(function: object) -> None:
    output = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    target = function(output, torch.tensor([-100, 0, -100]))  # type: ignore[operator]
    assert torch.equal(target[[0, 2]], output[[0, 2]])
    assert torch.equal(function(output, torch.full((3,), 9), ignore_index=9), output)  # type: ignore[operator]


def test_regression_is_the_target_itself() -> None:
    output, wanted = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.float64)
    assert torch.equal(embed.regression(output, wanted), torch.ones(2, 3))


def test_class_axis_is_found_or_asked_for() -> None:
    assert embed.class_dim(torch.zeros(2, 7), torch.zeros(2)) == 1
    assert embed.class_dim(torch.zeros(2, 9, 5), torch.zeros(2, 9)) == 2
    assert embed.class_dim(torch.zeros(2, 5, 8, 8), torch.zeros(2, 8, 8)) == 1
    with pytest.raises(LabelError, match="class_dim"):
        embed.class_dim(torch.zeros(2, 5, 5), torch.zeros(2, 5))


def test_bad_labels_and_names() -> None:
    output = torch.zeros(2, 3)
    with pytest.raises(LabelError, match="out of range"):
        embed.nearest(output, torch.tensor([0, 3]))
    with pytest.raises(LabelError, match="integers"):
        embed.nearest(output, torch.tensor([0.0, 1.0]))
    with pytest.raises(LabelError, match="shape"):
        embed.nearest(output, torch.tensor([0]))
    with pytest.raises(LabelError, match="axis"):
        embed.nearest(output, torch.tensor([0, 1]), dim=4)
    with pytest.raises(OptionError, match="max_assign"):
        embed.Embedder("closest")
    with pytest.raises(LabelError, match="shape"):
        embed.Embedder(lambda out, y: out[:1])(output, torch.tensor([0, 1]))
