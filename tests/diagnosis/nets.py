"""Networks that keep channels and positions in different places, each captured once for all tests."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import frpt
from tests.models import ResNet, SequenceFirst, ViT


class ChannelsLast(nn.Module):
    """A ConvNeXt-like stage: channels last inside the block, first outside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, 2)
        self.norm = nn.LayerNorm(6)
        self.wide = nn.Linear(6, 8)
        self.act = nn.GELU()
        self.narrow = nn.Linear(8, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.act(self.wide(self.norm(x.permute(0, 2, 3, 1))))
        x = x + self.narrow(h).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


class Windows(nn.Module):
    """Four windows of four tokens, folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 6, 2, 2)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        x = x.reshape(-1, 2, 2, 2, 2, 6).transpose(2, 3).reshape(-1, 4, 6)
        return self.head(self.mix(x).reshape(-1, 16, 6).mean(1))


class Unfolded(nn.Module):
    """Patches by reshaping, a class token and two registers in front; the image is not square."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 6)
        self.extra = nn.Parameter(torch.randn(1, 3, 6))
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        tokens = torch.cat([self.extra.expand(len(x), -1, -1), self.embed(x)], 1)
        return self.head(torch.tanh(self.body(tokens)).mean(1))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)).mean(1))


def line() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(5, 3))


def solid() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 5, 2), nn.BatchNorm3d(5), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(5, 3)
    )


def hugging_face() -> nn.Module:
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=(16, 24),
        patch_size=4, num_labels=5,
    )  # fmt: skip
    return ViTForImageClassification(config)


def simple_cnn() -> nn.Module:
    return frpt.zoo.simple_cnn("cifar10")


SHAPES = {
    ResNet: (3, 16, 16), ViT: (3, 16, 16), ChannelsLast: (3, 8, 8), Windows: (3, 8, 8), Unfolded: (3, 4, 8),
    Text: (16, 5), SequenceFirst: (9, 4), line: (2, 12), solid: (1, 4, 5, 6), hugging_face: (3, 16, 24),
    simple_cnn: (3, 32, 32),
}  # fmt: skip


@cache
def made(factory: object) -> tuple[nn.Module, Tensor, frpt.Reverser]:
    """The model, four inputs, and a Reverser on it."""
    torch.manual_seed(0)
    model = factory().eval()  # type: ignore[operator]
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, std=0.1)  # type: ignore[arg-type]
    x = torch.randn(4, *SHAPES[factory])  # type: ignore[index]
    return model, x, frpt.Reverser(model, x)
