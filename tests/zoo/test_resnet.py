"""ResNets: torchvision's names and shapes, sizes, and a reverse path to every l_R."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from frpt import Reverser
from frpt.errors import OptionError
from frpt.zoo import resnet

NORM = ("weight", "bias", "running_mean", "running_var")
STAGES = {"18": (2, 2, 2, 2), "34": (3, 4, 6, 3)}


def torchvision_entries(depth: str, classes: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes in torchvision's state dict of a ResNet of basic blocks."""

    def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.{part}": (width,) for part in NORM} | {f"{name}.num_batches_tracked": ()}

    found: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)} | norm("bn1", 64)
    inputs = 64
    for stage, (count, width) in enumerate(zip(STAGES[depth], (64, 128, 256, 512), strict=True), 1):
        for i in range(count):
            at = f"layer{stage}.{i}"
            found |= {f"{at}.conv1.weight": (width, inputs, 3, 3)} | norm(f"{at}.bn1", width)
            found |= {f"{at}.conv2.weight": (width, width, 3, 3)} | norm(f"{at}.bn2", width)
            if inputs != width:
                found |= {f"{at}.downsample.0.weight": (width, inputs, 1, 1)} | norm(f"{at}.downsample.1", width)
            inputs = width
    return found | {"fc.weight": (classes, 512), "fc.bias": (classes,)}


@pytest.mark.parametrize(("depth", "count", "entries"), [("18", 11_689_512, 122), ("34", 21_797_672, 218)])
def test_state_dict_is_torchvisions(depth: str, count: int, entries: int) -> None:
    """Counts of parameters and entries as torchvision documents them for 1,000 classes."""
    with torch.device("meta"):
        model = resnet(depth, stem="imagenet", num_classes=1000)
    expected = torchvision_entries(depth, 1000)
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == expected
    assert list(model.state_dict()) == list(expected)
    assert len(expected) == entries
    assert sum(p.numel() for p in model.parameters()) == count


def test_cifar_stem_keeps_the_size_and_the_names() -> None:
    with torch.device("meta"):
        model = resnet(18, stem="cifar", num_classes=10)
        shapes = {}
        for name, module in model.named_children():
            module.register_forward_hook(lambda m, a, out, name=name: shapes.update({name: tuple(out.shape[1:])}))
        model(torch.empty(1, 3, 32, 32))
    assert isinstance(model.maxpool, nn.Identity)
    assert [shapes[f"layer{i}"] for i in range(1, 5)] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    assert shapes["fc"] == (10,)
    assert set(model.state_dict()) == set(torchvision_entries("18", 10))
    # torchvision's count for 10 classes, with 27·64 weights in the stem instead of 147·64
    assert sum(p.numel() for p in model.parameters()) == 11_689_512 - 990 * 513 - 120 * 64


def test_imagenet_stem_on_tiny_imagenet() -> None:
    with torch.device("meta"):
        model = resnet("34", stem="imagenet", num_classes=200)
        assert model.features(torch.empty(1, 3, 64, 64)).shape == (1, 512, 2, 2)
        assert model(torch.empty(1, 3, 224, 224)).shape == (1, 200)


def test_every_l_r_has_a_reverse_path() -> None:
    model = resnet("18").eval()
    assert list(model.layers) == ["1", "2", "3", "4", "5", "out"]
    rev = Reverser(model, torch.randn(2, 3, 16, 16))
    lengths = [len(rev.plan(at).units) for at in model.layers.values()]
    assert lengths == sorted(set(lengths), reverse=True)
    assert rev.shape(model.layers["4"]) == "(b, 512, 2, 2)"
    trained = [set(rev.upstream(model.layers[k])) for k in ("5", "4", "3")]
    assert trained[0] == trained[1]  # nothing is trained between the two, as the paper's tables show
    assert trained[1] > trained[2]


def test_bad_arguments_name_the_choices() -> None:
    with pytest.raises(OptionError, match="18, 34"):
        resnet("50")
    with pytest.raises(OptionError, match="cifar, imagenet"):
        resnet("18", stem="mnist")
    with pytest.raises(OptionError, match="num_classes"):
        resnet("18", num_classes=0)
