"""Devices, precision and processes, by lightning-fabric."""

from __future__ import annotations

import os

import torch
from lightning_fabric import Fabric
from torch import nn

from frpt.train.settings import Settings

_TRUE = {torch.float64: "64-true", torch.bfloat16: "bf16-true", torch.float16: "16-true"}


def make_fabric(given: Fabric | None, settings: Settings, model: nn.Module) -> Fabric:
    """The fabric given, or one as the settings say; under torchrun with a process for each of its ranks. Launched."""
    fabric = given
    if fabric is None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        world = int(os.environ.get("WORLD_SIZE", local))
        devices = local if settings.devices is None else settings.devices
        nodes = max(world // max(local, 1), 1)
        fabric = Fabric(
            accelerator=settings.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if devices * nodes > 1 else "auto",
            precision=_precision(settings, model),  # type: ignore[arg-type]
        )
    if not fabric._launched:
        fabric.launch()
    return fabric


def _precision(settings: Settings, model: nn.Module) -> str:
    """The precision asked for; without one the model's own."""
    if settings.precision is not None:
        return settings.precision
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    return "32-true" if first is None else _TRUE.get(first.dtype, "32-true")
