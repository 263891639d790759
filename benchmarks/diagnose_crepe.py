"""What a diagnosis of a network that others trained costs: CREPE `tiny` on noisy tones, the output and six layers.

Processor time, which other processes on the machine do not change much, in passes: one forward and backward pass of the
network over the same samples. Beside it the ranking of layers alone, as it is and as it was before (``BEFORE``: more
conjugate gradients and looks, and a forward pass for each backward pass). Last, what a ranking says both times.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import networks
import torch
from torch.utils.data import TensorDataset

import frpt
from frpt.repairs import ranking
from frpt.repairs.refitting import REFITTING, Refitting

BEFORE = replace(REFITTING, looks=(1, 2, 4, 6), memory=0)


def took(work: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=600)
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = networks.load("crepe")
    x, y, count = network.noisy[: options.samples], network.y[: options.samples], options.samples
    layers = ["out", *network.layers]
    rev = frpt.Reverser(network.model, x[:8])

    def one_pass() -> None:
        for part in x.split(128):
            network.model(part).square().sum().backward()

    one_pass()
    unit = took(one_pass)[0]
    whole, _ = took(lambda: frpt.diagnose(network.model, TensorDataset(x, y), network.layers, progress=False))
    print(f"{count} samples, {len(layers)} layers; a pass over them takes {unit:.1f} s of a processor")
    print(f"diagnosis: {whole / unit:.0f} passes")
    halves = ([(x[rows], y[rows]) for rows in half.split(128)] for half in torch.arange(count).chunk(2))
    one, other = halves

    def ranked(how: Refitting) -> ranking.Ranking:
        return ranking.refit(rev, one, other, layers, options=how).ranked()

    for name, how in (("as it is", REFITTING), ("as it was", BEFORE)):
        seconds, made = took(lambda how=how: ranked(how))
        shares = ", ".join(f"{layer} {100 * fault.share:.0f}" for layer, fault in made.faults.items())
        print(f"ranking {name}: {seconds / unit:.0f} passes; loss taken back, %: {shares}", flush=True)


if __name__ == "__main__":
    main()
