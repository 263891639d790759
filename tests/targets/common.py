"""A small classifier, a data set it gets partly wrong, and a process that can be killed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import frpt
from tests.models import mlp

COUNT = 72
QUICK = frpt.Preset("quick", ranges=False, nearest=None)


def model() -> nn.Module:
    torch.manual_seed(0)
    return mlp((6, 16, 12, 4)).eval()


def labelled(net: nn.Module, x: Tensor, every: int = 4) -> list[tuple[Tensor, int]]:
    """Pairs (x, y) of which every so many are labelled other than the network says."""
    with torch.no_grad():
        y = net(x).argmax(1)
    y[::every] = (y[::every] + 1) % 4
    return list(zip(x, y.tolist(), strict=True))


def data() -> list[tuple[Tensor, int]]:
    torch.manual_seed(1)
    return labelled(model(), torch.randn(COUNT, 6))


def reverser(net: nn.Module | None = None, **options: Any) -> frpt.Reverser:
    return frpt.Reverser(net or model(), torch.zeros(2, 6), **{"preset": QUICK, **options})


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def forked(work: Callable[[], object]) -> BaseProcess:
    """The work in a process of its own, which shares what this one has captured; exit code 1 if it raises."""

    def run() -> None:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process
