"""Max-pooling over 2×2: what PyTorch's gives, in every kind of derivative."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import jacfwd, jacrev, jvp, vjp, vmap

from frpt.graph import pooling
from frpt.graph.pooling import MaxPool2x2, max_pool2d


@pytest.fixture(autouse=True)
def whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "_WORTH", 0)


def features(*shape: int, ties: bool = False) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.mul(1.5).round() if ties else x


@pytest.mark.parametrize("ties", [False, True])
def test_value_and_gradient_are_pytorchs_also_among_equal_entries(ties: bool) -> None:
    x = features(5, 3, 8, 6, ties=ties)
    grad = features(5, 3, 4, 3)
    ours, back = vjp(lambda v: max_pool2d(v, 2), x)
    theirs, their_back = vjp(lambda v: F.max_pool2d(v, 2), x)
    assert torch.equal(ours, theirs)
    assert torch.equal(back(grad)[0], their_back(grad)[0])


def test_forward_derivative_jacobians_and_batched_gradients() -> None:
    x, tangent = features(2, 1, 4, 6), features(2, 1, 4, 6).flip(-1)
    for ours, theirs in (
        (jvp(lambda v: max_pool2d(v, 2), (x,), (tangent,)), jvp(lambda v: F.max_pool2d(v, 2), (x,), (tangent,))),
        ((jacrev(lambda v: max_pool2d(v, 2))(x),), (jacrev(lambda v: F.max_pool2d(v, 2))(x),)),
        ((jacfwd(lambda v: max_pool2d(v, 2))(x),), (jacrev(lambda v: F.max_pool2d(v, 2))(x),)),
        ((vmap(jacrev(lambda v: max_pool2d(v, 2)))(x),), (vmap(jacrev(lambda v: F.max_pool2d(v, 2)))(x),)),
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    leaf = x.clone().requires_grad_()
    out = max_pool2d(leaf, 2)
    many = torch.eye(out.numel(), dtype=x.dtype).reshape(-1, *out.shape)
    (rows,) = torch.autograd.grad(out, leaf, many, is_grads_batched=True)
    assert torch.equal(rows.flatten(1), jacrev(lambda v: F.max_pool2d(v, 2))(x).reshape(out.numel(), -1))


def test_second_derivatives() -> None:
    x = features(2, 2, 4, 4).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda v: max_pool2d(v, 2) ** 3, x)
    assert torch.autograd.gradcheck(lambda v: max_pool2d(v, 2), x, check_forward_ad=True)


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
