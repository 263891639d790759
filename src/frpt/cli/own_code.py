"""What the user's own code raised: a model's factory, a data set, or a module that is imported for one.

``frpt.cli.shared.errors`` shows such an error from the first line of the user's code on, without the lines of frpt and
of the command line above it.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

_FACTORIES = ("frpt.cli.models", ("_called", "_imported"))
"""The functions that call what a command names."""
_DATASETS = "frpt.datasets."
"""The modules that read samples."""
_BETWEEN = ("frpt.", "frpt_paper.", "torch.utils.data.", "torch._utils.", "importlib.", "_frozen_importlib")
"""Modules between these callers and the user's code."""
_WORKER = "in DataLoader worker process"
"""What torch says of an error in a process that loads samples; the process's own traceback is part of the message."""


@dataclass(frozen=True)
class OwnError:
    """An error of the user's own code. traceback: from there on, as Python prints it. place: in a few words."""

    traceback: str
    place: str


def own_error(error: BaseException | None) -> OwnError | None:
    """What is to be shown of an error of the user's own code; None for any other."""
    if error is None:
        return None
    called, rest = _after_the_call(error.__traceback__)
    if not called:
        return None
    if rest is not None:
        code = rest.tb_frame.f_code
        where = f"({code.co_filename}, line {rest.tb_lineno})"
        importing = code.co_name == "<module>"
        place = f"your own module {where}" if importing else f"your own function {code.co_name} {where}"
    elif isinstance(error, SyntaxError) and error.filename:
        place = f"your own module ({error.filename}, line {error.lineno})"
    elif _WORKER in str(error):
        place = "your own data set, in a process that loads samples"
    else:
        return None
    return OwnError(_printed(error, rest), place)


def _after_the_call(trace: TracebackType | None) -> tuple[bool, TracebackType | None]:
    """(whether the user's code was called, the traceback from its first frame on)."""
    called = False
    while trace is not None:
        called = called or _calls(trace.tb_frame)
        if called and not _module(trace.tb_frame).startswith(_BETWEEN):
            return True, trace
        trace = trace.tb_next
    return called, None


def _calls(frame: FrameType) -> bool:
    module, functions = _FACTORIES
    factory = _module(frame) == f"{module}." and frame.f_code.co_name in functions
    return factory or _module(frame).startswith(_DATASETS)


def _module(frame: FrameType) -> str:
    """The name of its module, with a full stop at the end."""
    name: Any = frame.f_globals.get("__name__")
    return f"{name}."


def _printed(error: BaseException, rest: TracebackType | None) -> str:
    lines = traceback.TracebackException(type(error), error, rest)
    frames = [frame for frame in lines.stack if not frame.filename.startswith("<frozen importlib")]
    lines.stack = traceback.StackSummary.from_list(frames)
    shown = "".join(lines.format(chain=rest is not None))
    return shown if frames else shown.removeprefix("Traceback (most recent call last):\n")
