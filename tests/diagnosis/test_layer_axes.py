"""Where channels and positions are, on networks that keep them in different places."""

from __future__ import annotations

import pytest
import torch

import frpt
from frpt.diagnosis.layer_axes import axes
from tests.diagnosis.nets import ChannelsLast, Text, Unfolded, Windows, hugging_face, line, made, solid
from tests.models import Planner, ResNet, SequenceFirst, ViT

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
    _, x, rev = made(factory)
    found = axes(rev, layer)
    assert (found.kind, found.channels, found.grid, found.extra) == (kind, channels, grid, extra)
    value, _ = rev.run_on(x, layer)
    front = rev.batch_axis(layer).front(value)
    assert found.on_grid(front).shape == (4, channels, *grid)
    assert found.off_grid(front).shape == (4, channels, extra)
    assert found.split(front).numel() == value.numel()


def test_channels_move_with_a_permutation() -> None:
    """The map before a permutation and after it is the same one."""
    _, x, rev = made(ChannelsLast)
    first, _ = rev.run_on(x, "narrow")
    assert first.shape == (4, 4, 4, 6)
    assert axes(rev, "narrow").channel == 2
    assert axes(rev, "stem").channel == 0
    found = axes(rev, "narrow").split(first)
    assert torch.equal(found, first.permute(0, 3, 1, 2))


def test_tokens_are_in_reading_order() -> None:
    """A token of the grid is the patch at its place, and the class token is the one set apart."""
    _, x, rev = made(ViT)
    patches, _ = rev.run_on(x, "patch")
    tokens, _ = rev.run_on(x, "cat")
    found = axes(rev, "cat")
    assert torch.equal(found.on_grid(tokens), patches)
    assert torch.equal(found.off_grid(tokens)[0, :, 0], rev.model.token[0, 0])  # type: ignore[index]


def test_samples_on_another_axis() -> None:
    _, x, rev = made(SequenceFirst)
    value, _ = rev.run_on(x, "encoder")
    assert value.shape == (9, 4, 8)
    split = axes(rev, "encoder").split(rev.batch_axis("encoder").front(value))
    assert torch.equal(split, value.permute(1, 2, 0))


def test_shapes_decide_where_no_op_does() -> None:
    rev = frpt.Reverser(Planner().eval(), {"image": torch.randn(2, 3, 8, 8), "status": torch.randn(2, 4)})
    found = axes(rev, "out")
    assert (found.kind, found.shape, found.channel) == ("tokens", (8, 3), 1)


def test_the_user_knows_better() -> None:
    _, _, rev = made(ViT)
    found = axes(rev, "layers.1", {"layers.1": "channels_first"})
    assert (found.kind, found.channels, found.grid) == ("map", 17, (16,))
    with pytest.raises(frpt.errors.OptionError, match=r"layers\.1.*NHWC"):
        axes(rev, "layers.1", {"layers.1": "NHWC"})
    with pytest.raises(frpt.errors.UnknownLayerError):
        axes(rev, "no such layer")
