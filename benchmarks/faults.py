"""Long counts of damage: bits flipped in everything that is read again, and how many were noticed, by kind of file.

For every file of a half-done training, a target store, a memory, a reference and a patch: so many single bits are
flipped, each in the sound file, and the file is read as its owner would. A flip is *noticed* if an error of
``frpt.errors`` is raised, *raw* if another exception is, and *silent* if nothing is. Run it with
``python benchmarks/faults.py``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the damage is that of the tests

from tests.faults.damage import flips
from tests.faults.test_kept_files import FILES, load, moved
from tests.faults.test_partials import train
from tests.targets.common import data
from tests.targets.common import reverser as small_reverser
from tests.train.toys import blobs, network, reverser

import frpt
from frpt.errors import FrptError
from frpt.files.progress import Progress
from frpt.train.resume import load as load_state

Reads = dict[Path, Callable[[], object]]


def made(folder: Path) -> Reads:
    """File → how its owner reads it."""
    train(folder / "partial")
    (state,) = (folder / "partial").iterdir()
    reads: Reads = {file: lambda: load_state(state) for file in sorted(state.iterdir())}
    for mode in ("dense", "delta"):
        store = folder / mode
        frpt.write_targets(small_reverser(), data(), "0", store, mode=mode, shard_size=24, progress=False)  # type: ignore[arg-type]
        for name in ("manifest.json", "shard-000001.safetensors"):
            reads[store / name] = lambda store=store: frpt.TargetStore(store).read("0", range(72))  # type: ignore[misc]
    frpt.remember(reverser(), blobs(), progress=False).save(folder / "memory")
    frpt.Reference.fit(reverser(), blobs(), ["3"], progress=False).save(folder / "reference")
    frpt.Patch.between(network(), moved()).save(folder / "patch.safetensors")
    for name in FILES:
        kind = name.partition("/")[0]
        reads[folder / name] = lambda kind=kind: load(folder, kind)  # type: ignore[misc]
    return reads


def outcome(read: Callable[[], object]) -> str:
    try:
        read()
    except FrptError:
        return "noticed"
    except Exception as error:
        return f"raw {type(error).__name__}"
    return "silent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=500, help="of each file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        reads = made(Path(name))
        counts: dict[Path, Counter[str]] = {file: Counter() for file in reads}
        with Progress("flips", len(reads) * options.flips, unit="flips") as bar:
            for file, read in reads.items():
                for _ in flips(file, options.flips, options.seed):
                    counts[file][outcome(read)] += 1
                    bar.advance()
        for file, found in counts.items():
            print(f"{file.relative_to(name)!s:55} {', '.join(f'{k} {n}' for k, n in sorted(found.items()))}")


if __name__ == "__main__":
    main()
