"""The paper's networks: output sizes layer by layer, parameter counts, names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from frpt.errors import OptionError
from frpt.zoo import simple_cnn

SIZES = {
    "mnist": [(3, 12, 12), (3, 4, 4), (10,)],
    "cifar10": [(10, 14, 14), (10, 6, 6), (10, 4, 4), (128,), (10,)],
    "cifar100": [(18, 14, 14), (18, 6, 6), (18, 4, 4), (256,), (100,)],
    "imagenette": [(16, 100, 100), (16, 42, 42), (16, 16, 16), (16, 6, 6), (16, 4, 4), (128,), (10,)],
    "tiny-imagenet": [(45, 30, 30), (45, 14, 14), (45, 6, 6), (45, 4, 4), (512,), (200,)],
}
"""Supplement B.2, Table of SimpleCNN architectures: the feature after each stage."""
INPUTS = {"mnist": (1, 28), "cifar10": (3, 32), "cifar100": (3, 32), "imagenette": (3, 224), "tiny-imagenet": (3, 64)}


@pytest.mark.parametrize("name", SIZES)
def test_simple_cnn_has_the_papers_sizes(name: str) -> None:
    channels, size = INPUTS[name]
    model = simple_cnn(name)
    x, found = torch.randn(1, channels, size, size), []
    for stage in model.children():
        x = stage(x)
        found.append(tuple(x.shape[1:]))
    assert found == SIZES[name]
    assert list(model.layers) == [str(i) for i in range(1, len(found))] + ["out"]


def test_simple_cnn_counts_and_initialisation() -> None:
    """MNIST: 3·(25 + 1) + 3·(75 + 1) + 10·(48 + 1) parameters; weights inside Xavier's bounds, not torch's own."""
    model = simple_cnn("mnist")
    assert sum(p.numel() for p in model.parameters()) == 78 + 228 + 490
    head = next(m for m in model.modules() if isinstance(m, nn.Linear))
    bound = (6 / (48 + 10)) ** 0.5
    assert head.weight.abs().max() <= bound
    assert head.weight.abs().max() > 48**-0.5


def test_channel_profiles_and_bad_names() -> None:
    model = simple_cnn("cifar10", channels=(15, 10, 5))
    assert [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)] == [15, 10, 5]
    with pytest.raises(OptionError, match="cifar10"):
        simple_cnn("cifar")
    with pytest.raises(OptionError, match="3 positive"):
        simple_cnn("cifar10", channels=(15, 10))
