"""The reverse operators as plain functions: an anchor, a target, a weight; no model, no graph.

    argmin ‖a − â‖  subject to  Φ(a) = t        (where no a gives t: with ‖Φ(a) − t‖ least)

For users who reverse one layer by hand, and for benchmarks; ``frpt.Reverser`` goes through the same rules and solvers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from frpt.common.clock import Clock
from frpt.errors import InputError, NonFiniteError, OptionError
from frpt.options import COMPOSITE_SOLVERS, PRESETS, Gate, Preset
from frpt.options import preset as preset_of
from frpt.rules.registry import Call, plain_site, rule_for
from frpt.solvers.base import Measured, UnitAxes
from frpt.solvers.blocks.problem import Problem
from frpt.solvers.conv.operator import MODES

aten = torch.ops.aten

_CONV = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
_TRANSPOSED = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}


def linear(anchor: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None = None, gate: Gate = Gate()) -> Measured:
    """The nearest a to the anchor with W a + b = t:  a = â + W⁺(t − b − W â)  (III-A, both cases).

    Args:
        anchor: (..., n), the recorded input â; the first axis is the batch.
        target: (..., m), the output that is asked for.
        weight: (m, n).
        bias: (m,), or None.
        gate: which solutions are refused and damped instead.

    Returns:
        The reconstructed input (``value``), and per sample ``ccp``, ``ccp_before``, ``deviation``, ``fallback`` and
        ``iterations``.

    Raises:
        InputError: shapes do not fit, or the batch is empty.
        NonFiniteError: the target, the anchor or the weight holds NaN or infinity.

    Example:
        >>> import frpt, torch
        >>> weight = torch.tensor([[1.0, 1.0]])
        >>> solution = frpt.ops.linear(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0]]), weight)
        >>> solution.value, solution.fallback
        (tensor([[2., 1.]]), tensor([False]))
    """
    if weight.dim() != 2 or anchor.shape[-1] != weight.shape[1]:
        raise InputError(f"linear: weight {_shape(weight)} must be (m, n) for an anchor {_shape(anchor)} of (..., n)")
    call = Call(aten.linear.default, {"input": anchor, "weight": weight, "bias": bias}, "input", where="ops.linear")
    return _reverse(call, target, replace(PRESETS["default"], gate=gate))


def conv(
    anchor: Tensor,
    target: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    solver: str | None = None,
    gate: Gate | None = None,
    *,
    padding_mode: str = "zeros",
    transposed: bool = False,
    output_padding: int | tuple[int, ...] = 0,
    preset: str | Preset = "default",
    budget: int | None = None,
) -> Measured:
    """The nearest a to the anchor with K * a + b = t, in 1, 2 or 3 dimensions (III-B).

    Args:
        anchor: (b, c, *space), the recorded input â.
        target: (b, c', *space'), the output that is asked for.
        weight: (c', c/groups, *kernel), or (c, c'/groups, *kernel) if transposed.
        bias: (c',), or None.
        stride: as ``nn.Conv2d`` and ``nn.ConvTranspose2d`` have it, and so the five below.
        padding: numbers, "same" or "valid".
        dilation: see there.
        groups: see there.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        transposed: a transposed convolution.
        output_padding: of a transposed one.
        solver: "auto" (default) and "exact", the anchored minimum-norm least-squares solution to 1e-6, by the cheapest
            way for its size, budget and conditioning; "matrix", explicit, factorised; "cg", matrix-free; "fft_padded"
            and "fft_boundary", one small system per frequency on the padded or the map's own grid: fast, and off near
            the boundary. None: the preset's.
        gate: which solutions are refused and damped instead; None: the preset's.
        preset: where the other options come from; "paper" gives the FFT solvers the paper's form, whose target is zero
            outside the map.
        budget: bytes the solve may take; samples go through in parts. None: the preset's.

    Returns:
        The reconstructed input (``value``), and per sample ``ccp``, ``ccp_before``, ``deviation``, ``fallback`` and
        ``iterations``.

    Raises:
        InputError: shapes do not fit, or the batch is empty.
        OptionError: a word or a combination of arguments that there is not.
        BudgetError: not even one sample fits into the budget.
        NonFiniteError: the target, the anchor or the weight holds NaN or infinity.

    Example:
        >>> import frpt, torch
        >>> anchor, weight = torch.ones(1, 1, 4), torch.ones(1, 1, 2)
        >>> frpt.ops.conv(anchor, torch.tensor([[[2.0, 4.0]]]), weight, stride=2).value
        tensor([[[1., 1., 2., 2.]]])
    """
    rank = weight.dim() - 2
    if rank not in _CONV or anchor.dim() != weight.dim():
        raise InputError(
            f"conv: anchor {_shape(anchor)} and weight {_shape(weight)} must both be (b, c, *space), space 1 to 3 axes"
        )
    chosen = preset_of(preset)
    options = chosen.conv
    if solver is not None:
        options = replace(options, method=solver)  # type: ignore[arg-type]
    if budget is not None:
        options = replace(options, budget=budget)
    chosen = replace(chosen, gate=chosen.gate if gate is None else gate, conv=options)

    def axes(v: int | tuple[int, ...]) -> list[int]:
        return [v] * rank if isinstance(v, int) else list(v)

    if not transposed and any(axes(output_padding)):
        raise OptionError("conv: output_padding belongs to a transposed convolution; pass transposed=True")
    pads, around = _paddings(padding, axes(dilation), weight, padding_mode, transposed)
    args = {
        "input": anchor,
        "weight": weight,
        "bias": bias,
        "stride": axes(stride),
        "padding": pads,
        "dilation": axes(dilation),
        "groups": groups,
    }
    if transposed:
        args["output_padding"] = axes(output_padding)
    op = (_TRANSPOSED if transposed else _CONV)[rank]
    return _reverse(Call(op, args, "input", where="ops.conv", padded=around), target, chosen)


def _paddings(
    padding: int | str | tuple[int, ...], dilation: list[int], weight: Tensor, mode: str, transposed: bool
) -> tuple[list[int], tuple[list[int], str] | None]:
    """Zeros around both sides alike, which the op lays itself, and other padding, laid before it."""
    kernel = weight.shape[2:]
    if mode not in MODES:
        raise OptionError(f"conv: unknown padding_mode {mode!r}: there are {', '.join(MODES)}")
    if transposed and (mode != "zeros" or isinstance(padding, str)):
        raise OptionError("conv: a transposed convolution takes padding as numbers, of zeros")
    if padding == "same":
        extents = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pairs = [(e // 2, e - e // 2) for e in extents]
    elif isinstance(padding, str):
        if padding != "valid":
            raise OptionError(f"conv: padding must be numbers, 'same' or 'valid', got {padding!r}")
        pairs = [(0, 0)] * len(kernel)
    else:
        pairs = [(p, p) for p in ([padding] * len(kernel) if isinstance(padding, int) else padding)]
    if mode == "zeros" and all(p == q for p, q in pairs):
        return [p for p, _ in pairs], None
    widths = [w for pair in reversed(pairs) for w in pair]
    return [0] * len(kernel), (widths, "constant" if mode == "zeros" else mode) if any(widths) else None


def composite(
    anchor: Tensor,
    target: Tensor,
    fn: Callable[[Tensor], Tensor],
    solver: str = "auto",
    gate: Gate | None = None,
    *,
    typical: Tensor | None = None,
    preset: str | Preset = "default",
) -> Measured:
    """A near the anchor with fn(a) = t, for any differentiable fn that treats samples independently (III-C).

    Args:
        anchor: (b, ...), the recorded input â.
        target: like ``fn(anchor)``, the output that is asked for.
        fn: (k, ...) -> (k, ...) for any number k of samples.
        solver: "gauss_newton", "secant", "newton_krylov", "min_norm_newton", "adam" or "auto".
        gate: the bounds of a solution; None: the preset's.
        typical: (n, ...), inputs that the average derivative of a block on feature maps is learnt from; without them
            the anchors, and then a sample's result depends a little on the others of its batch.
        preset: where the solver's options come from.

    Returns:
        The reconstructed input (``value``), and per sample ``ccp``, ``ccp_before``, ``deviation``, ``fallback`` and
        ``iterations``.

    Raises:
        InputError: shapes do not fit, the batch is empty, or fn has no derivative.
        OptionError: a solver that there is not.
        NonFiniteError: the target or the output at the anchor holds NaN or infinity.

    Example:
        >>> import frpt, torch
        >>> anchor = torch.ones(1, 2, dtype=torch.float64)
        >>> solution = frpt.ops.composite(anchor, 8 * anchor, lambda a: a**3)
        >>> solution.value, bool(solution.ccp < 1e-6)
        (tensor([[2.0000, 2.0000]], dtype=torch.float64), True)
    """
    if solver not in COMPOSITE_SOLVERS:
        raise OptionError(f"composite: unknown solver {solver!r}: there are {', '.join(COMPOSITE_SOLVERS)}")
    chosen = preset_of(preset)
    options = replace(chosen.composite, method=solver)  # type: ignore[arg-type]
    with torch.no_grad():
        output = fn(anchor)
    _check(anchor, output, target, "ops.composite")
    _check_derivative(anchor, fn)
    problem = Problem(
        lambda a, _: fn(a), anchor.detach(), target.to(output), output, gate or chosen.gate, options.limits,
        clock=Clock("ops.composite", options.limits.seconds),
    )  # fmt: skip
    if options.chosen(problem) == "secant":
        with torch.no_grad():
            around = (anchor, output) if typical is None else (typical, fn(typical))
        stationary = options.mean_jacobian.learn(problem.fn, around[0].detach(), around[1])
        problem = replace(problem, stationary=stationary)
    solution = options.solve(problem).checked("ops.composite")
    with torch.no_grad():
        after = fn(solution.value)
    return solution.measured(anchor, output, after, target, UnitAxes())


def _check_derivative(anchor: Tensor, fn: Callable[[Tensor], Tensor]) -> None:
    """fn has a derivative, and depends on its input."""
    with torch.enable_grad():
        point = anchor[:1].detach().clone().requires_grad_(True)
        out = fn(point)
    if not out.requires_grad:
        raise InputError(
            "ops.composite: the output of fn does not depend differentiably on its input (detached, constant or made "
            "of whole numbers), so there is nothing to reconstruct"
        )


def _reverse(call: Call, target: Tensor, preset: Preset) -> Measured:
    with torch.no_grad():
        try:
            output = call.forward(call.active)
        except RuntimeError as error:
            raise InputError(f"{call.where}: {error}") from error
        _check(call.active, output, target, call.where)
        site = plain_site(call, preset)
        rule = rule_for(site, preset.rules)
        assert rule is not None
        solution = rule.solve(site, target.to(site.anchor.dtype))
        value = solution.value.to(call.active.dtype)
        solution = replace(solution, value=value)
        return solution.measured(call.active, output, call.forward(value), target, UnitAxes())


def _check(anchor: Tensor, output: Tensor, target: Tensor, where: str) -> None:
    if len(anchor) == 0:
        raise InputError(f"{where}: the batch is empty; there is nothing to reconstruct")
    if output.shape != target.shape:
        raise InputError(f"{where}: the target is {_shape(target)}, but the map's output is {_shape(output)}")
    if not bool(torch.isfinite(target).all()):
        raise NonFiniteError(f"{where}: the target holds NaN or infinity")
    if not bool(torch.isfinite(output).all()):
        raise NonFiniteError(f"{where}: NaN or infinity at the anchor; check the anchor and the weights")


def _shape(t: Tensor) -> str:
    return str(tuple(t.shape))
