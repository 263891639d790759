"""A network and a data set for commands that take long enough to be stopped; each says when it is reached."""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tests.models import mlp


def model() -> nn.Module:
    os.write(2, b"at model\n")
    torch.manual_seed(0)
    return mlp((6, 16, 12, 4)).eval()


class Slow(Dataset[tuple[Tensor, int]]):
    """Four thousand samples, a hundredth of a second each."""

    def __init__(self, count: int = 4000) -> None:
        self.x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
        self.reads = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        if self.reads == 1:
            os.write(2, b"at data\n")
        if self.reads == 350:  # a diagnosis of 100 fits a reference to them, looks twice at them, and then begins again
            os.write(2, b"at second pass\n")
        time.sleep(0.01)
        return self.x[index], index % 4


def few() -> Slow:
    """A hundred of them."""
    return Slow(100)


def quick() -> TensorDataset:
    """Sixty samples that are there at once."""
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, torch.arange(60) % 4)
