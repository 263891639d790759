"""The FFT solvers' gate as the paper's code has it: raw coefficients of a half spectrum, in either precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fft import irfft2, rfft2

import frpt
from frpt.errors import OptionError
from frpt.options import PRESETS, Gate, Preset
from tests.solvers.kinds import normal


def as_coded(anchor: Tensor, target: Tensor, kernel: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(FFT-Padded with p = 0, which samples had a pair damped). X ≤ 1e3, 1e2 of the anchor, floor 1e-2 √n, κ 1e3."""
    a, y, k = anchor.to(dtype), target.to(dtype), kernel.to(dtype)
    h, w = a.shape[-2:]
    A = rfft2(k.flip(-2, -1), s=(h, w)).permute(2, 3, 0, 1)  # (u, v, m, n)
    B = rfft2(F.pad(y, (w - y.shape[-1], 0, h - y.shape[-2], 0))).permute(2, 3, 0, 1)  # (u, v, b, m)
    start = rfft2(a).permute(2, 3, 0, 1)  # (u, v, b, n)
    reduces, n = A.shape[-2] <= A.shape[-1], A.shape[-1]
    residual = B - start @ A.mT
    X = start + residual @ torch.linalg.pinv(A).mT
    first, second = (1e-4, 1e-3) if dtype == torch.float64 else (1e-3, 1e-2)
    reference, size = length(start), torch.linalg.matrix_norm(A)[..., None]
    scale, error = size * length(X) + length(B), X @ A.mT - B
    good = (X.abs().amax(-1) <= 1e3) & ((reference <= 1e-2 * n**0.5) | (length(X - start) <= 1e2 * reference))
    good &= length(error) <= first * scale if reduces else length(error @ A.conj()) <= second * size * scale
    s = torch.linalg.svdvals(A)[..., :1]
    alpha = torch.maximum((s / 1e3) ** 2, torch.finfo(dtype).eps * (s**2).clamp_min(1))
    room = 1e3 - start.abs().amax(-1)
    alpha = torch.maximum(alpha, torch.where(room > 0, (length(residual) / (2 * room)) ** 2, 0.0))  # (u, v, b)
    damp = alpha[..., None, None] * torch.eye(n, dtype=A.dtype)
    delta = torch.linalg.solve((A.mH @ A)[:, :, None] + damp, (residual @ A.conj())[..., None]).squeeze(-1)
    X = torch.where(good[..., None], X, start + delta)
    return irfft2(X.permute(2, 3, 0, 1), s=(h, w)), (~good).flatten(0, 1).any(0)


def length(t: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(t, dim=-1)
    return found


def asked(co: int, ci: int) -> tuple[Tensor, Tensor, Tensor]:
    """Maps of 16 × 14, targets of very different sizes, a kernel that nearly vanishes at frequency zero."""
    kernel, anchor = normal(co, ci, 3, 3, seed=1), 1 + normal(4, ci, 16, 14, seed=2)
    kernel = kernel - 0.99 * kernel.mean((-2, -1), keepdim=True)
    out = F.conv2d(anchor, kernel)
    size = torch.tensor([0.1, 3.0, 30.0, 300.0], dtype=torch.float64)[:, None, None, None]
    return anchor, out + size * normal(*out.shape, seed=3), kernel


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("co", "ci"), [(3, 3), (2, 4), (4, 2)])
def test_the_paper_preset_judges_raw_coefficients(co: int, ci: int, dtype: torch.dtype) -> None:
    """To rounding in float64; the code's float32 differs by its rounding alone, as the text's float64 is followed."""
    anchor, target, kernel = asked(co, ci)
    expected, damped = as_coded(anchor, target, kernel, dtype)
    found = frpt.ops.conv(anchor, target, kernel, solver="fft_padded", preset="paper")
    assert found.fallback.tolist() == damped.tolist()
    assert damped.any()
    off = (found.value - expected).flatten(1).norm(dim=1) / (found.value - anchor).flatten(1).norm(dim=1)
    assert float(off.max()) < (1e-8 if dtype == torch.float64 else 1e-3)


def test_bounds_of_raw_coefficients_shrink_with_the_map() -> None:
    """Unitary ones let pairs pass that raw ones, √224 times as large, do not."""
    anchor, target, kernel = asked(3, 3)

    def solved(preset: Preset) -> Tensor:
        return frpt.ops.conv(anchor, target, kernel, solver="fft_padded", preset=preset).value - anchor

    paper = PRESETS["paper"]
    raw, unitary = (solved(replace(paper, gate=Gate(coefficients=c))).norm() for c in ("raw", "unitary"))
    assert float(raw) < 0.9 * float(unitary)


def test_only_fft_solvers_know_the_difference() -> None:
    anchor, target, kernel = asked(2, 4)
    raw, unitary = (
        frpt.ops.conv(anchor, target, kernel, solver="matrix", gate=Gate(coefficients=c)).value  # type: ignore[arg-type]
        for c in ("raw", "unitary")
    )
    assert torch.equal(raw, unitary)


def test_other_coefficients_are_refused() -> None:
    with pytest.raises(OptionError, match="coefficients must be unitary or raw"):
        Gate(coefficients="polar")  # type: ignore[arg-type]
