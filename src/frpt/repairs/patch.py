"""Patch: what a repair changed, small enough to be kept, reviewed, applied elsewhere and taken back, bit for bit.

For every parameter that moved, the difference of its bits as whole numbers: adding it to the old parameter gives the
new one exactly, subtracting it the old one. Digests of both say what it belongs to. Users get one from ``fix.diff``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from frpt.common.text import percent, table
from frpt.errors import PatchError
from frpt.files.atomic import make_folder, write_atomic
from frpt.files.digest import sha256_of_json, weights_of
from frpt.files.untrusted import open_regular, parse_json

_FORMAT, _VERSION = "frpt patch", "2"
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False, repr=False)
class Patch:
    """The difference of two networks of one architecture.

    bits: parameter → the difference of its bits. before, after: parameter → digest of its values. moved: parameter →
    ‖W_after − W_before‖/‖W_before‖.
    """

    bits: dict[str, Tensor]
    before: dict[str, str]
    after: dict[str, str]
    moved: dict[str, float]

    @staticmethod
    def between(before: nn.Module, after: nn.Module) -> Patch:
        """What leads from one network to another.

        Args:
            before: the network as it was.
            after: the same with other parameters.

        Returns:
            The patch; parameters that are equal are not in it.

        Raises:
            PatchError: for two networks whose parameters differ in name, shape or dtype.
        """
        _check_alike(before, after)
        old, new = dict(before.named_parameters()), dict(after.named_parameters())
        names = [n for n in old if not torch.equal(_bits(old[n]), _bits(new[n]))]
        return Patch(
            {n: _bits(new[n]) - _bits(old[n]) for n in names},
            weights_of(before, names),
            weights_of(after, names),
            {n: _relative(new[n], old[n]) for n in names},
        )

    def __str__(self) -> str:
        rows = [(n, str(tuple(self.bits[n].shape)), percent(share)) for n, share in self.moved.items()]
        return table(("parameter", "shape", "moved"), rows) if rows else "nothing is changed"

    __repr__ = __str__

    def save(self, path: str | Path) -> Path:
        """Write the patch into one safetensors file.

        Args:
            path: the file.

        Returns:
            The file.

        Raises:
            StoreError: if the disk refuses.
        """
        file = Path(path)
        facts = {"before": self.before, "after": self.after, "moved": self.moved}
        meta = {"format": _FORMAT, "version": _VERSION, **{k: json.dumps(v) for k, v in facts.items()}}
        meta["checksum"] = sha256_of_json(facts)
        make_folder(file.parent)
        write_atomic(file, save({n: t.contiguous() for n, t in self.bits.items()}, meta))
        return file

    @staticmethod
    def load(path: str | Path) -> Patch:
        """Read what ``save`` wrote.

        Args:
            path: the file.

        Returns:
            The patch; whether it fits a network is checked when it is applied.

        Raises:
            PatchError: for a file that is missing, damaged, or something else.
        """
        try:
            open_regular(path).close()  # safetensors would wait for a pipe
            with safe_open(str(path), "pt") as file:
                meta = file.metadata() or {}
                if (meta.get("format"), meta.get("version")) != (_FORMAT, _VERSION):
                    raise ValueError(f"it is no {_FORMAT} {_VERSION}")
                facts = {name: dict(parse_json(meta[name].encode())) for name in ("before", "after", "moved")}
                if meta.get("checksum") != sha256_of_json(facts):
                    raise ValueError("its checksum is another: it is damaged")
                bits = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise PatchError(f"{str(path)!r} cannot be read as a patch: {error}") from error
        if set(bits) != set(facts["before"]) or set(bits) != set(facts["after"]):
            raise PatchError(f"{str(path)!r} is damaged: its parameters and their digests differ")
        return Patch(bits, facts["before"], facts["after"], facts["moved"])

    def applied(self, model: nn.Module, back: bool = False) -> nn.Module:
        """A copy of the network with the patch applied, or taken back.

        Args:
            model: a network with exactly the parameters the patch was made for.
            back: take it back instead.

        Returns:
            The changed copy, verified by its digest.

        Raises:
            PatchError: for other parameters than the patch was made for.
        """
        _check_network(model)
        start, end = (self.after, self.before) if back else (self.before, self.after)
        _check(model, start, "taken back from" if back else "applied to")
        other = copy.deepcopy(model)
        parameters = dict(other.named_parameters())
        with torch.no_grad():
            for name, bits in self.bits.items():
                old = parameters[name]
                new = _bits(old) - bits.to(old.device) if back else _bits(old) + bits.to(old.device)
                old.copy_(new.view(old.dtype).reshape(old.shape))
        if weights_of(other, end) != end:
            raise PatchError("the patch is damaged: the parameters it leads to are others than it says")
        return other


def apply(model: nn.Module, patch: str | Path | Patch, *, back: bool = False) -> nn.Module:
    """A copy of a network with a patch applied, or taken back.

    Args:
        model: a network with exactly the parameters the patch was made for; it is not changed.
        patch: a patch or its file.
        back: take it back instead.

    Returns:
        The changed copy. To change the model itself: ``model.load_state_dict(frpt.apply(model, patch).state_dict())``.

    Raises:
        PatchError: for other parameters than the patch was made for, what is no network, or a file that cannot be read.

    Example:
        >>> model = torch.nn.Linear(2, 2)
        >>> other = torch.nn.Linear(2, 2)
        >>> patch = frpt.Patch.between(model, other)
        >>> torch.equal(frpt.apply(model, patch).weight, other.weight)
        True
        >>> torch.equal(frpt.apply(other, patch, back=True).weight, model.weight)
        True
    """
    if not isinstance(patch, Patch | str | Path):
        raise PatchError(f"a patch is a frpt.Patch or its file, and this is a {type(patch).__name__}")
    return (patch if isinstance(patch, Patch) else Patch.load(patch)).applied(model, back)


def _check_network(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise PatchError(
            f"a patch belongs to a network, a torch.nn.Module, and this is a {type(model).__name__}. Load a state dict "
            "into its network first (model.load_state_dict), and pass that."
        )


def _check_alike(before: nn.Module, after: nn.Module) -> None:
    """Refuse two networks that no patch leads between."""
    for model in (before, after):
        _check_network(model)
    old, new = dict(before.named_parameters()), dict(after.named_parameters())
    if alone := [n for n in (*old, *new) if n not in old or n not in new]:
        raise PatchError(
            f"no patch leads between networks of different parameters: only one of them has {alone[0]!r}. Pass two "
            "networks of one architecture."
        )
    for name in old:
        one, other = (f"{tuple(t.shape)} {t.dtype}" for t in (old[name], new[name]))
        if one != other:
            raise PatchError(
                f"no patch leads between networks in which {name!r} is {one} before and {other} after: shape and dtype "
                "have to be the same"
            )


def _check(model: nn.Module, digests: Mapping[str, str], what: str) -> None:
    names = {name for name, _ in model.named_parameters()}
    if missing := sorted(set(digests) - names):
        raise PatchError(f"the patch cannot be {what} this network: it has no parameter {missing[0]!r}")
    now = weights_of(model, digests)
    if other := [name for name in digests if now[name] != digests[name]]:
        raise PatchError(
            f"the patch cannot be {what} this network: {other[0]!r} has other values than it was made for. "
            "Load the checkpoint it belongs to, or make the repair again."
        )


def _bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().view(_BITS[t.dtype.itemsize])


def _relative(new: Tensor, old: Tensor) -> float:
    size = float(torch.linalg.vector_norm(old.detach().double()))
    return float(torch.linalg.vector_norm((new - old).detach().double())) / (size or 1.0)
