"""Factories and data sets that fail, as users' own do; ``broken_module.py`` cannot even be imported."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tests.models import mlp


def model() -> nn.Module:
    return mlp((6, 16, 12, 4)).eval()


def key() -> nn.Module:
    found: dict[str, nn.Module] = {}
    return found["weights"]


def state() -> nn.Module:
    made = model()
    made.load_state_dict({"0.weight": torch.zeros(16, 6)})
    return made


def missing_file() -> nn.Module:
    with open("nowhere.txt") as file:
        file.read()
    return model()


def missing_module() -> nn.Module:
    import nowhere_at_all

    made: nn.Module = nowhere_at_all.model()
    return made


class Broken(Dataset[tuple[Tensor, int]]):
    """The last of thirty samples cannot be read."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 29:
            raise ValueError(f"image {index} is broken")
        return torch.full((6,), float(index)), index % 4
