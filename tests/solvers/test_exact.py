"""The exact solver on all its ways against a dense pseudo-inverse: sound maps, deficient ones, damped ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from frpt.options import Convolutions
from frpt.solvers.conv.operator import Convolution
from frpt.solvers.conv.torus import Torus, fitting
from frpt.solvers.conv.woodbury import Exact, Woodbury
from frpt.solvers.linear.cgls import ConjugateGradients
from tests.solvers.kinds import KINDS, OPEN, Kind, least_change, normal, nudged, off, plain, preset, transposed

WAYS: dict[str, dict[str, Any]] = {
    "dense": {},
    "seam": {"dense_entries": 1},
    "circulant": {"dense_entries": 1, "seam_entries": 1},
}
every_way = pytest.mark.parametrize("way", WAYS)
NAMED = {kind.name: kind for kind in KINDS}


def sound(conv: Convolution) -> bool:
    """A condition number under 300, and no output that sees padding only."""
    values = torch.linalg.svdvals(conv.matrix())
    return float(values[-1]) > float(values[0]) / 300 and bool((conv.matrix() != 0).any(1).all())


def assert_exact(kind: Kind, way: str, weight: Tensor, seed: int = 3) -> None:
    """The anchored minimum-norm least-squares solution to 1e-6, gate open or closed."""
    conv, anchor = kind.map(weight), kind.anchor()
    target = nudged(kind.forward(anchor, weight), seed=seed)
    expected = least_change(conv, target - kind.forward(anchor, weight))
    for keywords in ({"gate": OPEN}, {}):
        found = kind.solve(anchor, target, weight, solver="exact", preset=preset(**WAYS[way]), **keywords)
        assert off(found.value - anchor, expected) < 1e-6
        assert not found.fallback.any()


@every_way
@pytest.mark.parametrize("kind", [k for k in KINDS if sound(k.map())], ids=str)
def test_every_kind(kind: Kind, way: str) -> None:
    assert_exact(kind, way, kind.weight())


def test_worse_conditioned_than_its_circulant() -> None:
    """Condition number 110, that of the circulant 6: the promise is 1e-6 for the map."""
    kind = Kind("", (2, 4, 4, 3, 3), (4, 3, 3, 2, 2), (2, 1, 1), 1, 1, 2, transposed=True)
    conv = kind.map(kind.weight(3))
    assert sound(conv)
    residual = normal(2, *conv.outputs, seed=4)
    for solver in solvers(conv):
        assert off(solver.solve(residual), least_change(conv, residual)) < 1e-6, solver.direct


PADDING_ONLY = [
    Kind("pointwise-padded", (2, 3, 4, 4), (2, 3, 1, 1), 1, 1),
    Kind("depthwise-padded", (2, 3, 3), (3, 1, 1), 1, ((0, 1),), 1, 3),
    Kind("1d-beyond", (2, 2, 6), (2, 2, 3), 1, 3),
    Kind("transposed-apart", (2, 2, 3), (2, 3, 2), 2, 1, 2, transposed=True),
]


@every_way
@pytest.mark.parametrize("kind", PADDING_ONLY, ids=str)
def test_outputs_that_no_input_reaches(kind: Kind, way: str) -> None:
    """Windows that see padding only: their rows are zero, their target is nobody's business, the rest is solved."""
    weight, anchor = kind.weight(1), kind.anchor()
    conv, out = kind.map(weight), kind.forward(anchor, weight)
    assert not (conv.matrix() != 0).any(1).all()
    target = nudged(out)
    expected = least_change(conv, target - out)
    found = kind.solve(anchor, target, weight, solver="exact", preset=preset(**WAYS[way]), gate=OPEN)
    assert off(found.value - anchor, expected) < 1e-5


def test_most_kinds_are_sound() -> None:
    """The test above is of something."""
    assert sum(sound(kind.map()) for kind in KINDS) >= len(KINDS) - 2


@given(kind=st.one_of(plain(), transposed()), way=st.sampled_from(sorted(WAYS)), seed=st.integers(0, 1000))
def test_drawn_convolutions(kind: Kind, way: str, seed: int) -> None:
    weight = kind.weight(seed)
    assume(sound(kind.map(weight)))
    assert_exact(kind, way, weight, seed + 1)


@pytest.mark.parametrize(("way", "names"), [("dense", {"matrix"}), ("seam", {"seam"}), ("circulant", {"circulant"})])
def test_options_force_the_way(way: str, names: set[str]) -> None:
    """Reflected and replicated padding, and circles that do not close, fit no torus; other circles leave no seam."""
    found = {kind.name: Convolutions(**WAYS[way]).choose(kind.map()).way for kind in KINDS}
    for name, kind in NAMED.items():
        if (way != "dense" and name == "2d-circular-odd") or (way == "seam" and kind.mode in ("reflect", "replicate")):
            assert found[name] == "circulant"
        elif way == "circulant" and kind.mode == "circular":
            assert found[name] == "seam"
        else:
            assert found[name] in names


def same(weight: Tensor) -> Tensor:
    return weight


def repeated(weight: Tensor) -> Tensor:
    return torch.cat([weight[:1], weight[:1], weight[2:]])


def dead(weight: Tensor) -> Tensor:
    return torch.cat([weight[:1], torch.zeros_like(weight[1:2]), weight[2:]])


def unread(weight: Tensor) -> Tensor:
    """An input channel that no filter reads."""
    return torch.cat([weight[:, :1], torch.zeros_like(weight[:, 1:2]), weight[:, 2:]], 1)


def one_filter(weight: Tensor) -> Tensor:
    """All filters are multiples of one."""
    return weight[:1] * normal(len(weight), *[1] * (weight.dim() - 1), seed=8)


def mean_free(weight: Tensor) -> Tensor:
    """Frequency zero vanishes: on circular padding constant targets are out of reach."""
    return weight - weight.mean(tuple(range(2, weight.dim())), keepdim=True)


BRIEF = Kind("2d-stride-wide", (2, 2, 7, 7), (3, 2, 3, 3), 2, 2)
DEFICIENT: list[tuple[Kind, Callable[[Tensor], Tensor]]] = [
    (BRIEF, same),
    (NAMED["2d-wide-padding"], same),
    (Kind("1d-wide-padding", (2, 2, 5), (1, 2, 3), 1, 3), same),
    (NAMED["2d-circular"], mean_free),
    (NAMED["2d"], one_filter),
    (NAMED["2d-II"], one_filter),
    *[(NAMED[n], f) for n in ("1d", "2d", "2d-II", "2d-circular", "2d-groups", "3d") for f in (repeated, dead)],
    *[(NAMED[n], unread) for n in ("2d-II", "2d-stride", "2d-replicate-stride", "2d-transposed")],
]
every_deficient = pytest.mark.parametrize(("kind", "change"), DEFICIENT, ids=lambda v: getattr(v, "__name__", str(v)))


@every_way
@every_deficient
def test_deficient_maps(kind: Kind, change: Callable[[Tensor], Tensor], way: str) -> None:
    """With the gate off the minimum-norm least-squares solution, to 1e-5."""
    weight, anchor = change(kind.weight()), kind.anchor()
    target = nudged(kind.forward(anchor, weight))
    expected = least_change(kind.map(weight), target - kind.forward(anchor, weight))
    found = kind.solve(anchor, target, weight, solver="exact", preset=preset(**WAYS[way]), gate=OPEN)
    assert torch.isfinite(found.value).all()
    assert off(found.value - anchor, expected) < 1e-5


def filtered(conv: Convolution, residual: Tensor, alpha: Tensor) -> Tensor:
    """V diag(σ / (σ² + α)) Uᵀ r."""
    u, s, vh = torch.linalg.svd(conv.matrix(), full_matrices=False)
    found: Tensor = (residual.flatten(1) @ u * (s / (s**2 + alpha[:, None]))) @ vh
    return found.reshape(-1, *conv.inputs)


@every_way
@every_deficient
def test_deficient_maps_under_the_gate(kind: Kind, change: Callable[[Tensor], Tensor], way: str) -> None:
    """Case I: most targets are out of reach, so the answer is Tikhonov's, α = (σ_max/κ)², and reported."""
    weight, anchor = change(kind.weight()), kind.anchor()
    conv, out = kind.map(weight), kind.forward(anchor, weight)
    target = nudged(out)
    found = kind.solve(anchor, target, weight, solver="exact", preset=preset(**WAYS[way]))
    assert torch.isfinite(found.value).all()
    if conv.reduces and int(torch.linalg.matrix_rank(conv.matrix())) < min(conv.matrix().shape):
        assert found.fallback.all()
        sigma = float(torch.linalg.svdvals(conv.matrix())[0])
        # σ_max is estimated: by power iteration, or on the torus; α is a factor of two at most away from this one
        low, high = (filtered(conv, target - out, torch.full((2,), (f * sigma / 1e3) ** 2)) for f in (0.7, 1.4))
        between = (high - low).flatten(1).norm(dim=1) + 1e-5 * low.flatten(1).norm(dim=1)
        assert ((found.value - anchor - low).flatten(1).norm(dim=1) <= 1.1 * between).all()


def solvers(conv: Convolution) -> Iterator[Exact]:
    """The exact solvers that may be chosen for a map: filters of deficient rank are not theirs."""
    size = fitting(conv)
    if Torus(conv, size).deficient:
        return
    for seam in (True, False) if conv.toroidal else (False,):
        yield Exact(conv, Torus(conv, size), seam)


def assert_damped(conv: Convolution) -> None:
    """(AᵀA + αI)⁻¹Aᵀr to 1e-5, every system with its own α."""
    residual = normal(2, *conv.outputs, seed=5)
    least = (float(torch.linalg.svdvals(conv.matrix())[0]) / 1e3) ** 2
    for solver in solvers(conv):
        for pair in ((1.0, 1.0), (1e-2, 3.0), (least, least), (10 * least, least)):
            alpha = torch.tensor(pair, dtype=torch.float64)
            assert off(solver.damped(residual, alpha), filtered(conv, residual, alpha)) < 1e-5, (solver.direct, pair)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_damped(kind: Kind) -> None:
    assert_damped(kind.map())


@every_deficient
def test_damped_deficient_maps(kind: Kind, change: Callable[[Tensor], Tensor]) -> None:
    assert_damped(kind.map(change(kind.weight())))


@pytest.mark.parametrize("kind", ["2d", "2d-II", "2d-stride", "2d-transposed"])
@pytest.mark.parametrize("way", ["seam", "circulant"])
def test_systems_stop_on_their_own(kind: str, way: str) -> None:
    """Residuals from nothing to huge in one batch: each as if it were alone, to its own tolerance."""
    conv = NAMED[kind].map()
    scales = torch.tensor([1.0, 0.0, 1e-8, 1e6, 1.0], dtype=torch.float64).reshape(-1, 1, 1, 1)
    residual = normal(5, *conv.outputs, seed=6) * scales
    solver = next(s for s in solvers(conv) if s.direct == (way == "seam"))
    found, expected = solver.solve(residual), least_change(conv, residual)
    kept = [0, 2, 3, 4]
    assert off(found[kept], expected[kept]) < 1e-6
    assert torch.equal(found[1], torch.zeros_like(found[1]))


@pytest.mark.parametrize("kind", [k for k in KINDS if sound(k.map())], ids=str)
def test_norms_of_the_map(kind: Kind) -> None:
    """σ_max of the circulant bounds the map's, and is near it; ‖A‖_F is the map's."""
    conv = kind.map()
    for solver in solvers(conv):
        if conv.toroidal:
            sigma = float(torch.linalg.svdvals(conv.matrix())[0])
            assert sigma * (1 - 1e-9) <= solver.sigma_max <= 1.5 * sigma
        assert solver.frobenius == conv.frobenius


@settings(max_examples=10)
@given(kind=plain(), way=st.sampled_from(sorted(WAYS)), seed=st.integers(0, 1000))
def test_single_precision(kind: Kind, way: str, seed: int) -> None:
    weight = kind.weight(seed)
    assume(sound(kind.map(weight)))
    anchor = kind.anchor()
    target = nudged(kind.forward(anchor, weight))
    expected = least_change(kind.map(weight), target - kind.forward(anchor, weight))
    options = preset(torch.float32, **WAYS[way])
    found = kind.solve(anchor.float(), target.float(), weight.float(), solver="exact", preset=options, gate=OPEN)
    assert off(found.value.double() - anchor, expected) < 1e-2


def test_too_few_steps_end_finite() -> None:
    """A limit of steps is a limit: the answer is unfinished, and the gate says so."""
    kind = NAMED["2d-reflect"]
    anchor, weight = kind.anchor(), kind.weight()
    target = nudged(kind.forward(anchor, weight))
    options = preset(exact=Woodbury(iterations=2), cg=ConjugateGradients(iterations=2), **WAYS["circulant"])
    found = kind.solve(anchor, target, weight, solver="exact", preset=options)
    assert torch.isfinite(found.value).all()
    assert found.fallback.all()
