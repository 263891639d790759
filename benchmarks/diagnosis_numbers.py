"""Do the numbers in frpt/diagnosis matter? Each halved and doubled, on digits with a fault planted in one layer.

    python benchmarks/diagnosis_numbers.py              # all of it
    python benchmarks/diagnosis_numbers.py verdicts     # only: which layer is named, on weak and strong faults
    python benchmarks/diagnosis_numbers.py failures     # only: what is said of sound networks, on their failures alone

The network is the MNIST SimpleCNN, trained to rest; noise of 0.7 of the weights' norm is planted in one of its three
layers, 12 times. For the ranking: how often the damaged layer is named first, the fault of the layer named, and the
seconds of a processor that a ranking takes. For trust: the sensitivity of the sound network's and of the damaged
networks' layers.
"""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.data.digits import digits
from frpt.diagnosis.trust import TRUST, TrustOptions, trust
from frpt.options import PRESETS
from frpt.repairs import ranking
from frpt.repairs.refitting import REFITTING, Refitting

LAYERS, MODULES = ["out", "stage2", "stage1"], ["classifier", "stage2", "stage1"]
PLANTS = 12
REFITS: dict[str, tuple[object, ...]] = {
    "rounds": (1, 2, 6), "looks": ((1,), (1, 2), (1, 2, 3)), "halvings": (0, 3), "stir": (0.0, 1e-3),
    "apart": (5e-4, 1e-3, 2e-3),
}  # fmt: skip


def trained(x: Tensor, y: Tensor, steps: int = 500) -> nn.Module:
    torch.manual_seed(0)
    model = frpt.zoo.simple_cnn("mnist")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def damaged(model: nn.Module, layer: str, g: torch.Generator, strength: float = 0.7) -> nn.Module:
    planted = copy.deepcopy(model)
    with torch.no_grad():
        for p in planted.get_submodule(layer).parameters():
            if p.dim() > 1:
                noise = torch.randn(p.shape, generator=g)
                p += strength * p.norm() / noise.norm() * noise
    return planted


def ranked(rev: frpt.Reverser, x: Tensor, y: Tensor, samples: int, options: Refitting = REFITTING) -> ranking.Ranking:
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x))[:samples])
    halves = order.chunk(2)
    assert not set(halves[0].tolist()) & set(halves[1].tolist()), "held out means not fitted to"
    one, other = ([(x[rows], y[rows]) for rows in half.split(256)] for half in halves)
    return ranking.refit(rev, one, other, LAYERS, options=options).ranked()


def report(
    name: str,
    revs: list[tuple[int, frpt.Reverser]],
    sound: frpt.Reverser,
    x: Tensor,
    y: Tensor,
    n: int,
    options: Refitting = REFITTING,
) -> None:
    began, hits, of_named, of_next = time.process_time(), 0, [], []
    for place, rev in revs:
        faults = ranked(rev, x, y, n, options).faults
        order = list(faults)
        hits += order[0] == LAYERS[place]
        of_named.append(faults[order[0]].share)
        of_next.append(faults[order[1]].share)
    seconds = (time.process_time() - began) / len(revs)
    least, highest = min(of_named), max(f.share for f in ranked(sound, x, y, n, options).faults.values())
    print(
        f"{name:32} named first {hits:2}/{len(revs)}  fault {np.mean(of_named):.3f} (least {least:.3f}), "
        f"next {np.mean(of_next):.3f}, sound {highest:.3f}  {seconds:.2f} s"
    )


def verdicts(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Weak and strong plants on digits that the network has not seen: what is named, and what the largest share says.

    "right", "wrong": a single layer is named. "several": some cannot be told apart; "none": no layer stands out.
    """
    g = torch.Generator().manual_seed(1)
    for strength in (0.1, 0.2, 0.35, 0.7):
        counts = dict.fromkeys(("right", "wrong", "several", "with it", "none", "largest right", "largest wrong"), 0)
        for place in (i % len(LAYERS) for i in range(PLANTS)):
            rev = frpt.Reverser(damaged(model, MODULES[place], g, strength), x[:8])
            found = ranked(rev, x, y, 768)
            first, right = found.suspects[:1], next(iter(found.faults)) == LAYERS[place]
            if len(found.suspects) == 1:
                counts["right" if first == (LAYERS[place],) else "wrong"] += 1
            else:
                counts["several" if found.suspects else "none"] += 1
                counts["with it"] += LAYERS[place] in found.suspects
            if next(iter(found.faults.values())).share >= ranking.CLEAR:
                counts["largest right" if right else "largest wrong"] += 1
        print(
            f"noise {strength}: {', '.join(f'{name} {count}' for name, count in counts.items())} of {PLANTS}",
            flush=True,
        )
    print(f"sound: suspects {ranked(frpt.Reverser(model, x[:8]), x, y, 768).suspects}")


def failures() -> None:
    """Small sound networks on noisy labels: is a layer named or listed where a few failures are all that is given?"""
    found: dict[int, list[int]] = {count: [] for count in (4, 6, 10, 16, 24, 32, 48, 96)}
    layers, least, ranking.FEWEST = ["out", "2", "0"], ranking.FEWEST, 0
    for seed in range(24):
        torch.manual_seed(seed)
        x = torch.randn(6000, 8)
        y = (x @ torch.randn(8, 4) + 0.4 * (seed % 3) * torch.randn(6000, 4)).argmax(1)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(150):
            optimizer.zero_grad()
            F.cross_entropy(model(x[:1000]), y[:1000]).backward()
            optimizer.step()
        rev = frpt.Reverser(model.eval(), x[:8])
        wrong = 1000 + (model(x[1000:]).argmax(1) != y[1000:]).nonzero()[:, 0]
        for count in (count for count in found if count <= len(wrong)):
            one, other = ([(x[rows], y[rows])] for rows in wrong[:count].chunk(2))
            found[count].append(len(ranking.refit(rev, one, other, layers).ranked().suspects))
    ranking.FEWEST = least
    for count, suspects in found.items():
        named, listed = suspects.count(1), sum(n > 1 for n in suspects)
        print(
            f"{count:3} failures, {len(suspects)} networks: a layer named {named} times, several listed {listed} times"
        )


def main() -> None:
    if sys.argv[1:] == ["failures"]:
        return failures()
    (x, y), (unseen, labels) = digits(0)
    model, g = trained(x, y), torch.Generator().manual_seed(1)
    if sys.argv[1:] == ["verdicts"]:
        return verdicts(model, unseen, labels)
    sound = frpt.Reverser(model, x[:8])
    revs = [(i % 3, frpt.Reverser(damaged(model, MODULES[i % 3], g), x[:8])) for i in range(PLANTS)]
    for samples in (192, 384, 768, 1280):
        report(f"samples {samples}", revs, sound, x, y, samples)
    for name, values in REFITS.items():
        for value in values:
            report(f"{name} {value}", revs, sound, x, y, 768, replace(REFITTING, **{name: value}))
    print("sensitivity at stage2, stage1: sound; damaged (each plant)")
    variants: list[TrustOptions] = [TRUST, replace(TRUST, samples=12), replace(TRUST, samples=48)]
    variants += [replace(TRUST, shift=TRUST.shift / 2), replace(TRUST, shift=TRUST.shift * 2)]
    for options in variants:
        shown = []
        for rev in (sound, *(rev for _, rev in revs[:6])):
            with torch.no_grad():
                wrong = (rev.model(x).argmax(1) != y).nonzero().squeeze(1)
            if len(wrong) < options.samples:
                shown.append("too few wrong")
                continue
            known = TensorDataset(x[:512], y[:512])
            fitted = rev.measured_by(frpt.Reference.fit(rev.model, known, LAYERS[1:], progress=False))
            some = wrong[: options.samples]
            steady = trust(fitted, x[some], y[some], LAYERS, options=options).sensitivity
            shown.append(", ".join(f"{steady[layer]:.2f}" for layer in LAYERS[1:]))
        print(f"samples {options.samples}, shift {options.shift}: {'; '.join(shown)}")
    walker = frpt.Reverser(revs[0][1].model, x[:8], preset=replace(PRESETS["default"], nearest=None))
    with torch.no_grad():
        some = (walker.model(x).argmax(1) != y).nonzero().squeeze(1)[: TRUST.samples]
    print("op by op, preset default: ρ of each unit")
    for options in (TRUST, replace(TRUST, probes=1), replace(TRUST, probes=4), replace(TRUST, shift=0.05)):
        units = trust(walker, x[some], y[some], LAYERS, options=options).units
        print(f"probes {options.probes}, shift {options.shift}: {', '.join(f'{u.rho:.3g}' for u in units)}")


if __name__ == "__main__":
    main()
