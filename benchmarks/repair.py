"""Repair beside its controls: failing samples of corrupted CIFAR-10 images, on the SimpleCNN and a small ResNet.

Corruptions are others than those of the study that the method comes from (blur, fog, contrast; it had noise). The test
set is split: of the first 4,000 images the first half gives failing samples and the second measures; there each
control's strength is chosen (``chosen``), and the defaults of the nearest weights were. Of the others, 3,000
give failing samples and 3,000 measure, under these corruptions and under one that was not looked at before: JPEG at
quality 5, by Pillow. Memory (500 inputs) and replay (2,000) use training images.

    fixed   % of the failing samples that are right afterwards
    kind    % right of the measured images under the same corruption      old   the same images clean
    broken  old images that were right and are wrong                      s     seconds, the capture of the graph aside

Then what ``remember`` costs, and a ResNet-18 with random weights: its memory's bytes, a repair's time and peak memory.
(``make bench-repair``; --quick: one seed, one corruption, the SimpleCNN)
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import networks
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frpt
from frpt.errors import FrptError
from frpt_paper.experiments.corruptions import corrupt, jpeg

METHODS = ("nearest", "replay", "ewc", "finetune")
CORRUPTIONS = (("blur", 4), ("fog", 5), ("contrast", 4))
"""Strengths at which both networks lose more than half of what they get right."""
UNSEEN = (("jpeg", 5),)
"""The quality; measured at the end, and nothing chosen by it."""
STRENGTHS = {
    "nearest": (1e4, 3e3, 1e3, 3e2),
    "replay": (30.0, 10.0, 3.0),
    "ewc": (3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0),
}
"""Tried on the held-out part; of the nearest weights for the frontier only."""
ENOUGH = 95.0
"""Percent of the failing samples that a strength has to fix to be chosen."""
COUNTS = (20, 100)
MEMORY, REPLAYED = 500, 2_000
HELD, HELD_MEASURED, GIVEN, MEASURED = (slice(0, 2000), slice(2000, 4000), slice(4000, 7000), slice(7000, 10000))
VALUES = ["fixed", "kind", "kind before", "old", "old before", "broken", "mended", "kl", "seconds"]


@dataclass(frozen=True)
class Subject:
    """A network with all it takes to repair it: its capture, its memory, old inputs for replay."""

    name: str
    model: nn.Module
    rev: frpt.Reverser
    memory: frpt.Memory
    replayed: Tensor


@dataclass(frozen=True)
class Case:
    """Failing samples, and what is measured on: the same images corrupted (kind) and clean (old), right before."""

    corruption: str
    failing: tuple[Tensor, Tensor]
    kind: Tensor
    old: Tensor
    labels: Tensor
    kind_right: Tensor
    old_right: Tensor


def subject(name: str, data: Path | None) -> Subject:
    network = networks.load(name, data)
    train = frpt.data.load("cifar10", "train", data).tensors[0]
    rev = frpt.Reverser(network.model, train[:8])
    memory = frpt.remember(rev, train[REPLAYED : REPLAYED + MEMORY], progress=False)
    return Subject(name, network.model, rev, memory, train[:REPLAYED])


def cases(
    model: nn.Module, data: Path | None, corruptions: Iterable[tuple[str, int]], given: slice, measured: slice
) -> list[Case]:
    images = frpt.data.load("cifar10", "test", data)
    x, y = images.tensors
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (images.info.mean, images.info.std))
    found = []
    for kind, strength in corruptions:
        parts = []
        for part in (given, measured):
            numbers = torch.arange(part.start, part.stop)
            plain = (x[part] * std + mean).clamp(0, 1)
            changed = jpeg(plain, strength) if kind == "jpeg" else corrupt(plain, kind, strength, numbers=numbers)
            parts.append((changed - mean) / std)
        wrong = ~right(model, parts[0], y[given])
        failing = parts[0][wrong], y[given][wrong]
        clean, labels = x[measured], y[measured]
        before = right(model, parts[1], labels), right(model, clean, labels)
        found.append(Case(f"{kind} {strength}", failing, parts[1], clean, labels, *before))
    return found


@torch.no_grad()
def right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([model(part).argmax(1) for part in x.split(500)]) == y


def measured(net: Subject, case: Case, method: str, count: int, seed: int, strength: float | None) -> dict[str, object]:
    """One repair of some of the failing samples, drawn by the seed."""
    x, y = case.failing
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    old = net.replayed if method == "replay" else None
    fix = frpt.repair(net.rev, x[rows], y[rows], net.memory, method=method, strength=strength, old=old, seed=seed)
    was, now = case.old_right, right(fix.model, case.old, case.labels)
    kind = right(fix.model, case.kind, case.labels)
    return {
        "network": net.name, "corruption": case.corruption, "count": count, "method": method, "seed": seed,
        "strength": strength, "fixed": percent(fix.fixed), "kind": percent(kind),
        "kind before": percent(case.kind_right), "old": percent(now), "old before": percent(was),
        "broken": int((was & ~now).sum()), "mended": int((~was & now).sum()),
        "kl": fix.predicted_kl, "seconds": fix.seconds,
    }  # fmt: skip


def percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())


def held_out(net: Subject, data: Path | None, corruptions: Sequence[tuple[str, int]]) -> pd.DataFrame:
    """Every method at every strength on the held-out part, one draw of samples for each corruption."""
    found = cases(net.model, data, corruptions, HELD, HELD_MEASURED)
    rows = [
        measured(net, case, method, count, 0, strength)
        for count in COUNTS
        for method in METHODS
        for strength in STRENGTHS.get(method, (None,))
        for case in found
    ]
    frame = pd.DataFrame(rows)
    return frame.groupby(["network", "count", "method", "strength"], sort=False, dropna=False)[VALUES].mean()


def chosen(frontier: pd.DataFrame, network: str, count: int, method: str) -> float | None:
    """The strength with the highest kind + old among those that fix enough; without one, what fixes most."""
    if method in ("nearest", "finetune"):
        return None  # the nearest weights choose for themselves, fine-tuning has none
    part = frontier.loc[(network, count, method)]
    enough = part[part["fixed"] >= ENOUGH]
    best = (enough["kind"] + enough["old"]).idxmax() if len(enough) else part["fixed"].idxmax()
    return float(best)


def table(frame: pd.DataFrame, index: Sequence[str]) -> str:
    """As markdown."""
    heads = [*index, "fixed %", "kind %", "old %", "broken", "mended", "s"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for key, row in frame.iterrows():
        names = [f"{k:g}" if isinstance(k, float) else str(k) for k in (key if isinstance(key, tuple) else (key,))]
        cells = [
            f"{row['fixed']:.1f}", f"{row['kind']:.1f} ({row['kind'] - row['kind before']:+.1f})",
            f"{row['old']:.1f} ({row['old'] - row['old before']:+.1f})", f"{row['broken']:.0f}",
            f"{row['mended']:.0f}", f"{row['seconds']:.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join([*names, *cells]) + " |")
    return "\n".join(lines)


def bars(mean: pd.DataFrame) -> str:
    """What the issue asks of the nearest weights, network by network."""
    lines = []
    for (network, count), part in mean.groupby(level=["network", "count"], sort=False):
        row = {method: part.loc[(network, count, method)] for method in METHODS}
        near = row["nearest"]
        lost, limit = near["old before"] - near["old"], 1.0 if count == COUNTS[0] else 2.5
        checks = [
            (f"fixed {near['fixed']:.1f} % (≥ 95)", near["fixed"] >= 95),
            (f"old lost {lost:.2f} points (≤ {limit:g})", lost <= limit),
            *(
                (f"broken {near['broken'] / row[m]['broken']:.2f} of {m}'s (≤ {share:.2f})",
                 near["broken"] <= share * row[m]["broken"])
                for m, share in (("finetune", 1 / 5), ("ewc", 1 / 3))
            ),
            (f"time {near['seconds'] / row['replay']['seconds']:.2f} of replay's (≤ 0.50)",
             near["seconds"] <= 0.5 * row["replay"]["seconds"]),
        ]  # fmt: skip
        lines.append(
            f"- {network}, N = {count}: " + "; ".join(f"{text} {'yes' if ok else 'NO'}" for text, ok in checks)
        )
    return "\n".join(lines)


def remembering(name: str, data: Path | None) -> str:
    """``remember`` on 500 inputs, in epochs of training on 2,000 samples: batch 64, Adam, medians in turn."""
    network = networks.load(name, data)
    x, y = (t[:2000] for t in frpt.data.load("cifar10", "train", data).tensors)
    rev = frpt.Reverser(network.model, x[:8])
    frpt.remember(rev, x[:50], progress=False)
    copy = networks.load(name, data).model.train()
    optimizer = torch.optim.Adam(copy.parameters(), lr=1e-4)
    epochs, memories = [], []
    for _ in range(3):
        start = time.perf_counter()
        for rows in torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(copy(x[rows]), y[rows]).backward()
            optimizer.step()
        epochs.append(time.perf_counter() - start)
        start = time.perf_counter()
        memory = frpt.remember(rev, x, samples=MEMORY, progress=False)
        memories.append(time.perf_counter() - start)
    ratio = sorted(memories)[1] / sorted(epochs)[1]
    weights = sum(p.nbytes for p in network.model.parameters())
    return f"- remember, {name}: {ratio:.2f} epochs (≤ 3), {memory.nbytes / weights:.2f} of the weights' bytes"


def large(count: int = 100) -> str:
    """A ResNet-18 for 32 × 32 images with random weights, 100 samples with labels that it does not predict."""
    torch.manual_seed(0)
    model = frpt.zoo.resnet(18).eval()
    x = torch.randn(count, 3, 32, 32)
    rev = frpt.Reverser(model, x[:4])
    start = time.perf_counter()
    memory = frpt.remember(rev, torch.randn(64, 3, 32, 32), progress=False)
    took = time.perf_counter() - start
    with torch.no_grad():
        y = (model(x).argmax(1) + torch.randint(1, 10, (count,))) % 10
    fix = frpt.repair(rev, x, y, memory, budget=1e6)
    weights = sum(p.nbytes for p in model.parameters())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return (
        f"- ResNet-18: memory {memory.nbytes / weights:.2f} of the weights' bytes (≤ 2), of 64 inputs in {took:.0f} s; "
        f"N = {count}: {int(fix.fixed.sum())} fixed in {fix.seconds:.0f} s and {fix.rounds} rounds (≤ 120), "
        f"peak memory of the process {peak:.1f} GiB (≤ 24), {torch.get_num_threads()} threads"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; by default FRPT_DATA, then the hub")
    parser.add_argument("--networks", nargs="+", default=["cifar10", "resnet"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--corruptions", nargs="+", choices=[kind for kind, _ in CORRUPTIONS], help="all by default")
    parser.add_argument("--quick", action="store_true", help="one seed, one corruption, the SimpleCNN")
    parser.add_argument("--only", choices=("methods", "costs", "large"), help="one part of it")
    parser.add_argument("--csv", type=Path, help="file for every single run")
    parser.add_argument("--markdown", type=Path, help="file for the tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = options.corruptions or [kind for kind, _ in (CORRUPTIONS[:1] if options.quick else CORRUPTIONS)]
    corruptions = [one for one in CORRUPTIONS if one[0] in wanted]
    names, seeds = (["cifar10"], 1) if options.quick else (options.networks, options.seeds)
    parts: list[str] = []

    def say(text: str) -> None:
        parts.append(text)
        print(text + "\n", flush=True)

    try:
        if options.only in (None, "methods"):
            rows = []
            for name in names:
                net = subject(name, options.data)
                frontier = held_out(net, options.data, corruptions)
                say(f"Held-out part, {name}:\n\n" + table(frontier, ["network", "N", "method", "λ"]))
                unseen = () if options.quick else UNSEEN
                for case in cases(net.model, options.data, [*corruptions, *unseen], GIVEN, MEASURED):
                    for count in COUNTS:
                        for method in METHODS:
                            strength = chosen(frontier, name, count, method)
                            rows += [measured(net, case, method, count, seed, strength) for seed in range(seeds)]
                    if options.csv:
                        pd.DataFrame(rows).to_csv(options.csv, index=False)
            frame = pd.DataFrame(rows)
            each = frame.groupby(["network", "corruption", "count", "method"], sort=False)[VALUES].mean()
            say("By corruption:\n\n" + table(each, ["network", "corruption", "N", "method"]))
            mean = frame.groupby(["network", "count", "method"], sort=False)[VALUES].mean()
            say(f"Means of {seeds} seeds and all corruptions:\n\n" + table(mean, ["network", "N", "method"]))
            say(bars(mean))
        if options.only in (None, "costs"):
            say("\n".join(remembering(name, options.data) for name in names))
        if options.only == "large" or (options.only is None and not options.quick):
            torch.set_num_threads(2)
            say(large())
    except FrptError as error:
        sys.exit(str(error))
    if options.markdown:
        options.markdown.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
