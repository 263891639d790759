"""Max-pooling over pairs and over 2×2: what PyTorch's gives, in every kind of derivative."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import jacfwd, jacrev, jvp, vjp, vmap

from frpt.common import pooling
from frpt.common.pooling import MaxPool2x2, max_pool2d


@pytest.fixture(autouse=True)
def whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "_WORTH", {1: 0, 2: 0})


def features(*shape: int, ties: bool = False) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.mul(1.5).round() if ties else x


WINDOWS = [2, (2, 1), (1, 2)]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", [(5, 3, 8, 6), (5, 3, 8, 1), (5, 3, 1, 8)])
def test_value_and_gradient_are_pytorchs_also_among_equal_entries(
    shape: tuple[int, ...], window: int | tuple[int, int], ties: bool
) -> None:
    x = features(*shape, ties=ties)
    high, wide = (window, window) if isinstance(window, int) else window
    if shape[2] < high or shape[3] < wide:
        with pytest.raises(RuntimeError):
            max_pool2d(x, window)
        return
    for laid in (x, x.transpose(2, 3).contiguous(memory_format=torch.channels_last).transpose(2, 3)):
        ours, back = vjp(lambda v: max_pool2d(v, window), laid)
        theirs, their_back = vjp(lambda v: F.max_pool2d(v, window), laid)
        grad = features(*theirs.shape)
        assert torch.equal(ours, theirs)
        assert torch.equal(back(grad)[0], their_back(grad)[0])


@pytest.mark.parametrize("window", WINDOWS)
def test_forward_derivative_jacobians_and_batched_gradients(window: int | tuple[int, int]) -> None:
    def ours(v: torch.Tensor) -> torch.Tensor:
        return max_pool2d(v, window)

    def theirs(v: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(v, window)

    x, tangent = features(2, 1, 4, 6), features(2, 1, 4, 6).flip(-1)
    for mine, other in (
        (jvp(ours, (x,), (tangent,)), jvp(theirs, (x,), (tangent,))),
        ((jacrev(ours)(x),), (jacrev(theirs)(x),)),
        ((jacfwd(ours)(x),), (jacrev(theirs)(x),)),
        ((vmap(jacrev(ours))(x),), (vmap(jacrev(theirs))(x),)),
    ):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
    leaf = x.clone().requires_grad_()
    out = ours(leaf)
    many = torch.eye(out.numel(), dtype=x.dtype).reshape(-1, *out.shape)
    (rows,) = torch.autograd.grad(out, leaf, many, is_grads_batched=True)
    assert torch.equal(rows.flatten(1), jacrev(theirs)(x).reshape(out.numel(), -1))


@pytest.mark.parametrize("window", WINDOWS)
def test_second_derivatives(window: int | tuple[int, int]) -> None:
    x = features(2, 2, 4, 4).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda v: max_pool2d(v, window) ** 3, x)
    assert torch.autograd.gradcheck(lambda v: max_pool2d(v, window), x, check_forward_ad=True)


def test_what_is_small_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "_WORTH", {1: 64, 2: 128})
    x = features(1, 1, 8, 8).requires_grad_()
    assert "Pairs" in str(max_pool2d(x, (2, 1)).grad_fn)
    assert "Pairs" not in str(max_pool2d(x, 2).grad_fn)
    assert "Pairs" in str(max_pool2d(x.repeat(2, 1, 1, 1), 2).grad_fn)


@pytest.mark.parametrize(
    ("shape", "more"),
    [((2, 3, 7, 8), (2,)), ((2, 3, 8, 8), (3,)), ((2, 3, 8, 8), (2, 1)), ((2, 3, 8, 8), ([2, 2], [2, 2], [1, 1])),
     ((2, 3, 8, 8), ([2, 2], [2, 2], [0, 0], [1, 1], True)), ((2, 3, 7, 7), ([2, 2], [2, 2], [0, 0], [1, 1], True)),
     ((3, 8, 8), ([2, 2],)), ((0, 3, 8, 8), (2,)), ((2, 3, 8, 8), (2, 2, 0, 2))],
)  # fmt: skip
def test_other_windows_are_left_to_pytorch(shape: tuple[int, ...], more: tuple[object, ...]) -> None:
    x = features(*shape)
    assert torch.equal(max_pool2d(x, *more), F.max_pool2d(x, *more))  # type: ignore[arg-type]


def test_the_module_is_a_max_pool_to_whoever_looks() -> None:
    pool, x = MaxPool2x2(), features(2, 3, 4, 4)
    assert isinstance(pool, nn.MaxPool2d)
    assert torch.equal(pool(x), nn.MaxPool2d(2)(x))
    graph = torch.export.export(pool, (x,)).graph
    assert torch.ops.aten.max_pool2d.default in {node.target for node in graph.nodes}
