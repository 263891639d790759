"""The reverse operators as plain functions: an anchor, a target, a weight; no model, no graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from frpt.errors import InputError, NonFiniteError, OptionError
from frpt.presets import PRESETS, Gate, Preset
from frpt.rules.registry import call_op, plain_site, rule_for
from frpt.solvers.base import Measure, Solution
from frpt.solvers.composite import Problem, solve

aten = torch.ops.aten

_CONV = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
_SOLVERS = {"auto": {}, "matrix": {"dense_entries": 10**18}, "cg": {"dense_entries": 1}}


def linear(anchor: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None = None, gate: Gate = Gate()) -> Solution:
    """The nearest a to the anchor with W a + b = t:  a = â + W⁺(t − b − W â)  (III-A, both cases).

    anchor: (..., n), target: (..., m), weight: (m, n), bias: (m,). The first axis is the batch.
    """
    if weight.dim() != 2 or anchor.shape[-1] != weight.shape[1]:
        raise InputError(f"linear: weight {_shape(weight)} must be (m, n) for an anchor {_shape(anchor)} of (..., n)")
    return _reverse(aten.linear.default, {"input": anchor, "weight": weight, "bias": bias}, target, _preset(gate))


def conv(
    anchor: Tensor,
    target: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    solver: str = "auto",
    gate: Gate = Gate(),
) -> Solution:
    """The nearest a to the anchor with K * a + b = t, in 1, 2 or 3 dimensions (III-B).

    anchor: (b, c, *space), weight: (c', c/groups, *kernel). solver: "matrix" (explicit, factorised), "cg"
    (matrix-free), or "auto" by size.
    """
    rank = weight.dim() - 2
    if rank not in _CONV or anchor.dim() != weight.dim():
        raise InputError(
            f"conv: anchor {_shape(anchor)} and weight {_shape(weight)} must both be (b, c, *space), space 1 to 3 axes"
        )
    if solver not in _SOLVERS:
        raise OptionError(f"conv: unknown solver {solver!r}: there are {', '.join(_SOLVERS)}")

    def axes(v: int | tuple[int, ...]) -> list[int]:
        return [v] * rank if isinstance(v, int) else list(v)

    args = {
        "input": anchor,
        "weight": weight,
        "bias": bias,
        "stride": axes(stride),
        "padding": axes(padding),
        "dilation": axes(dilation),
        "groups": groups,
    }
    return _reverse(_CONV[rank], args, target, _preset(gate, **_SOLVERS[solver]))


def composite(
    anchor: Tensor, target: Tensor, fn: Callable[[Tensor], Tensor], solver: str = "auto", gate: Gate = Gate()
) -> Solution:
    """A near the anchor with fn(a) = t, for any differentiable fn that treats samples independently (III-C).

    anchor: (b, ...), fn: (k, ...) -> (k, ...) for any number k of samples. solver: gauss_newton, secant, adam or auto.
    """
    if solver not in ("auto", "gauss_newton", "secant", "adam"):
        raise OptionError(f"composite: unknown solver {solver!r}: there are auto, gauss_newton, secant, adam")
    with torch.no_grad():
        output = fn(anchor)
    _check(output, target)
    options = PRESETS["default"].solver
    problem = Problem(lambda a, _: fn(a), anchor.detach(), target.to(output), output, gate, options)
    answer = solve(problem, solver)
    with torch.no_grad():
        after = fn(answer.value)
    solution = Solution.of(answer.value, len(anchor), answer.fallback, answer.iterations).checked("ops.composite")
    return solution.measured(anchor, output, after, target, Measure())


def _preset(gate: Gate, **solver: Any) -> Preset:
    base = PRESETS["default"]
    return replace(base, gate=gate, solver=replace(base.solver, **solver))


def _reverse(op: OpOverload, args: dict[str, Any], target: Tensor, preset: Preset) -> Solution:
    with torch.no_grad():
        try:
            output = call_op(op, args)
        except RuntimeError as error:
            raise InputError(f"{op._schema.name.split('::')[-1]}: {error}") from error
        _check(output, target)
        site = plain_site(op, args, "input", preset)
        rule = rule_for(site)
        assert rule is not None
        solution = rule.solve(site, target.to(site.anchor.dtype))
        value = solution.value.to(args["input"].dtype)
        solution = replace(solution, value=value)
        return solution.measured(args["input"], output, call_op(op, {**args, "input": value}), target, Measure())


def _check(output: Tensor, target: Tensor) -> None:
    if output.shape != target.shape:
        raise InputError(f"the target is {_shape(target)}, but the map's output is {_shape(output)}")
    if not bool(torch.isfinite(target).all()):
        raise NonFiniteError("the target holds NaN or infinity")
    if not bool(torch.isfinite(output).all()):
        raise NonFiniteError("the map produces NaN or infinity at the anchor; check the anchor and the weights")


def _shape(t: Tensor) -> str:
    return str(tuple(t.shape))
