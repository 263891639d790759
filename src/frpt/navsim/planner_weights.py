"""A planner with the weights of a checkpoint, its layers by the paper's names, and the name of targets made with it.

Called by the agent and by `frpt navsim targets`, which have to agree on the name of targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from frpt.errors import CheckpointError, OptionError
from frpt.files.digest import options_of, sha256_of_json, weights_of
from frpt.files.weights import read_weights
from frpt.options import Limits, Preset
from frpt.options import preset as preset_of
from frpt.zoo import Planner, planner

BACKBONES = {"resnet34": "backbone.conv1.weight", "vit_b16": "backbone.cls_token"}
"""Backbone → a weight that it alone has."""
PRESETS = ("default", "paper")
ADAM_STEPS = 5
"""Of composite blocks in the paper's planners, where the text (B.1.2) has 20; steps of 0.01."""
DIGITS = 12  # of the digest in a target's name: a chance of 1e-14 that two checkpoints share it


def targets_preset(name: str) -> Preset:
    """ "default", or "paper": with the paper's code for the planners, 5 Adam steps in a composite block."""
    if name not in PRESETS:
        raise OptionError(f"targets are made with the preset {' or '.join(map(repr, PRESETS))}, got {name!r}")
    chosen = preset_of(name)
    if name != "paper":
        return chosen
    return replace(chosen, composite=replace(chosen.composite, method="adam", limits=Limits(iterations=ADAM_STEPS)))


def planner_weights(path: str | Path) -> dict[str, Tensor]:
    """The planner's weights in a Lightning checkpoint of the agent, or in a file of a planner's state dict."""
    weights = read_weights(path)
    return {name.removeprefix("agent.").removeprefix("planner."): value for name, value in weights.items()}


def backbone_of(weights: Mapping[str, Tensor]) -> str | None:
    """Which planner weights belong to; None if to neither."""
    return next((backbone for backbone, name in BACKBONES.items() if name in weights), None)


def load_planner(path: str | Path, into: Planner | None = None, backbone: str | None = None) -> Planner:
    """The planner of a checkpoint, in eval mode. into: one that takes the weights. backbone: which it has to be."""
    weights = planner_weights(path)
    found = backbone_of(weights)
    if found is None:
        raise CheckpointError(f"{str(path)!r} is no checkpoint of a planner: it has neither of {list(BACKBONES)}")
    if backbone not in (None, found):
        raise CheckpointError(
            f"{str(path)!r} is a checkpoint of the planner with {found}, this agent has {backbone}. Use the agent "
            f"frpt_{found}, or a checkpoint of {backbone}."
        )
    model = planner(found) if into is None else into
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{str(path)!r} does not fit the planner with {found}: {error}") from error
    return model.eval()


def layer_of(model: Planner, at: str) -> str:
    """A layer by the name it has in the paper's tables, or by the model's own."""
    known = {name for name, _ in model.named_modules() if name}
    if at in model.layers or at in known:
        return model.layers.get(at, at)
    raise OptionError(f"there is no layer {at!r}: the paper's tables have {', '.join(map(repr, model.layers))}")


def target_name(model: Planner, layer: str, preset: str) -> str:
    """The name of targets in the cache: layer, preset, and the digest of the weights and of the preset's options."""
    digest = sha256_of_json([weights_of(model), options_of(targets_preset(preset))])[:DIGITS]
    return f"frpt_target_{layer.replace('.', '-')}_{preset}_{digest}"
