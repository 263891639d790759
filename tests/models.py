"""Small networks that no rule was written for, each with something awkward in it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frpt.zoo.resnet import BasicBlock


def mlp(widths: tuple[int, ...] = (6, 12, 8, 4), activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


class Basic(BasicBlock):
    """The zoo's residual block with its sum in place, too."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.layer1 = nn.Sequential(Basic(width, width), Basic(width, width))
        self.layer2 = nn.Sequential(Basic(width, 2 * width, 2), Basic(2 * width, 2 * width))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.layer2(self.layer1(self.stem(x)))).flatten(1))


class VGG(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.LeakyReLU(0.1), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(12 * 16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm1(x)
        x = x + self.attention(n, n, n, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Class token and position embedding: side inputs."""

    def __init__(self, width: int = 16, depth: int = 3, classes: int = 5) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.1)
        self.layers = nn.Sequential(*[Layer(width, 2) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.position
        return self.head(self.norm(self.layers(tokens))[:, 0])


class Planner(nn.Module):
    """Two inputs, a status branch beside the image, a regressed trajectory."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.status = nn.Linear(4, 32)
        self.plan = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 24))

    def forward(self, image: Tensor, *, status: Tensor) -> Tensor:
        fused = self.backbone(image) * torch.sigmoid(self.status(status))
        return self.plan(fused).unflatten(1, (8, 3))


class Segmenter(nn.Module):
    """Class scores per pixel: (b, c, h, w)."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU())
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(self.down(x)))


@dataclass
class Named:
    logits: Tensor
    hidden: Tensor


class Outputs(nn.Module):
    """The same numbers as a dict, a tuple or a dataclass."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.body = nn.Linear(6, 10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> object:
        hidden = F.relu(self.body(x))
        logits = self.head(hidden)
        return {
            "dict": {"logits": logits, "hidden": hidden},
            "tuple": (logits, hidden),
            "dataclass": Named(logits, hidden),
            "scores": {"scores": logits, "hidden": hidden},
        }[self.kind]


class FixedBatch(nn.Module):
    """Bakes the batch size in, as careless code does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        size = int(x.shape[0])
        h = torch.tanh(self.a(x))
        h = h + torch.tanh(self.b(h)).view(size, 8)
        return self.head(h)


class SequenceFirst(nn.Module):
    """Keeps the batch on axis 1 inside."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(self.embed(x).transpose(0, 1))
        return self.head(h.mean(0))
