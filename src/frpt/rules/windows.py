"""Which entries each pooling window covers, as index tables and averaging matrices. Used by ``pool``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def windows(
    space: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Flat positions in ``space`` under every window: (Π out, Π kernel), −1 where a window hangs over the border."""
    index = torch.zeros(1, 1, dtype=torch.long)
    for n, m, k, s, p, d in zip(space, out, kernel, stride, padding, dilation, strict=True):
        axis = torch.arange(m)[:, None] * s - p + torch.arange(k)[None] * d
        axis = torch.where((axis >= 0) & (axis < n), axis, -1)
        a, b = index[:, None, :, None], axis[None, :, None, :]
        index = torch.where((a >= 0) & (b >= 0), a * n + b, -1).reshape(index.shape[0] * m, -1)
    return index


def average_matrix(n: int, m: int, k: int, s: int, p: int, count_padding: bool) -> Tensor:
    """Average pooling along one axis as a matrix (m, n)."""
    matrix = torch.zeros(m, n, dtype=torch.float64)
    for j in range(m):
        start = j * s - p
        end = min(start + k, n + p)
        inside = range(max(start, 0), min(end, n))
        matrix[j, list(inside)] = 1.0 / ((end - start) if count_padding else max(len(inside), 1))
    return matrix


def adaptive_windows(n: int, m: int) -> tuple[Tensor, Tensor]:
    """Adaptive pooling along one axis: windows (m, k) of positions, −1 as filler, and the averaging matrix (m, n)."""
    bounds = [(j * n // m, -((-(j + 1) * n) // m)) for j in range(m)]
    longest = max(end - start for start, end in bounds)
    index = torch.full((m, longest), -1, dtype=torch.long)
    matrix = torch.zeros(m, n, dtype=torch.float64)
    for j, (start, end) in enumerate(bounds):
        index[j, : end - start] = torch.arange(start, end)
        matrix[j, start:end] = 1.0 / (end - start)
    return index, matrix
