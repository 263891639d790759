"""Can a reconstructed feature be trusted? How steady it is, and for the paper's preset the error bound of its walk.

Does the label win, and how much does the correction a* − â itself change, relative to its size, when the feature it
starts from is moved at random by a tenth of it (``sensitivity``).

Where the answer is made op by op, per sample:  e_k ≤ ρ_k e_{k+1} + ε_k,  with e = 0 at the output, whose target is
exact (Theorem 2).
ρ: how far a small random change ξ of a unit's target moves its answer, ‖R(t + ξ) − R(t)‖/‖ξ‖, the largest of a few.
ε: a unit's answer a is the ideal answer for the target Φ(a), so its own error is at most  ρ ‖Φ(a) − t‖.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frpt.common.batch import BatchAxis, relative
from frpt.diagnosis.findings import Advice, LayerFinding, UnitFinding
from frpt.graph.inputs import Inputs
from frpt.graph.names import OUTPUT
from frpt.graph.plan import Plan, Unit
from frpt.reverse.backward import Walk
from frpt.reverse.reconstruction import Reconstruction
from frpt.reverser import Reverser
from frpt.rules.conv import convolution
from frpt.solvers.base import Measured
from frpt.solvers.conv.torus import Torus, fitting
from frpt.solvers.linear.svd import singular_values

WINS, STEADY = 0.9, 0.5
"""A layer is trusted where the label wins in this share of the samples, and its sensitivity is at most this."""
_PROBES = 2
_SHIFT = 0.1
"""Size of ξ, relative to the change the target asks for, and of the feature's move, relative to the correction."""


@dataclass(frozen=True)
class Trust:
    """units: the walk to the deepest layer, () unless the preset makes its targets by it.

    sensitivity: layer → median over samples, infinite without a correction.
    """

    units: tuple[UnitFinding, ...]
    sensitivity: dict[str, float]


def trust(rev: Reverser, x: Any, y: Tensor, layers: Sequence[str], seed: int = 0) -> Trust:
    """Measure the way back for some samples, all of which need a correction. layers: output first."""
    inputs, g = Inputs.of(x), torch.Generator().manual_seed(seed)
    units: list[UnitFinding] = []
    if rev.preset.nearest is None:
        deepest = max(layers, key=lambda name: len(rev.plan(name)))
        with rev.walking(inputs, y, [deepest]) as (walk, (plan,)):
            units = _units(walk, plan, {rev.node(n, inputs)[1]: n for n in layers}, g)
    inner = [name for name in layers if name != OUTPUT]
    answers = rev.reconstruct(x, y, at=inner) if inner else {}
    steady = {name: sensitivity(rev, x, y, rec, g) for name, rec in answers.items()}
    return Trust(tuple(units), {n: steady.get(n, 0.0) for n in layers})


def sensitivity(rev: Reverser, x: Any, y: Tensor, rec: Reconstruction, g: torch.Generator) -> float:
    """The median change of the correction, relative to its size, from a feature that is moved by a tenth of it."""
    samples, (low, high) = rev.batch_axis(rec.layer), rev.interval(rec.layer)
    correction = rec.target.double() - rec.anchor.double()
    size = samples.norm(correction)
    start = (rec.anchor + _noise(samples, rec.anchor, size, g)).clamp(low, high)
    moved = rev.reconstruct_from(x, y, rec.layer, start)
    change = samples.norm(moved.target.double() - moved.anchor.double() - correction)
    return _median(torch.where(size > 0, change / size.clamp_min(1e-300), torch.inf)[rec.corrected])


def advise(layers: Sequence[LayerFinding]) -> Advice:
    """The layers from the output on that all can be trusted. layers: output first."""
    trusted: list[LayerFinding] = []
    for found in layers:
        if not (found.wins >= WINS and found.sensitivity <= STEADY):
            break
        trusted.append(found)
    inner = [f for f in trusted if f.depth > 0]
    if not inner:
        first = next((f for f in layers if f.depth > 0), None)
        return Advice((), "No inner layer was diagnosed." if first is None else f"None: {_why_not(first)}.")
    worst = max(inner, key=lambda f: f.sensitivity)
    reason = (
        f"Down to {inner[-1].name} the label wins from the target in at least "
        f"{100 * min(f.wins for f in inner):.1f} % of the samples, and moving the feature by a tenth of the correction "
        f"changes the correction by at most {100 * worst.sensitivity:.0f} %"
    )
    if len(trusted) < len(layers):
        reason += "; " + _why_not(layers[len(trusted)])
    return Advice(tuple(f.name for f in inner), reason + ".")


def _why_not(found: LayerFinding) -> str:
    if not found.wins >= WINS:
        return f"at {found.name} the label wins in only {100 * found.wins:.1f} % of the samples"
    return (
        f"at {found.name} moving the feature by a tenth of the correction changes the correction by "
        f"{100 * found.sensitivity:.0f} %"
    )


def _units(walk: Walk, plan: Plan, names: dict[Any, str], g: torch.Generator) -> list[UnitFinding]:
    """Walk back unit by unit, each one solved again for a few targets near by."""
    found, (target, index) = [], (walk.start, walk.index)
    error = torch.zeros(len(index), dtype=torch.float64, device=target.device)
    for unit in plan.units:
        out, into = walk.record.batch_axis(unit.sink), walk.record.batch_axis(unit.source)
        solution = walk.solve(unit, target, index)
        wanted = out.norm(target.double() - walk.record.taken(unit.sink, index).double())
        rho = torch.zeros_like(error)
        noises = [_noise(out, target, wanted, g) for _ in range(_PROBES)]
        for noise, moved in zip(noises, _answers(walk, unit, [target + n for n in noises], index), strict=True):
            rho = torch.maximum(rho, relative(into.norm(moved.double() - solution.value.double()), out.norm(noise)))
        own = rho * solution.ccp * out.norm(target)
        error = rho * error + own
        size = solution.deviation * into.norm(walk.record.taken(unit.source, index))
        errors = [_over(e, size) for e in (own, error)]
        found.append(_finding(unit, names.get(unit.source, ""), solution, [rho, *errors], _singular(walk, unit)))
        target = solution.value
    return found


def _answers(walk: Walk, unit: Unit, targets: Sequence[Tensor], index: Tensor) -> Sequence[Tensor]:
    """A unit's answers for several targets of the same samples: all at once, where a graph takes any number of them."""
    if not walk.captured.dynamic:
        return [walk.solve(unit, t, index).value for t in targets]
    out, into = walk.record.batch_axis(unit.sink), walk.record.batch_axis(unit.source)
    together = out.back(torch.cat([out.front(t) for t in targets]))
    value = walk.solve(unit, together, index.repeat(len(targets))).value
    return [into.back(part) for part in into.front(value).split(len(index))]


def _noise(samples: BatchAxis, target: Tensor, wanted: Tensor, g: torch.Generator) -> Tensor:
    """ξ, like the target. wanted: (b,), the norm of the change each sample's target asks for."""
    noise = torch.randn(target.shape, generator=g, dtype=torch.float64).to(target)
    return noise * samples.over(_SHIFT * relative(wanted, samples.norm(noise)), noise).to(noise)


def _over(error: Tensor, size: Tensor) -> Tensor:
    """An error relative to the correction; no correction with an error is all error: infinite."""
    return torch.where(error > 0, error / size.clamp_min(1e-300), 0.0)


def _median(values: Tensor) -> float:
    return float(values.median()) if len(values) else 0.0


def _finding(
    unit: Unit, layer: str, s: Measured, errors: Sequence[Tensor], singular: tuple[float, float]
) -> UnitFinding:
    """errors: ρ, ε and the bound, per sample."""
    means = [float(v.double().mean()) for v in (s.ccp_before, s.ccp, s.fallback, s.iterations, s.deviation)]
    before, ccp, fallback, iterations, deviation = means
    rho, own, bound = map(_median, errors)
    return UnitFinding(
        unit.name, unit.path, unit.op, unit.match.rule, layer, before, ccp, float(s.ccp.max()), fallback, iterations,
        deviation, rho, own, bound, *singular,
    )  # fmt: skip


def _singular(walk: Walk, unit: Unit) -> tuple[float, float]:
    """Largest and smallest singular value of a linear or convolutional unit; NaN for others."""
    nan = float("nan")
    call = walk.call(unit, walk.index)
    weight = None if call is None else call.args.get("weight")
    if call is None or not isinstance(weight, Tensor):
        return nan, nan
    if unit.match.rule == "linear" and weight.dim() == 2:
        values = singular_values(weight.double())
    elif unit.match.rule == "conv":
        conv = convolution(call, weight.double())
        values = Torus(conv, fitting(conv)).singular_values
    elif "running_var" in call.args:
        values = (weight.double() / (call.args["running_var"].double() + float(call.args["eps"])).sqrt()).abs()
    else:
        return nan, nan
    return float(values.max()), float(values.min())
