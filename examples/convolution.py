"""One convolution, one target, six solvers: how far each is from its target, and how far the feature had to move."""

import torch
import torch.nn.functional as F

import frpt

torch.manual_seed(0)
anchor, weight = torch.randn(4, 8, 48, 48), torch.randn(6, 8, 3, 3) / 8
target = F.conv2d(anchor, weight, padding=1) + 0.05 * torch.randn(4, 6, 48, 48)

for solver in ("auto", "exact", "matrix", "cg", "fft_padded", "fft_boundary"):
    try:
        found = frpt.ops.conv(anchor, target, weight, padding=1, solver=solver)
    except frpt.errors.BudgetError as error:
        print(f"{solver:12} {error}")
        continue
    print(f"{solver:12} consistency error {found.ccp.max():.1e}, deviation {found.deviation.mean():.4f}")
