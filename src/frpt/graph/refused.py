"""Models that cannot be captured whatever their code: TorchScript, quantised, uninitialised, without numbers.

Called by ``frpt.Reverser`` first of all, so that the error names the cause and not what torch.export trips over.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from frpt.errors import CaptureError

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
