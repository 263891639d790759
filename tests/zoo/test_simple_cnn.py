"""The paper's networks: output sizes layer by layer, parameter counts, names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from frpt import Reverser
from frpt.errors import OptionError
from frpt.zoo import simple_cnn

SIZES = {
    "mnist": [(3, 12, 12), (3, 4, 4), (10,)],
    "cifar10": [(10, 14, 14), (10, 6, 6), (10, 4, 4), (128,), (10,)],
    "cifar100": [(18, 14, 14), (18, 6, 6), (18, 4, 4), (256,), (100,)],
    "imagenette": [(16, 100, 100), (16, 42, 42), (16, 16, 16), (16, 6, 6), (16, 4, 4), (128,), (10,)],
    "imagewoof": [(16, 100, 100), (16, 42, 42), (16, 16, 16), (16, 6, 6), (16, 4, 4), (128,), (10,)],
    "tiny-imagenet": [(45, 30, 30), (45, 14, 14), (45, 6, 6), (45, 4, 4), (512,), (200,)],
    "cifar10-5-10-15": [(5, 14, 14), (10, 6, 6), (15, 4, 4), (64,), (10,)],
    "cifar10-15-10-5": [(15, 14, 14), (10, 6, 6), (5, 4, 4), (64,), (10,)],
}
"""Supplement B.2, SimpleCNN architectures: the feature after each stage; then the geometry experiment's two."""
INPUTS = {
    "mnist": (1, 28), "cifar10": (3, 32), "cifar100": (3, 32), "imagenette": (3, 224), "imagewoof": (3, 224),
    "tiny-imagenet": (3, 64), "cifar10-5-10-15": (3, 32), "cifar10-15-10-5": (3, 32),
}  # fmt: skip
COUNTS = {
    "mnist": 78 + 228 + 490,
    "cifar10": 760 + 910 + 910 + 20608 + 1290,
    "cifar100": 1368 + 2934 + 2934 + 73984 + 25700,
    "imagenette": 30016 + 74000 + 30992 + 6416 + 2320 + 32896 + 1290,
    "imagewoof": 30016 + 74000 + 30992 + 6416 + 2320 + 32896 + 1290,
    "tiny-imagenet": 3420 + 18270 + 18270 + 18270 + 369152 + 102600,
    "cifar10-5-10-15": 380 + 460 + 1365 + 15424 + 650,
    "cifar10-15-10-5": 1140 + 1360 + 455 + 5184 + 650,
}
"""Weights and biases of Conv(c_in, c_out, k): c_out·(c_in·k² + 1), of FC(d_in, d_out): d_out·(d_in + 1), row by row."""


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
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]


def test_simple_cnn_is_initialised_as_the_paper_says() -> None:
    """Weights inside Xavier's bounds, not torch's own."""
    model = simple_cnn("mnist")
    head = next(m for m in model.modules() if isinstance(m, nn.Linear))
    bound = (6 / (48 + 10)) ** 0.5
    assert head.weight.abs().max() <= bound
    assert head.weight.abs().max() > 48**-0.5


@pytest.mark.parametrize("name", ["mnist", "cifar10-5-10-15"])
def test_every_l_r_has_a_reverse_path(name: str) -> None:
    model = simple_cnn(name)
    channels, size = INPUTS[name]
    rev = Reverser(model.eval(), torch.randn(2, channels, size, size))
    lengths = [len(rev.plan(at).units) for at in model.layers.values()]
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[-1] == 0


def test_own_widths_and_bad_names() -> None:
    model = simple_cnn("cifar10", channels=(15, 10, 5), hidden=(64, 32))
    assert [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)] == [15, 10, 5]
    assert [m.out_features for m in model.modules() if isinstance(m, nn.Linear)] == [64, 32, 10]
    assert model.layers["5"] == "stage5"
    with pytest.raises(OptionError, match="positive"):
        simple_cnn("cifar10", hidden=(0,))
    with pytest.raises(OptionError, match="cifar10"):
        simple_cnn("cifar")
    with pytest.raises(OptionError, match="3 positive"):
        simple_cnn("cifar10", channels=(15, 10))
