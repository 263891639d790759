"""The one place that says how near is near: per element, by the dtype in which the numbers were made."""

from __future__ import annotations

import torch
from torch import Tensor

RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 2e-2}
ABSOLUTE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def allowed(expected: Tensor, dtype: torch.dtype, slack: float = 1.0) -> Tensor:
    """Largest difference every element may have: slack · (absolute + relative · |expected|)."""
    return slack * (ABSOLUTE[dtype] + RELATIVE[dtype] * expected.detach().double().abs())


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None, slack: float = 1.0) -> None:
    """Every element of ``actual`` within the tolerance of ``dtype`` (that of ``actual`` if None) from ``expected``."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    a, e = actual.detach().double(), expected.detach().double()
    excess = (a - e).abs() - allowed(e, dtype or actual.dtype, slack)
    wrong = ~(excess <= 0)  # NaN is wrong
    if bool(wrong.any()):
        worst = int(torch.where(wrong, excess.nan_to_num(torch.inf), -torch.inf).flatten().argmax())
        raise AssertionError(
            f"{int(wrong.sum())} of {a.numel()} elements differ; worst at flat position {worst}: "
            f"{a.flatten()[worst].item():.17g} instead of {e.flatten()[worst].item():.17g}"
        )
