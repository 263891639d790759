"""Ops that move, spread or reduce numbers, against the pseudo-inverse of their matrix of zeros and ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frpt.rules import RULES
from tests.rules.cases import MOVES, REDUCTIONS, RESHAPES, Case, Draw, site
from tests.rules.reference import asked, assert_least_change, least_change
from tests.tolerance import assert_close

aten = torch.ops.aten


@pytest.mark.parametrize("case", [*RESHAPES, *MOVES, *REDUCTIONS], ids=str)
def test_least_change(case: Case) -> None:
    assert_least_change(case)


@pytest.mark.parametrize("item", [0, 1, 2])
def test_cat_of_every_item(item: int) -> None:
    """The active part takes its slice of the target; the other parts are side inputs, in any precision."""
    d = Draw(torch.float32, torch.Generator().manual_seed(0))
    parts = [d.normal(2, 3), d.normal(2, 4), d.normal(2, 1)]
    at = site(aten.cat.default, parts, 1, slot="tensors", item=item)
    target = asked(at)
    value = RULES["default"][aten.cat.default].solve(at, target).value
    start = [0, 3, 7][item]
    assert_close(value, target[:, start : start + parts[item].shape[1]], torch.float64)


@pytest.mark.parametrize("pick", [0, 1, 2])
def test_entries_outside_the_picked_part_keep_their_anchor(pick: int) -> None:
    d = Draw(torch.float64, torch.Generator().manual_seed(0))
    at = site(aten.chunk.default, d.normal(2, 6), 3, 1, pick=pick)
    target = asked(at)
    value = RULES["default"][aten.chunk.default].solve(at, target).value
    expected = at.anchor.clone()
    expected[:, 2 * pick : 2 * pick + 2] = target
    assert_close(value, expected)


@given(
    rows=st.integers(1, 4),
    count=st.integers(1, 6),
    index=st.lists(st.integers(0, 5), min_size=1, max_size=9),
    seed=st.integers(0, 1000),
)
def test_an_entry_that_is_read_often_takes_the_mean(rows: int, count: int, index: list[int], seed: int) -> None:
    d = Draw(torch.float64, torch.Generator().manual_seed(seed))
    positions = torch.tensor([i % count for i in index])
    at = site(aten.index_select.default, d.normal(rows, count), 1, positions)
    target = asked(at, seed=seed)
    value = RULES["default"][aten.index_select.default].function(at, target).value
    for i in range(count):
        reads = positions == i
        expected = target[:, reads].mean(1) if bool(reads.any()) else at.anchor[:, i]
        assert_close(value[:, i], expected)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(2, 4)),
    pad=st.tuples(st.integers(-1, 1), st.integers(-1, 1), st.integers(0, 2), st.integers(0, 2)),
    mode=st.sampled_from(["constant", "reflect", "replicate", "circular"]),
)
def test_drawn_padding(shape: tuple[int, int, int], pad: tuple[int, ...], mode: str) -> None:
    """Padding of every mode, cropping where it is negative (constant mode)."""
    d = Draw(torch.float64, torch.Generator().manual_seed(0))
    amounts = list(pad) if mode == "constant" else [max(pad[0], 0), max(pad[1], 0)]
    at = site(aten.pad.default, d.normal(*shape), amounts, mode, 0.7 if mode == "constant" else None)
    target = asked(at)
    value = RULES["default"][aten.pad.default].function(at, target).value
    assert_close(value, least_change(at, target))


@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    data=st.data(),
    keep=st.booleans(),
    op=st.sampled_from([aten.mean.dim, aten.sum.dim_IntList]),
)
def test_drawn_reductions(shape: list[int], data: st.DataObject, keep: bool, op: torch._ops.OpOverload) -> None:
    """a = â + r or â + r/n, uniformly over every slice."""
    axes = data.draw(st.lists(st.integers(1, len(shape) - 1), min_size=1, unique=True))
    negative = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    d = Draw(torch.float64, torch.Generator().manual_seed(0))
    at = site(op, d.normal(*shape), negative, keep)
    target = asked(at)
    value = RULES["default"][op].solve(at, target).value
    assert_close(value, least_change(at, target))


def test_dropout_in_training_has_no_rule() -> None:
    rule = RULES["default"][aten.dropout.default]
    assert not rule.applies(site(aten.dropout.default, torch.ones(1, 2), 0.5, True, slot="input"))


def test_an_active_index_has_no_rule() -> None:
    rule = RULES["default"][aten.gather.default]
    at = site(aten.gather.default, torch.ones(1, 2), 1, torch.zeros(1, 1, dtype=torch.long))
    assert rule.applies(at)
    assert not rule.applies(site(aten.gather.default, torch.ones(1, 2), 1, torch.zeros(1, 1).long(), slot="index"))
