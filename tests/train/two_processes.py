"""Run by torchrun in test_processes.py: trains on the processes there are and writes what came out."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import frpt
from tests.train.toys import blobs, network

torch.set_num_threads(1)
for mode in sys.argv[2:]:
    c_rec = 0.0 if mode == "none" else 0.5
    targets = None if mode in ("none", "offline") else mode
    result = frpt.post_train(
        network(), blobs(45), "3", targets=targets, c_rec=c_rec, val=blobs(21, 1), epochs=2, batch_size=22, lr=1e-2,
        accelerator="cpu", progress=False, partial=Path(sys.argv[1]) / f"{mode}-partial",
    )  # fmt: skip
    result.save(Path(sys.argv[1]) / f"{mode}-{torch.distributed.get_rank()}")
