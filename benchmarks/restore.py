"""How near reconstructed features are to the true ones, where the truth is known because the fault was made here.

Trained networks (networks.py) with two kinds of fault. Corrupted inputs: the true feature is the clean input's.
Damaged weights, Gaussian noise on those of one stage: the true feature is the undamaged network's. Samples are right
with the true feature and wrong with the present one, the anchor. Each cell of the tables holds

    cos   mean cosine of target − anchor with true − anchor; 0 where the target is the anchor
    left  mean ‖target − true‖/‖anchor − true‖: 1 is as far as before, 0 is the truth
    wins  % of samples for which the network, run on from the target by a hook and without frpt, predicts the label

for these answers: paper, the preset; default, the least change by which the label wins; reference, the same preset with
``reference=``, the likeliest feature in which it wins; gradient, up the gradient of the label's lead at the anchor
until it wins; mean, the label's mean feature over the reference's samples; line, towards that mean until the label wins
(7 bisections; the mean itself where it wins in none of them).

References are fitted on 512 training samples (CREPE, with its 240 pitches: 6,000 other tones), and with the network
that is asked: under damage the damaged one, since its user has no other. In rows "sound" it is the undamaged network's;
they are in no mean.

Held out: the rule that is followed with a reference was chosen on cifar10, at strengths 2 and 4 and damage 0.5, and one
number of it (``pull``) with a look at resnet, at strengths 1, 3 and 5 (fog: 5) and damage 0.4; all strengths here are
others ("strength"). How far it goes where classes explain much or little of a layer (``telling``) was chosen on the
first four networks as they stand here ("no"). mnist took no part in that ("network"). (``make bench-restore``)
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import networks
import pandas as pd
import torch
import torch.nn.functional as F
from nearest import norms, run_from, wins
from restore_figure import draw
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import FrptError
from frpt_paper.experiments.corruptions import corrupted

METHODS = ("paper", "default", "reference", "gradient", "mean", "line")
POOL = 2_000
"""First samples of the test split, from which those with errors are taken."""
CASE, VALUES = ["network", "layer", "fault"], ["cos", "left", "wins"]
HEAD = """# Distance to the truth, case by case

Written by `benchmarks/restore.py`. What is measured and how, and the figure, is in
[benchmarks](benchmarks.md#the-truth-beside-the-straight-line-to-the-labels-mean). Each cell has three numbers: the
cosine between the change asked for and the true one, the share of the distance to the true feature that is left, and
the percentage of samples whose label wins."""
"""Opens the page that --markdown writes."""


@dataclass(frozen=True)
class Setup:
    """What is done to a network, and where its features are reconstructed."""

    layers: tuple[str, ...]
    stages: tuple[str, ...]  # damaged one after the other
    damage: float  # deviation of the noise on their weights, in deviations of the weights
    strength: int  # of corruptions
    reference: int  # samples
    held: str  # what was held out


SETUPS = {
    "cifar10": Setup(("stage4", "stage3", "stage2"), ("stage1", "stage2"), 0.7, 3, 512, "no"),
    "resnet": Setup(("layer3", "layer2", "layer1"), ("stem", "layer1"), 0.7, 4, 512, "no"),
    "vit": Setup(("token", "blocks.3", "blocks.2"), ("blocks.0", "blocks.1"), 1.0, 3, 512, "no"),
    "crepe": Setup(("conv6_BN", "conv5_BN", "conv4_BN"), ("conv1", "conv3"), 1.0, 0, 6_000, "no"),
    "mnist": Setup(("stage2", "stage1"), ("stage1", "stage2"), 0.7, 4, 512, "network"),
}


@dataclass(frozen=True)
class Fault:
    """model: the one the answer is asked of. x: what it is given. sound, clean: the same without the fault."""

    name: str
    model: nn.Module
    x: Tensor
    sound: nn.Module
    clean: Tensor

    @torch.no_grad()
    def samples(self, y: Tensor, count: int) -> Tensor:
        """The first that are right without the fault and wrong with it."""
        cases = ((self.sound, self.clean), (self.model, self.x))
        right = [torch.cat([model(part) for part in x.split(500)]).argmax(1) == y for model, x in cases]
        return (right[0] & ~right[1]).nonzero()[:count, 0]


def damaged(model: nn.Module, stage: str, strength: float) -> nn.Module:
    """A copy with Gaussian noise on a stage's weights, relative to their deviation; biases and norms as they were."""
    model, g = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.get_submodule(stage).parameters():
            if weight.dim() > 1:
                weight += strength * weight.std() * torch.randn(weight.shape, generator=g)
    return model


def faults(network: networks.Network, setup: Setup, data: Path | None) -> Iterator[Fault]:
    """Four corruptions of the first test samples, and two damaged copies of the network."""
    model, clean = network.model, network.x[:POOL]
    if network.name == "crepe":
        for name, x in faulty_tones(clean).items():
            yield Fault(name, model, x, model, clean)
    else:
        images = frpt.data.load("mnist" if network.name == "mnist" else "cifar10", "test", data).select(range(POOL))
        for name in ("noise", "blur", "contrast", "fog"):
            yield Fault(name, model, corrupted(images, name, setup.strength)[0], model, clean)
    for stage in setup.stages:
        yield Fault(f"{stage} damaged", damaged(model, stage, setup.damage), clean, model, clean)


def faulty_tones(x: Tensor) -> dict[str, Tensor]:
    """Noise of 1.5 times the tone, a blur of 16 samples (1 ms), half of the frame silent, another tone half as loud."""
    noise = 1.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    kernel = torch.exp(-0.5 * (torch.arange(-48, 49) / 16) ** 2)
    blurred = F.conv1d(F.pad(x[:, None], (48, 48), mode="reflect"), kernel[None, None])[:, 0]
    half = x * (torch.arange(1024) < 512)
    made = {"noise": x + noise, "blur": blurred, "gap": half, "two tones": x + x.roll(1, 0) / 2}
    return {name: (v - v.mean(1, keepdim=True)) / v.std(1, keepdim=True) for name, v in made.items()}


def until_wins(won: Callable[[Tensor], Tensor], anchor: Tensor, way: Tensor, within: tuple[float, float]) -> Tensor:
    """anchor + t · way, clamped, with the least t of 7 bisections of [0, 1] at which ``won``; 1 if at none."""
    low, high = torch.zeros(len(anchor)), torch.ones(len(anchor))

    def point(t: Tensor) -> Tensor:
        return (anchor + t.reshape(-1, *[1] * (anchor.dim() - 1)) * way).clamp(*within)

    for _ in range(7):
        middle = (low + high) / 2
        yes = won(point(middle))
        low, high = torch.where(yes, low, middle), torch.where(yes, middle, high)
    return point(high)


def steepest(fault: Fault, x: Tensor, y: Tensor, at: str, anchor: Tensor, within: tuple[float, float]) -> Tensor:
    """Up the gradient of the label's lead over its best rival, doubled from 1 % of the anchor's norm until the label
    wins, to 40 norms at most; zero where it never does."""
    leaf = anchor.clone().requires_grad_(True)
    out = run_from(fault.model, x, at, leaf + 0)[1]
    lead = out.gather(1, y[:, None])[:, 0] - out.scatter(1, y[:, None], -torch.inf).amax(1)
    (way,) = torch.autograd.grad(lead.sum(), leaf)
    each = (-1, *[1] * (anchor.dim() - 1))
    way *= (0.01 * norms(anchor) / norms(way).clamp_min(1e-30)).reshape(each)
    for _ in range(12):
        won = wins(fault.model, x, y, at, (anchor + way).clamp(*within))
        way *= torch.where(won, 1.0, 2.0).reshape(each)
    return way * wins(fault.model, x, y, at, (anchor + way).clamp(*within)).reshape(each)


def measured(fault: Fault, network: networks.Network, known: networks.Network, count: int) -> pd.DataFrame:
    """Every answer at every layer: a row for each sample. known: with the training split."""
    rows = fault.samples(network.y[:POOL], count)
    x, y, clean = fault.x[rows], network.y[rows], fault.clean[rows]
    model, setup, seen, tables = fault.model, SETUPS[network.name], TensorDataset(known.x, known.y), []
    rev, paper = (frpt.Reverser(model, x, preset=preset) for preset in ("default", "paper"))
    references = {"": model} | ({} if model is fault.sound else {", sound": fault.sound})
    for kind, origin in references.items():
        reference = frpt.Reference.fit(origin, seen, setup.layers, samples=setup.reference, progress=False)
        for at in setup.layers:
            with torch.no_grad():
                anchor, true = run_from(model, x, at)[0], run_from(fault.sound, clean, at)[0]
            if torch.equal(anchor, true):  # the damage lies behind the layer
                continue
            mean, within = reference.layers[at].class_means(y)[1].reshape(anchor.shape), rev.interval(at)
            won = partial(wins, model, x, y, at)
            targets = {
                "paper": paper.reconstruct(x, y, at).target,
                "default": rev.reconstruct(x, y, at).target,
                "reference": rev.measured_by(reference).reconstruct(x, y, at).target,
                "gradient": until_wins(won, anchor, steepest(fault, x, y, at, anchor, within), within),
                "mean": mean,
                "line": until_wins(won, anchor, mean - anchor, within),
            }
            for method, target in targets.items():
                change, wanted = (target - anchor).flatten(1).double(), (true - anchor).flatten(1).double()
                cos, left = F.cosine_similarity(change, wanted), norms(change - wanted) / norms(wanted)
                table = pd.DataFrame({"cos": cos, "left": left, "wins": won(target).double()})
                where = {"network": network.name, "layer": at, "fault": fault.name + kind, "method": method}
                numbers = {"held out": setup.held, "samples": len(y), "sample": table.index}
                tables.append(table.assign(**where, **numbers))
    return pd.concat(tables)


def cells(found: pd.DataFrame, keys: list[str]) -> list[tuple[str, ...]]:
    """Rows of a table: the keys, then each method's "cos / left / wins", every fault counted alike."""
    rows = []
    for key, part in found.groupby(keys, sort=False):
        means = part.groupby(["method", "fault"])[VALUES].mean().groupby("method").mean().loc[list(METHODS)]
        rows.append((*map(str, key), *(f"{v.cos:.2f} / {v.left:.2f} / {100 * v.wins:.0f}" for v in means.itertuples())))
    return rows


def beside(found: pd.DataFrame, other: str) -> str:
    """In how many cases the answer with a reference is better than another: all samples, and those where both win."""
    wide = found.pivot(index=[*CASE, "sample"], columns="method", values=VALUES)
    both = (wide["wins", "reference"] > 0) & (wide["wins", other] > 0)
    texts = []
    for name, part in (("all samples", wide), ("those where both win", wide[both])):
        mean = part.groupby(level=CASE).mean()
        texts.append(f"{name}, {len(mean)} cases:")
        for value, sign in (("cos", 1), ("left", -1)):
            ours, theirs = mean[value, "reference"], mean[value, other]
            better = int((sign * ours > sign * theirs).sum())
            texts.append(f"{value} {ours.mean():.3f} against {theirs.mean():.3f}, better in {better};")
    return f"reference beside {other}: {' '.join(texts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; by default FRPT_DATA, then the hub")
    parser.add_argument("--networks", nargs="+", choices=SETUPS, default=list(SETUPS), metavar="NAME")
    parser.add_argument("--count", type=int, default=128, help="most samples of each fault")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    parser.add_argument("--figure", type=Path, help="draw what is left; a .csv of all means is written beside it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables, keys = [], [*CASE, "held out", "samples"]
    print("cos / left / wins %\n\n" + "  ".join([*keys, *METHODS]), flush=True)
    try:
        for name in options.networks:
            network, known = (networks.load(name, options.data, split) for split in ("test", "train"))
            network.model.requires_grad_(False)
            for fault in faults(network, SETUPS[name], options.data):
                found = measured(fault, network, known, options.count)
                tables.append(found)
                print("\n".join("  ".join(row) for row in cells(found, keys)), flush=True)
    except FrptError as error:
        sys.exit(str(error))
    found = pd.concat(tables)
    user = found[~found.fault.str.endswith("sound")]
    layers, words = cells(user, CASE[:2]), [beside(user, other) for other in ("line", "default", "paper")]
    print("\n".join(["", *("  ".join(row) for row in layers), "", *words]))
    if options.markdown:
        parts = [HEAD, *words]
        for names, rows in ((CASE[:2], layers), (keys, cells(found, keys))):
            head = [*names, *METHODS]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)))
        options.markdown.write_text("\n\n".join(parts) + "\n")
    if options.figure:
        means = found.groupby([*keys, "method"], sort=False)[VALUES].mean().reset_index()
        means.to_csv(options.figure.with_suffix(".csv"), index=False, float_format="%.4g")
        draw(means, options.figure)


if __name__ == "__main__":
    main()
