"""What a diagnosis costs: 10,000 CIFAR-shaped images at all layers of the SimpleCNN, in epochs of its training (bar 1).

With ``--cifar DIR`` on CIFAR-10 itself, where an epoch is 50,000 images. Without, on data as in ``train.py``: a smooth
pattern for each class under noise, a fifth of the labels another class's. Before that, the peak memory of data sets
four and sixteen times as large, each in its own process, and of the quarters of each pass (bar: it does not grow); and
after it, planted faults: the weights of one layer moved by noise. Linux only.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import frpt
from train import cifar, pretrained, right, samples, simple_cnn, training

LAYERS = ("stage4", "stage3", "stage2", "stage1")
SIZES = (8_000, 32_000, 128_000)
"""Data sets to measure the peak memory with."""
_TURNS = 5


class Made(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images made when they are asked for, so that the data set itself takes no memory.

    peaks: MiB that the process took at most before each of the first three quarters of a pass was over.
    """

    def __init__(self, count: int, wrong: float) -> None:
        self.count, self.wrong = count, wrong
        self.peaks: dict[int, float] = {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        if i >= self.count:
            raise IndexError(i)
        if i in (self.count // 4, self.count // 2, 3 * self.count // 4) and i not in self.peaks:
            self.peaks[i] = high_water()
        x, y = samples(1, 5.0, 1000 + i, self.wrong)
        return x[0], y[0]


def high_water() -> float:
    """MiB that this process took at most since it was asked last."""
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(found.split()[1]) / 1024


def diagnosing(model: nn.Module, data: Dataset[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, frpt.Diagnosis]:
    start = time.perf_counter()
    found = frpt.diagnose(model.eval(), data, LAYERS, progress=False)
    return time.perf_counter() - start, found


def alternating(model: nn.Module, whole: TensorDataset, data: TensorDataset) -> tuple[float, float, frpt.Diagnosis]:
    """Medians of the seconds that an epoch over 50,000 images and a diagnosis take, measured in turn."""
    still = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    epochs, tooks = [], []
    for _ in range(_TURNS):
        epochs.append(50_000 / len(whole) * training(model, whole, 64, still))
        took, found = diagnosing(model, data)
        tooks.append(took)
    return statistics.median(epochs), statistics.median(tooks), found


def peaks(model: nn.Module, count: int) -> list[float]:
    """MiB that a process takes at most in each quarter of diagnosing so many images made on the fly."""
    with tempfile.TemporaryDirectory() as folder:
        save_file(model.state_dict(), file := Path(folder) / "weights.safetensors")
        command = [sys.executable, __file__, "--made", str(count), "--weights", str(file)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return [float(word) for word in printed.split()]


def planted(model: nn.Module, data: TensorDataset, plants: int, strength: float) -> int:
    """Random faults whose layer, or the one after it, is ranked first."""
    g, hits = torch.Generator().manual_seed(0), 0
    order, modules = [*reversed(LAYERS), "out"], [*reversed(LAYERS), "classifier"]
    for _ in range(plants):
        broken, place = copy.deepcopy(model), int(torch.randint(len(order), (1,), generator=g))
        with torch.no_grad():
            for p in broken.get_submodule(modules[place]).parameters():
                if p.dim() > 1:
                    noise = torch.randn(p.shape, generator=g)
                    p += strength * p.norm() / noise.norm() * noise
        d = frpt.diagnose(broken, data, LAYERS, gallery=0, progress=False)
        hits += order.index(d.ranking[0]) in (place, place + 1)
        faults = ", ".join(f"{f.name} {100 * f.fault:.0f}" for f in d.layers)
        print(f"  planted in {order[place]:7s} accuracy {d.score:.2f}  taken back, %: {faults}", flush=True)
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, help="folder with CIFAR-10's parquet files")
    parser.add_argument("--weights", type=Path, help="with --cifar: a trained network, diagnosed on the test images")
    parser.add_argument("--made", type=int, help="diagnose so many images made on the fly; prints peak memory")
    parser.add_argument("--epochs", type=int, default=5, help="of the network's training on CIFAR-10")
    parser.add_argument("--plants", type=int, default=10)
    parser.add_argument("--strength", type=float, default=0.7, help="norm of a planted fault, relative to the weights'")
    options = parser.parse_args()
    torch.manual_seed(0)
    model, _ = simple_cnn()
    if options.made:
        model.load_state_dict(load_file(options.weights))
        diagnosing(model, made := Made(options.made, 0.2))
        print(*made.peaks.values(), high_water())
        return
    usual = copy.deepcopy(model)
    pretrained(usual, 5.0, 0.2)
    print("peak memory, images made on the fly")
    for count in SIZES:
        quarters = peaks(usual, count)
        shown = ", ".join(f"{size:.0f}" for size in quarters)
        print(f"  {count} images: {max(quarters):.0f} MiB; in the quarters of the pass {shown} MiB", flush=True)
    if options.cifar is None:
        model = usual
        data = whole = TensorDataset(*samples(10_000, 5.0, 4, 0.2))
    elif options.weights is not None:
        model.load_state_dict(load_file(options.weights))
        whole, data = cifar(options.cifar), cifar(options.cifar, "test")
    else:
        whole = cifar(options.cifar)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(options.epochs):
            training(model, whole, 64, optimizer)
        data = TensorDataset(*(t[:10_000] for t in whole.tensors))
    epoch, took, found = alternating(model, whole, data)
    wrong = 1 - right(model, *data.tensors)
    print(f"{len(data)} images, {100 * wrong:.1f} % wrong, {torch.get_num_threads()} threads")
    print(f"diagnosis of {len(found.layers)} layers: {took:.1f} s, {took / epoch:.2f} epochs of training (bar 1)")
    print(f"\n{options.plants} planted faults, {options.strength:g} of the weights' norm")
    fewer = TensorDataset(*(t[:1000] for t in data.tensors))
    hits = planted(model, fewer, options.plants, options.strength)
    print(f"named first, or the layer after: {hits} of {options.plants} (bar 9)")


if __name__ == "__main__":
    main()
