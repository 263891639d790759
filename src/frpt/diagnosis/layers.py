"""Which layers are diagnosed where the user names none, and their order: output first."""

from __future__ import annotations

from collections.abc import Sequence

from frpt.datasets.labelled import spread
from frpt.errors import FrptError, OptionError
from frpt.graph.names import OUTPUT
from frpt.reverser import Reverser

_MOST, _LEAST = 12, 2


def chosen(rev: Reverser, at: str | Sequence[str] | None) -> list[str]:
    """The layers asked for and the output, output first; without any, the outermost modules of the network."""
    if at is None:
        names = _outermost(rev)
    else:
        names = [at] if isinstance(at, str) else list(at)
        if len(set(names)) != len(names):
            raise OptionError(f"at names a layer twice: {names}")
        for name in names:
            rev.plan(name)
    names = sorted(dict.fromkeys([OUTPUT, *names]), key=lambda name: len(rev.plan(name)))
    return [name for name in names if name == OUTPUT or len(rev.plan(name))]


def _outermost(rev: Reverser) -> list[str]:
    """Modules at the first level of nesting with at least two that can be walked back to; at most twelve of them."""
    modules = {name for name, _ in rev.model.named_modules() if name}
    names = [name for name in rev.layers if name in modules]
    found: list[str] = []
    for level in range(1, 1 + max((name.count(".") + 1 for name in names), default=0)):
        found = [name for name in names if name.count(".") + 1 == level and _reachable(rev, name)]
        if len(found) >= _LEAST:
            break
    return [found[i] for i in spread(len(found), _MOST)] if found else []


def _reachable(rev: Reverser, name: str) -> bool:
    """Whether there is a way back to a layer, with samples to tell apart."""
    try:
        rev.batch_axis(name)
        return len(rev.plan(name)) > 0
    except FrptError:
        return False
