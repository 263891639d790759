"""Half-done runs on disk: safetensors for tensors, JSON for the rest, each state whole or not there. No pickle.

The loop saves a state after every epoch, or each so many steps, and continues from the newest one (``Partial``).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from frpt.errors import PartialError, StoreError
from frpt.files.atomic import make_folder, staged
from frpt.files.digest import sha256_of_bytes, sha256_of_json
from frpt.files.lock import WriterLock
from frpt.files.untrusted import parse_json, parse_tensors, read_regular

FORMAT = 3
TENSORS, STATE = "tensors.safetensors", "state.json"
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

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For the time of a ``with`` block no other run may use the directory."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(WriterLock(make_folder(self.folder), 0, 1))
            except StoreError as error:
                raise PartialError(f"the half-done run cannot be used: {error}") from error
            yield

    def save(self, number: int, state: Mapping[str, Any]) -> None:
        """Write state ``number`` and, once it is safely there, remove the ones before it."""
        tensors: dict[str, Tensor] = {}
        tree = pack(state, tensors)
        final = self.folder / f"state-{number:010d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with staged(final) as part:
                part.mkdir()
                data = save(tensors)
                body = {"format": FORMAT, "sha256": sha256_of_bytes(data), "state": tree}
                (part / TENSORS).write_bytes(data)
                (part / STATE).write_text(json.dumps({**body, "checksum": sha256_of_json(body)}, allow_nan=True))
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
        saved = state.get("run") if isinstance(state, dict) else None
        if not isinstance(saved, dict):
            raise damaged(path, "it does not say what run it is of")
        check_same(path, saved, run)
        return state


def load(path: Path) -> dict[str, Any]:
    """A state that ``Partial.save`` wrote, on the CPU; refused where a byte of it is not what was written."""
    try:
        data, content = read_regular(path / TENSORS), parse_json(read_regular(path / STATE))
        if not isinstance(content, dict):
            raise ValueError(f"{STATE} holds a {type(content).__name__}")
        if content.get("format") not in (None, FORMAT):
            raise ValueError(f"it has the format {content['format']!r}, this version reads {FORMAT}")
        if content.pop("checksum", None) != sha256_of_json(content):
            raise ValueError(f"{STATE} differs from its checksum")
        if content["sha256"] != sha256_of_bytes(data):
            raise ValueError(f"{TENSORS} differs from its checksum")
        state: dict[str, Any] = unpack(content["state"], parse_tensors(data))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, error) from error
    return state


def damaged(path: Path, reason: object) -> PartialError:
    """A state that cannot be gone on from."""
    return PartialError(
        f"the half-done run {path} is damaged or no run of this version: {reason}. Delete it to start from the "
        "beginning."
    )


def check_same(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a run that was started differently, and say in what."""
    if differences := list(_differences(saved, now)):
        raise PartialError(
            f"{path} belongs to another run: {'; '.join(differences)}. Choose another directory for partial=, or start "
            "the run as it was started."
        )


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in (*now, *(n for n in saved if n not in now)):
        before, after = saved.get(name), now.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name} was {before!r}, now {after!r}"
