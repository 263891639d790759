"""Shuffled reads of batches from a target store, beside a raw memory map and one HDF5 file as the paper's code has it.

All hold the same features and are read in the same random order, in turns, within one run; the numbers are medians over
batches. The HDF5 file holds inputs, labels and float32 features as three data sets; a batch is read from it row by row
(what a Dataset does) and by one sorted selection. Run it with ``python benchmarks/store.py``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import frpt

Read = Callable[[NDArray[np.int64]], object]


class Head(nn.Module):
    """A feature map as one convolution makes it, and a small head: cheap to write targets for."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 32 - size + 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.stem(x)).flatten(1))


def write(path: Path, count: int, channels: int, size: int) -> tuple[dict[str, frpt.TargetStore], TensorDataset]:
    """Stores of all kinds for random images, of which one in twenty is labelled other than the network says."""
    torch.manual_seed(0)
    model, x = Head(channels, size).eval(), torch.randn(count, 3, 32, 32)
    with torch.no_grad():
        y = torch.cat([model(part).argmax(1) for part in x.split(256)])
    y[::20] = (y[::20] + 1) % 10
    data = TensorDataset(x, y)
    rev = frpt.Reverser(model, x[:2])
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("dense float32", {"mode": "dense"}),
        ("dense bfloat16", {"mode": "dense", "dtype": "bfloat16"}),
        ("delta float32", {"mode": "delta"}),
    ]
    return {name: frpt.write_targets(rev, data, "stem", path / name, **options) for name, options in kinds}, data


def readers(path: Path, stores: dict[str, frpt.TargetStore], data: TensorDataset) -> dict[str, Read]:
    """name → a function that reads the features of some samples into memory."""
    dense = stores["dense float32"]
    shape = (dense.count, *dense.layers["stem"].shape)
    raw = np.memmap(path / "raw", np.float32, "w+", shape=shape)
    file = h5py.File(path / "one.h5", "w")
    file.create_dataset("inputs", data=data.tensors[0].numpy())
    file.create_dataset("labels", data=data.tensors[1].numpy())
    features = file.create_dataset("features", shape, np.float32)
    for start in range(0, dense.count, 256):
        part = range(start, min(start + 256, dense.count))
        raw[part.start : part.stop] = features[part.start : part.stop] = dense.read("stem", part)[0].numpy()
    file.close()
    raw.flush()
    opened = np.memmap(path / "raw", np.float32, "r", shape=shape)
    rows = h5py.File(path / "one.h5", "r")["features"]

    def selected(index: NDArray[np.int64]) -> object:
        order = np.argsort(index)
        return torch.from_numpy(rows[index[order]][np.argsort(order)])

    found: dict[str, Read] = {"raw memory map": lambda index: torch.from_numpy(opened[index])}
    for name, store in stores.items():
        found[name] = lambda index, store=store: store.read("stem", index)  # type: ignore[misc]
    found["HDF5, row by row"] = lambda index: torch.from_numpy(np.stack([rows[i] for i in index]))
    found["HDF5, selection"] = selected
    return found


def measure(found: dict[str, Read], count: int, batch: int, batches: int) -> dict[str, float]:
    """Median seconds a batch, every reader in turn on the same batches, in random order."""
    chance = np.random.default_rng(0)
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(batches):
        index = chance.choice(count, batch, replace=False)
        for name in chance.permutation(list(found)).tolist():
            start = time.perf_counter()
            found[name](index)
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(t[len(t) // 10 :])) for name, t in times.items()}


def loaded(store: frpt.TargetStore, data: TensorDataset, batch: int) -> tuple[float, float]:
    """Seconds to go through a DataLoader once: samples alone, and with their targets."""
    joined = frpt.TargetDataset(data, store, "stem")

    def once(dataset: Any) -> float:
        start = time.perf_counter()
        for _ in DataLoader(dataset, batch, shuffle=True):
            pass
        return time.perf_counter() - start

    return min(once(data) for _ in range(3)), min(once(joined) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=300)
    options = parser.parse_args()
    for channels, size in ((64, 16), (128, 8), (128, 1)):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place)
            stores, data = write(path, options.count, channels, size)
            times = measure(readers(path, stores, data), options.count, options.batch, options.batches)
            raw = times["raw memory map"]
            sizes = {name: store.nbytes / 2**20 for name, store in stores.items()}
            print(f"\n{options.count} samples of {channels}×{size}×{size}, batches of {options.batch}, shuffled")
            print(f"{'':18}  µs a batch  times raw  MiB on disk")
            for name, seconds in times.items():
                disk = f"{sizes[name]:11.1f}" if name in sizes else ""
                print(f"{name:18} {1e6 * seconds:11.0f} {seconds / raw:10.2f}  {disk}")
            alone, joined = loaded(stores["dense float32"], data, options.batch)
            print(f"DataLoader without workers: samples alone {alone:.2f} s, with targets {joined:.2f} s")


if __name__ == "__main__":
    main()
