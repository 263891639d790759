"""Singular value decompositions that do not converge: another driver, then the anchor, and the report says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import scipy.linalg
import torch
from torch import Tensor, nn

import frpt
from frpt.options import Gate
from frpt.solvers.blocks.problem import Limits, Problem
from frpt.solvers.linear.dense import Batched, Dense
from frpt.solvers.linear.gate import anchored
from frpt.solvers.linear.linear_map import LinearMap
from frpt.solvers.linear.structured import Blocks, Separable
from frpt.solvers.linear.svd import lost, pseudo_inverse, singular_values, svd
from tests.solvers.blocks import solve

Fail = Callable[..., None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Make drivers fail: torch's for matrices that ``which`` picks, and scipy's if asked."""

    def failing(which: Callable[[Tensor], bool] = lambda a: True, scipy_too: bool = False) -> None:
        true = {name: getattr(torch.linalg, name) for name in ("svd", "svdvals")}

        def broken(name: str) -> Callable[..., Any]:
            def decompose(a: Tensor, *args: Any, **kwargs: Any) -> Any:
                if any(which(m) for m in a.reshape(-1, *a.shape[-2:])):
                    raise torch.linalg.LinAlgError("linalg.svd: the algorithm failed to converge")
                return true[name](a, *args, **kwargs)

            return decompose

        for name in true:
            monkeypatch.setattr(torch.linalg, name, broken(name))
        if scipy_too:

            def never(*args: Any, **kwargs: Any) -> Any:
                raise scipy.linalg.LinAlgError("SVD did not converge")

            monkeypatch.setattr(scipy.linalg, "svd", never)

    return failing


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(3, 5), (4, 5, 3), (2, 3, 4, 4)])
def test_the_second_driver_gives_the_same_pseudo_inverse(
    dtype: torch.dtype, shape: tuple[int, ...], fail: Fail
) -> None:
    matrices = drawn(*shape, dtype=dtype)
    expected, values = torch.linalg.pinv(matrices), torch.linalg.svdvals(matrices)
    fail()
    factors = svd(matrices)
    u, s, vh = factors
    assert (u.dtype, s.dtype, vh.dtype) == (dtype, values.dtype, dtype)
    close = {"rtol": 1e-4, "atol": 1e-5} if values.dtype == torch.float32 else {}
    torch.testing.assert_close((u * s[..., None, :]) @ vh, matrices, **close)
    torch.testing.assert_close(pseudo_inverse(factors), expected, **close)
    torch.testing.assert_close(singular_values(matrices), values, **close)
    assert not lost(s).any()


def test_single_precision_is_tried_again_in_double(fail: Fail) -> None:
    matrices = drawn(2, 4, 3, dtype=torch.float32)
    fail(lambda a: a.dtype == torch.float32, scipy_too=True)
    assert not lost(svd(matrices)[1]).any()


def test_one_bad_matrix_of_a_batch_costs_the_others_nothing(fail: Fail) -> None:
    matrices = drawn(3, 4, 4)
    bad = matrices[1].clone()
    fail(lambda a: torch.equal(a, bad), scipy_too=True)
    u, s, vh = svd(matrices)
    assert lost(s).tolist() == [False, True, False]
    torch.testing.assert_close(((u * s[:, None]) @ vh)[[0, 2]], matrices[[0, 2]])
    assert not any(bool(t[1].any()) for t in (u, s, vh))


def test_nan_is_lost_and_nothing_is_raised() -> None:
    matrices = drawn(2, 3, 3)
    matrices[0, 0, 0] = float("nan")
    assert lost(svd(matrices)[1]).tolist() == [True, False]


def one_zero(*shape: int) -> Tensor:
    """Of deficient rank, so that solvers which avoid an SVD need one."""
    matrix = drawn(*shape)
    matrix[..., 0, :] = 0
    return matrix


MAPS: dict[str, tuple[Callable[[], LinearMap], tuple[int, ...], tuple[int, ...]]] = {
    "dense": (lambda: Dense(one_zero(3, 4)), (4,), (3,)),
    "batched": (lambda: Batched(drawn(2, 3, 4)), (4, 1), (3, 1)),
    "blocks": (lambda: Blocks(drawn(2, 3, 4)), (2, 4), (2, 3)),
    "separable": (lambda: Separable([drawn(2, 4), drawn(3, 5, seed=1)]), (4, 5), (2, 3)),
}


@pytest.mark.parametrize("gate", [Gate(), Gate(enabled=False)], ids=["gate", "open"])
@pytest.mark.parametrize("name", MAPS)
def test_linear_maps_keep_the_anchor_and_report_it(name: str, gate: Gate, fail: Fail) -> None:
    make, inputs, outputs = MAPS[name]
    anchor, residual = drawn(2, *inputs, seed=2), drawn(2, *outputs, seed=3)
    expected = anchored(make(), anchor, residual, gate)
    fail()
    second = anchored(make(), anchor, residual, gate)
    torch.testing.assert_close(second.value, expected.value)
    assert torch.equal(second.fallback, expected.fallback)
    fail(scipy_too=True)
    none = anchored(make(), anchor, residual, gate)
    assert torch.equal(none.value, anchor)
    assert none.fallback.all()


@pytest.mark.parametrize("gate", [Gate(), Gate(enabled=False)], ids=["gate", "open"])
def test_a_frequency_keeps_the_anchor_and_the_samples_report_it(gate: Gate, fail: Fail) -> None:
    """Filters that repeat each other: every frequency needs an SVD."""
    weight = drawn(2, 3, 3, 3)
    weight[1] = weight[0]
    anchor = drawn(2, 3, 6, 6, seed=1)
    target = torch.nn.functional.conv2d(anchor, weight, padding=1) + 0.1 * drawn(2, 2, 6, 6, seed=2)

    def solved() -> Any:
        return frpt.ops.conv(anchor, target, weight, padding=1, solver="fft_padded", gate=gate)

    expected = solved()
    fail()
    torch.testing.assert_close(solved().value, expected.value)
    fail(scipy_too=True)
    none = solved()
    torch.testing.assert_close(none.value, anchor, rtol=0, atol=1e-12)
    assert none.fallback.all()


@pytest.mark.parametrize("gate", [Gate(), Gate(enabled=False)], ids=["gate", "open"])
def test_gauss_newton_goes_on_with_another_driver_and_stops_without_any(gate: Gate, fail: Fail) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double().requires_grad_(False)
    anchor = drawn(3, 6, seed=1)
    target = net(anchor + 0.3 * drawn(3, 6, seed=2))
    problem = Problem(lambda a, _: net(a), anchor, target, net(anchor), gate, Limits(iterations=20))
    expected = solve(problem, "gauss_newton", "paper")
    fail()
    torch.testing.assert_close(solve(problem, "gauss_newton", "paper").value, expected.value)
    fail(scipy_too=True)
    none = solve(problem, "gauss_newton", "paper")
    assert torch.equal(none.value, anchor)
    assert none.fallback.all()


def test_gauss_newton_reports_a_sample_that_lost_one_jacobian(fail: Fail) -> None:
    """Its second one: that step leads towards the anchor, as far as the residual drops. The other sample is nominal."""
    anchor = torch.tensor([[1.0], [2.9]], dtype=torch.float64)
    target = torch.full_like(anchor, 27.0)
    problem = Problem(lambda a, _: a**3, anchor, target, anchor**3, Gate(), Limits(iterations=20))
    fail(lambda a: 28.0 < float(a) < 40.0, scipy_too=True)  # J = 3a²: from 3 to 32, and from 25.2 to 27
    answer = solve(problem, "gauss_newton", "paper")
    assert answer.fallback.tolist() == [True, False]
    torch.testing.assert_close(answer.value, torch.full_like(anchor, 3.0), rtol=1e-5, atol=0)
