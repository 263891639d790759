"""The paper's SimpleViT (Supplement B.2): class token, nine blocks without layer norm; and its pre-norm variant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frpt.errors import OptionError
from frpt.zoo.transformer import Block, ClassToken, normed, start


@dataclass(frozen=True)
class ViTShape:
    """Size of the input, size of a patch, number of classes; width, heads, blocks and the MLP's ratio."""

    size: int
    patch: int
    classes: int
    width: int = 192
    heads: int = 12
    depth: int = 9
    ratio: float = 2.0


SHAPES = {"cifar100": ViTShape(32, 4, 100), "tiny-imagenet": ViTShape(64, 8, 200)}
NORMS = ("none", "pre")


class SimpleViT(nn.Module):
    """Patches, class token and positions, blocks, the class token, a linear classifier.

    layers: the paper's l_R. 1 to 9 are the blocks and 10 is the class token: in the paper's tables the runs without
    reconstruction are the same for 10 and 9, so that there is nothing to be trained between them.
    """

    def __init__(self, shape: ViTShape, norm: bool) -> None:
        super().__init__()
        width, tokens = shape.width, (shape.size // shape.patch) ** 2
        self.patch_embed = nn.Conv2d(3, width, shape.patch, shape.patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens + 1, width))
        hidden = round(width * shape.ratio)
        self.blocks = nn.Sequential(*[Block(width, shape.heads, hidden, norm) for _ in range(shape.depth)])
        self.norm = normed(width, norm)
        self.token = ClassToken()
        self.head = nn.Linear(width, shape.classes)
        names = {str(i): f"blocks.{i - 1}" for i in range(1, shape.depth + 1)}
        self.layers = names | {str(shape.depth + 1): "token", "out": "out"}
        start(self)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), patches], 1) + self.pos_embed
        out: Tensor = self.head(self.token(self.norm(self.blocks(tokens))))
        return out


def simple_vit(
    dataset: str = "cifar100", *, norm: str = "none", num_classes: int | None = None, depth: int = 9
) -> SimpleViT:
    """The paper's small vision transformer for a data set, untrained.

    Args:
        dataset: "cifar100" (32 × 32, patches of 4) or "tiny-imagenet" (64 × 64, patches of 8).
        norm: "none" as in the paper, or "pre" for layer norm before attention and MLP and after the last block.
        num_classes: Where it shall not be the data set's.
        depth: Number of blocks.

    Returns:
        The network; ``layers`` maps the paper's l_R to names that ``at`` takes.

    Raises:
        OptionError: There is no such data set or norm, or a number is not positive.

    Example:
        >>> model = frpt.zoo.simple_vit("cifar100", depth=2)
        >>> model.layers
        {'1': 'blocks.0', '2': 'blocks.1', '3': 'token', 'out': 'out'}
    """
    if dataset not in SHAPES:
        raise OptionError(f"unknown data set {dataset!r}: there are {', '.join(SHAPES)}")
    if norm not in NORMS:
        raise OptionError(f"unknown norm {norm!r}: there are {', '.join(NORMS)}")
    shape = SHAPES[dataset]
    classes = shape.classes if num_classes is None else num_classes
    if classes < 1 or depth < 1:
        raise OptionError(f"num_classes and depth must be positive, got {classes} and {depth}")
    return SimpleViT(ViTShape(shape.size, shape.patch, classes, depth=depth), norm == "pre")
