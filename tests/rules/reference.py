"""Slow, independent references in float64: matrices column by column, roots by bracketing, programs by scipy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq, minimize
from torch import Tensor

from frpt.rules import Call, Site
from tests.rules.cases import Case
from tests.tolerance import assert_close


def matrix_of(call: Call) -> Tensor:
    """The matrix of an affine op, from its response to every unit input: (outputs, inputs)."""
    zero = torch.zeros_like(call.active)
    offset = call.forward(zero)
    columns = []
    for i in range(zero.numel()):
        unit = zero.clone()
        unit.view(-1)[i] = 1.0
        columns.append((call.forward(unit) - offset).flatten())
    return torch.stack(columns, 1)


def least_change(site: Site, target: Tensor) -> Tensor:
    """a = â + A⁺(t − Φ(â)), by the pseudo-inverse of the whole matrix."""
    moved = torch.linalg.pinv(matrix_of(site)) @ (target - site.output).flatten()
    return site.anchor + moved.reshape(site.anchor.shape)


def asked(site: Site, size: float = 0.3, seed: int = 3) -> Tensor:
    """A target near the forward value, attainable or not."""
    noise = torch.randn(site.output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return site.output + size * noise


def assert_least_change(case: Case, **options: Any) -> None:
    """The rule of an affine op gives the minimum-norm least-squares correction, and reports no fallback."""
    site = case.site(torch.float64, case.preset_with(**options))
    target = asked(site)
    solution = case.rule.function(site, target)
    assert_close(solution.value, least_change(site, target), slack=case.slack)
    assert not bool(solution.fallback.any())


def nearest_preimage(
    f: Callable[[float], float], target: float, anchor: float, edges: Sequence[float], flat: Sequence[float] = ()
) -> float:
    """Of the roots of f(z) = target on the intervals between ``edges`` (f monotone on each) the nearest to the anchor.

    flat: further points known to have the target as their value. Without any root: the edge whose value is nearest.
    """
    roots = list(flat)
    for low, high in itertools.pairwise(edges):
        at_low, at_high = f(low) - target, f(high) - target
        roots += [z for z, v in ((low, at_low), (high, at_high)) if v == 0]
        if at_low * at_high < 0 or np.sign(at_low) * np.sign(at_high) < 0:
            roots.append(brentq(lambda z: f(z) - target, low, high, xtol=1e-14, rtol=1e-14, maxiter=2000))
    if roots:
        return float(min(roots, key=lambda z: abs(z - anchor)))
    return float(min(edges, key=lambda z: abs(f(z) - target)))


def bounded_least_change(A: Tensor, anchor: Tensor, y: Tensor, low: float) -> Tensor:
    """min ‖a − â‖² subject to A a = y, a ≥ low, by SLSQP. anchor: (n,), y: (m,)."""
    matrix, start, wanted = A.numpy(), anchor.numpy(), y.numpy()
    found = minimize(
        lambda a: float(((a - start) ** 2).sum()),
        np.maximum(start, low),
        jac=lambda a: 2 * (a - start),
        bounds=[(low, None)] * len(start),
        constraints={"type": "eq", "fun": lambda a: matrix @ a - wanted, "jac": lambda _: matrix},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert np.abs(matrix @ found.x - wanted).max() < 1e-8, found.message
    return torch.from_numpy(found.x)
