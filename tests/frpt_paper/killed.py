"""A small reproduction in a process of its own, to be killed: python -m tests.frpt_paper.killed OUT WORKERS."""

from __future__ import annotations

import sys
from pathlib import Path

from frpt_paper import ReproduceOptions, reproduce


def options(out: Path, workers: int = 1) -> ReproduceOptions:
    return ReproduceOptions(
        out, samples=(120, 60), seeds=2, epochs=2, layers=("2",), c_rec=(0.3,), presets=("default",), pretrain=1,
        workers=workers,
    )  # fmt: skip


if __name__ == "__main__":
    reproduce("mnist", options(Path(sys.argv[1]), int(sys.argv[2])))
