"""Can the target of a layer be trusted? Called by ``examination.py`` (``trust``) and ``survey.py`` (``advise``).

A layer is trusted where the label wins from its target, and where the target is steady: one number for each layer. Let
c(â) = a* − â be the correction for a feature â, and ξ random with ‖ξ‖ = ‖c(â)‖/10. Then

    sensitivity = ‖c(â + ξ) − c(â)‖ / ‖c(â)‖        the median over some samples that need a correction
    trust       = (share of samples whose label wins from a*) · max(0, 1 − sensitivity)

Where targets are made op by op (``preset="paper"``), the error e of each unit's answer is bounded as well (Theorem 2 of
the paper), from the output, whose target is exact, down to the layer:

    e_k ≤ ρ_k e_{k+1} + ε_k        e = 0 at the output

ρ is how much a unit amplifies an error of its target: ‖R(t + ξ) − R(t)‖/‖ξ‖ for small random ξ, the largest of a few.
ε is the unit's own error. Its answer a is the ideal answer for the target Φ(a), so ε ≤ ρ ‖Φ(a) − t‖.
Random ξ need not find the worst direction: the bound is an estimate, not a proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frpt.common.batch_axis import BatchAxis, relative
from frpt.common.text import percent
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


@dataclass(frozen=True)
class TrustOptions:
    """When a layer is trusted, and how that is measured.

    Where the numbers come from is not on record; benchmarks/diagnosis_numbers.py tries others on digits.
    """

    least: float = 0.7
    # Least trust of a layer that is advised: a choice. With a reference, sound and damaged networks on digits have a
    # sensitivity of 0.04 to 0.07 and labels that win everywhere: 0.93 and more.
    samples: int = 24
    # Samples to measure with. With 12 or 48 the median changes by 0.02 at most.
    shift: float = 0.1
    # Size of ξ, relative to the correction (for ρ: to the change that a unit's target asks for). The sensitivity is
    # about proportional to it. ρ hardly depends on it, but for a ReLU, whose reverse jumps where a dead unit is
    # revived: half of it doubles ρ there (89, 177).
    probes: int = 2
    # Random ξ for ρ, of which the largest counts. 1 gives a ρ up to 7 % smaller, 4 up to 6 % larger.


TRUST = TrustOptions()


@dataclass(frozen=True)
class Trust:
    """How far targets can be trusted.

    Attributes:
        units: the ops on the way back to the deepest layer, output first; () unless the preset makes targets by them.
        sensitivity: layer → median over samples, infinite where a sample has no correction.
    """

    units: tuple[UnitFinding, ...]
    sensitivity: dict[str, float]


def trust(
    rev: Reverser, x: Any, y: Tensor, layers: Sequence[str], seed: int = 0, options: TrustOptions = TRUST
) -> Trust:
    """Measure the way back for some samples, all of which need a correction. layers: output first."""
    inputs, g = Inputs.of(x), torch.Generator().manual_seed(seed)
    units: list[UnitFinding] = []
    if rev.preset.nearest is None:
        deepest = max(layers, key=lambda name: len(rev.plan(name)))
        with rev.walking(inputs, y, [deepest]) as (walk, (plan,)):
            units = _units(walk, plan, {rev.node(n, inputs)[1]: n for n in layers}, g, options)
    inner = [name for name in layers if name != OUTPUT]
    answers = rev.reconstruct(x, y, at=inner) if inner else {}
    steady = {name: sensitivity(rev, x, y, rec, g, options.shift) for name, rec in answers.items()}
    return Trust(tuple(units), {n: steady.get(n, 0.0) for n in layers})


WON, MET = "whose label wins from the target", "whose output meets what is asked for when run on from the target"
"""Of labels and of regression: what the first factor of trust counts."""


def sensitivity(
    rev: Reverser, x: Any, y: Tensor, rec: Reconstruction, g: torch.Generator, shift: float = TRUST.shift
) -> float:
    """The median change of the correction, relative to its size, from a feature that is moved by a tenth of it."""
    samples, (low, high) = rev.batch_axis(rec.layer), rev.interval(rec.layer)
    correction = rec.target.double() - rec.anchor.double()
    size = samples.norm(correction)
    start = (rec.anchor + _noise(samples, rec.anchor, shift * size, g)).clamp(low, high)
    moved = rev.reconstruct_from(x, y, rec.layer, start)
    change = samples.norm(moved.target.double() - moved.anchor.double() - correction)
    return _median(torch.where(size > 0, change / size.clamp_min(1e-300), torch.inf)[rec.corrected])


def advise(layers: Sequence[LayerFinding], regression: bool = False) -> Advice:
    """The layers from the output down that can be trusted, without a gap. layers: output first."""
    trusted: list[LayerFinding] = []
    for f in layers:
        if not f.trust >= TRUST.least:
            break
        trusted.append(f)
    inner = [f for f in trusted if f.depth > 0]
    if not inner:
        first = next((f for f in layers if f.depth > 0), None)
        return Advice(
            (), "No inner layer was diagnosed." if first is None else f"{_capital(_why_not(first, regression))}."
        )
    worst = min(inner, key=lambda f: f.trust)
    reason = (
        f"Down to {inner[-1].name} their trust is at least {_shown(worst.trust)}: the share of samples "
        f"{MET if regression else WON}, times the share of a correction that stays when its feature is moved "
        "by a tenth of it"
    )
    if len(trusted) < len(layers):
        reason += "; " + _why_not(layers[len(trusted)], regression)
    return Advice(tuple(f.name for f in inner), reason + ".")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _why_not(f: LayerFinding, regression: bool) -> str:
    met = "the output asked for is met" if regression else "the label wins"
    return (
        f"at {f.name} the trust is {_shown(f.trust)}, less than {TRUST.least}: {met} in {percent(f.wins)} "
        f"of the samples, and moving the feature by a tenth of the correction changes the correction by "
        f"{percent(f.sensitivity)}"
    )


def _shown(trust: float) -> str:
    """Two digits, rounded down: what is printed never promises more than is there."""
    return f"{math.floor(100 * trust) / 100:.2f}" if math.isfinite(trust) else "not known"


def _units(
    walk: Walk, plan: Plan, names: dict[Any, str], g: torch.Generator, options: TrustOptions
) -> list[UnitFinding]:
    """Walk back unit by unit, each one solved again for a few targets near by."""
    findings, (target, index) = [], (walk.start, walk.index)
    error = torch.zeros(len(index), dtype=torch.float64, device=target.device)
    for unit in plan.units:
        out, into = walk.record.batch_axis(unit.sink), walk.record.batch_axis(unit.source)
        solution = walk.solve(unit, target, index)
        asked = out.norm(target.double() - walk.record.taken(unit.sink, index).double())
        rho = torch.zeros_like(error)
        noises = [_noise(out, target, options.shift * asked, g) for _ in range(options.probes)]
        for noise, moved in zip(noises, _answers(walk, unit, [target + n for n in noises], index), strict=True):
            rho = torch.maximum(rho, relative(into.norm(moved.double() - solution.value.double()), out.norm(noise)))
        own = rho * solution.ccp * out.norm(target)
        error = rho * error + own
        size = solution.deviation * into.norm(walk.record.taken(unit.source, index))
        errors = [_over(e, size) for e in (own, error)]
        findings.append(_finding(unit, names.get(unit.source, ""), solution, [rho, *errors], _singular(walk, unit)))
        target = solution.value
    return findings


def _answers(walk: Walk, unit: Unit, targets: Sequence[Tensor], index: Tensor) -> Sequence[Tensor]:
    """A unit's answers for several targets of the same samples: all at once, where a graph takes any number of them."""
    if not walk.captured.dynamic:
        return [walk.solve(unit, t, index).value for t in targets]
    out, into = walk.record.batch_axis(unit.sink), walk.record.batch_axis(unit.source)
    together = out.back(torch.cat([out.front(t) for t in targets]))
    value = walk.solve(unit, together, index.repeat(len(targets))).value
    return [into.back(part) for part in into.front(value).split(len(index))]


def _noise(samples: BatchAxis, target: Tensor, size: Tensor, g: torch.Generator) -> Tensor:
    """ξ, like the target. size: (b,), its norm for each sample."""
    noise = torch.randn(target.shape, generator=g, dtype=torch.float64).to(target)
    return noise * samples.over(relative(size, samples.norm(noise)), noise).to(noise)


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
