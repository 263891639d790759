"""Linear layers and matrix products against torch.linalg.pinv."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frpt.rules import RULES
from tests.rules.cases import LINEAR, Case, Draw, site
from tests.rules.reference import asked, assert_least_change
from tests.tolerance import assert_close

aten = torch.ops.aten
sizes = st.integers(1, 8)


def draw(seed: int) -> Draw:
    return Draw(torch.float64, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_least_change(case: Case) -> None:
    assert_least_change(case)


@given(b=sizes, k=sizes, m=sizes, n=sizes, seed=st.integers(0, 10_000))
def test_linear_by_pinv(b: int, k: int, m: int, n: int, seed: int) -> None:
    """a = â + W⁺(t − Wâ − b), for every row of every sample, both cases."""
    d = draw(seed)
    x, weight, bias = d.normal(b, k, n), d.normal(m, n), d.normal(m)
    if torch.linalg.cond(weight).item() > 1e3:
        weight = torch.eye(m, n, dtype=torch.float64) + 0.1 * weight
    at = site(aten.linear.default, x, weight, bias, slot="input")
    target = asked(at)
    value = RULES["default"][aten.linear.default].function(at, target).value
    expected = x + (target - (x @ weight.mT + bias)) @ torch.linalg.pinv(weight).mT
    assert_close(value, expected, slack=100)


@given(b=sizes, i=sizes, j=sizes, k=sizes, left=st.booleans(), seed=st.integers(0, 10_000))
def test_bmm_by_pinv(b: int, i: int, j: int, k: int, left: bool, seed: int) -> None:
    """y = a S: a = â + r S⁺; y = S a: a = â + S⁺ r, a matrix of its own for every system."""
    d = draw(seed)
    S = d.normal(b, j, k) if left else d.normal(b, i, j)
    S = S + 2 * torch.eye(*S.shape[-2:], dtype=torch.float64)
    a = d.normal(b, i, j) if left else d.normal(b, j, k)
    operands = (a, S) if left else (S, a)
    at = site(aten.bmm.default, *operands, slot="self" if left else "mat2")
    target = asked(at)
    solution = RULES["default"][aten.bmm.default].function(at, target)
    residual = target - torch.bmm(*operands)
    inverse = torch.linalg.pinv(S)
    expected = a + (residual @ inverse if left else inverse @ residual)
    kept = ~solution.fallback
    assert_close(solution.value[kept], expected[kept], slack=1e3)


def test_addmm_by_pinv() -> None:
    d = draw(1)
    bias, x, matrix = d.normal(4), d.normal(3, 6), d.normal(6, 4)
    at = site(aten.addmm.default, bias, x, matrix, slot="mat1", beta=0.5, alpha=2.0)
    target = asked(at)
    value = RULES["default"][aten.addmm.default].function(at, target).value
    expected = x + (target - (0.5 * bias + 2 * x @ matrix)) @ torch.linalg.pinv(2 * matrix)
    assert_close(value, expected, slack=10)


def test_products_with_a_broadcast_or_one_dimensional_operand_have_no_rule() -> None:
    rule = RULES["default"][aten.matmul.default]
    assert not rule.applies(site(aten.matmul.default, torch.ones(3), torch.ones(3, 2)))
    assert not rule.applies(site(aten.matmul.default, torch.ones(5, 2, 3), torch.ones(3, 4), slot="other"))
    assert not rule.applies(site(aten.matmul.default, torch.ones(1, 2, 3), torch.ones(5, 3, 4)))


def test_one_sample_does_not_depend_on_the_others() -> None:
    """Solving a batch and solving its samples one by one is the same."""
    d = draw(5)
    x, weight = d.normal(4, 6), d.normal(5, 6)
    at = site(aten.linear.default, x, weight, slot="input")
    target = asked(at)
    rule = RULES["default"][aten.linear.default]
    together = rule.solve(at, target).value
    for i in range(4):
        alone = rule.solve(site(aten.linear.default, x[i : i + 1], weight, slot="input"), target[i : i + 1]).value
        assert_close(together[i : i + 1], alone)


def test_one_system_does_not_depend_on_the_others_in_a_batched_product() -> None:
    """A well-behaved sample is solved the same beside one whose side operand is huge, or singular."""
    d = draw(6)
    a, S, noise = d.normal(2, 3, 4), d.normal(2, 4, 3), d.normal(2, 3, 3)
    rule = RULES["default"][aten.bmm.default]
    alone = site(aten.bmm.default, a[:1], S[:1])
    expected = rule.solve(alone, alone.output + noise[:1])
    assert not bool(expected.fallback.any())
    for factor in (1e6, 0.0):
        sides = torch.stack([S[0], factor * S[1]])
        at = site(aten.bmm.default, a, sides)
        solution = rule.solve(at, at.output + noise)
        assert_close(solution.value[:1], expected.value)
        assert solution.fallback[:1].tolist() == [False]
