"""Linear layers and products with a side operand, both of the paper's cases (III-A).

a = â + A⁺(t − Φ(â))
"""

from __future__ import annotations

import torch
from torch import Tensor

from frpt.rules.arithmetic import scaled
from frpt.rules.registry import Call, Site, reverses
from frpt.solvers.base import Solution
from frpt.solvers.linear.dense import Batched, Dense

aten = torch.ops.aten


def case_of(outputs: int, inputs: int) -> str:
    return "I" if outputs <= inputs else "II"


def rowwise(site: Site, target: Tensor, weight: Tensor) -> Solution:
    """y = a Wᵀ + const on the last axis. weight: (m, n), a: (..., n), y: (..., m)."""
    residual = (target - site.output).reshape(-1, weight.shape[0])
    prepared = site.prepared("dense", weight, Dense)
    return site.linear(
        prepared, residual, lambda a: a.reshape(-1, weight.shape[1]), lambda rows: rows.reshape(site.anchor.shape)
    )


def _linear_case(call: Call) -> str:
    m, n = call.args["weight"].shape
    return case_of(int(m), int(n))


@reverses(aten.linear.default, slots=("input",), when=lambda call: call.args["weight"].dim() == 2, case=_linear_case)
def linear(site: Site, target: Tensor) -> Solution:
    """y = W a + b:  a = â + W⁺(t − Φ(â)). W: (m, n), a: (..., n)."""
    return rowwise(site, target, site.args["weight"])


@reverses(aten.addmm.default, slots=("self", "mat1"))
def addmm(site: Site, target: Tensor) -> Solution:
    """y = β·c + α·a M:  rows of a solved with αMᵀ; c by its scale. M: (n, m)."""
    if site.slot == "self":
        return scaled(site, target - site.output, float(site.args["beta"]))
    return rowwise(site, target, site.args["mat2"].mT * float(site.args["alpha"]))


def _plain_product(call: Call) -> bool:
    """Both operands matrices, and the active one not broadcast."""
    left, right = (call.args[k] for k in _operands(call))
    if left.dim() < 2 or right.dim() < 2:
        return False
    mine, other = (left, right) if call.slot == _operands(call)[0] else (right, left)
    ahead = mine.shape[:-2]
    if other.dim() == 2:
        return True
    return len(ahead) == other.dim() - 2 and all(_same(a, b) for a, b in zip(ahead, other.shape, strict=False))


def _same(size: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    return bool(size == other) or bool(other == 1)


def _operands(call: Call) -> tuple[str, str]:
    return ("self", "other") if "other" in call.args else ("self", "mat2")


@reverses(aten.matmul.default, aten.bmm.default, aten.mm.default, when=_plain_product)
def matmul(site: Site, target: Tensor) -> Solution:
    """y = a S:  a = â + r S⁺;  y = S a:  a = â + S⁺ r. S is the side operand, one matrix or one per system."""
    left, right = _operands(site)
    first = site.slot == left
    side = site.args[right if first else left]
    A = side.mT if first else side  # acts on columns of aᵀ or a
    turned = site.anchor.mT if first else site.anchor
    residual = target - site.output
    residual = residual.mT if first else residual
    if A.dim() == 2:
        prepared = site.prepared("dense", A, Dense)
        shape = turned.mT.shape

        def join_rows(rows: Tensor) -> Tensor:
            back = rows.reshape(shape)
            return back if first else back.mT

        return site.linear(
            prepared,
            residual.mT.reshape(-1, A.shape[0]),
            lambda a: (a if first else a.mT).reshape(-1, A.shape[1]),
            join_rows,
        )
    ahead = turned.shape[:-2]
    matrices = A.to(site.anchor.dtype).expand(*ahead, *A.shape[-2:]).reshape(-1, *A.shape[-2:])

    def join(systems: Tensor) -> Tensor:
        back = systems.reshape(turned.shape)
        return back.mT if first else back

    return site.linear(
        Batched(matrices),
        residual.reshape(-1, *residual.shape[-2:]),
        lambda a: (a.mT if first else a).reshape(-1, *turned.shape[-2:]),
        join,
    )
