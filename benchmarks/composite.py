"""Composite solvers on blocks of trained networks.

One pass is a forward and backward of the same block (or frozen part) on the same samples; a forward pass alone counts
half. Networks are trained on a fifth of the embedded digits; blocks end before their last ReLU, as the plan cuts them.
The target of a block is its output for a feature moved by 10 %, so it can be attained. ``make bench-composite``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from reconstruct import Basic, Layer, MeanToken, Tokens, seconds
from torch import Tensor, nn

from frpt.data import digits
from frpt.options import PRESETS
from frpt.solvers.base import Solution, per_system, row_norm
from frpt.solvers.blocks.problem import Problem

BATCH = 8


class Residual(Basic):
    """A residual block of a ResNet-18, or with ``excite`` of a squeeze-and-excitation network."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, excite: bool = False) -> None:
        super().__init__(inputs, outputs, stride)
        self.gate: nn.Module | None = None
        if excite:
            squeeze = outputs // 4
            self.gate = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(outputs, squeeze, 1), nn.ReLU(), nn.Conv2d(squeeze, outputs, 1),
                nn.Sigmoid(),
            )  # fmt: skip

    def block(self, x: Tensor) -> Tensor:
        h = self.branch(x)
        return (h if self.gate is None else h * self.gate(h)) + self.skip(x)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.block(x))


class Inception(nn.Module):
    """Four branches side by side, in GoogLeNet's proportions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half, quarter, eighth = width // 2, width // 4, width // 8

        def unit(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
            )

        self.one = unit(width, quarter, 1)
        self.three = nn.Sequential(unit(width, half, 1), nn.ReLU(), unit(half, half, 3))
        self.five = nn.Sequential(unit(width, eighth, 1), nn.ReLU(), unit(eighth, eighth, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(width, eighth, 1))

    def block(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.block(x))


class Plain(Layer):
    """A transformer layer without norm, as in the paper's SimpleViT."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm1, self.norm2 = nn.Identity(), nn.Identity()  # type: ignore[assignment]


class Patches(nn.Module):
    """4×4 patches with a position embedding: 49 tokens of a digit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Conv2d(1, width, 4, 4), Tokens())
        self.position = nn.Parameter(0.02 * torch.randn(1, 49, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x) + self.position


def stem(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


def head(width: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def resnet() -> nn.Sequential:
    """A ResNet-18 of width 32 with a CIFAR stem: modules 1 and 2 are its first stage, 7 and 8 the last."""
    widths = [32, 32, 32, 64, 64, 128, 128, 256, 256]
    body = [Residual(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    return nn.Sequential(stem(32), *body, head(256))


def excited() -> nn.Sequential:
    return nn.Sequential(stem(32), nn.MaxPool2d(2), *[Residual(32, 32, excite=True) for _ in range(3)], head(32))


def inception() -> nn.Sequential:
    return nn.Sequential(stem(32), nn.MaxPool2d(2), *[Inception(32) for _ in range(3)], head(32))


def vit() -> nn.Sequential:
    """A pre-norm ViT of nine layers."""
    return nn.Sequential(
        Patches(96), *[Layer(96) for _ in range(9)], nn.Sequential(nn.LayerNorm(96), MeanToken(), nn.Linear(96, 10))
    )


def simple_vit() -> nn.Sequential:
    return nn.Sequential(Patches(96), *[Plain(96) for _ in range(9)], nn.Sequential(MeanToken(), nn.Linear(96, 10)))


BLOCKS: list[tuple[str, Callable[[], nn.Sequential], int]] = [
    ("residual, first stage", resnet, 2),
    ("residual, down-sampling", resnet, 3),
    ("residual, second stage", resnet, 4),
    ("residual, last stage", resnet, 8),
    ("squeeze-excite", excited, 3),
    ("inception", inception, 3),
    ("transformer, pre-norm", vit, 3),
    ("transformer, no norm", simple_vit, 3),
]


@dataclass
class Trained:
    model: nn.Sequential
    x: Tensor
    y: Tensor
    accuracy: float


def trained(make: Callable[[], nn.Sequential], epochs: int) -> Trained:
    """AdamW with a one-cycle rate on 1,000 digits; the other 4,000 are the test set."""
    torch.manual_seed(0)
    (x, y), (test, labels) = digits(0, test_share=0.8)
    model = make()
    batches = len(x) // 32
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=max(1, epochs * batches))
    order = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=order).split(32)[:batches]:
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(part).argmax(1) for part in test.split(500)]) == labels
    return Trained(model, test, labels, float(right.float().mean()))


class Nets(dict[Callable[[], nn.Sequential], Trained]):
    """Networks by their factory, trained when they are first asked for; transformers twice as long."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def __missing__(self, make: Callable[[], nn.Sequential]) -> Trained:
        self[make] = trained(make, self.epochs * (2 if make in (vit, simple_vit) else 1))
        return self[make]


def solve(problem: Problem, solver: str) -> Solution:
    """By a solver of the default preset."""
    return replace(PRESETS["default"].composite, method=solver).solve(problem)


@dataclass
class Case:
    """One block with anchors, attainable targets, and what is learnt of it once from other samples."""

    problem: Problem
    passes: float
    prepared: float

    def solved(self, solver: str, limit: int) -> tuple[float, float, float, float]:
        """(CCP, deviation, passes counted, passes timed), means over the samples."""
        p = replace(self.problem, limits=replace(self.problem.limits, iterations=limit))
        start = time.perf_counter()
        answer = solve(p, solver)
        timed = (time.perf_counter() - start) / self.passes
        with torch.no_grad():
            left = row_norm(p.target - p.fn(answer.value, torch.arange(len(p.anchor))))
        ccp = float((left / row_norm(p.target)).mean())
        moved = float((row_norm(answer.value - p.anchor) / row_norm(p.anchor)).mean())
        counted = float(answer.iterations.double().mean()) * (1.5 if solver == "adam" else 1.0)
        return ccp, moved, counted, timed


def case(net: Trained, position: int, batch: int = BATCH, few: int | None = None) -> Case:
    """The block of one module; with ``few``, only so many samples have a target that is not met already."""
    module = net.model[position]
    fn = getattr(module, "block", module)
    with torch.no_grad():
        typical, anchor = net.model[:position](net.x[-8:]), net.model[:position](net.x[:batch])
        noise = torch.randn(anchor.shape, generator=torch.Generator().manual_seed(1))
        size = per_system(0.1 * row_norm(anchor) / row_norm(noise), noise).float()
        output, target = fn(anchor), fn(anchor + size * noise)
        if few is not None:
            target[few:] = output[few:]
        known_output = fn(typical)

    def block(a: Tensor, _: Tensor) -> Tensor:
        result: Tensor = fn(a)
        return result

    def one_pass() -> None:
        leaf = anchor[:BATCH].clone().requires_grad_(True)
        torch.autograd.grad(fn(leaf).square().sum(), leaf)

    unit = seconds(one_pass, 9)
    start = time.perf_counter()
    stationary = PRESETS["default"].composite.mean_jacobian.learn(block, typical, known_output)
    prepared = (time.perf_counter() - start) / unit
    default = PRESETS["default"]
    problem = Problem(block, anchor, target, output, default.gate, default.composite.limits, stationary=stationary)
    return Case(problem, unit, prepared)


def blocks(nets: Nets) -> None:
    print(
        f"Blocks, {BATCH} samples. adam: 20 steps. secant: at most 20 passes counted; and as many as 20 passes of time"
    )
    print("allow, its own arithmetic included. reach: time until adam's CCP, as a share of adam's time. once: time to")
    print("learn a block, once per unit, in passes. K: share of the response its average derivative explains.\n")
    print("block                    accuracy   adam CCP deviation", end="   ")
    print("secant CCP deviation passes  ratio | 20 by the clock  ratio | reach   once     K")
    for name, make, position in BLOCKS:
        net = nets[make]
        found = case(net, position)
        known = found.problem.stationary
        found.solved("adam", 1)
        found.solved("secant", 1)
        adam, adam_moved, _, adam_time = found.solved("adam", 20)
        tries = [found.solved("secant", n) for n in range(1, 21)]
        ccp, moved, counted, _ = tries[-1]
        clock = min([t[0] for t in tries if t[3] <= 20], default=float("nan"))
        reach = next((t[3] / adam_time for t in tries if t[0] <= adam), float("nan"))
        print(
            f"{name:24} {100 * net.accuracy:6.1f} % {adam:10.1e} {adam_moved:9.3f} {ccp:12.1e} {moved:9.3f} "
            f"{counted:6.1f} {times(adam / ccp)} | {clock:15.1e} {times(adam / clock)} | "
            f"{reach:5.2f} {found.prepared:6.1f} {known.explained if known else 0:5.2f}"
        )


def times(ratio: float) -> str:
    return f"{ratio:6.1f}" if ratio < 100 else f"{ratio:6,.0f}"


def fixed_point(nets: Nets) -> None:
    worst = 0.0
    for _, make, position in BLOCKS:
        p = case(nets[make], position).problem
        p = replace(p, target=p.output)
        for solver in ("secant", "newton_krylov", "adam"):
            worst = max(worst, float((solve(p, solver).value - p.anchor).abs().max()))
    print(f"\nFixed point: largest change of a feature whose target is met, all blocks and solvers: {worst}")


def few_of_many(nets: Nets) -> None:
    print("\n8 of 256 samples to correct, against a batch of these 8 alone (time of the solver):")
    for name, make, position in BLOCKS:
        few, alone = case(nets[make], position, 256, 8).problem, case(nets[make], position).problem
        ratio = seconds(lambda p=few: solve(p, "secant"), 5) / seconds(lambda p=alone: solve(p, "secant"), 5)
        print(f"  {name:25} {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--epochs", type=int, default=10, help="of training, twice that for transformers; 0 leaves random weights"
    )
    parser.add_argument("--blocks", default="", help="only blocks whose name has this in it")
    parser.add_argument("--parts", nargs="*", default=["blocks", "fixed", "few"])
    options = parser.parse_args()
    BLOCKS[:] = [block for block in BLOCKS if options.blocks in block[0]]
    nets = Nets(options.epochs)
    parts = {"blocks": blocks, "fixed": fixed_point, "few": few_of_many}
    for name in options.parts:
        parts[name](nets)


if __name__ == "__main__":
    main()
