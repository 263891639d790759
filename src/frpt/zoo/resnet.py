"""ResNet-18 and ResNet-34 with a CIFAR or an ImageNet stem (Supplement B.2); state dicts are torchvision's."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from frpt.errors import OptionError

BLOCKS = {"18": (2, 2, 2, 2), "34": (3, 4, 6, 3)}
STEMS = ("cifar", "imagenet")


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm beside a skip, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        after: Tensor = self.relu(out + skip)
        return after


class ResNet(nn.Module):
    """Stem, four stages of 64, 128, 256 and 512 channels, global average pooling, a linear classifier.

    layers: the paper's l_R. 1 to 4 are the stages and 5 is the pooled feature: in the paper's tables the runs without
    reconstruction agree for 5 and 4, so that there is nothing to be trained between them.
    """

    def __init__(self, blocks: tuple[int, ...], stem: str, num_classes: int) -> None:
        super().__init__()
        cifar = stem == "cifar"
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.Identity() if cifar else nn.MaxPool2d(3, 2, 1)
        self.layer1 = _stage(64, 64, blocks[0], 1)
        self.layer2 = _stage(64, 128, blocks[1], 2)
        self.layer3 = _stage(128, 256, blocks[2], 2)
        self.layer4 = _stage(256, 512, blocks[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, num_classes)
        self.layers = {str(i): f"layer{i}" for i in range(1, 5)} | {"5": "avgpool", "out": "out"}
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """x: (b, 3, h, w) → what the last stage returns: (b, 512, h/8, w/8), or h/32 and w/32 with ImageNet's stem."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        out: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(torch.flatten(self.avgpool(self.features(x)), 1))
        return out


def _stage(inputs: int, outputs: int, count: int, stride: int) -> nn.Sequential:
    blocks = [BasicBlock(inputs, outputs, stride)] + [BasicBlock(outputs, outputs) for _ in range(count - 1)]
    return nn.Sequential(OrderedDict((str(i), block) for i, block in enumerate(blocks)))


def resnet(depth: str | int, *, stem: str = "cifar", num_classes: int = 10) -> ResNet:
    """ResNet-18 or ResNet-34, untrained; torchvision's weights can be loaded into it.

    Args:
        depth: 18 or 34.
        stem: "cifar" (3×3, no pooling) or "imagenet" (7×7 with stride 2, then max-pooling).
        num_classes: Number of classes.

    Returns:
        The network; ``layers`` maps the paper's l_R to names that ``at`` takes.

    Raises:
        OptionError: There is no such depth or stem, or the number of classes is not positive.

    Example:
        >>> model = frpt.zoo.resnet(18, num_classes=100)
        >>> model.layers["5"], model.fc.out_features
        ('avgpool', 100)
    """
    if str(depth) not in BLOCKS:
        raise OptionError(f"there is no ResNet-{depth} here: there are {', '.join(BLOCKS)}")
    if stem not in STEMS:
        raise OptionError(f"unknown stem {stem!r}: there are {', '.join(STEMS)}")
    if num_classes < 1:
        raise OptionError(f"num_classes must be positive, got {num_classes}")
    return ResNet(BLOCKS[str(depth)], stem, num_classes)
