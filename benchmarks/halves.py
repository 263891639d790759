"""Half and double of every number that a solver has for a field: does the answer care?

For each field of a block solver's options (and of the linear solvers that iterate) a few small problems are solved with
half and with twice its value; whole numbers are rounded, 1 stays 1 when halved. Printed: the residual that is left
(‖Φ(a) − t‖/‖t‖, geometric mean over samples and problems), the deviation and the passes or steps, each as a ratio to
the default's. A field whose ratios stay near 1 was chosen by hand and is not critical; one with a ratio far above 1 in
either direction is where it is for a reason. Ratios of exactly 1 may also mean that these
problems never come to it. ``python benchmarks/halves.py [Secant ... cache]``
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from frpt.options import PRESETS, Bounded, Gate, Limits, Reach
from frpt.solvers.base import Range, row_norm
from frpt.solvers.blocks.heavy_ball import HeavyBall
from frpt.solvers.blocks.mean_jacobian import MeanJacobian
from frpt.solvers.blocks.min_norm_newton import MinNormNewton
from frpt.solvers.blocks.newton_krylov import NewtonKrylov
from frpt.solvers.blocks.problem import Problem
from frpt.solvers.blocks.secant import Secant
from frpt.solvers.conv.operator import Convolution, Geometry
from frpt.solvers.conv.torus import Torus, fitting
from frpt.solvers.conv.woodbury import Exact, Woodbury
from frpt.solvers.linear.dense import Dense
from frpt.solvers.linear.gate import anchored

Measures = tuple[float, float, float]
"""Residual left, deviation, passes."""


class Residual(nn.Module):
    """A residual block on maps, its weights as large as after training."""

    def __init__(self, channels: int = 8, gain: float = 2.0) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )
        for p in self.inner.parameters():
            p.data *= gain

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


def block(net: nn.Module, shape: tuple[int, ...], limit: int, seed: int, low: bool = False) -> Problem:
    """Six samples, moved by a tenth."""
    g = torch.Generator().manual_seed(seed)
    net = net.requires_grad_(False)
    anchor = torch.randn(6, *shape, generator=g)
    anchor = anchor.relu() if low else anchor
    moved = anchor + 0.1 * torch.randn(anchor.shape, generator=g)
    target = net(moved.relu() if low else moved)
    within = Range(low=0.0) if low else Range()
    return Problem(lambda a, _: net(a), anchor, target, net(anchor), Gate(), Limits(limit), within)


def blocks(limit: int) -> list[Problem]:
    torch.manual_seed(0)
    narrow = nn.Sequential(nn.Conv2d(6, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 6, 3, stride=2, padding=1))
    dense = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 40))
    return [
        block(Residual(), (8, 16, 16), limit, 1),
        block(Residual(gain=2.8), (8, 16, 16), limit, 2, low=True),
        block(narrow, (6, 16, 16), limit, 3),
        block(dense, (40,), limit, 4),
    ]


def measured(problem: Problem, solve: Callable[[Problem], Any]) -> Measures:
    solution = solve(problem)
    solution = solution[0] if isinstance(solution, tuple) else solution
    left = row_norm(problem.target - problem.run(solution.value)) / row_norm(problem.target)
    moved = row_norm(solution.value - problem.anchor) / row_norm(problem.anchor)
    return (
        float(left.clamp_min(1e-12).log().mean().exp()),
        float(moved.mean()),
        float(solution.iterations.double().mean()),
    )


def by_secant(options: Secant, learner: MeanJacobian = MeanJacobian()) -> list[Measures]:
    def solve(p: Problem) -> Any:
        return options.solve(replace(p, stationary=learner.learn(p.fn, p.anchor, p.output)))

    return [measured(p, solve) for p in blocks(20)]


def by_newton_krylov(options: NewtonKrylov) -> list[Measures]:
    return [measured(p, options.solve) for p in blocks(40)]


def paths() -> list[Problem]:
    """Whole paths to ten scores, to be moved far."""
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(6, 12, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 10)
        ).requires_grad_(False)
        g = torch.Generator().manual_seed(seed)
        anchor = torch.randn(6, 6, 16, 16, generator=g).relu()
        out = net(anchor)
        target = out + out.std() * torch.randn(out.shape, generator=g)
        found.append(
            Problem(lambda a, _, net=net: net(a), anchor, target, out, Gate(), Limits(40), Range(low=0.0), stop_at=1e-3)
        )
    return found


def by_newton(options: MinNormNewton) -> list[Measures]:
    return [measured(p, options.solve) for p in paths()]


def by_heavy_ball(options: HeavyBall) -> list[Measures]:
    """From the anchor, so that there is something left to do."""
    return [measured(p, options.solve) for p in paths()]


def by_reach(options: Reach) -> list[Measures]:
    given = [replace(p, limits=Limits(options.iterations), stop_at=options.stop_at) for p in paths()]
    return [measured(p, options.solve) for p in given]


def by_bounded(options: Bounded) -> list[Measures]:
    """Linear layers behind a ReLU: attainable targets, and others."""
    found = []
    for seed, size in enumerate((0.2, 2.0)):
        g = torch.Generator().manual_seed(seed)
        matrix = torch.randn(20, 60, generator=g, dtype=torch.float64)
        anchor = torch.randn(8, 60, generator=g, dtype=torch.float64).relu()
        residual = size * torch.randn(8, 20, generator=g, dtype=torch.float64) * matrix.norm(dim=1)
        solution = anchored(Dense(matrix), anchor, residual, Gate(), Range(low=0.0), options)
        left = row_norm(residual - (solution.value - anchor) @ matrix.T) / row_norm(residual)
        moved = row_norm(solution.value - anchor) / row_norm(anchor)
        found.append(
            (
                float(left.clamp_min(1e-12).log().mean().exp()),
                float(moved.mean()),
                float(solution.iterations.double().mean()),
            )
        )
    return found


def by_woodbury(options: Woodbury) -> list[Measures]:
    """The torus with its seam and without, against the pseudo-inverse; steps are not counted."""
    found = []
    for seed, seam in ((0, True), (1, False)):
        g = torch.Generator().manual_seed(seed)
        weight = torch.randn(4, 5, 3, 3, generator=g, dtype=torch.float64)
        conv = Convolution(weight, Geometry((1, 1), ((1, 1), (1, 1)), (1, 1)), (5, 8, 8), (4, 8, 8))
        residual = torch.randn(3, 4, 8, 8, generator=g, dtype=torch.float64)
        value = Exact(conv, Torus(conv, fitting(conv)), seam, options).solve(residual)
        true = (residual.flatten(1) @ torch.linalg.pinv(conv.matrix()).T).reshape_as(value)
        off = row_norm(value - true) / row_norm(true)
        found.append((float(off.clamp_min(1e-12).log().mean().exp()), float(row_norm(value).mean()), 1.0))
    return found


def others(options: Any) -> Iterator[tuple[str, str, Any]]:
    """(field, change, the options with it)."""
    for f in fields(options):
        value = getattr(options, f.name)
        for word, factor in (("half", 0.5), ("double", 2.0)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            other = max(1, round(factor * value)) if isinstance(value, int) else factor * value
            yield f.name, word, replace(options, **{f.name: other})


SOLVERS: dict[str, tuple[Any, Callable[[Any], list[Measures]]]] = {
    "Secant": (Secant(), by_secant),
    "MeanJacobian": (MeanJacobian(), lambda o: by_secant(Secant(), o)),
    "NewtonKrylov": (NewtonKrylov(), by_newton_krylov),
    "MinNormNewton": (MinNormNewton(), by_newton),
    "HeavyBall": (HeavyBall(), by_heavy_ball),
    "Reach": (PRESETS["default"].reach, by_reach),
    "Bounded": (Bounded(), by_bounded),
    "Woodbury": (Woodbury(), by_woodbury),
}


def ratios(now: list[Measures], default: list[Measures]) -> str:
    def mean(k: int) -> float:
        logs = [math.log(max(a[k], 1e-12) / max(b[k], 1e-12)) for a, b in zip(now, default, strict=True)]
        return math.exp(sum(logs) / len(logs))

    return "".join(f"{mean(k):9.2f}" for k in range(3))


def cache() -> None:
    """Seconds of processor time of a convolution, 32 maps of 64 × 64, 16 to 8 channels, by ``Convolution.cache``."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 16, 3, 3, generator=g, dtype=torch.float64)
    x = torch.randn(32, 16, 64, 64, generator=g, dtype=torch.float64)
    shape = Geometry((1, 1), ((1, 1), (1, 1)), (1, 1))
    print("\nConvolution.cache, MiB: seconds of 20 products")
    for size in (1, 4, 8, 16, 64, 1024):
        conv = Convolution(weight, shape, (16, 64, 64), (8, 64, 64), cache=size * 2**20)
        conv.apply(x)
        begun = time.process_time()
        for _ in range(20):
            conv.apply(x)
        print(f"  {size:6} {time.process_time() - begun:8.2f}", flush=True)


def main(names: list[str]) -> None:
    for name in names or [*SOLVERS, "cache"]:
        if name == "cache":
            cache()
            continue
        options, run = SOLVERS[name]
        default = run(options)
        print(f"\n{name:34} {'left':>8} {'moved':>8} {'passes':>8}")
        for field, word, changed in others(options):
            print(f"  {field:20} {word:10}  {ratios(run(changed), default)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
