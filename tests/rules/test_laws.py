"""The laws every reverse rule obeys: fixed point, CCP, MDP, finiteness, dtype and shape, nothing modified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from frpt.common.batch_axis import BatchAxis
from frpt.options import Gate
from frpt.rules import RULES, Site, rule_for
from frpt.solvers.base import Solution, UnitAxes
from tests.rules.cases import CASES, Case
from tests.tolerance import ABSOLUTE, assert_close

DOUBLE, SINGLE, HALF = torch.float64, torch.float32, torch.bfloat16
PRECISIONS = {"f64": (DOUBLE, DOUBLE), "f32": (SINGLE, DOUBLE), "f32-solver": (SINGLE, SINGLE)}
WITH_HALF = {**PRECISIONS, "bf16": (HALF, DOUBLE)}
WILD = (1e6, -1e6, 0.0)

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def claimed(
    law: Callable[[Case], bool], precisions: Mapping[str, tuple[torch.dtype, torch.dtype]] = PRECISIONS
) -> pytest.MarkDecorator:
    """Every case that claims a law, in each (model, solver) precision it runs in; no other is collected."""
    rows = [
        pytest.param(case, model, solver, id=f"{name}-{case}")
        for name, (model, solver) in precisions.items()
        for case in CASES
        if law(case) and not (model == HALF and case.bfloat16)
    ]
    return pytest.mark.parametrize(("case", "model", "solver"), rows)


def always(case: Case) -> bool:
    return True


def per_sample(case: Case) -> bool:
    return not case.scalar


def solve(case: Case, site: Site, target: Tensor) -> Solution:
    if case.scalar:  # no batch axis in the output: the guard of Rule.solve cannot see samples there
        return case.rule.function(site, target)
    return case.rule.solve(site, target)


def built(case: Case, model: torch.dtype, solver: torch.dtype) -> Site:
    return case.site(model, case.preset_with(solver))


def nudged(case: Case, site: Site) -> tuple[Tensor, Tensor]:
    """(a′, Φ(a′)) for an input near the anchor, computed in the model's dtype, given in solver precision."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(site.active.shape, generator=generator, dtype=DOUBLE)
    near = (site.active.double() + case.nudge * noise).to(site.active.dtype)
    return near.to(site.anchor.dtype), site.forward(near).to(site.anchor.dtype)


def clones(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: clones(v) for k, v in value.items()}
    return [clones(v) for v in value] if isinstance(value, list) else value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return all(same(a[k], b[k]) for k in a)
    return all(map(same, a, b)) if isinstance(a, list) else a == b


@pytest.mark.parametrize("preset", RULES)
def test_every_registered_rule_has_a_case(preset: str) -> None:
    covered = {case.op for case in CASES if case.preset == preset}
    assert set(RULES[preset]) - covered == set()


def test_case_names_are_unique() -> None:
    names = [str(case) for case in CASES]
    assert len(set(names)) == len(names)


@every_case
def test_the_plan_finds_the_rule(case: Case) -> None:
    assert rule_for(case.call(SINGLE), case.preset) is case.rule


@claimed(always, WITH_HALF)
def test_fixed_point(case: Case, model: torch.dtype, solver: torch.dtype) -> None:
    """t = Φ(â) gives back â to the last bit."""
    site = built(case, model, solver)
    solution = solve(case, site, site.output.clone())
    assert torch.equal(solution.value, site.anchor)


@claimed(per_sample, WITH_HALF)
def test_fixed_point_of_one_sample(case: Case, model: torch.dtype, solver: torch.dtype) -> None:
    """A sample whose target is met keeps its anchor, whatever its neighbours in the batch are asked for."""
    site = built(case, model, solver)
    met, moved = torch.tensor([0]), torch.tensor([1])
    target = site.axes.output.put(site.output, moved, site.axes.output.take(site.output, moved) + 0.25)
    solution = solve(case, site, target)
    assert torch.equal(BatchAxis().take(solution.value, met), BatchAxis().take(site.anchor, met))


@claimed(lambda case: case.ccp is None)
def test_ccp(case: Case, model: torch.dtype, solver: torch.dtype) -> None:
    """A target that some nearby input attains is attained."""
    site = built(case, model, solver)
    _, target = nudged(case, site)
    assert not torch.equal(target, site.output)
    solution = solve(case, site, target)
    assert not bool(solution.fallback.any())
    reached = site.forward(solution.value.to(model))
    assert_close(reached, target, SINGLE if model == SINGLE else DOUBLE, case.slack)


@claimed(lambda case: case.mdp is None)
def test_mdp(case: Case, model: torch.dtype, solver: torch.dtype) -> None:
    """The input that made the target is a preimage of it: the solution is not farther from the anchor."""
    site = built(case, model, solver)
    near, target = nudged(case, site)
    solution = solve(case, site, target)
    mine, its = BatchAxis().norm(solution.value - site.anchor), BatchAxis().norm(near - site.anchor)
    room = case.slack * ABSOLUTE[model] * site.anchor[0].numel() ** 0.5
    assert bool((mine <= its + room).all()), f"{mine.tolist()} against {its.tolist()}"


@claimed(always, WITH_HALF)
def test_wild_targets_stay_finite(case: Case, model: torch.dtype, solver: torch.dtype) -> None:
    site = built(case, model, solver)
    for wild in WILD:
        everywhere = torch.full_like(site.output, wild)
        here_and_there = torch.arange(site.output.numel()).reshape(site.output.shape) % 2 == 0
        for target in (everywhere, torch.where(here_and_there, everywhere, site.output)):
            solution = solve(case, site, target)
            assert bool(torch.isfinite(solution.value).all()), wild


@claimed(always)
def test_dtype_shape_and_report(case: Case, model: torch.dtype, solver: torch.dtype) -> None:
    site = built(case, model, solver)
    _, target = nudged(case, site)
    solution = solve(case, site, target)
    assert solution.value.dtype == solver
    assert solution.value.shape == site.anchor.shape
    count = len(site.anchor)
    for name in ("fallback", "iterations"):
        assert getattr(solution, name).shape == (count,), name
    assert solution.fallback.dtype == torch.bool
    assert not solution.iterations.is_floating_point()


@every_case
def test_nothing_is_modified(case: Case) -> None:
    site = built(case, SINGLE, SINGLE)  # no conversion stands between the rule and the recorded tensors
    for target in (nudged(case, site)[1], torch.full_like(site.output, 1e6)):
        before = clones(dict(site.args)), site.anchor.clone(), site.output.clone(), target.clone()
        solve(case, site, target)
        assert same(dict(site.args), before[0])
        assert torch.equal(site.anchor, before[1])
        assert torch.equal(site.output, before[2])
        assert torch.equal(target, before[3])


@pytest.mark.parametrize("case", [c for c in CASES if not c.scalar and c.output == BatchAxis()], ids=str)
def test_samples_folded_into_the_batch_axis(case: Case) -> None:
    """Windows folded into axis 0: one report per sample, the same solution."""
    site = built(case, DOUBLE, DOUBLE)
    folded = replace(site, axes=UnitAxes(*[BatchAxis(inner=len(site.anchor))] * 2))
    _, target = nudged(case, site)
    solution = solve(case, folded, target)
    assert solution.fallback.shape == solution.iterations.shape == (1,)
    assert_close(solution.value, solve(case, site, target).value)
    assert torch.equal(solve(case, folded, site.output.clone()).value, site.anchor)


@every_case
def test_a_gate_that_is_off_changes_nothing_near(case: Case) -> None:
    """Near targets pass the gate: with and without it the solution is the same."""
    on = built(case, DOUBLE, DOUBLE)
    off = replace(on, preset=replace(on.preset, gate=Gate(enabled=False)))
    _, target = nudged(case, on)
    assert_close(solve(case, on, target).value, solve(case, off, target).value)
