"""Random networks by the thousand: is any answer not finite, any error not ours, any call hanging?

    python benchmarks/fuzz.py --count 10000 --log fuzz.txt     # goes on where an earlier run with this file stopped

Each network is drawn from its seed (``tests/faults/fuzz.py``): dense, convolutional, recurrent or attention layers,
branches, elementwise functions, odd weights, three precisions and presets, labels of several kinds; four networks to an
architecture. One reconstruction at a random layer each. "refused" is an error of ``frpt.errors``; "raw" any other;
"hanging" over five minutes of processor time (the paper's Gauss–Newton factors a Jacobian for every sample and step:
seed 2855 takes 80 s).
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the networks are those of the tests

from tests.faults.fuzz import outcome

FINE = ("right", "refused", "not made")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--log", type=Path, default=Path("fuzz.txt"), help="one line for each network: seed, outcome")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # a quarter of the time of a capture
    done = dict(line.split("\t")[:2] for line in options.log.read_text().splitlines()) if options.log.exists() else {}
    with options.log.open("a") as log:
        for seed in range(options.first, options.first + options.count):
            if str(seed) in done:
                continue
            found, details = outcome(seed, seconds=300)
            done[str(seed)] = found
            print(seed, found, sep="\t", file=log, flush=True)
            if seed % 100 == 99:
                gc.collect()
            if not found.startswith(FINE):
                print(f"seed {seed}: {found}\n{details}\n", flush=True)
    counts = Counter(done.values())
    print(f"{len(done)} networks: " + ", ".join(f"{found} {count}" for found, count in counts.most_common()))
    wrong = sum(count for found, count in counts.items() if not found.startswith(FINE))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
