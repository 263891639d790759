"""Where an interrupted diagnosis goes on: its sums and how far it came, in one safetensors file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from frpt.diagnosis.findings import Array
from frpt.errors import OptionError
from frpt.files.atomic import write_atomic

_EVERY = 30.0
"""Seconds between two savings."""
_SETTINGS = "settings"


class Checkpoint:
    """A file that holds named arrays, and what they belong to; it is refused for another model, layers or data set."""

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.settings = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        self._last = time.monotonic()

    def load(self) -> dict[str, Array]:
        """What was saved; nothing if there is no file yet."""
        if self.path is None or not self.path.exists():
            return {}
        try:
            with safe_open(self.path, framework="np") as file:
                metadata = file.metadata() or {}
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise OptionError(f"{str(self.path)!r} is no saved diagnosis: {error}. Name another file.") from error
        if metadata.get(_SETTINGS) != self.settings:
            raise OptionError(
                f"{str(self.path)!r} was saved by a diagnosis of another model, with other weights, layers, options or "
                "another data set; name another file, or remove it to start again"
            )
        return found

    @property
    def due(self) -> bool:
        """Whether half a minute has passed since the last saving."""
        return self.path is not None and time.monotonic() - self._last > _EVERY

    def save(self, arrays: Mapping[str, Array]) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        held = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        write_atomic(self.path, save(held, {_SETTINGS: self.settings}))
        self._last = time.monotonic()

    def done(self) -> None:
        """The file is of no more use."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
