"""Real architectures, randomly initialised, from transformers: three depths each, closed by running the network on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import frpt

transformers = pytest.importorskip("transformers", reason="the architectures come from transformers, a test dependency")


def resnet() -> tuple[nn.Module, Tensor, list[str]]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32], depths=[1, 2, 1], layer_type="basic", num_labels=10
    )
    model = transformers.ResNetForImageClassification(config)
    return model, images(32), ["resnet.encoder.stages.1", "resnet.encoder.stages.0", "resnet.embedder"]


def convnext() -> tuple[nn.Module, Tensor, list[str]]:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], num_labels=10, image_size=64
    )
    model = transformers.ConvNextForImageClassification(config)
    stages = "convnext.encoder.stages"
    return model, images(64), [f"{stages}.2", f"{stages}.1", f"{stages}.0"]


def mobilenet() -> tuple[nn.Module, Tensor, list[str]]:
    config = transformers.MobileNetV2Config(image_size=64, depth_multiplier=0.35, num_labels=10)
    model = transformers.MobileNetV2ForImageClassification(config)
    warm_up(model, images(64, 16))
    return model, images(64), [f"mobilenet_v2.layer.{i}" for i in (13, 8, 3)]


def vit() -> tuple[nn.Module, Tensor, list[str]]:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
        num_labels=10,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return model, images(32), layers_of(model, "ViTLayer", (3, 1, 0))


def bert() -> tuple[nn.Module, Tensor, list[str]]:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64, num_labels=6
    )
    model = transformers.BertForSequenceClassification(config)
    tokens = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(0))
    return model, tokens, layers_of(model, "BertLayer", (3, 1, 0))


def images(size: int, n: int = 4) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def warm_up(model: nn.Module, x: Tensor) -> None:
    """Give batch norms the statistics of real activations; with the initial ones a deep network's signal dies out."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()
    with torch.no_grad():
        model(x)


def layers_of(model: nn.Module, kind: str, which: tuple[int, ...]) -> list[str]:
    names = [name for name, module in model.named_modules() if type(module).__name__ == kind]
    return [names[i] for i in which]


@pytest.mark.parametrize("make", [resnet, convnext, mobilenet, vit, bert])
def test_three_depths(make: Callable[[], tuple[nn.Module, Tensor, list[str]]]) -> None:
    torch.manual_seed(0)
    model, x, layers = make()
    model.eval()
    rev = frpt.Reverser(model, x)
    with torch.no_grad():
        output = model(x).logits
    kept = rev.reconstruct(x, output.argmax(1), at=layers)
    y = (output.argmax(1) + 1) % output.shape[1]
    found = rev.reconstruct(x, y, at=layers)
    for name in layers:
        assert torch.equal(kept[name].target, kept[name].anchor), name
        after = rev.run(x, name, found[name].target)
        closed = 1 - gap(after, y) / gap(output, y)
        assert closed.min() >= 0.75, (name, closed)


def gap(output: Tensor, y: Tensor) -> Tensor:
    own = output.gather(1, y[:, None]).squeeze(1)
    return output.scatter(1, y[:, None], -torch.inf).amax(1) - own
