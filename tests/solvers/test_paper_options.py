"""The paper's composite route: whose Jacobian is counted, and how a user changes its steps."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import frpt
from frpt.errors import OptionError
from frpt.options import PRESETS, Composite, Gate, Limits
from frpt.solvers.blocks.adam import Adam
from frpt.solvers.blocks.problem import Problem
from tests.models import ResNet
from tests.solvers.blocks import solve

METHOD = Path(__file__).parents[2] / "docs" / "method.md"


def named(inputs: int, outputs: int, samples: int, preset: str = "paper", batch: int | None = None) -> str:
    anchor, target = torch.zeros(samples, inputs), torch.zeros(samples, outputs)
    return PRESETS[preset].composite.chosen(Problem(lambda a, _: a, anchor, target, target, Gate(), batch=batch))


def test_the_paper_counts_one_jacobian_of_the_whole_batch() -> None:
    """(b·inputs)(b·outputs) ≤ 5e7: b² times as many as one sample has."""
    assert [named(2048, 2048, b) for b in (1, 3, 4)] == ["gauss_newton", "gauss_newton", "adam"]
    assert named(5000, 10_000, 1) == "gauss_newton"
    assert named(5000, 10_000, 2) == "adam"
    assert named(2500, 5000, 2) == "gauss_newton"
    assert named(2500, 5001, 2) == "adam"


def test_samples_that_need_no_correction_count_too() -> None:
    """The paper's code passes them on with the others."""
    assert named(2048, 2048, 1, batch=3) == "gauss_newton"
    assert named(2048, 2048, 1, batch=4) == "adam"


@pytest.mark.parametrize("samples", [1, 7, 1000])
def test_the_default_counts_one_sample(samples: int) -> None:
    assert named(300, 300, samples, "default") == "gauss_newton"
    assert named(301, 300, samples, "default", batch=2 * samples) == "secant"


def test_another_scope_is_refused() -> None:
    with pytest.raises(OptionError, match="jacobian_counts must be sample or batch"):
        Composite(jacobian_counts="layer")  # type: ignore[arg-type]


def test_a_reverser_counts_the_batch_it_is_given() -> None:
    """Blocks of 128 × 128 and 128 × 256 entries: 65,536 hold one sample's Jacobian, and no batch of three."""
    torch.manual_seed(0)
    model, x = ResNet(width=4).eval(), torch.randn(3, 3, 16, 16)
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 5  # one sample to be corrected in every batch
    paper = PRESETS["paper"]
    blocks = replace(paper.composite, jacobian_entries=65_536, limits=Limits(iterations=7))
    rev = frpt.Reverser(model, x, preset=replace(paper, composite=blocks))
    adam = replace(paper, composite=replace(blocks, method="adam"))
    alone, together = (rev.reconstruct(x[:b], y[:b], at="layer1") for b in (1, 3))
    forced = frpt.Reverser(model, x, preset=adam).reconstruct(x, y, at="layer1")
    torch.testing.assert_close(together.target, forced.target)
    assert float((together.target[0] - alone.target[0]).norm()) > 1e-3 * float((alone.target - alone.anchor).norm())


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("solver", ["gauss_newton", "adam"])
def test_iterations_limit_the_papers_solvers(solver: str, steps: int) -> None:
    anchor = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    target = torch.tensor([[50.0, 60.0]], dtype=torch.float64)
    problem = Problem(lambda a, _: a**3, anchor, target, anchor**3, Gate(), Limits(iterations=steps))
    assert solve(problem, solver, "paper").iterations.tolist() == [steps]


@pytest.mark.parametrize("rate", [1e-2, 3e-2])
def test_adams_first_step_has_the_length_of_its_rate(rate: float) -> None:
    anchor = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    problem = Problem(lambda a, _: a, anchor, anchor + 1, anchor, Gate(), Limits(iterations=1))
    torch.testing.assert_close(Adam(rate).solve(problem).value, anchor + rate, rtol=1e-5, atol=0)


def test_adams_steps_are_cut_to_the_longest_of_the_options() -> None:
    anchor = torch.zeros(1, 4, dtype=torch.float64) + 1
    problem = Problem(lambda a, _: a, anchor, anchor + 1, anchor, Gate(), Limits(iterations=1))
    torch.testing.assert_close(Adam(longest_step=1e-3).solve(problem).value - anchor, torch.full_like(anchor, 5e-4))


def test_the_preset_in_the_documentation() -> None:
    """docs/method.md: the paper's planners, 5 Adam steps of 0.01."""
    code = re.search(r"```python\n(.*?planner.*?)```", METHOD.read_text(), re.DOTALL)
    assert code is not None
    torch.manual_seed(0)
    model, x = ResNet(width=4).eval(), torch.randn(2, 3, 16, 16)
    y = (model(x).argmax(1) + 1) % 5
    space: dict[str, Any] = {"model": model, "x": x}
    exec(code.group(1), space)
    rec = space["rev"].reconstruct(x, y, at="layer1")
    blocks = [u for u in rec.units if u.rule == "composite"]
    assert len(blocks) == 2
    assert all((u.iterations == 5).all() for u in blocks)
    moved = (rec.target - rec.anchor).abs().max()
    assert 0 < float(moved) < 5 * 0.01 * 2
