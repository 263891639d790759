"""A model or a data set named on the command line as ``package.module:factory``, and example inputs for a model.

Called by every command that takes a model.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from frpt.common.text import kind_of
from frpt.errors import InputError, OptionError

if TYPE_CHECKING:  # torch takes seconds to load: not for --help
    from torch import Tensor, nn

    from frpt.graph.inputs import InputLike

_IMAGE_SIZES = (224, 64, 32, 28)
"""Tried in this order where a model begins with a convolution and says nothing of its inputs."""


def load(spec: str, shapes: list[str], data: Any = None) -> tuple[nn.Module, InputLike]:
    """The model (in eval mode) and example inputs: from ``--input``, the factory, the data set, hints, the first layer.

    The factory returns a model, or a pair (model, example_inputs).
    """
    model, inputs = _made(spec)
    if shapes:
        inputs = tuple(_random(s) for s in shapes)
    elif inputs is None:
        inputs = _guess(model) if data is None else _first_of(data, model)
    return model.eval(), inputs


def load_model(spec: str) -> nn.Module:
    """The model alone, in eval mode."""
    return _made(spec)[0].eval()


def _made(spec: str) -> tuple[nn.Module, InputLike | None]:
    """The model and its example inputs, if the factory returns some."""
    from torch import nn

    factory = _find(spec)
    made = factory if isinstance(factory, nn.Module) else _made_by(factory, spec)
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise OptionError(f"{spec} returned {kind_of(model)}, not an nn.Module or a pair (model, example_inputs)")
    return model, inputs


def load_data(spec: str) -> Any:
    """The data set itself, or what a function without arguments returns."""
    factory = _find(spec)
    made = isinstance(factory, type) or (callable(factory) and not hasattr(factory, "__getitem__"))
    return _made_by(factory, spec) if made else factory


def _made_by(factory: Any, spec: str) -> Any:
    """What a function without arguments returns."""
    if not callable(factory):
        raise OptionError(f"{spec} is {kind_of(factory)}, and no function that makes a model or a data set")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise OptionError(
            f"{spec} is called without arguments, but {error}; name a function that needs none"
        ) from error
    except ValueError:  # a function in C, which says nothing of its arguments
        return _called(factory)
    return _called(factory)


def _called(factory: Any) -> Any:
    """``own_code.py`` knows by this function what the user's own code raised."""
    return factory()


def _find(spec: str) -> Any:
    """What a command names; ``own_code.py`` knows by ``_imported`` what a module of the user's raised."""
    module_name, _, attribute = spec.partition(":")
    if not attribute:
        raise OptionError(f"models and data sets are named as package.module:factory, got {spec!r}")
    sys.path.insert(0, os.getcwd())
    try:
        factory: Any = _imported(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise OptionError(f"cannot import {module_name!r}: {error}") from error
    finally:
        sys.path.pop(0)
    for part in attribute.split("."):
        if not hasattr(factory, part):
            raise OptionError(f"{module_name!r} has no {attribute!r}")
        factory = getattr(factory, part)
    return factory


def _imported(module_name: str) -> Any:
    return importlib.import_module(module_name)


def _random(shape: str) -> Tensor:
    import torch

    try:
        sizes = [int(s) for s in shape.lower().replace("x", ",").split(",")]
        if min(sizes) < 1:
            raise ValueError("sizes are positive")
        return torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    except (ValueError, OverflowError, TypeError) as error:
        raise OptionError(f"an input shape looks like 2,3,224,224, got {shape!r}") from error
    except RuntimeError as error:
        raise OptionError(f"no input of the shape {shape!r} can be made: {error}") from error


def _first_of(data: Any, model: nn.Module) -> InputLike:
    """Inputs of the first samples of a data set."""
    from frpt.datasets.labelled import LabelledSamples

    samples = LabelledSamples(data, 0, None, model=model)
    inputs: InputLike = next(iter(samples.batches([range(min(2, samples.count))], 2)))[1]
    return inputs


def _guess(model: nn.Module) -> InputLike:
    """Hints that model libraries leave on their models, then the shape the first layer takes."""
    import torch
    from torch import Tensor, nn

    for hint in ("dummy_inputs", "example_input_array", "example_inputs"):
        value = getattr(model, hint, None)
        if isinstance(value, dict | tuple | Tensor):
            return value
    config = getattr(model, "default_cfg", None)
    if isinstance(config, dict) and "input_size" in config:
        return torch.randn(2, *config["input_size"])
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Linear):
        return _first_that_works(model, [(2, first.in_features)])
    if isinstance(first, nn.Conv2d):
        return _first_that_works(model, [(2, first.in_channels, s, s) for s in _IMAGE_SIZES])
    raise InputError("cannot tell what inputs this model takes; pass --input 2,3,224,224 (once per input)")


def _first_that_works(model: nn.Module, shapes: list[tuple[int, ...]]) -> Tensor:
    import torch

    model.eval()
    for shape in shapes:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        try:
            with torch.no_grad():
                model(x)
        except TypeError as error:  # it takes several inputs, or others than a tensor
            raise InputError(
                f"the model does not take a single tensor: {error}; pass --input once per input, for example "
                "--input 2,3,96,96 --input 2,10"
            ) from error
        except (RuntimeError, ValueError, AssertionError):
            continue
        return x
    tried = ", ".join(str(s) for s in shapes)
    raise InputError(
        f"the model takes none of the input shapes tried ({tried}); pass --input, for example --input 2,3,96,96"
    )
