"""The two NAVSIM trajectory planners (Supplement B.2): camera image and ego status in, eight poses out.

Called by ``frpt.navsim``, the tutorials and the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frpt.errors import CheckpointError, OptionError
from frpt.zoo.resnet import BLOCKS, ResNet
from frpt.zoo.transformer import Block, ClassToken, start

STATISTICS = {
    "resnet34": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "vit_b16": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation of the channels that each backbone's public weights were trained with."""
WIDTH, HIDDEN, POSES = 512, 256, (8, 3)


@dataclass(frozen=True)
class PlannerOptions:
    """What the paper's text leaves to its configuration; the defaults are those of its code.

    pool: H_p, W_p, the grid the ResNet's last feature is pooled to. status: d_m, d_c, the widths of the status encoder.
    modulation: α_mod; below 1 no factor of the fusion vanishes. mean, std: of the image's channels, in [0, 1]; None for
    those of the backbone's public weights. grid: the ViT's tokens. dropout: of the ViT's blocks.
    """

    pool: tuple[int, int] = (1, 4)
    status: tuple[int, int] = (64, 128)
    modulation: float = 0.1
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    grid: tuple[int, int] = (8, 32)
    dropout: float = 0.1

    def __post_init__(self) -> None:
        sizes = {"pool": self.pool, "status": self.status, "grid": self.grid}
        for name, pair in sizes.items():
            if len(pair) != 2 or min(pair) < 1:
                raise OptionError(f"{name} must be two positive numbers, got {pair}")
        for name, channels in (("mean", self.mean), ("std", self.std)):
            if channels is not None and len(channels) != 3:
                raise OptionError(f"{name} must be 3 numbers, one a channel, got {channels}")
        if self.std is not None and min(self.std) <= 0:
            raise OptionError(f"std must be positive, got {self.std}")
        if not 0 <= self.dropout < 1:
            raise OptionError(f"dropout must be in [0, 1), got {self.dropout}")


class ViT(nn.Module):
    """ViT-B/16, its patch embedding pooled to a grid of tokens. Names are timm's; ``head`` is kept but not used.

    The norms' eps is 1e-5, as in the paper's code and torch's own encoder layers; timm has 1e-6. patch: side of a
    patch in pixels.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        width: int = 768,
        heads: int = 12,
        depth: int = 12,
        dropout: float = 0.1,
        patch: int = 16,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, grid[0] * grid[1] + 1, width))
        self.blocks = nn.Sequential(
            *[Block(width, heads, 4 * width, norm=True, eps=1e-5, dropout=dropout) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.token = ClassToken()
        self.head = nn.Linear(width, 1000)
        start(self)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """x: (b, 3, h, w) → the class token, (b, width)."""
        patches = F.adaptive_avg_pool2d(self.patch_embed["proj"](x), self.grid).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), patches], 1) + self.pos_embed
        out: Tensor = self.token(self.norm(self.blocks(tokens)))
        return out


class Fusion(nn.Module):
    """z = (1 + α tanh γ) ⊙ e + β, with γ and β linear in the status context. image: (b, 512); status: (b, d_c)."""

    def __init__(self, context: int, modulation: float) -> None:
        super().__init__()
        self.modulation = modulation
        self.gamma, self.beta = nn.Linear(context, WIDTH), nn.Linear(context, WIDTH)
        for head in (self.gamma, self.beta):
            nn.init.normal_(head.weight, std=1e-3)
            nn.init.zeros_(head.bias)

    def forward(self, image: Tensor, status: Tensor) -> Tensor:
        shift: Tensor = self.beta(status)
        return (1 + self.modulation * torch.tanh(self.gamma(status))) * image + shift


class Planner(nn.Module):
    """Image (b, 3, 256, 1024) in [0, 1] and ego status (b, 8) → trajectory (b, 8, 3): x, y, heading every 0.5 s.

    The status is velocity (2), acceleration (2), driving command (4). layers: the paper's l_R, by the names of its
    tables.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, backbone: nn.Module, project: nn.Module, options: PlannerOptions, layers: Mapping[str, str]
    ) -> None:
        super().__init__()
        mean, std = STATISTICS["resnet34" if isinstance(backbone, ResNet) else "vit_b16"]
        for name, channels in (("mean", options.mean or mean), ("std", options.std or std)):
            self.register_buffer(name, torch.tensor(channels).reshape(1, 3, 1, 1), persistent=False)
        self.backbone, self.project = backbone, project
        middle, context = options.status
        self.status = nn.Sequential(_layer(8, middle, nn.GELU()), _layer(middle, context, nn.GELU()))
        self.fusion = Fusion(context, options.modulation)
        self.planning1 = _layer(WIDTH, HIDDEN, nn.LeakyReLU(0.5))
        self.planning2 = _layer(HIDDEN, HIDDEN, nn.LeakyReLU(0.5))
        self.trajectory = nn.Linear(HIDDEN, POSES[0] * POSES[1])
        planned = {"fusion z": "fusion", "planning z_1": "planning1", "planning z_2": "planning2", "out": "out"}
        self.layers = dict(layers) | planned

    def forward(self, image: Tensor, status: Tensor) -> Tensor:
        seen = (image - self.mean) / self.std
        feature = self.backbone.features(seen) if isinstance(self.backbone, ResNet) else self.backbone(seen)
        fused = self.fusion(self.project(feature), self.status(status))
        out: Tensor = self.trajectory(self.planning2(self.planning1(fused)))
        return out.reshape(-1, *POSES)

    def classifier(self) -> nn.Module:
        """The backbone's classification head, which is kept for its checkpoints and not used."""
        return self.backbone.fc if isinstance(self.backbone, ResNet) else self.backbone.get_submodule("head")

    def load_backbone(self, weights: Mapping[str, Tensor]) -> None:
        """Load public weights into the image backbone: torchvision's ResNet-34, or timm's ViT-B/16.

        The ViT's positions are interpolated to its grid of tokens; the class token's own is kept.

        Args:
            weights: the state dict, its classification head included.

        Raises:
            CheckpointError: if names or shapes are not those of the backbone.
        """
        entries = dict(weights)
        if isinstance(self.backbone, ViT) and "pos_embed" in entries:
            entries["pos_embed"] = resized(entries["pos_embed"], self.backbone.grid)
        try:
            self.backbone.load_state_dict(entries)
        except RuntimeError as error:
            public = "torchvision's ResNet-34" if isinstance(self.backbone, ResNet) else "timm's ViT-B/16"
            raise CheckpointError(f"these are not the weights of {public}: {error}") from error


def _layer(inputs: int, outputs: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), activation)


def resized(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """Positions of a square grid, interpolated bicubically. (1, 1 + s², d) → (1, 1 + h·w, d)."""
    token, patches = positions[:, :1], positions[:, 1:]
    side = round(patches.shape[1] ** 0.5)
    if side * side != patches.shape[1]:
        raise OptionError(f"pos_embed has {patches.shape[1]} patches, which is not a square grid")
    square = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    spread = F.interpolate(square, size=grid, mode="bicubic", align_corners=False)
    return torch.cat([token, spread.flatten(2).transpose(1, 2)], 1)


def planner(backbone: str = "resnet34", options: PlannerOptions | None = None) -> Planner:
    """One of the paper's two planners for NAVSIM, untrained.

    Args:
        backbone: "resnet34" or "vit_b16".
        options: What the paper's text leaves to its configuration.

    Returns:
        A module that takes (image (b, 3, h, w) in [0, 1], status (b, 8)) and returns poses (b, 8, 3).

    Raises:
        OptionError: There is no such backbone.

    Example:
        >>> planner = frpt.zoo.planner("resnet34")
        >>> planner.layers["planning z_1"]
        'planning1'
    """
    chosen = options or PlannerOptions()
    if backbone == "resnet34":
        rows, columns = chosen.pool
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(chosen.pool), nn.Flatten())
        project = nn.Sequential(pooled, _layer(512 * rows * columns, WIDTH, nn.GELU()))
        stages = {"ResNet z_3": "backbone.layer3", "ResNet z_4": "backbone.layer4"}
        return Planner(ResNet(BLOCKS["34"], "imagenet", 1000), project, chosen, stages)
    if backbone == "vit_b16":
        layers = {
            "ViT encoder layer 10 output": "backbone.blocks.10",  # counted from zero: the last but one
            "ViT final CLS token": "backbone.token",
            "image embedding": "project",
        }
        return Planner(ViT(chosen.grid, dropout=chosen.dropout), nn.Linear(768, WIDTH), chosen, layers)
    raise OptionError(f"unknown backbone {backbone!r}: there are resnet34, vit_b16")
