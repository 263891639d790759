"""The nearest weights: the same answer by every way of computing it, and the nearest one where it is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from frpt.graph.inputs import Inputs
from frpt.repairs import Memory, remember, repair
from frpt.repairs.curvature import eigh, leading
from frpt.repairs.memory import captured_graph
from frpt.repairs.nearest_weights import NearestWeights, Problem, Weights
from frpt.repairs.weight_maps import weight_maps
from frpt.reverser import Reverser


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, Memory, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4)).double().eval()
    memory = remember(model, torch.randn(300, 2, 8, dtype=torch.float64), progress=False)
    return model, memory, torch.randn(10, 2, 8, dtype=torch.float64), torch.arange(10) % 4


def problem(made: tuple[nn.Module, Memory, Tensor, Tensor], options: NearestWeights) -> Problem:
    model, memory, x, y = made
    captured = captured_graph(Reverser(model, x))
    return Problem(captured, weight_maps(captured)[0], memory.curvatures, Inputs.of(x), y, options)


def solved(made: tuple[nn.Module, Memory, Tensor, Tensor], options: NearestWeights) -> Weights:
    return problem(made, options).solve(100.0)


@pytest.mark.parametrize("other", [{"dense": 0, "cg_share": 1e-10}, {"held": 0}, {"together": 3}, {"budget": 1}])
def test_the_answer_does_not_depend_on_how_it_is_computed(
    made: tuple[nn.Module, Memory, Tensor, Tensor], other: dict[str, float]
) -> None:
    """Conjugate gradients instead of K, rows made again at every use, few samples or few rows at a time."""
    options = replace(NearestWeights(), damped=1)
    plain, changed = solved(made, options), solved(made, replace(options, **other))
    for name, D in plain.change.items():
        torch.testing.assert_close(changed.change[name], D, rtol=1e-5, atol=1e-7)


def test_of_one_linear_map_it_is_the_nearest(made: tuple[nn.Module, Memory, Tensor, Tensor]) -> None:
    """min ‖D‖²_F with D k = r for one output target: D = F⁻¹kᵀ(kF⁻¹kᵀ)⁻¹r, row by row, by dense algebra."""
    torch.manual_seed(1)
    model = nn.Linear(3, 2).double().eval()
    memory = remember(model, torch.randn(200, 3, dtype=torch.float64), task="regression", progress=False)
    x = torch.randn(1, 3, dtype=torch.float64)
    y = model(x).detach() + torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    captured = captured_graph(Reverser(model, x))
    p = Problem(
        captured, weight_maps(captured)[0], memory.curvatures, Inputs.of(x), y,
        NearestWeights(rounds=1, bisections=0),
    )  # fmt: skip
    D = p.solve(1e-9).change["weight"][0]
    c = p.metric["weight"]
    basis = torch.kron(c.left[0].contiguous(), c.right[0].contiguous())
    F = basis @ torch.diag(c.power[0].flatten()) @ basis.T
    k = torch.cat([x[0], torch.ones(1, dtype=torch.float64)])
    rows = torch.kron(torch.eye(2, dtype=torch.float64), k)
    weighed = torch.linalg.solve(F, rows.T)
    expected = weighed @ torch.linalg.solve(rows @ weighed, (y - model(x).detach())[0])
    torch.testing.assert_close(D.flatten(), expected, rtol=1e-5, atol=1e-7)


def test_no_shorter_change_has_as_many_right(made: tuple[nn.Module, Memory, Tensor, Tensor]) -> None:
    p = problem(made, NearestWeights())
    weights = p.solve(100.0)
    assert int(weights.met.sum()) >= 8
    less = {name: 0.9 * D for name, D in weights.change.items()}
    assert int(p.met(p.outputs(less)).sum()) < int(weights.met.sum())


def test_eigenvectors_where_single_precision_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.linalg.eigh

    def strict(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if A.dtype != torch.float64:
            raise torch.linalg.LinAlgError("too many repeated eigenvalues")
        return whole(A)

    monkeypatch.setattr(torch.linalg, "eigh", strict)
    k = torch.randn(1, 20, 3, generator=torch.Generator().manual_seed(0))
    A = k @ k.mT
    values, vectors = eigh(A)
    assert values.dtype == vectors.dtype == torch.float32
    assert torch.allclose(vectors @ (values[..., None] * vectors.mT), A, atol=1e-5)


def test_leading_eigenvectors_span_what_all_do() -> None:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(300, 300, dtype=torch.float64))[0]
    values = torch.logspace(0, -6, 300, dtype=torch.float64).flip(0)
    A = ((basis * values) @ basis.T)[None]
    found, vectors = leading(A, 30)
    torch.testing.assert_close(found[0], values[-30:], rtol=1e-2, atol=0)
    torch.testing.assert_close(vectors[0].T @ vectors[0], torch.eye(30, dtype=torch.float64))
    caught = (vectors[0].T @ basis[:, -20:]).square().sum(0)
    assert float(caught.min()) > 0.99


def test_a_head_of_zeros_can_be_repaired() -> None:
    """No old input notices what lies before such a head: no metric there, and no gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    nn.init.zeros_(model[2].weight)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    fix = repair(model, x, y, remember(model, torch.randn(200, 4), progress=False))
    assert int(fix.fixed.sum()) >= 5
