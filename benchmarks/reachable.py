"""Labels that can win and labels that do: random ReLU networks of widths 8-8-8-4 beside a mixed-integer program.

In so narrow a network all units that could raise a label are often dead around the anchor, and a search by gradients
from there finds nothing. For every sample, every label that is not predicted and every layer: does a feature within ten
norms of the anchor exist in which the label wins (tests/solvers/reachable.py proves it by a mixed-integer program), and
does ``reconstruct`` find one, with the far starts of ``Ascent`` and without? "farther": our distance over that of the
program's answer, the nearest in L1, where both have one; median. passes: mean over all samples, and over those that
the far starts were needed for. (``make bench-reachable``)
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import frpt
from frpt.common.text import table
from frpt.options import PRESETS

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.solvers.reachable import proved, random_network

HEAD = ("layer", "labels", "proved", "found", "without far starts", "farther", "passes", "of the rescued", "seconds")


def at_layer(layer: int, options: argparse.Namespace) -> tuple[str, ...]:
    """A row of the table."""
    found, plain, exists, farther, passes, rescued, seconds = 0, 0, 0, [], [], [], 0.0
    labels = 0
    for seed in range(options.first, options.first + options.networks):
        model = random_network(seed)
        rest, low = model[layer + 1 :], 0.0 if isinstance(model[layer], torch.nn.ReLU) else -torch.inf
        x = torch.randn(options.samples, 8, generator=torch.Generator().manual_seed(seed))
        rev = frpt.Reverser(model, x)
        local = replace(PRESETS["default"], name="local", nearest=frpt.NearestWinning(ascent=None))
        near = frpt.Reverser(model, x, preset=local)
        with torch.no_grad():
            predicted = model(x).argmax(1)
        for shift in (1, 2, 3):
            y = (predicted + shift) % 4
            began = time.perf_counter()
            rec = rev.reconstruct(x, y, at=str(layer))
            seconds += time.perf_counter() - began
            first = near.reconstruct(x, y, at=str(layer)).wins
            assert rec.passes is not None
            passes.append(rec.passes)
            rescued.append(rec.passes[rec.wins & ~first])
            for i in range(len(x)):
                answer = proved(rest, rec.anchor[i], int(y[i]), low)
                labels += 1
                if answer is None:
                    continue
                exists += 1
                plain += bool(first[i])
                if bool(rec.wins[i]):
                    found += 1
                    farther.append(norm(rec.target[i] - rec.anchor[i]) / norm(answer - rec.anchor[i]))
    spent, far = torch.cat(passes), torch.cat(rescued)
    return (
        str(layer), f"{labels:,}", f"{exists:,}", f"{found:,} ({100 * found / exists:.2f} %)",
        f"{plain:,} ({100 * plain / exists:.1f} %)", f"{torch.tensor(farther).median():.2f}",
        f"{float(spent.mean()):.0f}", f"{float(far.mean()):.0f}" if len(far) else "", f"{seconds:.0f}",
    )  # fmt: skip


def norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=30)
    parser.add_argument("--first", type=int, default=200, help="seed of the first; Ascent's numbers saw 100 to 159")
    parser.add_argument("--samples", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(table(HEAD, [at_layer(layer, options) for layer in range(4)]))


if __name__ == "__main__":
    main()
