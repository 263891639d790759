"""Models that cannot be captured whatever their code, and inputs of a type that a model's weights do not go with.

TorchScript, quantised, uninitialised, without numbers: refused by ``frpt.Reverser`` and ``frpt.post_train`` first of
all, so that the error names the cause and not what torch.export trips over. ``frpt.post_train`` and ``frpt.repair``,
which hand back a copy, refuse models that cannot be copied. Types are looked at where inputs meet the
captured graph: torch.export follows a float64 tensor into float32 weights, and only running finds it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._ops import OpOverload
from torch.fx import Node
from torch.nn.parameter import is_lazy

from frpt.errors import CaptureError, InputError, OptionError
from frpt.graph.inputs import Inputs

if TYPE_CHECKING:
    from frpt.graph.capture import Captured

_OFF = {"train": False, "training": False, "dropout_p": 0.0, "dropout": 0.0, "p": 0.0}
"""Arguments with which an op that could draw does not."""
_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")


def check_kind(model: nn.Module) -> None:
    """Raise CaptureError for a model of these kinds: where in it, why, and what to pass instead."""
    for name, module in model.named_modules():
        place = f"module {name!r} of the model" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{place} is TorchScript: its weights cannot be told from constants, so that no layer could be ranked, "
                "trained or repaired. Pass the nn.Module that it was scripted or traced from, with the same weights."
            )
        if type(module).__module__.startswith(_QUANTISED):
            raise CaptureError(
                f"{place} is quantised ({type(module).__name__}): its ops have no derivative. Pass the model in "
                "floating point, as it was before it was converted; what is found there can be quantised again."
            )
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(value):
            raise CaptureError(
                f"{name!r} has no shape yet: the model has lazy modules. Run it once on real inputs "
                "(with torch.no_grad(): model(x)) and load its trained weights, then pass it."
            )
        if value.is_quantized:
            raise CaptureError(f"{name!r} is a quantised tensor: pass the model in floating point (model.float())")
        if value.is_meta:
            raise CaptureError(
                f"{name!r} is on the meta device, it has a shape but no numbers. Give the model real memory and its "
                "weights: model.to_empty(device='cpu'), then model.load_state_dict(...)."
            )


def check_gradients() -> None:
    """Raise OptionError where torch keeps nothing to differentiate by."""
    if torch.is_inference_mode_enabled():
        raise OptionError("this differentiates: call it outside torch.inference_mode(); torch.no_grad() does no harm")


def check_copyable(model: nn.Module) -> None:
    """Raise OptionError for a model that cannot be copied, as it holds tensors that are computed from its weights."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                place = f"{name}.{attribute}" if name else attribute
                raise OptionError(
                    f"{place!r} is no weight but computed from others whenever its module runs, as pruning and the old "
                    "weight_norm do, and such a model cannot be copied. Make it a weight first, in a model loaded for "
                    f"this: torch.nn.utils.prune.remove(module, {attribute!r}), or "
                    f"torch.nn.utils.remove_weight_norm(module, {attribute!r})."
                )


def check_types(captured: Captured, inputs: Inputs) -> None:
    """Raise InputError where the network does not run on inputs of these types; run only where types are mixed.

    inputs: as few as show it.
    """
    given = {t.dtype for t in inputs.tensors}
    if len(given.union(_float_types(captured.model))) < 2:
        return
    try:
        with torch.random.fork_rng([t.device for t in inputs.tensors if t.is_cuda]):  # the network may draw numbers
            captured.output_of(inputs)
    except RuntimeError as error:
        if of_types(error):
            raise wrong_type(given, captured.model, str(error)) from error
        raise


def of_types(error: Exception) -> bool:
    """Whether torch complains that the types of an op's arguments differ, in one of its several wordings.

    "must have the same dtype", "Input type (double) and bias type (float)", "expected scalar type Float": but not
    "one of the following scalar types: Long, Int", by which an embedding asks for whole numbers.
    """
    return isinstance(error, RuntimeError) and re.search(r"type\b", str(error)) is not None


def wrong_type(given: Iterable[torch.dtype], model: nn.Module, reason: str) -> InputError:
    """Inputs of other types than the weights, what came of it, and how to convert which of both."""
    weights = _float_types(model)
    usual = weights[0] if weights else torch.float32
    inputs = set(given).difference(weights) or set(given)
    remedy = f"Convert the inputs, x.to({usual})"
    if all(kind.is_floating_point for kind in inputs):
        remedy += f" (of NumPy: x.astype({_name(usual)!r})), or the model, model.to({min(inputs, key=str)})"
    return InputError(
        f"the inputs are {_listed(inputs)}, the model's weights are {_listed(weights)}: {reason}. {remedy}."
    )


def _float_types(model: nn.Module) -> list[torch.dtype]:
    """The types of the parameters and buffers, those of whole numbers left out, the first one's first."""
    values = (*model.parameters(), *model.buffers())
    return list(dict.fromkeys(value.dtype for value in values if value.is_floating_point()))


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _listed(kinds: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(map(_name, kinds)))


def draws(node: Node) -> bool:
    """Whether an op draws random numbers with the arguments that it has."""
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    arguments = op._schema.arguments
    given = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= dict(zip((a.name for a in arguments), node.args, strict=False)) | dict(node.kwargs)
    return not any(name in given and given[name] == off for name, off in _OFF.items())
