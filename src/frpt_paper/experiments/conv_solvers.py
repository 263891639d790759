"""Runtime and conditioning of the convolution solvers through ``frpt.ops`` (paper IV-B1, its two figures).

``catalogue`` lists it as "runtime". Sizes, channels, kernels and seeds are those of the figures' captions; the paper
averages 500 runs on a GPU, this takes the median of 50 on what is there.
"""

from __future__ import annotations

import math
import statistics
import time
from itertools import product
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from frpt import Gate, ops
from frpt.errors import FrptError
from frpt_paper.experiments.workbench import ExperimentReport, Workbench
from frpt_paper.tables import figures
from frpt_paper.tables.printed import plain

if TYPE_CHECKING:
    import pandas as pd

SOLVERS = ("matrix", "cg", "fft_boundary", "fft_padded", "exact")
_LARGEST_MATRIX = 64
"""Largest map whose matrix is made, as it has (c · size²)² entries; the paper's runs out of memory at 256 (IV-B1)."""


def runtime(bench: Workbench) -> ExperimentReport:
    """Seconds against resolution, and consistency and deviation against the kernel's condition number."""
    sizes = (8, 16, 32) if bench.small else (16, 32, 64, 128, 256)
    conditions = (1.0, 1e4, 1e8) if bench.small else tuple(10.0**k for k in range(0, 9, 2))
    seeds = len(bench.seeds(2, 10))
    repeats = 5 if bench.small else 50
    times = _times(bench, sizes, repeats)
    errors = _errors(bench, conditions, seeds, size=16 if bench.small else 64)
    report = ExperimentReport("Convolution solvers: runtime and conditioning")
    report.lines.append(
        f"{torch.get_num_threads()} threads, float64, batch 2; each time is the median of {repeats} solves"
    )
    note = "C_in 2, kernel 5 × 5, padding 2, no gate, preparation included; the matrix is made up to 64 × 64."
    report.tables.append(plain("runtime", "Seconds of a solve", times, note))
    note = f"C_in 8, kernel 5 × 5, {seeds} seeds; ccp and deviation are relative."
    report.tables.append(plain("conditioning", "Consistency and deviation under ill-conditioned kernels", errors, note))
    report.figures["solvers"] = figures.solvers(times, errors)
    return report


def _times(bench: Workbench, sizes: tuple[int, ...], repeats: int) -> pd.DataFrame:
    import pandas as pd

    rows = []
    cases = [c for c in product((1, 4), sizes, SOLVERS) if c[2] != "matrix" or c[1] <= _LARGEST_MATRIX]
    with bench.bar("runtime", len(cases), "solvers") as step:
        for outputs, size, solver in cases:
            g = torch.Generator().manual_seed(0)
            weight = torch.randn(outputs, 2, 5, 5, generator=g, dtype=torch.float64) / math.sqrt(50)
            anchor = torch.randn(2, 2, size, size, generator=g, dtype=torch.float64)
            target = _noisy(F.conv2d(anchor, weight, padding=2), g)
            took = _seconds(anchor, target, weight, solver, repeats)
            rows.append({"c_out": outputs, "size": size, "solver": solver, "seconds": took})
            step(solver)
    return pd.DataFrame(rows)


def _seconds(anchor: Tensor, target: Tensor, weight: Tensor, solver: str, repeats: int) -> float:
    """Median of several solves, of fewer where they take longer than five seconds together; NaN where it cannot."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < 5:
        begun = time.perf_counter()
        try:
            ops.conv(anchor, target, weight, padding=2, solver=solver, gate=Gate(enabled=False))
        except FrptError:
            return math.nan
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _errors(bench: Workbench, conditions: tuple[float, ...], seeds: int, size: int) -> pd.DataFrame:
    import pandas as pd

    rows = []
    cases = [c for c in product((4, 8, 16), (0, 1), conditions, SOLVERS) if c[3] != "matrix" or size <= 16]
    with bench.bar("conditioning", len(cases), "cases") as step:
        for outputs, padding, kappa, solver in cases:
            measured: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for seed in range(seeds):
                g = torch.Generator().manual_seed(seed)
                weight = conditioned(outputs, kappa, g)
                anchor = torch.randn(2, 8, size, size, generator=g, dtype=torch.float64)
                target = _noisy(F.conv2d(anchor, weight, padding=padding), g)
                for gate in measured:
                    measured[gate].append(_error(anchor, target, weight, padding, solver, gate))
            for gate, values in measured.items():
                row = {"c_out": outputs, "padding": padding, "kappa": kappa, "solver": solver, "gate": gate}
                means = [float(torch.tensor(v, dtype=torch.float64).mean()) for v in zip(*values, strict=True)]
                rows.append(row | {"ccp": means[0], "deviation": means[1]})
            step(solver)
    return pd.DataFrame(rows)


def _error(
    anchor: Tensor, target: Tensor, weight: Tensor, padding: int, solver: str, gate: bool
) -> tuple[float, float]:
    """(relative CCP error, relative deviation)."""
    value = ops.conv(anchor, target, weight, padding=padding, solver=solver, gate=Gate(enabled=gate)).value
    ccp = (F.conv2d(value, weight, padding=padding) - target).norm() / target.norm()
    return float(ccp), float((value - anchor).norm() / anchor.norm())


def conditioned(outputs: int, condition: float, g: torch.Generator) -> Tensor:
    """A kernel whose matrix (outputs, 8·5·5) has singular values from 1 to 1/condition, evenly in the logarithm."""
    u, _, vh = torch.linalg.svd(torch.randn(outputs, 200, generator=g, dtype=torch.float64), full_matrices=False)
    s = torch.logspace(0, -math.log10(condition), outputs, dtype=torch.float64)
    kernel: Tensor = ((u * s) @ vh).reshape(outputs, 8, 5, 5)
    return kernel


def _noisy(output: Tensor, g: torch.Generator) -> Tensor:
    """A target near the output: noise of a tenth of its spread."""
    return output + 0.1 * output.std() * torch.randn(output.shape, generator=g, dtype=output.dtype)
