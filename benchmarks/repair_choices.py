"""Two choices that ``frpt.repair`` offers, measured on CIFAR-10's SimpleCNN: which weights may move, and replay.

    modules   all weights beside those of the layer that ``modules="auto"`` names: failing samples of three corruptions,
              and of three networks with noise on the weights of one stage (restore.py's, 0.7 of their deviation)
    replay    the nearest weights beside ``method="replay"``, both with the same old samples as ``keep=``, few and many

Images and columns are those of repair.py; old samples come from its held-out part. For damaged networks *kind* and
*old* are one: clean images. Seeds draw the failing samples.
(``python benchmarks/repair_choices.py --only modules``)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from repair import (
    CORRUPTIONS,
    COUNTS,
    GIVEN,
    MEASURED,
    MEMORY,
    REPLAYED,
    VALUES,
    Case,
    Subject,
    cases,
    percent,
    right,
    table,
)
from repair import subject as sound
from restore import damaged
from torch import Tensor

import frpt
from frpt.errors import FrptError

STAGES = ("stage1", "stage2", "stage3")
DAMAGE = 0.7
OLD = 500
"""Old samples with labels, where some are given."""
KEPT = (100, 500, 2000)
"""Of replay: how many."""


def held_samples(data: Path | None, count: int) -> tuple[Tensor, Tensor]:
    x, y = frpt.data.load("cifar10", "test", data).tensors
    return x[:count], y[:count]


def damaged_subject(whole: Subject, stage: str, data: Path | None) -> tuple[Subject, Case]:
    """The network with noise on a stage's weights, and the clean images that it alone gets wrong."""
    model = damaged(whole.model, stage, DAMAGE).eval()
    x, y = frpt.data.load("cifar10", "test", data).tensors
    wrong = right(whole.model, x[GIVEN], y[GIVEN]) & ~right(model, x[GIVEN], y[GIVEN])
    rev = frpt.Reverser(model, x[:8])
    old = frpt.data.load("cifar10", "train", data).tensors[0][REPLAYED : REPLAYED + MEMORY]
    memory = frpt.remember(rev, old, progress=False)
    clean, labels = x[MEASURED], y[MEASURED]
    was = right(model, clean, labels)
    case = Case(f"{stage} damaged", (x[GIVEN][wrong], y[GIVEN][wrong]), clean, clean, labels, was, was)
    return Subject(whole.name, model, rev, memory, whole.replayed), case


def repaired(net: Subject, case: Case, count: int, seed: int, **options: Any) -> tuple[frpt.Fix, dict[str, Any]]:
    """One repair of some failing samples, drawn by the seed."""
    x, y = case.failing
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    fix = frpt.repair(net.rev, x[rows], y[rows], net.memory, seed=seed, **options)
    now, kind = right(fix.model, case.old, case.labels), right(fix.model, case.kind, case.labels)
    was = case.old_right
    return fix, {
        "case": case.corruption, "count": count, "seed": seed, "fixed": percent(fix.fixed), "kind": percent(kind),
        "kind before": percent(case.kind_right), "old": percent(now), "old before": percent(was),
        "broken": int((was & ~now).sum()), "mended": int((~was & now).sum()), "kl": fix.predicted_kl,
        "seconds": fix.seconds,
    }  # fmt: skip


def modules(data: Path | None, seeds: int) -> str:
    """All weights beside those of the layer that is named, without old samples and with some."""
    net = sound("cifar10", data)
    subjects = [(net, case) for case in cases(net.model, data, CORRUPTIONS, GIVEN, MEASURED)]
    subjects += [damaged_subject(net, stage, data) for stage in STAGES]
    rows, named = [], []
    for one, case in subjects:
        for count in COUNTS:
            for seed in range(seeds):
                for old in (None, held_samples(data, OLD)):
                    for choice in (None, "auto"):
                        fix, row = repaired(one, case, count, seed, keep=old, modules=choice)
                        row |= {"moved": choice or "all", "old samples": "0" if old is None else str(OLD)}
                        row["failures"] = "damaged stage" if "damaged" in case.corruption else "corruption"
                        rows.append(row)
                        if choice:
                            moved = sorted({name.split(".")[0] for name in fix.diff.moved})
                            named.append((case.corruption, row["old samples"], count, ", ".join(moved) or "nothing"))
    frame = pd.DataFrame(rows)
    by = ["failures", "count", "old samples", "moved"]
    mean = frame.groupby(by, sort=False)[VALUES].mean()
    counts = pd.Series(named).value_counts(sort=False)
    lines = [
        f"- {case}, {old} old samples, N = {count}: {what} × {n}" for (case, old, count, what), n in counts.items()
    ]
    heads = ["failures", "N", "old samples", "may move"]
    return table(mean, heads) + "\n\nModules that moved with auto:\n\n" + "\n".join(lines)


def replay(data: Path | None, seeds: int) -> str:
    """Both methods with the same old samples."""
    net = sound("cifar10", data)
    rows = []
    for case in cases(net.model, data, CORRUPTIONS, GIVEN, MEASURED):
        for count in COUNTS:
            for seed in range(seeds):
                for kept in KEPT:
                    for method in ("nearest", "replay"):
                        keep = held_samples(data, kept)
                        _, row = repaired(net, case, count, seed, keep=keep, method=method)
                        rows.append(row | {"method": method, "kept": kept})
    mean = pd.DataFrame(rows).groupby(["count", "kept", "method"], sort=False)[VALUES].mean()
    return table(mean, ["N", "old samples", "method"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; by default FRPT_DATA, then the hub")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("modules", "replay"), help="one of the two")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        for name, part in (("modules", modules), ("replay", replay)):
            if options.only in (None, name):
                print(f"{name}:\n\n{part(options.data, options.seeds)}\n", flush=True)
    except FrptError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
