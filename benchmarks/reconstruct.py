"""What a reconstruction costs, in passes: one pass is a forward and backward of the same frozen part on the same batch.

Three networks, three depths each; capture time; peak memory beside that of a pass. Run it with ``make bench``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself otherwise

import torch
from torch import Tensor, nn

import frpt


class Basic(nn.Module):
    """A residual block of a ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.skip(x))


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm1(x)
        x = x + self.attention(n, n, n, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


class MeanToken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def resnet(width: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A ResNet-18 with a CIFAR stem; reconstructed after stages 3, 2 and 1."""
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    stages, inputs = [], width
    for i in range(4):
        outputs = width * 2**i
        stages.append(nn.Sequential(Basic(inputs, outputs, 1 if i == 0 else 2), Basic(outputs, outputs, 1)))
        inputs = outputs
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))
    return nn.Sequential(stem, *stages, head), (3, 2, 1)


def vgg(width: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A VGG-like CNN; reconstructed after its fourth, third and second convolution stage."""
    stages, inputs = [], 3
    for outputs in (width, 2 * width, 4 * width, 4 * width):
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        stages.append(nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)))
        inputs = outputs
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * inputs, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(*stages, head), (3, 2, 1)


def vit(width: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A pre-norm ViT of nine layers on 4×4 patches; reconstructed after layers 8, 5 and 2."""
    body = [Layer(6 * width) for _ in range(9)]
    patches = nn.Sequential(nn.Conv2d(3, 6 * width, 4, 4), Tokens())
    return nn.Sequential(patches, *body, nn.LayerNorm(6 * width), MeanToken(), nn.Linear(6 * width, 10)), (8, 5, 2)


def warm_up(model: nn.Module, x: Tensor) -> None:
    """Batch-norm statistics from real activations."""
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(x)
    model.eval()


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def peak(call: Callable[[], object]) -> float:
    """Most memory that tensors made during a call hold at one time, in MiB, from the profiler's allocation events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = top = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        top = max(top, held)
    return top / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--width", type=int, default=16, help="channels of the first stage; the ViT is six times as wide"
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(options.batch, 3, 32, 32)
    print(f"batch {options.batch}, width {options.width}, {torch.get_num_threads()} threads, all samples mislabelled\n")
    print("network  after  pass ms  counted    first    again   1 of 8  wins deviation    MiB pass MiB")
    for make in (resnet, vgg, vit):
        model, depths = make(options.width)
        warm_up(model, x)
        start = time.perf_counter()
        rev = frpt.Reverser(model, x)
        captured = time.perf_counter() - start
        with torch.no_grad():
            own = model(x).argmax(1)
        wrong = (own + 1) % 10
        few = torch.where(torch.arange(len(own)) % 8 == 0, wrong, own)
        for depth in depths:
            row(rev, model, x, wrong, few, str(depth), options.repeats, make.__name__)
        forward = seconds(lambda model=model: model(x), options.repeats)
        print(f"{'':8} capture {captured:.1f} s, {captured / forward:.0f} forward passes of the network\n")
    print("counted: passes made for a sample, a forward pass counted 0.35. first, again: passes by the clock for the")
    print("first batch and for later ones, beside the forward pass that records the batch; 1 of 8: the same when one")
    print("sample in eight is mislabelled. wins: share of samples whose label wins. MiB: peak of the tensors made.")


def row(
    rev: frpt.Reverser, model: nn.Sequential, x: Tensor, wrong: Tensor, few: Tensor, at: str, repeats: int, name: str
) -> None:
    tail = model[int(at) + 1 :]
    with torch.no_grad():
        feature = model[: int(at) + 1](x)

    def one_pass() -> None:
        leaf = feature.clone().requires_grad_(True)
        torch.autograd.grad(tail(leaf).square().sum(), leaf)

    unit, record = seconds(one_pass, max(repeats, 20)), seconds(lambda: rev.values(x, [at]), max(repeats, 5))
    start = time.perf_counter()
    rec = rev.reconstruct(x, wrong, at=at)
    first = (time.perf_counter() - start - record) / unit
    again = (seconds(lambda: rev.reconstruct(x, wrong, at=at), repeats) - record) / unit
    some = (seconds(lambda: rev.reconstruct(x, few, at=at), repeats) - record) / unit
    memory, plain = peak(lambda: rev.reconstruct(x, wrong, at=at)), peak(one_pass)
    print(
        f"{name:8} {at:>5} {1e3 * unit:8.2f} {float(rec.passes.mean()):8.1f} {first:8.1f} {again:8.1f} {some:8.1f} "
        f"{float(rec.wins.double().mean()):5.2f} {float(rec.deviation.mean()):9.3f} {memory:6.0f} {plain:8.0f}"
    )


if __name__ == "__main__":
    main()
