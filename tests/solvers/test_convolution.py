"""The linear map of a convolution against torch.nn.functional, and the torus that it is cut out of."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from frpt.solvers.conv.operator import Convolution
from frpt.solvers.conv.torus import Side, Torus, fitting
from tests.solvers.kinds import BLOCK_DIAGONAL, KINDS, Kind, normal, plain, positions, transposed
from tests.tolerance import assert_close

every_kind = pytest.mark.parametrize("kind", [*KINDS, *BLOCK_DIAGONAL], ids=str)
SIDES: tuple[Side, Side] = ("inputs", "outputs")


def assert_linear_map(kind: Kind, seed: int) -> None:
    """apply is torch's convolution, adjoint its transpose, matrix both of them."""
    weight, x = kind.weight(seed), kind.anchor(seed + 1)
    conv, expected = kind.map(weight), kind.forward(x, weight)
    assert_close(conv.apply(x), expected)
    y = normal(*expected.shape, seed=seed + 2)
    back = conv.adjoint(y)
    assert back.shape == x.shape
    assert_close((back * x).flatten(1).sum(1), (y * expected).flatten(1).sum(1), slack=10)
    A = conv.matrix()
    assert_close(x.flatten(1) @ A.mT, expected.flatten(1))
    assert_close(y.flatten(1) @ A, back.flatten(1))
    assert conv.reduces == (A.shape[0] <= A.shape[1])
    reads, makes = conv.reached
    assert torch.equal(reads.flatten(), (A != 0).any(0))
    assert torch.equal(makes.flatten(), (A != 0).any(1))


@every_kind
def test_every_kind_is_a_linear_map(kind: Kind) -> None:
    assert_linear_map(kind, 0)


@given(kind=plain(), seed=st.integers(0, 1000))
def test_drawn_convolutions(kind: Kind, seed: int) -> None:
    assert_linear_map(kind, seed)


@given(kind=transposed(), seed=st.integers(0, 1000))
def test_drawn_transposed_convolutions(kind: Kind, seed: int) -> None:
    assert_linear_map(kind, seed)


def test_output_padding_beyond_the_stride() -> None:
    """torch takes any that is smaller than the dilation, too."""
    assert_linear_map(Kind("", (2, 2, 4), (2, 3, 2), 1, 0, 2, transposed=True, extra=1), 0)


@given(kind=plain())
def test_frobenius(kind: Kind) -> None:
    """Right where no window meets the same input twice; reflected and replicated inputs count as if they were apart."""
    conv = kind.map()
    extents = conv.geometry.extent(conv.kernel)
    assume(kind.mode != "circular" or all(e <= h for e, h in zip(extents, kind.x[2:], strict=True)))
    squares = kind.forward(torch.ones(1, *conv.inputs, dtype=torch.float64), kind.weight() ** 2)
    assert conv.frobenius == pytest.approx(math.sqrt(float(squares.sum())), rel=1e-12)
    if kind.mode in ("zeros", "circular"):
        assert conv.frobenius == pytest.approx(float(torch.linalg.matrix_norm(conv.matrix())), rel=1e-12)


def test_many_samples_go_through_in_parts() -> None:
    """Unrolled inputs beyond a few MiB are convolved a few samples at a time: the same numbers."""
    kind = Kind("large", (300, 3, 16, 16), (4, 3, 3, 3), 1, 1)
    weight, x = kind.weight(), kind.anchor()
    assert_close(kind.map(weight).apply(x), kind.forward(x, weight))
    assert kind.map(weight).apply(x[:0]).shape == (0, 4, 16, 16)


def test_reached_entries() -> None:
    """A dead filter makes nothing, and a stride past the kernel leaves inputs unread; the case is one of shapes."""
    kind = Kind("", (1, 2, 6), (3, 2, 1))
    weight = kind.weight()
    assert not kind.map(weight).reduces
    dead = weight.clone()
    dead[2] = 0
    assert kind.map(dead).reached[1].tolist() == [[True] * 6, [True] * 6, [False] * 6]
    strided = Kind("", (1, 2, 6), (3, 2, 1), 2).map(weight)
    assert strided.reduces
    assert strided.reached[0].tolist() == [[True, False] * 3] * 2


@every_kind
def test_disjoint_windows_share_no_input(kind: Kind) -> None:
    """Disjoint: any input is read by one window at most, and no window leaves the map."""
    conv = kind.map()
    assert conv.disjoint == (kind in BLOCK_DIAGONAL)
    matrix = conv.matrix().mT if kind.transposed else conv.matrix()  # (coarse, fine)
    reads = (matrix != 0).reshape(conv.coarse[0], -1, matrix.shape[1]).any(0)  # (windows, fine)
    if conv.disjoint:
        assert int(reads.sum(0).max()) <= 1
        assert len(set(reads.sum(1).tolist())) == 1


@pytest.mark.parametrize("kind", BLOCK_DIAGONAL, ids=str)
def test_windows_are_a_view_of_what_each_window_reads(kind: Kind) -> None:
    conv, g = kind.map(), kind.map().geometry
    x = normal(2, *conv.fine, seed=5)
    windows = conv.windows(x)
    assert windows.shape == (2, conv.fine[0], *conv.coarse[1:], *conv.kernel)
    for place in positions(conv.coarse[1:]):
        for tap in positions(conv.kernel):
            at = [i * s + t * d for i, s, t, d in zip(place, g.stride, tap, g.dilation, strict=True)]
            seen: Any = (slice(None), slice(None), *place, *tap)
            read: Any = (slice(None), slice(None), *at)
            assert torch.equal(windows[seen], x[read])
    windows.zero_()
    reached = torch.zeros(conv.fine, dtype=torch.bool)
    conv.windows(reached[None]).fill_(True)
    assert torch.equal(x == 0, reached.expand_as(x))


def tori(conv: Convolution) -> list[Torus]:
    """On these the convolution is cut out of the circulant one exactly, where its padding is zero or circular."""
    if not conv.toroidal:
        return []
    return [Torus(conv, fitting(conv, "least")), Torus(conv, fitting(conv, "padded"))]


def circular(torus: Torus, x: Tensor) -> Tensor:
    return torus.inverse(torus.symbol() @ torus.spectrum(torus.grid("inputs", x)))


def assert_cut_out(kind: Kind) -> None:
    conv, x = kind.map(), kind.anchor()
    for torus in tori(conv):
        assert_close(torus.maps("outputs", circular(torus, x)), conv.apply(x), slack=0.1)
        for side, shape in zip(SIDES, (conv.inputs, conv.outputs), strict=True):
            maps = normal(3, *shape, seed=7)
            grid = torus.grid(side, maps)
            assert grid.shape == (3, kind.groups, torus.channels(side), *torus.size)
            assert torch.equal(torus.maps(side, grid), maps)
            assert float(grid.abs().sum()) == pytest.approx(float(maps.abs().sum()))
        assert torus.seam_size == sum(len(torus.gap(side)) for side in SIDES)


@pytest.mark.parametrize("kind", [k for k in [*KINDS, *BLOCK_DIAGONAL] if k.mode in ("zeros", "circular")], ids=str)
def test_cut_out_of_the_torus(kind: Kind) -> None:
    """S C E = A to 1e-10; maps(grid(x)) is x bit for bit; the seam is what both grids leave empty."""
    assert_cut_out(kind)


@given(kind=st.one_of(plain(), transposed()))
def test_drawn_tori(kind: Kind) -> None:
    assume(kind.mode in ("zeros", "circular"))
    assert_cut_out(kind)


@pytest.mark.parametrize("kind", [k for k in KINDS if k.transposed], ids=str)
def test_symbol_of_a_transposed_convolution(kind: Kind) -> None:
    """The conjugate transpose, frequency by frequency; a part of the frequencies is that part of the symbol."""
    conv = kind.map()
    size = fitting(conv)
    g = conv.geometry
    forward = Convolution(conv.weight, type(g)(g.stride, g.padding, g.dilation, g.groups), conv.fine, conv.coarse)
    symbol = Torus(conv, size).symbol()
    assert torch.equal(symbol, Torus(forward, size).symbol().mH)
    torch.testing.assert_close(Torus(conv, size).symbol(slice(1, 4)), symbol[1:4], rtol=1e-12, atol=1e-12)


@every_kind
def test_gap_lists_the_empty_positions(kind: Kind) -> None:
    conv = kind.map()
    for torus in tori(conv):
        for side, shape in zip(SIDES, (conv.inputs, conv.outputs), strict=True):
            filled = torus.grid(side, torch.ones(1, *shape, dtype=torch.float64))[0].flatten(1)
            expected = [i for i in range(filled.shape[1]) if float(filled[0, i]) == 0]
            assert torus.gap(side).tolist() == expected
            assert bool((filled == filled[0]).all())  # all groups alike


def test_sizes() -> None:
    """The torus in coarse positions; circles that do not close are taken for zeros."""
    conv = Kind("", (1, 2, 9), (1, 2, 3), 1, 2).map()
    assert fitting(conv, "least") == (11,)
    assert fitting(conv, "padded") == (13,)
    assert fitting(conv, "none") == (11,)  # as many as there are outputs
    assert fitting(Kind("", (1, 1, 9), (1, 1, 3), 2, 1).map(), "none") == (5,)
    odd = Kind("", (1, 1, 5), (1, 1, 3), 2, 1, mode="circular").map()
    assert not odd.toroidal
    assert fitting(odd) == (3,)
    even = Kind("", (1, 1, 6), (1, 1, 3), 2, 1, mode="circular").map()
    assert even.toroidal
    assert fitting(even) == fitting(even, "padded") == (3,)


def test_conditioning_and_deficient_filters() -> None:
    """σ and condition number over the frequencies are those of the circulant; repeated and dead filters are seen."""
    kind = Kind("", (1, 4, 6, 6), (3, 4, 3, 3), 1, 1, mode="circular")
    weight = kind.weight()
    torus = tori(kind.map(weight))[0]
    values = torch.linalg.svdvals(kind.map(weight).matrix())
    assert torus.sigma_max == pytest.approx(float(values[0]), rel=1e-10)
    assert torus.condition == pytest.approx(float(values[0] / values[-1]), rel=1e-8)
    assert not torus.deficient
    twice, dead = weight.clone(), weight.clone()
    twice[2] = weight[1]
    dead[0] = 0
    assert tori(kind.map(twice))[0].deficient
    assert tori(kind.map(dead))[0].deficient


@pytest.mark.parametrize("budget", [1, 500, 10**9])
def test_chunks_cover_all_frequencies_once(budget: int) -> None:
    torus = tori(KINDS[3].map())[0]
    seen = [f for part in torus.chunks(100, budget) for f in range(part.start, part.stop)]
    assert seen == list(range(torus.frequencies))
    assert all(part.stop - part.start <= max(1, budget // 100) for part in torus.chunks(100, budget))
