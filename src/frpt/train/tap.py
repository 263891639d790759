"""The value at a layer out of a forward pass of the user's own model, with its gradient.

The training loop reads the supervised feature with it; users with a loop of their own do the same.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from frpt.errors import TapError
from frpt.graph.names import OUTPUT
from frpt.reverser import Layer, layer_name

_NAME = re.compile(r"(?P<path>[^@\[]+)(@(?P<call>\d+))?(\[(?P<item>\d+)\])?")


class _Reached(Exception):  # noqa: N818 - control flow, never seen outside
    """Ends a forward pass that has computed what was asked for."""


class FeatureTap:
    """Reads what layers returned in the last forward pass: ``tap["layer3"]``, or ``tap.value`` of a single one.

    A value is a copy with gradient, safe from later in-place ops. ``close()``, or leaving the ``with`` block, removes
    the hooks.

    Args:
        model: the network whose forward passes are read.
        at: one layer or several, as modules or by the names that ``Reverser.layers`` lists. ``relu@0`` is the first
            call of a module that is called several times, the bare name its last; ``lstm[0]`` is the first of several
            tensors that a module returns; ``out`` is what the model itself returns.

    Raises:
        TapError: for a layer that is no module's output; when read before any forward pass.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> with frpt.FeatureTap(model, "1") as tap:
        ...     out = model(torch.randn(2, 4))
        ...     print(tap.value.shape, tap.value.requires_grad)
        torch.Size([2, 8]) True
    """

    def __init__(self, model: nn.Module, at: Layer | Sequence[Layer]) -> None:
        several = [at] if isinstance(at, str | nn.Module) else list(at)
        self.layers = [layer_name(model, layer) for layer in several]
        if not self.layers:
            raise TapError("no layer to tap; name at least one")
        self._places = {name: _parse(model, name) for name in self.layers}
        self._values: dict[str, Tensor] = {}
        self._calls: Counter[str] = Counter()
        self._total: dict[str, int] = {}
        self._stopping = False
        self._handles: list[RemovableHandle] = [model.register_forward_pre_hook(self._start)]
        for path in {path for path, _, _ in self._places.values()}:
            self._handles.append(model.get_submodule(path).register_forward_hook(partial(self._seen, path)))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._places:
            raise TapError(f"{name!r} is not tapped; this tap reads {', '.join(map(repr, self.layers))}")
        if name not in self._values:
            raise TapError(f"no forward pass has reached {name!r} yet: call the model first")
        return self._values[name]

    @property
    def value(self) -> Tensor:
        """The value of the only layer tapped."""
        if len(self.layers) != 1:
            raise TapError(f"this tap reads {len(self.layers)} layers: say which, as in tap[{self.layers[0]!r}]")
        return self[self.layers[0]]

    def run_to(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """The value of the only layer tapped, from a forward pass of the tapped model that ends there."""
        self._stopping = True
        try:
            model(*args, **kwargs)
            self._total.update(self._calls)
        except _Reached:
            return self.value
        finally:
            self._stopping = False
        return self.value

    def clear(self) -> None:
        """Let go of the values."""
        self._values.clear()

    def close(self) -> None:
        """Remove the hooks and let go of the values."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.clear()

    def __enter__(self) -> FeatureTap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, module: nn.Module, args: Any) -> None:
        self._values.clear()
        self._calls.clear()

    def _seen(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        number = self._calls[path]
        self._calls[path] += 1
        for name, (own, call, item) in self._places.items():
            if own != path or call not in (None, number):
                continue
            self._values[name] = _tensor(name, module, output, item).clone()
            last = self._total.get(path, -1) - 1 if call is None else call
            if self._stopping and number == last:
                raise _Reached


def _parse(model: nn.Module, name: str) -> tuple[str, int | None, int | None]:
    """(module path, number of the call or None for the last, item of its output or None)."""
    paths = [path for path, _ in model.named_modules() if path]
    if name == OUTPUT and name not in paths:
        return "", None, None
    parts = _NAME.fullmatch(name)
    path = parts["path"] if parts else name
    if parts is None or path not in paths:
        near = difflib.get_close_matches(path, paths, n=4, cutoff=0.5)
        inside = path.split("/")[0]
        near = ([inside] if inside in paths and inside not in near else []) + near
        hint = f"The nearest module names are {', '.join(map(repr, near))}." if near else "See model.named_modules()."
        raise TapError(
            f"{name!r} is not the output of a module of {type(model).__name__}, so no forward hook can read it. {hint}"
        )
    call, item = parts["call"], parts["item"]
    return path, None if call is None else int(call), None if item is None else int(item)


def _tensor(name: str, module: nn.Module, output: Any, item: int | None) -> Tensor:
    """The floating-point tensor that a module returned."""
    leaves = [v for v in pytree.tree_leaves(output) if isinstance(v, Tensor) and v.is_floating_point()]
    if item is None and len(leaves) == 1:
        return leaves[0]
    if item is not None and item < len(leaves):
        return leaves[item]
    raise TapError(
        f"{name!r} ({type(module).__name__}) returns {len(leaves)} floating-point tensors; "
        + (f"say which, as in {name}[0], or tap a module after it" if leaves else "tap a module after it")
    )
