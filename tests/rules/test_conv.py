"""Convolutions against a dense matrix built column by column: explicit, matrix-free and pointwise paths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._ops import OpOverload

from frpt.options import Convolutions
from frpt.rules import RULES
from frpt.solvers.conv.woodbury import Woodbury
from frpt.solvers.linear.cgls import ConjugateGradients
from tests.rules.cases import CONVOLUTIONS, Case, Draw, site
from tests.rules.reference import asked, assert_least_change, least_change
from tests.tolerance import assert_close

aten = torch.ops.aten
MATRIX_FREE = {"method": "cg", "cg": ConjugateGradients(500, 1e-13)}
ON_THE_TORUS = {"dense_entries": 1, "exact": Woodbury(tolerance=1e-12)}


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_explicit_matrix(case: Case) -> None:
    assert_least_change(case)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_matrix_free(case: Case) -> None:
    assert_least_change(case, **MATRIX_FREE)


@pytest.mark.parametrize("seam", [70_000_000, 1], ids=["seam", "circulant"])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_on_the_torus(case: Case, seam: int) -> None:
    assert_least_change(case, **ON_THE_TORUS, seam_entries=seam)


WAYS: dict[str, dict[str, Any]] = {"auto": {}, "cg": MATRIX_FREE, "torus": ON_THE_TORUS}
CONVS = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
TRANSPOSED = {
    1: aten.conv_transpose1d.default,
    2: aten.conv_transpose2d.input,
    3: aten.conv_transpose3d.input,
}


def _check(op: OpOverload, args: tuple[Any, ...], conv: Convolutions | None) -> None:
    at = site(op, *args, slot="input", conv=conv)
    target = asked(at)
    solution = RULES["default"][op].function(at, target)
    expected = least_change(at, target)
    # a random kernel may be badly conditioned; then the gate has its say, and tests of the gate are elsewhere
    assume(not bool(solution.fallback.any()))
    assume(float((expected - at.anchor).abs().max()) < 20)
    assert_close(solution.value, expected, slack=1e3)


@given(data=st.data(), rank=st.integers(1, 3), way=st.sampled_from(sorted(WAYS)), seed=st.integers(0, 10_000))
def test_drawn_convolutions(data: st.DataObject, rank: int, way: str, seed: int) -> None:
    """Any stride, padding, dilation and grouping, in one to three dimensions."""

    def axes(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    groups, mine, out = data.draw(st.sampled_from([(1, 2, 3), (1, 3, 1), (2, 1, 2), (3, 1, 1)]))
    kernel, stride, padding, dilation = axes(1, 3), axes(1, 2), axes(0, 1), axes(1, 2)
    space = [max(k * d, 3) for k, d in zip(kernel, dilation, strict=True)]
    d = Draw(torch.float64, torch.Generator().manual_seed(seed))
    x, weight = d.normal(2, groups * mine, *space), d.normal(groups * out, mine, *kernel)
    conv = Convolutions(**WAYS[way])
    _check(CONVS[rank], (x, weight, d.normal(groups * out), stride, padding, dilation, groups), conv)


@given(data=st.data(), rank=st.integers(1, 3), way=st.sampled_from(sorted(WAYS)), seed=st.integers(0, 10_000))
def test_drawn_transposed_convolutions(data: st.DataObject, rank: int, way: str, seed: int) -> None:
    def axes(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    groups = data.draw(st.integers(1, 2))
    kernel, stride, padding = axes(2, 3), axes(1, 3), axes(0, 1)
    extra = [data.draw(st.integers(0, s - 1)) for s in stride]
    d = Draw(torch.float64, torch.Generator().manual_seed(seed))
    x, weight = d.normal(2, 2 * groups, *[2] * rank), d.normal(2 * groups, 2, *kernel)
    conv = Convolutions(**WAYS[way])
    _check(TRANSPOSED[rank], (x, weight, d.normal(2 * groups), stride, padding, extra, groups), conv)


@pytest.mark.parametrize("way", WAYS)
def test_uneven_same_padding(way: str) -> None:
    d = Draw(torch.float64, torch.Generator().manual_seed(0))
    args = (d.normal(2, 3, 6), d.normal(2, 3, 4), None, [1], "same")
    at = site(aten.conv1d.padding, *args, slot="input", conv=Convolutions(**WAYS[way]))
    target = asked(at)
    assert_close(RULES["default"][aten.conv1d.padding].solve(at, target).value, least_change(at, target), slack=1e3)


def test_an_input_without_batch_has_no_rule() -> None:
    rule = RULES["default"][aten.conv1d.default]
    assert not rule.applies(site(aten.conv1d.default, torch.ones(1, 6), torch.ones(1, 1, 3), slot="input"))


def test_case_of_a_convolution() -> None:
    rule = RULES["default"][aten.conv2d.default]
    assert rule.case is not None
    x = torch.ones(1, 3, 5, 5)
    assert rule.case(site(aten.conv2d.default, x, torch.ones(2, 3, 3, 3), slot="input")) == "I"
    assert rule.case(site(aten.conv2d.default, x, torch.ones(16, 3, 3, 3), slot="input")) == "II"
