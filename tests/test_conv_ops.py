"""frpt.ops.conv: the fixed point, block-diagonal maps, memory budgets and bad input, for every solver."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import frpt
from frpt.errors import BudgetError, FrptError, InputError, NonFiniteError, OptionError
from frpt.options import CONV_SOLVERS, Convolutions
from frpt.rules import registry
from frpt.solvers.conv.per_frequency import Spectral
from frpt.solvers.linear.cgls import ConjugateGradients
from tests.solvers.kinds import (
    BLOCK_DIAGONAL,
    KINDS,
    OPEN,
    Kind,
    least_budget,
    least_change,
    normal,
    nudged,
    off,
    preset,
)
from tests.tolerance import assert_close

every_solver = pytest.mark.parametrize("solver", CONV_SOLVERS)
NAMED = {kind.name: kind for kind in [*KINDS, *BLOCK_DIAGONAL]}
WAYS: dict[str, dict[str, Any]] = {
    **{solver: {"method": solver} for solver in CONV_SOLVERS},
    "seam": {"dense_entries": 1},
    "circulant": {"dense_entries": 1, "seam_entries": 1},
}
every_way = pytest.mark.parametrize("way", WAYS)


@every_way
@pytest.mark.parametrize("kind", NAMED.values(), ids=str)
def test_a_met_target_keeps_the_anchor_bit_for_bit(kind: Kind, way: str) -> None:
    for dtype in (torch.float64, torch.float32):
        anchor, weight = kind.anchor(dtype=dtype), kind.weight(dtype=dtype)
        bias = normal(*kind.forward(anchor, weight).shape[1:2], seed=4, dtype=dtype)
        found = kind.solve(anchor, kind.forward(anchor, weight, bias), weight, bias=bias, preset=preset(**WAYS[way]))
        assert found.value.dtype == dtype
        assert torch.equal(found.value, anchor)
        assert not found.fallback.any()
        assert (found.deviation == 0).all()


@every_way
@pytest.mark.parametrize("name", ["2d", "2d-II", "patches-groups"])
def test_the_default_dtype_is_nobodys_business(name: str, way: str) -> None:
    kind = NAMED[name]
    anchor, weight = kind.anchor(), kind.weight()
    target = nudged(kind.forward(anchor, weight))
    expected = kind.solve(anchor, target, weight, preset=preset(**WAYS[way]))
    torch.set_default_dtype(torch.float64)
    try:
        found = kind.solve(anchor, target, weight, preset=preset(**WAYS[way]))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found.value, expected.value)


@pytest.mark.parametrize("name", ["1d-II", "2d", "2d-II", "2d-valid", "2d-stride", "3d", "1d-transposed"])
def test_the_papers_padded_form_has_no_fixed_point(name: str) -> None:
    """Its target is zero where the map has no output, and the anchor's circular convolution is not."""
    kind = NAMED[name]
    anchor, weight = kind.anchor(), kind.weight()
    found = kind.solve(anchor, kind.forward(anchor, weight), weight, solver="fft_padded", preset="paper")
    assert (found.deviation > 1e-2).all()


@pytest.mark.parametrize("kind", BLOCK_DIAGONAL, ids=str)
def test_block_diagonal_maps(kind: Kind) -> None:
    """Windows that do not overlap, one small pseudo-inverse for all; inputs between them keep their anchor exactly."""
    anchor, weight = kind.anchor(), kind.weight()
    conv, out = kind.map(weight), kind.forward(anchor, weight)
    assert Convolutions().choose(conv).way == "blocks"
    target = nudged(out)
    for solver in ("auto", "exact"):
        found = kind.solve(anchor, target, weight, solver=solver)
        assert_close(found.value, anchor + least_change(conv, target - out), slack=10)
        assert not found.fallback.any()
        read = (conv.matrix() != 0).any(0).reshape(conv.inputs)
        assert torch.equal(found.value[:, ~read], anchor[:, ~read])
        assert (found.value != anchor)[:, read].any(0).all()


def test_a_block_that_fails_reports_its_sample() -> None:
    """One window of one sample is asked for the impossible: that sample falls back, and only that window is damped."""
    kind = NAMED["patches-1d"]
    anchor, weight = kind.anchor(), kind.weight()
    out = kind.forward(anchor, weight)
    target = nudged(out)
    target[1, :, 2] += 1e5
    found = kind.solve(anchor, target, weight)
    assert found.fallback.tolist() == [False, True]
    expected = anchor + least_change(kind.map(weight), target - out)
    assert_close(found.value[0], expected[0], slack=10)
    others = [0, 1, 2, 3, 6, 7]
    assert_close(found.value[1][:, others], expected[1][:, others], slack=10)
    assert float(found.value.abs().max()) <= 1e3


@every_way
@pytest.mark.parametrize("name", ["2d", "2d-II", "patches", "pointwise-groups", "1d-transposed"])
def test_one_sample_at_a_time(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest budget that leaves the way as it is: samples go through one by one, the answer is the same."""
    kind = replace(NAMED[name], x=(3, *NAMED[name].x[1:]))
    conv, options = kind.map(), Convolutions(**WAYS[way])
    budget = least_budget(conv, options)
    small = replace(options, budget=budget)
    assert small.choose(conv).at_once == 1
    anchor, weight = kind.anchor(), kind.weight()
    target = nudged(kind.forward(anchor, weight))
    whole = kind.solve(anchor, target, weight, preset=preset(**WAYS[way]))
    sizes = counted(monkeypatch)
    parts = kind.solve(anchor, target, weight, preset=preset(**WAYS[way]), budget=budget)
    windows = math.prod(conv.coarse[1:]) if small.choose(conv).way == "blocks" else 1
    assert sizes == [windows] * 3
    assert_close(parts.value, whole.value)
    assert torch.equal(parts.fallback, whole.fallback)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many systems are solved at a time."""
    sizes: list[int] = []
    whole, spectral = registry.anchored, Spectral.solve  # type: ignore[attr-defined]

    def anchored(prepared: Any, anchor: Tensor, *rest: Any) -> Any:
        sizes.append(len(anchor))
        return whole(prepared, anchor, *rest)

    def solve(self: Spectral, anchor: Tensor, *rest: Any) -> Any:
        sizes.append(len(anchor))
        return spectral(self, anchor, *rest)

    monkeypatch.setattr(registry, "anchored", anchored)
    monkeypatch.setattr(Spectral, "solve", solve)
    return sizes


@pytest.mark.parametrize("name", ["2d", "2d-II", "2d-stride", "2d-reflect"])
def test_auto_under_any_budget(name: str) -> None:
    """Down to the smallest budget that holds a sample, auto finds a way to the same answer; below, it says so."""
    kind = NAMED[name]
    conv, anchor, weight = kind.map(), kind.anchor(), kind.weight()
    out = kind.forward(anchor, weight)
    target, ways, budget = nudged(out), set(), 2**26
    expected = least_change(conv, target - out)
    while budget > conv.system_bytes:
        ways.add(Convolutions(budget=budget).choose(conv).way)
        options = preset(cg=ConjugateGradients(1000, 1e-12))
        found = kind.solve(anchor, target, weight, preset=options, gate=OPEN, budget=budget)
        assert off(found.value - anchor, expected) < 1e-6
        budget //= 2
    assert {"matrix", "cg"} <= ways
    with pytest.raises(BudgetError, match="budget"):
        kind.solve(anchor, target, weight, budget=conv.system_bytes - 1)


@every_way
def test_a_budget_too_small_for_one_sample(way: str) -> None:
    """What it takes, what there is, and what to do."""
    kind = Kind("", (1, 32, 24, 24), (32, 32, 3, 3), 1, 1)
    anchor, weight = kind.anchor(), kind.weight()
    with pytest.raises(
        BudgetError, match=r"needs [1-9][\d.]* [MG]iB .* budget of 1\.00 MiB.*Convolutions\.budget"
    ) as e:
        kind.solve(anchor, kind.forward(anchor, weight), weight, preset=preset(**WAYS[way]), budget=2**20)
    assert "ops.conv" in str(e.value)
    assert ("auto" in str(e.value)) == (WAYS[way].get("method", "auto") != "auto")
    assert isinstance(e.value, MemoryError)


@every_solver
@pytest.mark.parametrize("shape", [(2, 4, 3, 3), (4, 2, 3, 3), (2, 4, 1, 1), (4, 2, 1, 1)], ids=str)
def test_a_zero_kernel_keeps_the_anchor_and_falls_back(shape: tuple[int, ...], solver: str) -> None:
    weight = torch.zeros(shape, dtype=torch.float64)
    anchor = normal(3, shape[1], 6, 6)
    target = F.conv2d(anchor, weight, padding=shape[-1] // 2)
    target[0] += 1.0
    target[2] -= 0.1
    found = frpt.ops.conv(anchor, target, weight, padding=shape[-1] // 2, solver=solver)
    assert torch.equal(found.value, anchor)
    assert found.fallback.tolist() == [True, False, True]


@every_way
@pytest.mark.parametrize("name", ["2d", "2d-II", "pointwise", "2d-transposed"])
def test_a_channel_that_nothing_reaches_keeps_its_anchor(name: str, way: str) -> None:
    kind = NAMED[name]
    anchor, weight = kind.anchor(), kind.weight().clone()
    if kind.transposed:
        weight[1] = 0
    else:
        weight[:, 1] = 0
    target = nudged(kind.forward(anchor, weight))
    found = kind.solve(anchor, target, weight, preset=preset(**WAYS[way]))
    assert_close(found.value[:, 1], anchor[:, 1])
    assert torch.isfinite(found.value).all()
    if "fft" not in way:  # theirs is the answer of another map, and this one is small
        assert (found.ccp < found.ccp_before).all()


BAD_WEIGHTS = {
    "tiny": lambda w: 1e-12 * w,
    "one-dead": lambda w: torch.cat([w[:1], 0 * w[1:]]),
    "repeated": lambda w: w[:1].expand_as(w).clone(),
    "graded": lambda w: w * 10.0 ** -torch.arange(0, 4 * len(w), 4).reshape(-1, 1, 1, 1),
    "one-huge": lambda w: torch.cat([1e8 * w[:1], w[1:]]),
}


@every_way
@pytest.mark.parametrize("bad", BAD_WEIGHTS)
@pytest.mark.parametrize("shape", [(3, 4, 3, 3), (5, 2, 3, 3)], ids=["I", "II"])
def test_bad_weights_end_finite_and_within_the_gate(shape: tuple[int, ...], bad: str, way: str) -> None:
    kind = Kind("", (2, shape[1], 6, 6), shape, 1, 1)
    weight, anchor = BAD_WEIGHTS[bad](kind.weight()), kind.anchor()
    target = kind.forward(anchor, weight) + 1.0
    found = kind.solve(anchor, target, weight, preset=preset(**WAYS[way]))
    assert torch.isfinite(found.value).all()
    if way not in ("fft_padded", "fft_boundary"):  # their gate looks at frequencies
        assert float(found.value.abs().max()) <= 1e3 * (1 + 1e-6)


@every_solver
def test_bad_input(solver: str) -> None:
    """Every mistake is an error of frpt's own that says what is wrong."""
    a, w = normal(2, 3, 6, 6), normal(2, 3, 3, 3, seed=1)
    t = nudged(F.conv2d(a, w, padding=1))
    nan, huge = float("nan"), float("inf")
    wrong: list[tuple[type[FrptError], str, tuple[Tensor, Tensor, Tensor], dict[str, Any]]] = [
        (InputError, "[Kk]ernel", (a, t, normal(2, 3, 9, 9)), {"padding": 1}),
        (InputError, "empty", (a[:0], t[:0], w), {"padding": 1}),
        (InputError, "target is", (a, t, w), {}),
        (InputError, "channels", (a, t, normal(2, 4, 3, 3)), {"padding": 1}),
        (InputError, "group", (a, t, w), {"padding": 1, "groups": 2}),
        (InputError, "stride", (a, t, w), {"padding": 1, "stride": 0}),
        (InputError, "[Pp]adding", (a, t, w), {"padding": 6, "padding_mode": "reflect"}),
        (NonFiniteError, "target", (a, t * nan, w), {"padding": 1}),
        (NonFiniteError, "target", (a, t + huge, w), {"padding": 1}),
        (NonFiniteError, "anchor", (a * nan, t, w), {"padding": 1}),
        (NonFiniteError, "weights", (a, t, w * huge), {"padding": 1}),
        (OptionError, "padding_mode 'mirror'.*reflect", (a, t, w), {"padding": 1, "padding_mode": "mirror"}),
        (OptionError, "'same' or 'valid'", (a, t, w), {"padding": "full"}),
        (OptionError, "transposed", (a, t, w), {"transposed": True, "padding": 1, "padding_mode": "circular"}),
        (OptionError, "transposed", (a, t, w), {"transposed": True, "padding": "same"}),
        (OptionError, "budget", (a, t, w), {"padding": 1, "budget": 0}),
        (OptionError, "preset", (a, t, w), {"padding": 1, "preset": "mine"}),
    ]
    for kind, message, tensors, keywords in wrong:
        with pytest.raises(kind, match=message):
            frpt.ops.conv(*tensors, solver=solver, **keywords)


def test_unknown_solvers_are_refused() -> None:
    a, w = normal(2, 3, 6), normal(2, 3, 3)
    with pytest.raises(OptionError, match=r"'fft'.*auto.*exact.*matrix.*cg.*fft_padded.*fft_boundary"):
        frpt.ops.conv(a, F.conv1d(a, w), w, solver="fft")
    with pytest.raises(OptionError, match="fill"):
        Convolutions(fill="ones")  # type: ignore[arg-type]


ODD = [
    Kind("", (2, 2, 7, 6), (5, 2, 3, 3), 2, 1),
    Kind("", (2, 2, 5, 5), (1, 2, 3, 3), 1, 2),
    Kind("", (2, 2, 4), (2, 2, 3), 2, transposed=True),
    Kind("", (2, 2, 5, 6), (5, 2, 3, 3), 2, 1, mode="circular"),
]


@pytest.mark.parametrize("solver", ["fft_padded", "fft_boundary"])
@pytest.mark.parametrize("kind", ODD)
def test_fft_solvers_take_maps_that_fit_no_grid_of_their_own(kind: Kind, solver: str) -> None:
    """A stride that does not divide the map, more outputs than inputs, circles that do not close."""
    anchor, weight = kind.anchor(), kind.weight()
    out = kind.forward(anchor, weight)
    assert torch.equal(kind.solve(anchor, out, weight, solver=solver).value, anchor)
    found = kind.solve(anchor, nudged(out), weight, solver=solver)
    assert torch.isfinite(found.value).all()
    assert not torch.equal(found.value, anchor)
