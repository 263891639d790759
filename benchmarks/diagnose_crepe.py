"""What a diagnosis of a network that others trained costs: CREPE `tiny` on noisy tones, the output and six layers.

Processor time, which other processes on the machine do not change much, in passes: one forward and backward pass of the
network over the same samples. Beside it the ranking of layers alone, and what it says.

``--beside CHECKOUT [CHECKOUT ...]``: instead, one diagnosis by this version and by other ones (``git worktree add
CHECKOUT COMMIT``), each in a process of its own on the same tones, the first import of ``torch.export`` included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import networks
import torch
from torch.utils.data import TensorDataset

import frpt
from frpt.repairs import ranking

HERE = Path(__file__).parents[1]
ONE = """
import sys, time
import torch
from pitch import crepe
torch.set_num_threads(1)
network, (x, y) = crepe().eval(), torch.load(sys.argv[1])
start = time.process_time()
import frpt
frpt.diagnose(network, torch.utils.data.TensorDataset(x, y), sys.argv[2:], progress=False)
print(time.process_time() - start)
"""
"""A diagnosis by the frpt that PYTHONPATH has first."""


def took(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


def beside(checkouts: Sequence[Path], network: networks.Network, x: torch.Tensor, y: torch.Tensor) -> None:
    """Prints the processor time of a diagnosis by every version, and how many times as long as this one's."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save((x, y), tones := Path(folder) / "tones.pt")
        seconds = {}
        for checkout in (HERE, *(path.resolve() for path in checkouts)):
            path = os.pathsep.join((str(checkout / "src"), str(HERE / "benchmarks")))
            command = [sys.executable, "-c", ONE, str(tones), *network.layers]
            ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True)
            seconds[checkout] = float(ran.stdout.split()[-1])
            ratio = seconds[checkout] / seconds[HERE]
            print(f"{checkout.name}: {seconds[checkout]:.1f} s of a processor, {ratio:.1f} times", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--beside", type=Path, nargs="+", default=[], metavar="CHECKOUT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = networks.load("crepe")
    x, y, count = network.noisy[: options.samples], network.y[: options.samples], options.samples
    layers = ["out", *network.layers]
    if options.beside:
        return beside(options.beside, network, x, y)
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

    seconds, ranked = took(lambda: ranking.refit(rev, one, other, layers).ranked())
    shares = ", ".join(f"{layer} {100 * fault.share:.0f}" for layer, fault in ranked.faults.items())
    print(f"ranking alone: {seconds / unit:.0f} passes; loss taken back, %: {shares}")


if __name__ == "__main__":
    main()
