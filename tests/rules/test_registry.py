"""The registry: one rule per op and preset, look-up by preset, and what is prepared once per weight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import frpt
from frpt.common.batch_axis import BatchAxis
from frpt.errors import NonFiniteError, OptionError
from frpt.options import PRESETS
from frpt.rules import RULES, Call, Site, reverses, rule_for
from frpt.rules.registry import bind, call_op, plain_site
from frpt.solvers.base import Solution
from frpt.solvers.linear.dense import Dense
from tests.rules.cases import site
from tests.tolerance import assert_close

aten = torch.ops.aten


def test_registering_a_rule_twice_raises() -> None:
    before = RULES["default"][aten.relu.default]
    with pytest.raises(frpt.errors.OptionError, match="relu"):

        @reverses(aten.relu.default)
        def another(site: Site, target: Tensor) -> Solution:
            return site.exact(target)

    assert RULES["default"][aten.relu.default] is before


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_registering_twice_in_one_call_raises(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, preset, dict(RULES[preset]))
    with pytest.raises(OptionError, match="already has"):
        reverses(aten.sin.default, aten.sin.default, preset=preset)(lambda site, target: site.exact(target))


def test_the_presets_own_rule_comes_first() -> None:
    call = site(aten.tanh.default, torch.zeros(1, 2))
    assert rule_for(call, "paper") is RULES["paper"][aten.tanh.default]
    assert rule_for(call) is RULES["default"][aten.tanh.default]
    relu = site(aten.relu.default, torch.zeros(1, 2))
    assert rule_for(relu, "paper") is RULES["default"][aten.relu.default]
    assert rule_for(replace(relu, op=aten.sin.default)) is None


def test_a_slot_the_rule_cannot_reverse_is_refused() -> None:
    call = Call(aten.div.Tensor, bind(aten.div.Tensor, (torch.ones(2), torch.ones(2)), {}), "other")
    assert rule_for(call) is None


def test_bind_and_call_op_are_inverse() -> None:
    x, w = torch.randn(2, 3), torch.randn(3, 4)
    args = bind(aten.addmm.default, (torch.zeros(4), x), {"mat2": w, "alpha": 2.0})
    assert args["beta"] == 1
    assert_close(call_op(aten.addmm.default, args), 2 * x @ w)


def test_plain_site_records_the_output_in_solver_precision() -> None:
    x = torch.randn(2, 3)
    at = plain_site(Call(aten.relu.default, {"self": x}, "self"), PRESETS["default"])
    assert at.output.dtype == at.anchor.dtype == torch.float64
    assert torch.equal(at.output.float(), x.relu())


def test_samples_on_another_axis() -> None:
    """Sequence-first tensors: reports and the fixed point go by the batch axis."""
    x = torch.randn(5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    args = bind(aten.linear.default, (x, weight), {})
    at = plain_site(Call(aten.linear.default, args, "input"), PRESETS["default"], BatchAxis(1))
    target = at.output.clone()
    target[:, 1] += 0.1
    solution = RULES["default"][aten.linear.default].solve(at, target)
    assert solution.fallback.shape == (2,)
    assert torch.equal(solution.value[:, 0], x[:, 0])
    assert not torch.equal(solution.value[:, 1], x[:, 1])


# --- prepared once per weight -----------------------------------------------------------------------------------------


def _cached(weight: Tensor) -> Site:
    return replace(site(aten.linear.default, torch.zeros(1, weight.shape[1]), weight, slot="input"), cache={})


def test_a_weight_is_prepared_once() -> None:
    weight = torch.randn(2, 3)
    at = _cached(weight)
    first = at.prepared("dense", weight, Dense)
    assert at.prepared("dense", weight.clone(), Dense) is first


@pytest.mark.parametrize("change", ["negated", "permuted", "constant", "one entry", "precision"])
def test_another_weight_is_prepared_anew(change: str) -> None:
    """A weight that was updated in place must not meet the factorisation of the old one."""
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    at = _cached(weight)
    first = at.prepared("dense", weight, Dense)
    if change == "negated":
        weight.neg_()
    elif change == "permuted":
        weight.copy_(weight.flip(0))
    elif change == "constant":
        weight.fill_(7.0)
    elif change == "one entry":
        weight[0, 0] += 1e-6
    else:
        weight = weight.double()
    second = at.prepared("dense", weight, Dense)
    assert second is not first
    assert torch.equal(second.matrix, weight.double())


def test_no_cache_prepares_every_time() -> None:
    weight = torch.randn(2, 3)
    at = replace(_cached(weight), cache=None)
    assert at.prepared("dense", weight, Dense) is not at.prepared("dense", weight, Dense)


def test_a_rule_that_makes_nan_is_an_error_that_names_the_place() -> None:
    at = replace(site(aten.relu.default, torch.ones(1, 2)), where="model.act")
    broken = replace(
        RULES["default"][aten.relu.default], function=lambda at, target: Solution.of(target * float("nan"), len(target))
    )
    with pytest.raises(NonFiniteError, match=r"model\.act"):
        broken.solve(at, torch.zeros(1, 2, dtype=torch.float64))
