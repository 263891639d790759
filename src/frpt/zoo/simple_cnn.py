"""The paper's SimpleCNNs (Supplement B.2): valid convolutions, max-pooling, a fully connected classifier."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from frpt.common.pooling import MaxPool2x2
from frpt.errors import OptionError


@dataclass(frozen=True)
class CNNShape:
    """Channels and size of the input; channels and kernel sizes of the convolutions; how many are pooled; FC widths."""

    inputs: int
    size: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    pooled: int
    hidden: tuple[int, ...]
    classes: int


SHAPES = {
    "mnist": CNNShape(1, 28, (3, 3), (5, 5), 2, (), 10),
    "cifar10": CNNShape(3, 32, (10, 10, 10), (5, 3, 3), 2, (128,), 10),
    "cifar100": CNNShape(3, 32, (18, 18, 18), (5, 3, 3), 2, (256,), 100),
    "imagenette": CNNShape(3, 224, (16,) * 5, (25, 17, 11, 5, 3), 4, (128,), 10),
    "imagewoof": CNNShape(3, 224, (16,) * 5, (25, 17, 11, 5, 3), 4, (128,), 10),
    "tiny-imagenet": CNNShape(3, 64, (45,) * 4, (5, 3, 3, 3), 3, (512,), 200),
    "cifar10-5-10-15": CNNShape(3, 32, (5, 10, 15), (5, 3, 3), 2, (64,), 10),
    "cifar10-15-10-5": CNNShape(3, 32, (15, 10, 5), (5, 3, 3), 2, (64,), 10),
}
"""Supplement B.2; the last two are the opposite channel profiles of the section on reconstruction geometry."""


class SimpleCNN(nn.Sequential):
    """``stage1``, ``stage2``, … are convolution + ReLU (+ pooling), then hidden layers; ``classifier`` ends it.

    layers: the paper's l_R ("1", "2", …, "out") and the names that ``at`` takes. before_activations: the same for the
    values before the activations, which the paper's code takes for l_R.
    """

    def __init__(self, shape: CNNShape) -> None:
        stages: list[nn.Module] = []
        size, inputs = shape.size, shape.inputs
        for i, (kernel, outputs) in enumerate(zip(shape.kernels, shape.channels, strict=True)):
            ops: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel), nn.ReLU()]
            size, inputs = size - kernel + 1, outputs
            if i < shape.pooled:
                ops.append(MaxPool2x2())
                size //= 2
            stages.append(nn.Sequential(*ops))
        width, first = inputs * size * size, True
        for outputs in shape.hidden:
            stages.append(nn.Sequential(*([nn.Flatten()] if first else []), nn.Linear(width, outputs), nn.ReLU()))
            width, first = outputs, False
        named = OrderedDict((f"stage{i}", stage) for i, stage in enumerate(stages, 1))
        head = nn.Linear(width, shape.classes)
        named["classifier"] = nn.Sequential(nn.Flatten(), head) if first else nn.Sequential(head)
        super().__init__(named)
        self.layers = {str(i): f"stage{i}" for i in range(1, len(stages) + 1)} | {"out": "out"}
        own = {str(i): _linear_part(f"stage{i}", stage) for i, stage in enumerate(stages, 1)}
        self.before_activations = own | {"out": "out"}
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)


def _linear_part(name: str, stage: nn.Module) -> str:
    """The name of a stage's convolution or fully connected layer."""
    return next(f"{name}.{i}" for i, m in stage.named_children() if isinstance(m, nn.Conv2d | nn.Linear))


def simple_cnn(
    dataset: str, channels: tuple[int, ...] | None = None, hidden: tuple[int, ...] | None = None
) -> SimpleCNN:
    """The paper's small convolutional network for a data set, untrained.

    Args:
        dataset: mnist, cifar10, cifar100, imagenette, imagewoof or tiny-imagenet; "cifar10-5-10-15" and
            "cifar10-15-10-5" are the two channel profiles of the geometry experiment.
        channels: One number per convolution, where they shall not be the paper's.
        hidden: One number per hidden layer, where they shall not be the paper's.

    Returns:
        The network; ``layers`` maps the paper's l_R to names that ``at`` takes.

    Raises:
        OptionError: There is no such data set, or the numbers do not fit it.

    Example:
        >>> model = frpt.zoo.simple_cnn("mnist")
        >>> model.layers
        {'1': 'stage1', '2': 'stage2', 'out': 'out'}
    """
    if dataset not in SHAPES:
        raise OptionError(f"unknown data set {dataset!r}: there are {', '.join(SHAPES)}")
    shape = SHAPES[dataset]
    chosen = shape.channels if channels is None else tuple(channels)
    if len(chosen) != len(shape.kernels) or min(chosen) < 1:
        raise OptionError(f"channels must be {len(shape.kernels)} positive numbers for {dataset}, got {chosen}")
    widths = shape.hidden if hidden is None else tuple(hidden)
    if any(width < 1 for width in widths):
        raise OptionError(f"hidden must be positive numbers, one per hidden layer, got {widths}")
    return SimpleCNN(CNNShape(shape.inputs, shape.size, chosen, shape.kernels, shape.pooled, widths, shape.classes))
