"""Batch norm of the trained part in train or in eval mode: post-training of a small ResNet on CIFAR-10, both ways.

From the checkpoint that this repository has, with some of CIFAR-10's training images and the same test images for every
run: plain training (c_rec 0) and FR-PT, with ``batch_norm="train"`` and ``"eval"``. Columns: the test accuracy after
each epoch's end, mean over seeds, and by how much the features of the layer move in train mode, on one batch.
Run it with ``python benchmarks/batch_norm.py --data DIR``.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from networks import SmallResNet
from safetensors.torch import load_file
from torch.utils.data import Subset

import frpt
from frpt.common.text import table
from frpt.errors import BatchNormWarning
from frpt.graph.inputs import Inputs
from frpt.train.frozen import moved_by_statistics

CHECKPOINT = Path(__file__).parents[1] / "results/checkpoints/cifar10_small_resnet_0.8128_100f93ba.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--tested", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at", default="layer2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BatchNormWarning)
    model = SmallResNet().eval()
    model.load_state_dict(load_file(CHECKPOINT))
    train, test = (frpt.data.load("cifar10", split, options.data) for split in ("train", "test"))
    some, val = Subset(train, range(options.samples)), Subset(test, range(options.tested))
    batch = torch.stack([some[i][0] for i in range(64)])
    print(
        f"features of {options.at} move by {moved_by_statistics(model, options.at, Inputs.of(batch)):.1%}", flush=True
    )
    rows = []
    for c_rec in (0.0, 0.3):
        for mode in ("train", "eval"):
            runs = [
                frpt.post_train(
                    model, some, at=options.at, c_rec=c_rec, epochs=options.epochs, val=val, seed=seed, progress=False,
                    batch_norm=mode,
                )
                for seed in range(options.seeds)
            ]  # fmt: skip
            start = runs[0].start or 0.0
            gains = [[100 * ((e.metric or 0.0) - start) for e in run.history] for run in runs]
            means = [f"{v:+.2f}" for v in torch.tensor(gains).mean(0).tolist()]
            rows.append((f"{c_rec:g}", mode, f"{100 * start:.2f}", *means))
            print(rows[-1], flush=True)
    head = ("c_rec", "batch norm", "before", *(f"epoch {i + 1}" for i in range(options.epochs)))
    print(table(head, rows))


if __name__ == "__main__":
    main()
