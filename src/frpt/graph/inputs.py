"""The model's inputs, which of them carry the batch, and the tensor picked from its output.

Every public call with inputs ``x`` makes an ``Inputs`` of them first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from frpt.common.text import kind_of
from frpt.errors import InputError, NonFiniteError, OutputError

Picker = str | int | None
InputLike = Tensor | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """One call of the model. Every tensor whose axis 0 is as long as the first tensor's carries the batch."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(x: InputLike, kwargs: Mapping[str, Any] | None = None) -> Inputs:
        """A tensor, a tuple or list of positional inputs, or a mapping of keyword inputs; more keywords beside it."""
        more = dict(kwargs or {})
        if isinstance(x, Tensor):
            inputs = Inputs((x,), more)
        elif isinstance(x, Mapping):
            inputs = Inputs((), {**x, **more})
        elif isinstance(x, tuple | list):
            inputs = Inputs(tuple(x), more)
        else:
            raise InputError(
                "inputs must be a tensor, a tuple of positional inputs or a dict of keyword inputs, got "
                f"{type(x).__name__}"
            )
        inputs._check_numbers()
        return inputs

    def _check_numbers(self) -> None:
        """Refuse tensors on the meta device."""
        for path, leaf in pytree.tree_leaves_with_path((self.args, self.kwargs)):
            if isinstance(leaf, Tensor) and leaf.is_meta:
                name = f"inputs{pytree.keystr(path[1:])}"
                raise InputError(
                    f"{name} is on the meta device: it has a shape, {tuple(leaf.shape)}, but no numbers. Pass a tensor "
                    "with real memory, on the model's device."
                )

    @property
    def given(self) -> InputLike:
        """As one argument: a tuple of positional inputs, or a dict of keyword inputs."""
        if self.args and self.kwargs:
            raise InputError("positional and keyword inputs together: pass them as one dict of keyword inputs")
        return self.kwargs if self.kwargs else self.args

    @property
    def tensors(self) -> list[Tensor]:
        return [v for v in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(v, Tensor)]

    @property
    def batch(self) -> int:
        first = next((t for t in self.tensors if t.dim() > 0), None)
        if first is None:
            raise InputError(
                "the inputs hold no tensor with a batch dimension; pass at least one of shape (batch, ...)"
            )
        if first.shape[0] == 0:
            raise InputError("the inputs are an empty batch; pass at least one sample")
        return int(first.shape[0])

    def carries_batch(self, t: Tensor) -> bool:
        return t.dim() > 0 and t.shape[0] == self.batch

    def signature(self) -> tuple[Any, ...]:
        """Structure, dtypes and all sizes but the batch's: inputs that agree in it can share one capture."""
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))

        def mark(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            sizes = tuple(leaf.shape)
            return (leaf.dtype, ("batch", *sizes[1:]) if self.carries_batch(leaf) else sizes)

        return (str(spec), *map(mark, leaves))

    def repeated(self, times: int) -> Inputs:
        """The batch several times over."""

        def grow(leaf: Any) -> Any:
            return torch.cat([leaf] * times) if isinstance(leaf, Tensor) and self.carries_batch(leaf) else leaf

        args, kwargs = pytree.tree_map(grow, (self.args, self.kwargs))
        return Inputs(args, kwargs)

    def first(self, count: int) -> Inputs:
        """The first samples only, copied; those there are, repeated, where there are fewer."""
        if self.batch < count:
            return self.repeated(-(-count // self.batch)).first(count)

        def cut(leaf: Any) -> Any:
            return leaf[:count].clone() if isinstance(leaf, Tensor) and self.carries_batch(leaf) else leaf

        args, kwargs = pytree.tree_map(cut, (self.args, self.kwargs))
        return Inputs(args, kwargs)

    def part(self, start: int, stop: int) -> Inputs:
        """The samples from ``start`` up to ``stop``; these inputs themselves where that is all."""
        if start == 0 and stop >= self.batch:
            return self

        def cut(leaf: Any) -> Any:
            return leaf[start:stop] if isinstance(leaf, Tensor) and self.carries_batch(leaf) else leaf

        args, kwargs = pytree.tree_map(cut, (self.args, self.kwargs))
        return Inputs(args, kwargs)

    def taken(self, index: Tensor) -> Inputs:
        """The samples ``index: (k,)``."""

        def take(leaf: Any) -> Any:
            carries = isinstance(leaf, Tensor) and self.carries_batch(leaf)
            return leaf.index_select(0, index.to(leaf.device)) if carries else leaf

        args, kwargs = pytree.tree_map(take, (self.args, self.kwargs))
        return Inputs(args, kwargs)

    def joined(self, other: Inputs) -> Inputs:
        """These samples, then the other's; what carries no batch is taken from these."""

        def join(mine: Any, theirs: Any) -> Any:
            return torch.cat([mine, theirs]) if isinstance(mine, Tensor) and self.carries_batch(mine) else mine

        args, kwargs = pytree.tree_map(join, (self.args, self.kwargs), (other.args, other.kwargs))
        return Inputs(args, kwargs)

    def check_like(self, other: Inputs, what: str) -> None:
        """Refuse samples of other shapes than those to be repaired. what: begins the error."""
        mine, theirs = ([tuple(t.shape[1:]) for t in i.tensors] for i in (self, other))
        if mine != theirs:
            raise InputError(f"{what}its samples have the shapes {mine}, those to be repaired {theirs}")

    def check_finite(self, what: str = "") -> None:
        """Refuse NaN and infinity. what: begins the error."""
        for i, t in enumerate(self.tensors):
            if t.is_floating_point() and not bool(torch.isfinite(t).all()):
                bad = int((~torch.isfinite(t)).sum())
                raise NonFiniteError(f"{what}input tensor {i} holds {bad} NaN or infinite values; clean the data first")


class Picked(nn.Module):
    """The user's model with one tensor picked from its output. Wraps, never changes, the model.

    inputs: what it will be called with. Where some go by keyword, ``forward`` has a parameter for each: torch.export
    leaves no size open in what a bare ``**kwargs`` takes.
    """

    def __init__(self, model: nn.Module, output: Picker, inputs: Inputs) -> None:
        super().__init__()
        self.training = False  # eval() would reach into the model
        self.model = model
        self.output = output
        if inputs.kwargs:
            self.forward = _with_parameters(self.forward, inputs)  # type: ignore[method-assign]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return pick(self.model(*args, **kwargs), self.output)


def _with_parameters(forward: Callable[..., Tensor], inputs: Inputs) -> Callable[..., Tensor]:
    """The same function, which says that it takes just these inputs."""

    def named(*args: Any, **kwargs: Any) -> Tensor:
        return forward(*args, **kwargs)

    positional = [Parameter(f"args_{i}", Parameter.POSITIONAL_OR_KEYWORD) for i, _ in enumerate(inputs.args)]
    keywords = [Parameter(name, Parameter.KEYWORD_ONLY) for name in inputs.kwargs]
    named.__signature__ = Signature([*positional, *keywords])  # type: ignore[attr-defined]
    return named


def pick(out: Any, selector: Picker) -> Tensor:
    """The tensor that ``output=`` names; without it a lone tensor, or the field ``logits``."""
    if selector is None:
        picked = _default(out)
    elif isinstance(out, Tensor):
        raise OutputError(
            f"output={selector!r} does not apply: the model's output is one tensor, and no tuple, dict or object to "
            "choose from; leave output= out"
        )
    elif isinstance(selector, int):
        picked = _index(out, selector)
    else:
        picked = _field(out, selector)
        if picked is None:
            raise OutputError(f"the model's output has no field {selector!r}; it has {_describe(out)}")
    if not isinstance(picked, Tensor):
        raise OutputError(f"output={selector!r} is {kind_of(picked)}, not a tensor; the output is {_describe(out)}")
    return picked


def _default(out: Any) -> Any:
    if isinstance(out, Tensor):
        return out
    logits = _field(out, "logits")
    if logits is not None:
        return logits
    tensors = [v for v in pytree.tree_leaves(_plain(out)) if isinstance(v, Tensor)]
    if len(tensors) == 1:
        return tensors[0]
    raise OutputError(f"the model returns {_describe(out)}; say which tensor to reverse with output=<name or index>")


def _field(out: Any, name: str) -> Any:
    if isinstance(out, Mapping):
        return out.get(name)
    return getattr(out, name, None)


def _index(out: Any, index: int) -> Any:
    items = list(out.values()) if isinstance(out, Mapping) else _plain(out)
    try:
        return items[index]
    except (IndexError, TypeError, KeyError) as error:
        raise OutputError(f"the model's output has no item {index}; it is {_describe(out)}") from error


def _plain(out: Any) -> Any:
    if dataclasses.is_dataclass(out) and not isinstance(out, type):
        values = [getattr(out, f.name) for f in dataclasses.fields(out)]
        return [v for v in values if v is not None]
    return out


def _describe(out: Any) -> str:
    if isinstance(out, Mapping):
        return f"a mapping with {', '.join(map(repr, out))}"
    if dataclasses.is_dataclass(out) and not isinstance(out, type):
        return f"a {type(out).__name__} with {', '.join(repr(f.name) for f in dataclasses.fields(out))}"
    if isinstance(out, tuple | list):
        return f"a {type(out).__name__} of {len(out)}: {', '.join(map(_kind, out))}"
    return f"a {_kind(out)}"


def _kind(value: Any) -> str:
    """Its class; of any tensor, also one that a graph is captured with, simply that."""
    return "Tensor" if isinstance(value, Tensor) else type(value).__name__
