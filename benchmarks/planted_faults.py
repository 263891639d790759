"""Which layer does a diagnosis name, when the fault is known? Seeded faults in networks that others trained, or we did.

    pip install --no-deps facenet-pytorch
    python benchmarks/planted_faults.py --data DIR                        # MTCNN's RNet
    python benchmarks/planted_faults.py --data DIR --network cifar10      # another one of benchmarks/networks.py

RNet sees faces, crops of one portrait tilted by up to 40 degrees, and what is none: crops of its background and images
of CIFAR-10. In one layer a fault is planted: noise on its weights, filters set to zero, all of it scaled, or its bias
shifted; as weak as it may be for the accuracy to fall by at least ``--falls`` (where no strength does, there is no such
network). Every seed draws other samples and other faults. Each line counts what the ranking of layers says: the damaged
layer alone ("right"), another one alone ("wrong"), several layers with the damaged one among them ("with it") or not
("without it"), or none ("none"). The last lines count the same for other values of ``ALIKE`` (``repairs/ranking.py``),
and the undamaged network's verdicts on the same samples, where none should be named.
"""

from __future__ import annotations

import argparse
import ast
import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import networks
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frpt
from frpt.common.text import table
from frpt.repairs import ranking
from frpt.repairs.refitting import REFITTING, Refitting

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "third_party"))

SAID = ("right", "with it", "none", "without it", "wrong")
OTHERS = (1.0, 0.8)
STRENGTHS = [0.05 * 1.3**i for i in range(24)]
"""Tried one after the other, 0.05 to 21, until the accuracy has fallen far enough."""


@dataclass(frozen=True)
class Subject:
    """A trained network. layers: names that ``at`` takes, output first. modules: whose weights each of them has.

    samples: seed, count → inputs and labels.
    """

    model: nn.Module
    layers: list[str]
    modules: list[str]
    samples: Callable[[int, int], tuple[Tensor, Tensor]]


def rnet(data: Path) -> Subject:
    from mtcnn import crops
    from mtcnn import rnet as load

    images = frpt.data.load("cifar10", "test", data)
    mean, std = (torch.tensor(v)[:, None, None] for v in (images.info.mean, images.info.std))

    def samples(seed: int, count: int) -> tuple[Tensor, Tensor]:
        faces, rest = count // 2, count - count // 2
        g = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(images.tensors[0]), generator=g)[: rest - rest // 4]
        pixels = 255 * (images.tensors[0][rows] * std + mean)
        others = (F.interpolate(pixels, size=24, mode="area") - 127.5) * 0.0078125
        x = torch.cat([crops(faces, 40, seed), crops(rest // 4, 90, seed, face=False), others])
        return x, torch.cat([torch.ones(faces), torch.zeros(rest)]).long()

    names = ["conv1", "conv2", "conv3", "dense4", "dense5_1"]
    return Subject(load(), ["out", "prelu4", "prelu3", "prelu2", "prelu1"], names[::-1], samples)


def ours(name: str, data: Path) -> Subject:
    """A network of benchmarks/networks.py, on images that it was not trained on."""
    network = networks.load(name, data)
    own = ranking.own_weights(frpt.Reverser(network.model, network.x[:8]), ["out", *network.layers])
    modules = [network.model.get_submodule(layer) for layer in network.layers]
    weighted = [n for n, m in zip(network.layers, modules, strict=True) if any(True for _ in m.parameters())]
    last = own["out"][0].rpartition(".")[0] if own["out"] else own[network.layers[0]][0].rpartition(".")[0]

    def samples(seed: int, count: int) -> tuple[Tensor, Tensor]:
        rows = torch.randperm(len(network.x), generator=torch.Generator().manual_seed(seed))[:count]
        return network.x[rows], network.y[rows]

    return Subject(network.model, ["out", *weighted], [last, *weighted], samples)


def noise(weight: Tensor, bias: Tensor | None, strength: float, g: torch.Generator) -> None:
    drawn = torch.randn(weight.shape, generator=g)
    weight += strength * weight.norm() / drawn.norm() * drawn


def zeroed(weight: Tensor, bias: Tensor | None, strength: float, g: torch.Generator) -> None:
    gone = torch.rand(len(weight), generator=g) < strength
    weight[gone] = 0
    if bias is not None:
        bias[gone] = 0


def scaled(weight: Tensor, bias: Tensor | None, strength: float, g: torch.Generator) -> None:
    factor = 1 + strength if torch.rand((), generator=g) < 0.5 else 1 / (1 + strength)
    weight *= factor
    if bias is not None:
        bias *= factor


def shifted(weight: Tensor, bias: Tensor | None, strength: float, g: torch.Generator) -> None:
    if bias is None:
        raise LookupError("there is no bias to shift")
    bias += strength * weight.flatten(1).norm(dim=1).mean() * torch.randn(bias.shape, generator=g)


FAULTS = {"noise": noise, "zeroed": zeroed, "scaled": scaled, "shifted": shifted}


def damaged(model: nn.Module, module: str, kind: str, strength: float, seed: int) -> nn.Module:
    """A copy with the fault in one of the module's weights, whose bias is its own or that of the norm behind it."""
    broken, g = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    inside = [m for m in broken.get_submodule(module).modules() if isinstance(getattr(m, "weight", None), Tensor)]
    places = [i for i, m in enumerate(inside) if m.weight.dim() > 1]
    place = places[int(torch.randint(len(places), (1,), generator=g))]
    bias = inside[place].bias
    if bias is None and place + 1 < len(inside):
        bias = inside[place + 1].bias
    with torch.no_grad():
        FAULTS[kind](inside[place].weight, bias, strength, g)
    return broken


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


def planted(
    subject: Subject, x: Tensor, y: Tensor, module: str, kind: str, falls: float, seed: int
) -> nn.Module | None:
    """With the weakest such fault that shows, None where no strength does."""
    sound = accuracy(subject.model, x, y)
    for strength in STRENGTHS:
        broken = damaged(subject.model, module, kind, strength, seed)
        if accuracy(broken, x, y) <= sound - falls:
            return broken
    return None


def refitting(option: str) -> Refitting:
    """The default but for some options, written as ``name=value`` or ``name=value+name=value``; "": the default."""
    pairs = (part.partition("=") for part in option.split("+") if part)
    return replace(REFITTING, **{name: ast.literal_eval(value) for name, _, value in pairs})


def refits(rev: frpt.Reverser, layers: list[str], x: Tensor, y: Tensor, seed: int, how: Refitting) -> ranking.Refits:
    halves = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).chunk(2)
    one, other = ([(x[rows], y[rows]) for rows in half.split(256)] for half in halves)
    return ranking.refit(rev, one, other, layers, options=how)


def word(found: ranking.Ranking, layer: str) -> str:
    """What a ranking says of a fault in a layer ("": there is none)."""
    if not found.suspects:
        return "none"
    if len(found.suspects) == 1:
        return "right" if found.suspects == (layer,) else "wrong"
    return "with it" if layer in found.suspects else "without it"


@dataclass(frozen=True)
class Case:
    """A diagnosed network. layer: the damaged one, "" for none. missed: samples it gets wrong."""

    seed: int
    kind: str
    layer: str
    missed: int
    refits: ranking.Refits


def cases(subject: Subject, seeds: range, count: int, falls: float, how: Refitting) -> Iterator[Case]:
    work = copy.deepcopy(subject.model)
    rev = frpt.Reverser(work, subject.samples(0, 8)[0])  # captured once: it shares the weights of ``work``
    where = list(zip(subject.layers, subject.modules, strict=True))
    places = [("", "", "sound"), *((layer, module, kind) for layer, module in where for kind in FAULTS)]
    for seed in seeds:
        x, y = subject.samples(seed, count)
        for i, (layer, module, kind) in enumerate(places):
            broken = planted(subject, x, y, module, kind, falls, 1000 * seed + i) if layer else subject.model
            if broken is not None:
                work.load_state_dict(broken.state_dict())
                missed = round((1 - accuracy(work, x, y)) * len(x))
                yield Case(seed, kind, layer, missed, refits(rev, subject.layers, x, y, seed, how))


def report(subject: Subject, found: list[Case]) -> None:
    damaged = [case for case in found if case.layer]
    missed = sum(case.missed for case in damaged) / len(damaged)
    long = [len(s) for case in damaged if len(s := case.refits.ranked().suspects) > 1]
    chance = sum(long) / len(subject.layers)
    print(
        f"{missed:.0f} samples wrong on average; lists of several name {sum(long) / max(len(long), 1):.1f} layers: by "
        f"chance {chance:.0f} of these {len(long)} would have the damaged one"
    )

    def row(name: str, some: list[Case], alike: float = ranking.ALIKE) -> tuple[str, ...]:
        count = Counter(word(case.refits.ranked(alike=alike), case.layer) for case in some)
        return name, str(len(some)), *(str(count[said]) for said in SAID)

    rows = [row(kind, some) for kind in FAULTS if (some := [case for case in damaged if case.kind == kind])]
    rows += [row(f"in {layer}", [case for case in damaged if case.layer == layer]) for layer in subject.layers]
    rows += [row("all", damaged), *(row(f"all, ALIKE {a:g}", damaged, a) for a in OTHERS)]
    print(table(("fault", "networks", *SAID), rows))
    sound = Counter(len(case.refits.ranked().suspects) for case in found if not case.layer)
    print("undamaged:", ", ".join(f"{n} layers named {count} times" for n, count in sorted(sound.items())), "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--network", default="rnet", choices=["rnet", "mnist", "cifar10", "resnet"])
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 3], help="the first, and the one after the last")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--falls", type=float, nargs="+", default=[0.03, 0.2], help="of the accuracy, at least")
    parser.add_argument(
        "--options",
        nargs="+",
        default=[""],
        metavar="NAME=VALUE",
        help="of ``Refitting``, joined by + or one after the other",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    subject = rnet(options.data) if options.network == "rnet" else ours(options.network, options.data)
    seeds = range(*options.seeds)
    for falls, option in product(options.falls, options.options):
        print(
            f"{options.network}, {options.samples} samples of {len(subject.layers)} layers, seeds {seeds[0]} to "
            f"{seeds[-1]}; the accuracy falls by {falls:.0%} or more {option}"
        )
        report(subject, list(cases(subject, seeds, options.samples, falls, refitting(option))))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
