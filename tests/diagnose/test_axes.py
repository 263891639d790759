"""Where channels and positions are, on networks that keep them in different places."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import frpt
from frpt.diagnose.axes import axes
from tests.models import Planner, ResNet, SequenceFirst, ViT


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


SHAPES = {
    ResNet: (3, 16, 16), ViT: (3, 16, 16), ChannelsLast: (3, 8, 8), Windows: (3, 8, 8), Unfolded: (3, 4, 8),
    Text: (16, 5), SequenceFirst: (9, 4), line: (2, 12), solid: (1, 4, 5, 6), hugging_face: (3, 16, 24),
}  # fmt: skip


@cache
def made(factory: object) -> frpt.Reverser:
    torch.manual_seed(0)
    return frpt.Reverser(factory().eval(), torch.randn(3, *SHAPES[factory]))  # type: ignore[operator, index]


CASES = [
    (ResNet, "stem", "map", 8, (8, 8), 0),
    (ResNet, "layer1.0/add", "map", 8, (8, 8), 0),
    (ResNet, "pool", "vector", 16, (), 0),
    (ResNet, "fc", "vector", 5, (), 0),
    (ViT, "patch", "map", 16, (4, 4), 0),
    (ViT, "view", "map", 16, (16,), 0),
    (ViT, "transpose", "tokens", 16, (4, 4), 0),
    (ViT, "cat", "tokens", 16, (4, 4), 1),
    (ViT, "layers.1", "tokens", 16, (4, 4), 1),
    (ViT, "layers.0.mlp.1", "tokens", 32, (4, 4), 1),
    (ViT, "select", "vector", 16, (), 0),
    (ChannelsLast, "stem", "map", 6, (4, 4), 0),
    (ChannelsLast, "norm", "map", 6, (4, 4), 0),
    (ChannelsLast, "act", "map", 8, (4, 4), 0),
    (ChannelsLast, "narrow", "map", 6, (4, 4), 0),
    (ChannelsLast, "add", "map", 6, (4, 4), 0),
    (Windows, "mix", "tokens", 6, (1, 16), 0),
    (Unfolded, "embed", "tokens", 6, (2, 4), 0),
    (Unfolded, "body", "tokens", 6, (2, 4), 3),
    (Text, "body", "tokens", 6, (1, 16), 0),
    (SequenceFirst, "encoder", "tokens", 8, (1, 9), 0),
    (line, "0", "map", 5, (10,), 0),
    (line, "2", "vector", 5, (), 0),
    (solid, "1", "map", 5, (3, 4, 5), 0),
    (hugging_face, "vit.embeddings", "tokens", 16, (4, 6), 1),
    (hugging_face, "vit.layers.1", "tokens", 16, (4, 6), 1),
]


@pytest.mark.parametrize(("factory", "layer", "kind", "channels", "grid", "extra"), CASES)
def test_axes(factory: object, layer: str, kind: str, channels: int, grid: tuple[int, ...], extra: int) -> None:
    rev = made(factory)
    found = axes(rev, layer)
    assert (found.kind, found.channels, found.grid, found.extra) == (kind, channels, grid, extra)
    value, _ = rev.run_on(torch.randn(3, *SHAPES[factory]), layer)  # type: ignore[index]
    front = rev.samples(layer).front(value)
    assert found.on_grid(front).shape == (3, channels, *grid)
    assert found.off_grid(front).shape == (3, channels, extra)
    assert found.split(front).numel() == value.numel()


def test_channels_move_with_a_permutation() -> None:
    """The map before a permutation and after it is the same one."""
    rev, x = made(ChannelsLast), torch.randn(3, 3, 8, 8)
    first, _ = rev.run_on(x, "narrow")
    assert first.shape == (3, 4, 4, 6)
    assert axes(rev, "narrow").channel == 2
    assert axes(rev, "stem").channel == 0
    found = axes(rev, "narrow").split(first)
    assert torch.equal(found, first.permute(0, 3, 1, 2))


def test_tokens_are_in_reading_order() -> None:
    """A token of the grid is the patch at its place, and the class token is the one set apart."""
    rev, x = made(ViT), torch.randn(3, 3, 16, 16)
    patches, _ = rev.run_on(x, "patch")
    tokens, _ = rev.run_on(x, "cat")
    found = axes(rev, "cat")
    assert torch.equal(found.on_grid(tokens), patches)
    assert torch.equal(found.off_grid(tokens)[0, :, 0], rev.model.token[0, 0])  # type: ignore[index]


def test_samples_on_another_axis() -> None:
    rev, x = made(SequenceFirst), torch.randn(3, 9, 4)
    value, _ = rev.run_on(x, "encoder")
    assert value.shape == (9, 3, 8)
    split = axes(rev, "encoder").split(rev.samples("encoder").front(value))
    assert torch.equal(split, value.permute(1, 2, 0))


def test_shapes_decide_where_no_op_does() -> None:
    rev = frpt.Reverser(Planner().eval(), {"image": torch.randn(2, 3, 8, 8), "status": torch.randn(2, 4)})
    found = axes(rev, "out")
    assert (found.kind, found.shape, found.channel) == ("tokens", (8, 3), 1)


def test_the_user_knows_better() -> None:
    rev = made(ViT)
    found = axes(rev, "layers.1", {"layers.1": "channels_first"})
    assert (found.kind, found.channels, found.grid) == ("map", 17, (16,))
    with pytest.raises(frpt.errors.OptionError, match=r"layers\.1.*NHWC"):
        axes(rev, "layers.1", {"layers.1": "NHWC"})
    with pytest.raises(frpt.errors.UnknownLayerError):
        axes(rev, "no such layer")
