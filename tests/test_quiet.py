"""A wrong input gives our error alone; torch's loggers and the user's warning filters stay as they are."""

from __future__ import annotations

import logging
import threading
import warnings

import pytest
import torch
from torch import nn

import frpt
from frpt.errors import InputError
from frpt.graph.quiet import quiet_export

LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), torch.zeros(4, 7)),
        (nn.LSTM(8, 4, batch_first=True), torch.zeros(4, 5, 7)),
    ],
)
def test_a_wrong_width_says_our_error_only(model: nn.Module, x: torch.Tensor) -> None:
    handler, filters, level, rules = Kept(), list(LOGGER.filters), LOGGER.level, list(warnings.filters)
    LOGGER.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with pytest.raises(InputError, match="by itself"):
                frpt.Reverser(model.eval(), x)
    finally:
        LOGGER.removeHandler(handler)
    assert handler.said == []
    assert warned == []
    assert (list(LOGGER.filters), LOGGER.level, list(warnings.filters)) == (filters, level, rules)


def test_what_is_not_about_a_failure_is_passed_on() -> None:
    """Warnings of an export that succeeds, log records without an exception, and those of other threads."""
    handler = Kept()

    def fail_elsewhere() -> None:
        LOGGER.error("elsewhere", exc_info=ValueError())

    def export() -> None:
        with quiet_export():
            warnings.warn("kept", UserWarning, stacklevel=1)
            LOGGER.error("plain")
            thread = threading.Thread(target=fail_elsewhere)
            thread.start()
            thread.join()

    LOGGER.addHandler(handler)
    try:
        with pytest.warns(UserWarning, match="kept"):
            export()
    finally:
        LOGGER.removeHandler(handler)
    assert handler.said == ["plain", "elsewhere"]
