"""The time a composite unit may take: solvers stop with the best so far, say so once, and bars name the unit."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import frpt
from frpt.common import clock
from frpt.common.clock import Clock, at_work
from frpt.errors import OptionError, SlowUnitWarning
from frpt.files.progress import Progress
from frpt.options import PRESETS, Gate, Limits, Preset, Reach
from frpt.solvers.base import row_norm
from frpt.solvers.blocks.gauss_newton import GaussNewton
from frpt.solvers.blocks.problem import Problem
from tests.models import ResNet
from tests.solvers.blocks import solve

SOLVERS = ("gauss_newton", "secant", "newton_krylov", "min_norm_newton", "adam")
LONG = Limits(iterations=100)


class Ticking:
    """A clock that moves by ``step`` at every look."""

    def __init__(self, step: float) -> None:
        self.time, self.step = 0.0, step

    def __call__(self) -> float:
        self.time += self.step
        return self.time


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    found = Ticking(1.0)
    monkeypatch.setattr(clock, "now", found)
    return found


def block(seconds: float | None, limits: Limits = LONG) -> Problem:
    """Far from the target and curved, so that every solver needs many steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6)).double().requires_grad_(False)
    g = torch.Generator().manual_seed(1)
    anchor, far = (torch.randn(5, 6, generator=g, dtype=torch.float64) for _ in range(2))
    target = net(anchor + 2 * far)
    return Problem(
        lambda a, _: net(a), anchor, target, net(anchor), Gate(), limits, clock=Clock("layer3.1", seconds, set())
    )


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_stop_with_the_best_so_far(solver: str, ticking: Ticking) -> None:
    """At the third look; Gauss–Newton, which also looks after each of its six rows, in the second Jacobian."""
    free = solve(block(None), solver)
    problem = block(9.5 if solver == "gauss_newton" else 2.5)
    with pytest.warns(SlowUnitWarning, match=r"^layer3\.1: stopped after \d+ s of Limits\.seconds = .*Allow more"):
        cut = solve(problem, solver)
    assert int(cut.iterations.sum()) < int(free.iterations.sum())
    before = row_norm(problem.target - problem.output)
    after = row_norm(problem.target - problem.fn(cut.value, torch.arange(5)))
    assert (after <= before).all()
    assert (after < before).any()
    assert cut.fallback[after > problem.enough].all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_limit_that_is_not_reached_changes_nothing(solver: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        free, limited = solve(block(None), solver), solve(block(600.0), solver)
    assert torch.equal(free.value, limited.value)
    assert torch.equal(free.fallback, limited.fallback)


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_time_at_all_leaves_the_anchor(solver: str, ticking: Ticking) -> None:
    problem = block(0.5)
    with pytest.warns(SlowUnitWarning):
        answer = solve(problem, solver)
    assert torch.equal(answer.value, problem.anchor)
    assert answer.fallback.all()


def test_time_runs_out_between_the_rows_of_a_jacobian(ticking: Ticking) -> None:
    """The first Jacobian of 40 rows never gets ready."""
    pulls = 0

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, a: Tensor) -> Tensor:
            return a.clone()

        @staticmethod
        def backward(ctx: object, g: Tensor) -> Tensor:  # type: ignore[override]
            nonlocal pulls
            pulls += 1
            return g

    anchor = torch.ones(2, 40, dtype=torch.float64)
    problem = Problem(
        lambda a, _: Counted.apply(a), anchor, anchor + 1, anchor.clone(), Gate(), Limits(iterations=20),
        clock=Clock("wide", 10.0),
    )  # fmt: skip
    with pytest.warns(SlowUnitWarning, match="wide"):
        answer = solve(problem, "gauss_newton", "paper")
    assert pulls < 12
    assert torch.equal(answer.value, anchor)
    assert answer.fallback.all()


def test_samples_of_later_parts_keep_their_anchor(ticking: Ticking) -> None:
    """A budget of one sample at a time: time runs out in the first."""
    one = GaussNewton().sample_bytes(block(None))
    problem = block(9.0, Limits(iterations=20, budget=one))
    with pytest.warns(SlowUnitWarning):
        answer = solve(problem, "gauss_newton", "paper")
    assert torch.equal(answer.value[1:], problem.anchor[1:])
    assert answer.fallback[1:].all()
    assert int(answer.iterations[1:].sum()) == 0


def test_the_path_as_a_whole_stops_as_well(ticking: Ticking) -> None:
    problem = replace(block(5.0), stop_at=1e-9)
    with pytest.warns(SlowUnitWarning, match=r"layer3\.1"):
        answer, reached = Reach().solve(problem)
    left = row_norm(problem.target - reached) > problem.enough
    assert left.any()
    assert answer.fallback[left].all()


def paper(seconds: float) -> Preset:
    blocks = PRESETS["paper"].composite
    return replace(PRESETS["paper"], composite=replace(blocks, limits=replace(blocks.limits, seconds=seconds)))


def test_a_reverser_warns_once_per_unit(ticking: Ticking) -> None:
    """Two blocks, two batches, two warnings; the blocks have 128 outputs, so time runs out in the second Jacobian."""
    torch.manual_seed(0)
    model, x = ResNet(width=4).eval(), torch.randn(2, 3, 16, 16)
    y = (model(x).argmax(1) + 1) % 5
    rev = frpt.Reverser(model, x, preset=paper(200.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = (rev.reconstruct(x, y, at="layer1") for _ in range(2))
    texts = [str(w.message) for w in caught if w.category is SlowUnitWarning]
    assert len(texts) == 2
    assert texts[0].startswith("layer2.1")
    assert texts[1].startswith("layer2.0")
    for rec in (first, second):
        assert all(u.fallback.all() for u in rec.units if u.rule == "composite")
    assert at_work() == ""


def test_bars_name_the_unit_that_takes_long(ticking: Ticking) -> None:
    shown = Progress("diagnosing", 10)._bar

    def text() -> str:
        console = Console(file=io.StringIO(), width=160)
        console.print(shown.get_renderable())
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    ticking.step = 0.0
    with Clock("layer3.1", 600.0):
        assert "layer3.1" not in text()
        ticking.time += 75
        assert "layer3.1: 75 s" in text()
    assert "layer3.1" not in text()


def test_a_failure_stops_the_clock(ticking: Ticking) -> None:
    ticking.step = 0.0

    def fail() -> None:
        with Clock("layer3.1", 600.0):
            ticking.time += 75
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert at_work() == ""


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "soon"])
def test_other_limits_are_refused(seconds: object) -> None:
    with pytest.raises(OptionError, match="seconds must be a positive number"):
        Limits(seconds=seconds)  # type: ignore[arg-type]
    assert Limits(seconds=None).seconds is None


def test_ops_have_the_limit_of_their_preset(ticking: Ticking) -> None:
    anchor = torch.ones(2, 3, dtype=torch.float64)
    with pytest.warns(SlowUnitWarning, match=r"^ops\.composite"):
        found = frpt.ops.composite(anchor, anchor + 50, lambda a: a**3, "gauss_newton", preset=paper(2.0))
    assert found.fallback.all()
