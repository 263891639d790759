"""The plain operators, and the composite solvers, against slow references."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import frpt
from frpt.errors import InputError, NonFiniteError, OptionError


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 7), st.integers(0, 1000))
def test_linear_is_the_anchored_pseudo_inverse(batch: int, m: int, n: int, seed: int) -> None:
    g = generator(seed)
    weight, bias = torch.randn(m, n, generator=g, dtype=torch.float64), torch.randn(m, generator=g, dtype=torch.float64)
    anchor, target = (torch.randn(batch, k, generator=g, dtype=torch.float64) for k in (n, m))
    if torch.linalg.cond(weight) > 100:
        weight = weight + 3 * torch.eye(m, n, dtype=torch.float64)
    found = frpt.ops.linear(anchor, target, weight, bias)
    expected = anchor + (target - anchor @ weight.mT - bias) @ torch.linalg.pinv(weight).mT
    nominal = ~found.fallback
    torch.testing.assert_close(found.value[nominal], expected[nominal], rtol=1e-6, atol=1e-7)
    assert found.ccp.shape == found.deviation.shape == found.fallback.shape == (batch,)
    met = frpt.ops.linear(anchor, F.linear(anchor, weight, bias), weight, bias)
    assert torch.equal(met.value, anchor)


def test_linear_reports_what_it_did() -> None:
    weight = torch.randn(3, 6, generator=generator(0))
    anchor, target = torch.randn(2, 6, generator=generator(1)), torch.randn(2, 3, generator=generator(2))
    found = frpt.ops.linear(anchor, target, weight)
    torch.testing.assert_close(F.linear(found.value, weight), target, rtol=1e-5, atol=1e-5)
    expected = (found.value - anchor).norm(dim=1) / anchor.norm(dim=1)
    torch.testing.assert_close(found.deviation, expected.double(), rtol=1e-4, atol=1e-6)
    assert found.value.dtype == torch.float32
    assert (found.ccp < 1e-5).all()


def test_gate_can_be_closed_or_switched_off() -> None:
    weight = torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64))
    anchor, target = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    gated = frpt.ops.linear(anchor, target, weight)
    assert gated.fallback.all()
    assert gated.value.abs().max() <= 1e3
    free = frpt.ops.linear(anchor, target, weight, gate=frpt.Gate(enabled=False))
    assert not free.fallback.any()
    torch.testing.assert_close(free.value[0, 1].item(), 1e9)
    with pytest.raises(OptionError, match="magnitude"):
        frpt.Gate(magnitude=-1)


@pytest.mark.parametrize("solver", ["auto", "matrix", "cg"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_reaches_its_target(rank: int, solver: str) -> None:
    g = generator(rank)
    anchor = torch.randn(2, 4, *[5] * rank, generator=g, dtype=torch.float64)
    weight = torch.randn(3, 4, *[3] * rank, generator=g, dtype=torch.float64)
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
    target = convolve(anchor, weight, stride=2) + 0.1
    found = frpt.ops.conv(anchor, target, weight, stride=2, solver=solver)
    assert (found.ccp < 1e-5).all()
    met = frpt.ops.conv(anchor, convolve(anchor, weight, stride=2), weight, stride=2, solver=solver)
    assert torch.equal(met.value, anchor)


def residual_block(width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).double()


@pytest.mark.parametrize("solver", ["gauss_newton", "secant", "auto"])
@pytest.mark.parametrize("width", [6, 40])
def test_composite_reaches_an_attainable_target(solver: str, width: int) -> None:
    inner = residual_block(width, 0)

    def block(a: Tensor) -> Tensor:
        return a + 0.5 * inner(a)

    anchor = torch.randn(5, width, generator=generator(0), dtype=torch.float64)
    moved = anchor + 0.1 * torch.randn(5, width, generator=generator(1), dtype=torch.float64)
    with torch.no_grad():
        target = block(moved)
        output = block(anchor)
    found = frpt.ops.composite(anchor, target, block, solver=solver)
    assert (found.ccp < 1e-5).all(), found.ccp
    torch.testing.assert_close(found.value, moved, rtol=1e-3, atol=1e-3)
    assert torch.equal(frpt.ops.composite(anchor, output, block, solver=solver).value, anchor)


def test_composite_is_near_the_least_deviation() -> None:
    """An under-determined block: the reference solves min ‖a − â‖ s.t. Φ(a) = t by scipy."""
    from scipy.optimize import minimize

    torch.manual_seed(0)
    layer = nn.Linear(4, 2).double()

    def block(a: Tensor) -> Tensor:
        return torch.tanh(layer(a))

    anchor = torch.randn(1, 4, generator=generator(0), dtype=torch.float64)
    with torch.no_grad():
        target = block(anchor + 0.3)
    best = minimize(
        lambda a: ((a - anchor.numpy()[0]) ** 2).sum(),
        anchor.numpy()[0],
        constraints={
            "type": "eq",
            "fun": lambda a: (block(torch.from_numpy(a)[None]) - target).detach().numpy()[0],
        },
        options={"ftol": 1e-12},
    )
    for solver in ("gauss_newton", "secant"):
        found = frpt.ops.composite(anchor, target, block, solver=solver)
        assert found.ccp.item() < 1e-5
        assert (found.value - anchor).norm() <= 1.1 * best.fun**0.5 + 1e-6


def test_adam_is_the_papers_twenty_steps() -> None:
    inner = residual_block(6, 0)
    anchor = torch.randn(3, 6, generator=generator(0), dtype=torch.float64)
    with torch.no_grad():
        target = anchor + 0.1 + inner(anchor)
    found = frpt.ops.composite(anchor, target, lambda a: a + inner(a), solver="adam", preset="paper")
    assert (found.iterations <= 20).all()
    assert (found.ccp < found.ccp_before).all()


def test_samples_do_not_disturb_each_other() -> None:
    inner = residual_block(30, 0)
    anchor = torch.randn(6, 30, generator=generator(0), dtype=torch.float64)
    with torch.no_grad():
        target = (anchor + 0.1) + inner(anchor + 0.1)
    for solver in ("gauss_newton", "secant"):
        together = frpt.ops.composite(anchor, target, lambda a: a + inner(a), solver=solver)
        alone = frpt.ops.composite(anchor[2:3], target[2:3], lambda a: a + inner(a), solver=solver)
        torch.testing.assert_close(together.value[2], alone.value[0], rtol=1e-7, atol=1e-8)


def test_unreachable_targets_and_nan_inside_leave_finite_answers() -> None:
    anchor = torch.rand(2, 5, generator=generator(0), dtype=torch.float64)
    found = frpt.ops.composite(anchor, torch.full((2, 5), -1.0, dtype=torch.float64), torch.relu, solver="secant")
    assert torch.isfinite(found.value).all()
    assert (found.ccp <= found.ccp_before).all()
    root = frpt.ops.composite(anchor, torch.full((2, 5), -1.0, dtype=torch.float64), torch.sqrt, solver="secant")
    assert torch.isfinite(root.value).all()


def test_bad_input() -> None:
    a, t, w = torch.randn(2, 4), torch.randn(2, 3), torch.randn(3, 4)
    with pytest.raises(InputError, match="weight"):
        frpt.ops.linear(a, t, w.mT)
    with pytest.raises(InputError, match="target"):
        frpt.ops.linear(a, t[:, :2], w)
    with pytest.raises(NonFiniteError, match="target"):
        frpt.ops.linear(a, t * float("nan"), w)
    with pytest.raises(NonFiniteError, match="anchor"):
        frpt.ops.linear(a * float("inf"), t, w)
    with pytest.raises(OptionError, match="matrix"):
        frpt.ops.conv(torch.randn(1, 1, 4), torch.randn(1, 1, 2), torch.randn(1, 1, 3), solver="magic")
    with pytest.raises(InputError, match="space"):
        frpt.ops.conv(torch.randn(1, 4), torch.randn(1, 2), torch.randn(1, 3))
    with pytest.raises(InputError, match=r"[Kk]ernel"):
        frpt.ops.conv(torch.randn(1, 1, 2), torch.randn(1, 1, 2), torch.randn(1, 1, 5))
    with pytest.raises(OptionError, match="secant"):
        frpt.ops.composite(a, a, torch.tanh, solver="magic")
    with pytest.raises(OptionError, match="dtype"):
        frpt.Preset("half", dtype=torch.float16)
