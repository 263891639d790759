"""Half-done runs on disk: safetensors for tensors, JSON for the rest, each state whole or not there. No pickle.

The loop saves a state after every epoch, or each so many steps, and continues from the newest one (``Partial``).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from frpt.errors import PartialError
from frpt.files.atomic import staged

FORMAT = 2
_STATE = re.compile(r"state-(\d{10})")


def pack(tree: Any, tensors: dict[str, Tensor], where: str = "") -> Any:
    """A nested structure as JSON; its tensors go to ``tensors`` under the path of where they were."""
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, Tensor):
        tensors[where] = tree.detach().cpu().contiguous().clone()
        return {"tensor": where}
    if isinstance(tree, Mapping):
        items = [[pack(k, tensors), pack(v, tensors, f"{where}/{k}")] for k, v in tree.items()]
        return {"map": items}
    if isinstance(tree, list | tuple):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [pack(v, tensors, f"{where}/{i}") for i, v in enumerate(tree)]}
    raise PartialError(
        f"{where.lstrip('/')} is a {type(tree).__name__}, which JSON and safetensors cannot hold; use an optimizer "
        "and a schedule whose state consists of numbers, strings, lists, dicts and tensors, or leave partial= out"
    )


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of ``pack``."""
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "map":
        return {unpack(k, tensors): unpack(v, tensors) for k, v in value}
    items = [unpack(v, tensors) for v in value]
    return tuple(items) if kind == "tuple" else items


class Partial:
    """A directory with the newest state of a run that may be stopped at any moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, number: int, state: Mapping[str, Any]) -> None:
        """Write state ``number`` and, once it is safely there, remove the ones before it."""
        tensors: dict[str, Tensor] = {}
        tree = pack(state, tensors)
        final = self.folder / f"state-{number:010d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with staged(final) as part:
                part.mkdir()
                save_file(tensors, part / "tensors.safetensors")
                (part / "state.json").write_text(json.dumps({"format": FORMAT, "state": tree}, allow_nan=True))
        except (OSError, SafetensorError) as error:
            kept = self.newest()
            raise PartialError(
                f"the half-done run could not be written to {self.folder}: {error}. "
                + (f"The state before it is intact ({kept.name}). " if kept else "")
                + "Make room or choose another directory, and start again: training continues from there."
            ) from error
        for old in self.folder.iterdir():
            if old != final and _STATE.match(old.name):  # states before this one, and what killed processes have left
                shutil.rmtree(old, ignore_errors=True)

    def newest(self) -> Path | None:
        """The newest whole state; None where there is none."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            states = [p for p in self.folder.iterdir() if _STATE.fullmatch(p.name)]
            return max(states, key=lambda p: p.name, default=None)
        return None

    def load(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest state, on the CPU; None if there is none. A state of another run than this one is refused."""
        path = self.newest()
        if path is None:
            return None
        state = load(path)
        check_same(path, state["run"], run)
        return state


def load(path: Path) -> dict[str, Any]:
    """A state that ``Partial.save`` wrote, on the CPU."""
    try:
        tensors = load_file(path / "tensors.safetensors")
        content = json.loads((path / "state.json").read_text())
    except (OSError, SafetensorError, ValueError) as error:
        raise PartialError(
            f"the half-done run {path} cannot be read: {error}. Delete it to start from the beginning."
        ) from error
    if content.get("format") != FORMAT:
        raise PartialError(f"{path} has the format {content.get('format')!r}, this version reads {FORMAT}")
    state: dict[str, Any] = unpack(content["state"], tensors)
    return state


def check_same(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a run that was started differently, and say in what."""
    differences = [
        f"{name} was {saved.get(name)!r}, now {now.get(name)!r}"
        for name in (*now, *(n for n in saved if n not in now))
        if saved.get(name) != now.get(name)
    ]
    if differences:
        raise PartialError(
            f"{path} belongs to another run: {'; '.join(differences)}. Choose another directory for partial=, or start "
            "the run as it was started."
        )
