"""Convolution solvers: the bars they are held to, and the paper's two figures (IV-B1).

Run it with ``make bench-conv``: tables on the terminal, figures and tables in ``docs/figures``.

bars        fixed point, agreement with a dense pseudo-inverse, cost against a bare FFT solve, preparation, memory
resolution  runtime and memory against the size of the map, 16² to 512²
condition   consistency and deviation against the kernel's condition number, 1 to 1e8, gate on and off
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any
from unittest.mock import patch

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself otherwise

import torch
import torch.nn.functional as F
from conv_figure import draw_condition, draw_resolution, save
from reconstruct import peak
from torch import Tensor

from frpt.errors import FrptError
from frpt.options import CONV_SOLVERS, PRESETS, Convolutions, Gate, Preset
from frpt.rules.registry import Call, Site, rule_for
from frpt.solvers.base import Solution
from frpt.solvers.linear.cgls import ConjugateGradients
from frpt_paper.experiments.conv_solvers import conditioned

CONVS = {1: torch.ops.aten.conv1d.default, 2: torch.ops.aten.conv2d.default, 3: torch.ops.aten.conv3d.default}
TRANSPOSED = {
    1: torch.ops.aten.conv_transpose1d.default,
    2: torch.ops.aten.conv_transpose2d.input,
    3: torch.ops.aten.conv_transpose3d.input,
}
FACTORISATIONS = ("cholesky", "cholesky_ex", "lu_factor", "qr", "svd", "svdvals", "eigh", "eigvalsh", "inv", "pinv")


class Layer:
    """One convolution as a reverser meets it: prepared with the first batch, reused for the next."""

    def __init__(self, weight: Tensor, solver: str, gate: bool = True, preset: str = "default", **how: Any) -> None:
        base = PRESETS[preset]
        names = set(Convolutions.__dataclass_fields__)
        options = replace(base.conv, method=solver, **{k: how.pop(k) for k in list(how) if k in names})
        self.preset: Preset = replace(base, gate=Gate(enabled=gate), conv=options)
        self.weight, self.how, self.cache = weight, how, {}

    def call(self, anchor: Tensor) -> Call:
        how, rank = dict(self.how), self.weight.dim() - 2
        transposed, mode = how.pop("transposed", False), how.pop("mode", None)
        args = {"input": anchor, "weight": self.weight, "bias": None, "padding": [0] * rank, "groups": 1}
        args |= {"stride": [1] * rank, "dilation": [1] * rank} | ({"output_padding": [0] * rank} if transposed else {})
        args |= {k: v if k == "groups" else [v] * rank for k, v in how.items()}
        padded = None
        if mode is not None:
            padded, args["padding"] = ([args["padding"][0]] * 2 * rank, mode), [0] * rank
        return Call((TRANSPOSED if transposed else CONVS)[rank], args, "input", where="benchmark", padded=padded)

    def forward(self, anchor: Tensor) -> Tensor:
        return self.call(anchor).forward(anchor)

    def solve(self, anchor: Tensor, output: Tensor, target: Tensor) -> Solution:
        site = Site.of(self.call(anchor), anchor.double(), output.double(), self.preset, cache=self.cache)
        rule = rule_for(site, self.preset.rules)
        assert rule is not None
        return rule.solve(site, target.double())


KINDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((4, 40), (3, 4, 5), {"padding": 2}),
    "2d": ((4, 12, 12), (3, 4, 3, 3), {"padding": 1}),
    "2d, case II": ((3, 12, 12), (6, 3, 3, 3), {"padding": 1}),
    "2d, valid": ((4, 12, 12), (4, 4, 3, 3), {}),
    "2d, full": ((4, 12, 12), (4, 4, 3, 3), {"padding": 2}),
    "3d": ((3, 6, 6, 6), (2, 3, 3, 3, 3), {"padding": 1}),
    "stride 2": ((4, 12, 12), (8, 4, 3, 3), {"padding": 1, "stride": 2}),
    "stride 3": ((3, 13, 13), (5, 3, 5, 5), {"padding": 2, "stride": 3}),
    "dilation 2": ((4, 12, 12), (3, 4, 3, 3), {"padding": 2, "dilation": 2}),
    "groups": ((6, 12, 12), (4, 3, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((6, 12, 12), (6, 1, 3, 3), {"padding": 0, "groups": 6}),
    "patches": ((3, 12, 12), (20, 3, 4, 4), {"stride": 4}),
    "1×1": ((6, 12, 12), (4, 6, 1, 1), {}),
    "1×1, stride 2": ((6, 12, 12), (4, 6, 1, 1), {"stride": 2}),
    "reflect": ((4, 12, 12), (3, 4, 3, 3), {"padding": 1, "mode": "reflect"}),
    "replicate": ((4, 12, 12), (3, 4, 3, 3), {"padding": 1, "mode": "replicate"}),
    "circular": ((4, 12, 12), (3, 4, 3, 3), {"padding": 1, "mode": "circular"}),
    "transposed": ((4, 8, 8), (4, 6, 3, 3), {"padding": 1, "transposed": True}),
    "transposed, stride 2": ((4, 8, 8), (4, 3, 3, 3), {"padding": 1, "stride": 2, "transposed": True}),
}
WAYS: dict[str, dict[str, Any]] = {
    "auto": {}, "torus, seam": {"dense_entries": 1}, "torus alone": {"dense_entries": 1, "seam_entries": 1},
}  # fmt: skip


def kernel(shape: Iterable[int], generator: torch.Generator) -> Tensor:
    shape = tuple(shape)
    return torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(math.prod(shape[1:]))


def dense(layer: Layer, shape: tuple[int, ...]) -> Tensor:
    """The matrix of a layer, column by column."""
    units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return layer.forward(units).flatten(1).mT


def fixed_point() -> list[tuple[str, ...]]:
    """Largest change of the feature when the target is met already, over all kinds."""
    rows = []
    for solver in CONV_SOLVERS:
        for preset in ("default", "paper") if solver.startswith("fft") else ("default",):
            moved, declined = 0.0, 0
            for shape, weight, how in KINDS.values():
                g = torch.Generator().manual_seed(0)
                layer = Layer(kernel(weight, g), solver, preset=preset, **how)
                anchor = torch.randn(2, *shape, generator=g, dtype=torch.float64)
                output = layer.forward(anchor)
                try:
                    found = layer.solve(anchor, output, output).value
                except FrptError:
                    declined += 1
                    continue
                moved = max(moved, float((found - anchor).norm() / anchor.norm()))
            kinds = f"{len(KINDS) - declined} of {len(KINDS)}"
            rows.append((solver, preset, kinds, "0, bit for bit" if moved == 0 else f"{moved:.2f}"))
    return rows


def agreement(seeds: int = 5) -> list[tuple[str, ...]]:
    """Worst relative distance of ``exact`` from the dense pseudo-inverse's answer, condition number below 300."""
    rows = []
    for kind, (shape, weight, how) in KINDS.items():
        worst, conditions = dict.fromkeys(WAYS, 0.0), []
        for seed in range(20 * seeds):
            g = torch.Generator().manual_seed(seed)
            w = kernel(weight, g)
            if seed % 2:  # filters of different strength: condition numbers up to the bar
                filters = len(w)
                w = w * torch.logspace(0, -1.2, filters, dtype=torch.float64).reshape(-1, *[1] * (w.dim() - 1))
            A = dense(Layer(w, "exact", **how), shape)
            s = torch.linalg.svdvals(A)
            s = s[s > 1e-12 * s[0]] if kind == "1×1, stride 2" else s
            if float(s[0] / s[-1]) >= 300:
                continue
            conditions.append(float(s[0] / s[-1]))
            for way, options in WAYS.items():
                layer = Layer(w, "exact", gate=False, **how, **options)
                anchor = torch.randn(2, *shape, generator=g, dtype=torch.float64)
                output = layer.forward(anchor)
                target = output + 0.1 * torch.randn(output.shape, generator=g, dtype=torch.float64)
                step = layer.solve(anchor, output, target).value - anchor
                expected = ((target - output).flatten(1) @ torch.linalg.pinv(A).mT).reshape(anchor.shape)
                worst[way] = max(worst[way], float((step - expected).norm() / expected.norm()))
            if len(conditions) == seeds:
                break
        known = f"{max(conditions):.0f}" if conditions else "all ≥ 300"
        rows.append((kind, known, *[f"{worst[way]:.0e}" for way in WAYS]))
    return rows


def bare_solver(weight: Tensor, n: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A residual-form FFT solve and nothing else: rfft2, one multiply by a precomputed pseudo-inverse, irfft2."""
    k = weight.shape[-1]
    symbol = torch.fft.rfft2(F.pad(weight.flip(-1, -2), (0, n - k, 0, n - k)))
    inverse = torch.linalg.pinv(symbol.permute(2, 3, 0, 1)).flatten(0, 1)  # (f, i, o)

    def solve(anchor: Tensor, residual: Tensor) -> Tensor:
        m, h = residual.shape[-1], anchor.shape[-1]
        p = (n - h) // 2
        d = torch.fft.rfft2(F.pad(residual, (n - m, 0, n - m, 0))).flatten(2).permute(2, 1, 0)
        a = torch.fft.irfft2((inverse @ d).permute(2, 1, 0).unflatten(2, (n, n // 2 + 1)), s=(n, n))
        return anchor + a[..., p : p + h, p : p + h]

    return solve


def costs(repeats: int) -> list[tuple[str, ...]]:
    """64×64, 16→8 channels, kernel 3, padding 1, batch 32: prepared layers in units of the bare FFT solve."""
    g = torch.Generator().manual_seed(0)
    w = kernel((8, 16, 3, 3), g)
    anchor = torch.randn(32, 16, 64, 64, generator=g, dtype=torch.float64)
    output = F.conv2d(anchor, w, padding=1)
    target = output + 0.1 * torch.randn(output.shape, generator=g, dtype=torch.float64)
    bare = bare_solver(w, 66)
    layers = {name: Layer(w, name, padding=1) for name in ("fft_padded", "fft_boundary", "exact", "auto", "cg")}
    layers["exact, no seam"] = Layer(w, "exact", padding=1, seam_entries=1)
    rows, answer = [], bare(anchor, target - output)
    first = {}
    for name, layer in layers.items():
        start = time.perf_counter()
        found = layer.solve(anchor, output, target)
        first[name] = time.perf_counter() - start
        if name == "fft_padded":
            assert torch.allclose(found.value, answer), "the bare solve is the same solve"
    for name, layer in layers.items():
        units, times = [], []
        for _ in range(repeats):  # side by side, as the machine's speed drifts
            units.append(seconds(partial(bare, anchor, target - output)))
            times.append(seconds(partial(layer.solve, anchor, output, target)))
        unit, again = statistics.median(units), statistics.median(times)
        after = F.conv2d(layer.solve(anchor, output, target).value, w, padding=1)
        ccp = float((after - target).norm() / target.norm())
        bar = {"fft_padded": "≤ 3", "exact": "≤ 60"}.get(name, "")
        rows.append((name, f"{again / unit:.1f}", bar, f"{first[name] / unit:.0f}", f"{ccp:.0e}"))
    return rows


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median(call: Callable[[], object], repeats: int) -> float:
    """Of as many calls, or of fewer where they take longer than five seconds together."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < 5:
        times.append(seconds(call))
    return statistics.median(times)


def preparation() -> list[tuple[str, ...]]:
    """Factorisations that the first and the second batch through a layer call for."""
    rows = []
    for solver in CONV_SOLVERS:
        g = torch.Generator().manual_seed(0)
        small = solver == "matrix"
        w = kernel((8, 16, 3, 3), g)
        layer = Layer(w, solver, padding=1)
        counts = []
        for _ in range(2):
            anchor = torch.randn(4, 16, *[8 if small else 32] * 2, generator=g, dtype=torch.float64)
            output = layer.forward(anchor)
            target = output + 0.1 * torch.randn(output.shape, generator=g, dtype=torch.float64)
            counts.append(count_factorisations(partial(layer.solve, anchor, output, target)))
        rows.append((solver, str(counts[0]), str(counts[1])))
    return rows


def count_factorisations(call: Callable[[], object]) -> int:
    calls = 0

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(*args, **keywords)

        return counted

    patches = [patch.object(torch.linalg, name, counting(getattr(torch.linalg, name))) for name in FACTORISATIONS]
    for p in patches:
        p.start()
    try:
        call()
    finally:
        for p in patches:
            p.stop()
    return calls


LARGE = {"auto": {"cg": ConjugateGradients(3)}, "fft_padded": {}, "exact": {"cg": ConjugateGradients(3)}}
"""512×512, 64→64 channels, kernel 3, padding 1. Spectra exceed the budget: three Krylov steps tell the memory."""


def large() -> list[tuple[str, ...]]:
    rows = []
    for solver in LARGE:
        command = [sys.executable, __file__, "large-one", "--solver", solver]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(";")
        rows.append((solver, *[part.strip() for part in out]))
    return rows


def large_one(solver: str) -> None:
    g = torch.Generator().manual_seed(0)
    w = kernel((64, 64, 3, 3), g)
    anchor = torch.randn(1, 64, 512, 512, generator=g)
    layer = Layer(w, solver, padding=1, **LARGE[solver])
    output = F.conv2d(anchor, w.float(), padding=1)
    layer.weight = w.float()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    layer.solve(anchor, output, output + 0.1)
    taken = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    budget = layer.preset.conv.budget / 2**30
    print(f"{budget:.0f} GiB; {after - before:.1f} GiB; {after:.1f} GiB; {taken:.0f} s")


SIZES = (16, 32, 64, 128, 256, 512)
PAPER_SOLVERS = ("matrix", "cg", "fft_padded", "fft_boundary", "exact")
"""The paper's four, and ours."""


def resolution(repeats: int, sizes: Iterable[int] = SIZES) -> list[dict[str, Any]]:
    """C_in 2, C_out 1 and 4, kernel 5, padding 2, batch 2, gate off, as in the paper's first figure."""
    rows = []
    for outputs, size in product((1, 4), sizes):
        g = torch.Generator().manual_seed(0)
        w = kernel((outputs, 2, 5, 5), g)
        anchor = torch.randn(2, 2, size, size, generator=g, dtype=torch.float64)
        output = F.conv2d(anchor, w, padding=2)
        target = output + 0.1 * torch.randn(output.shape, generator=g, dtype=torch.float64)
        unit = median(partial(bare_solver(w, size + 4), anchor, target - output), repeats)
        for solver in PAPER_SOLVERS:
            measured = scaling(Layer(w, solver, gate=False, padding=2), (anchor, output, target), repeats)
            first, again, memory = measured
            row = {"c_out": outputs, "size": size, "solver": solver, "bare_seconds": unit}
            rows.append(row | {"first": first / unit, "again": again / unit, "mib": memory})
            print(
                f"  {outputs} {size:4d} {solver:13} {first / unit:9.1f} {again / unit:9.1f} {memory:8.1f}", flush=True
            )
    return rows


def scaling(layer: Layer, batch: tuple[Tensor, Tensor, Tensor], repeats: int) -> tuple[float, float, float]:
    """Seconds of the first and of later batches, and the peak memory in MiB; NaN where the budget is too small."""
    try:
        memory = peak(partial(layer.solve, *batch))
        layer.cache.clear()
        return seconds(partial(layer.solve, *batch)), median(partial(layer.solve, *batch), repeats), memory
    except FrptError:
        return math.nan, math.nan, math.nan


CONDITIONS = [10.0**e for e in range(9)]


def condition(seeds: int, solvers: Iterable[str]) -> list[dict[str, Any]]:
    """64² maps, C_in 8, C_out 4, 8 and 16, padding 0 and 1, batch 2: as in the paper's second figure."""
    rows = []
    for outputs, padding, kappa in product((4, 8, 16), (0, 1), CONDITIONS):
        for solver in solvers:
            errors: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            for seed in range(min(seeds, 3) if solver == "exact" else seeds):  # it factorises for every kernel anew
                for gate, error in both_gates(solver, outputs, padding, kappa, seed).items():
                    errors[gate].append(error)
            for gate, measured in errors.items():
                row = {"c_out": outputs, "padding": padding, "kappa": kappa, "solver": solver, "gate": gate}
                row |= {"ccp": mean(c for c, _ in measured), "deviation": mean(d for _, d in measured)}
                rows.append(row | {"worst_deviation": max(d for _, d in measured)})
        print(f"  C_out {outputs}, padding {padding}, condition {kappa:.0e} done", flush=True)
    return rows


def both_gates(solver: str, outputs: int, padding: int, kappa: float, seed: int) -> dict[bool, tuple[float, float]]:
    """(CCP error, deviation) with the gate on and off; targets are the outputs with 10 % of noise."""
    g = torch.Generator().manual_seed(seed)
    w = conditioned(outputs, kappa, g)
    anchor = torch.randn(2, 8, 64, 64, generator=g, dtype=torch.float64)
    output = F.conv2d(anchor, w, padding=padding)
    target = output + 0.1 * output.std() * torch.randn(output.shape, generator=g, dtype=torch.float64)
    layer, errors = Layer(w, solver, padding=padding), {}
    for gate in (False, True):
        layer.preset = replace(layer.preset, gate=Gate(enabled=gate))
        value = layer.solve(anchor, output, target).value
        ccp = (F.conv2d(value, w, padding=padding) - target).norm() / target.norm()
        errors[gate] = (float(ccp), float((value - anchor).norm() / anchor.norm()))
    return errors


def bounded(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The curves' extremes over all condition numbers, gate on and off."""
    table = []
    for solver in dict.fromkeys(r["solver"] for r in rows):
        for gate in (True, False):
            mine = [r for r in rows if r["solver"] == solver and r["gate"] is gate]
            finite = all(math.isfinite(r[k]) for r in mine for k in ("ccp", "deviation", "worst_deviation"))
            worst = [max(r[k] for r in mine) for k in ("ccp", "deviation", "worst_deviation")]
            table.append((solver, "on" if gate else "off", "yes" if finite else "NO", *[f"{w:.2g}" for w in worst]))
    return table


def show(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A Markdown table."""
    print(f"\n**{title}**\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("bars", "resolution", "condition", "large-one")
    parser.add_argument("part", nargs="?", choices=parts, help="all but the last if left out")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--solver", default="auto", help="of large-one")
    options = parser.parse_args()
    if options.part == "large-one":
        large_one(options.solver)
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    if options.part in (None, "bars"):
        show(
            "Fixed point: change of the feature when the target is met",
            ("solver", "preset", "kinds", "moved"),
            fixed_point(),
        )
        show("exact against a dense pseudo-inverse, relative", ("kind", "condition", *WAYS), agreement())
        columns = ("solver", "bare FFT solves", "bar", "first batch", "CCP")
        show("Cost at 64×64, 16→8 channels, kernel 3, padding 1, batch 32", columns, costs(options.repeats))
        show("Factorisations", ("solver", "first batch", "second batch"), preparation())
        show("512×512, 64→64 channels, kernel 3", ("solver", "budget", "taken", "process", "time"), large())
    if options.part in (None, "resolution"):
        print("\nRuntime and memory: C_out, size, solver, first and later batches in bare FFT solves, MiB")
        rows = resolution(options.repeats)
        save(rows, "conv_resolution")
        draw_resolution(rows)
    if options.part in (None, "condition"):
        print("\nConditioning")
        rows = condition(options.seeds, ("cg", "fft_padded", "fft_boundary", "exact"))
        save(rows, "conv_condition")
        draw_condition(rows)
        columns = ("solver", "gate", "finite", "CCP", "deviation", "worst batch's deviation")
        show("Largest values over condition numbers 1 to 1e8", columns, bounded(rows))


if __name__ == "__main__":
    main()
