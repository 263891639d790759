"""Train exactly what a layer's value depends on; everything else stays as it is, bit for bit.

``post_train`` freezes its copy with this; users with a loop of their own call ``freeze`` on their model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from frpt.errors import FreezeError, TapError
from frpt.files.digest import weights_of
from frpt.graph.capture import eval_mode
from frpt.graph.inputs import InputLike, Inputs
from frpt.reverser import Layer, Reverser, layer_name
from frpt.train.batches import on_device
from frpt.train.tap import FeatureTap


def freeze(
    model: nn.Module, by: Reverser | InputLike, at: Layer, *, whole_train: bool = False, batch_norm: str = "eval"
) -> Frozen:
    """Make exactly the parameters that the value at layer ``at`` depends on trainable, and freeze all else.

    Until ``restore()``, or the end of a ``with`` block, modules of the frozen part stay in eval mode through every
    ``model.train()``: their dropout stays off and their statistics stay as they are.

    Args:
        model: the network to train; its ``requires_grad`` flags and modes are given back by ``restore()``.
        by: a Reverser on this model or on one of the same architecture, or example inputs to make one with.
        at: the layer, by name or as the module itself. Its own parameters are trained.
        whole_train: let the frozen part follow ``model.train()`` like the rest; only its parameters stay then.
        batch_norm: "eval" keeps batch norm of the trained part in eval mode as well: its statistics stay, its weights
            are trained. "train" lets it follow ``model.train()``.

    Returns:
        What is trained and what stays; a context manager that gives everything back.

    Raises:
        FreezeError: if nothing before the layer can be trained, if a parameter is used on both sides of it, or if the
            Reverser is of another architecture.
        UnknownLayerError: for a layer that does not exist.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> with frpt.freeze(model, torch.randn(2, 4), at="1") as frozen:
        ...     optimizer = torch.optim.AdamW(frozen.trainable())
        ...     print(frozen)
        40 of 67 parameters trained, before '1'; 1 modules stay in eval
    """
    at = layer_name(model, at)
    rev = by if isinstance(by, Reverser) else Reverser(model, by)
    upstream, frozen = rev.upstream(at), rev.frozen(at)
    tensors = dict(_tensors(model))
    unknown = [name for name in upstream if name not in tensors]
    if unknown:
        raise FreezeError(
            f"the model has no parameter {unknown[0]!r}: the Reverser was made for another architecture. Pass a "
            "Reverser on this model, or example inputs."
        )
    before, after = ({id(tensors[name]): name for name in names} for names in (upstream, frozen))
    shared = [name for key, name in before.items() if key in after and isinstance(tensors[name], nn.Parameter)]
    if shared:
        raise FreezeError(
            f"{', '.join(map(repr, shared))}: used both before and after {at!r}, so training the part before the layer "
            "would change the part after it. Choose a layer on one side of all its uses, or untie the weights."
        )
    trained = {
        name: p
        for name, p in tensors.items()
        if isinstance(p, nn.Parameter) and id(p) in before and p.is_floating_point()
    }
    if not trained:
        raise FreezeError(
            f"nothing before {at!r} can be trained: its value depends on no parameter. Choose a layer further towards "
            "the output."
        )
    still = _batch_norms(model, upstream) if batch_norm == "eval" else []
    if whole_train:
        return Frozen(model, at, trained, still)
    marked, called = _lineage(model, rev.example, at)
    staying = _staying(model, set(trained), marked, called)
    return Frozen(model, at, trained, [*staying, *(path for path in still if path not in staying)])


class Frozen:
    """A model split at a layer; made by ``freeze``.

    Attributes:
        model: the model itself.
        at: the layer's name.
        parameters: name → parameter, of those that are trained.
        modules: paths of the modules that stay in eval mode.
    """

    def __init__(self, model: nn.Module, at: str, trained: dict[str, nn.Parameter], staying: list[str]) -> None:
        self.model, self.at = model, at
        self.parameters = trained
        self.modules = staying
        self._flags = [(p, p.requires_grad) for p in model.parameters()]
        self._modes = [(m, m.training) for m in map(model.get_submodule, staying)]
        own = {id(p) for p in trained.values()}
        for p in model.parameters():
            p.requires_grad_(id(p) in own)
        for module, _ in self._modes:
            module.train(False)
            module.__dict__["train"] = MethodType(_stay, module)
        self._active = True
        self._digests = self._staying_weights()

    def trainable(self) -> list[nn.Parameter]:
        """The trained parameters, each once: what an optimizer takes."""
        return list({id(p): p for p in self.parameters.values()}.values())

    def check(self) -> None:
        """Raise FreezeError unless every frozen parameter and buffer is bit for bit what it was at the start."""
        now = self._staying_weights()
        changed = [name for name, digest in self._digests.items() if now.get(name) != digest]
        if changed:
            raise FreezeError(
                f"the part after {self.at!r} was to stay as it is, but {', '.join(map(repr, changed[:5]))} "
                f"{'has' if len(changed) == 1 else 'have'} changed ({len(changed)} in all). Keep these out of the "
                "optimizer, and do not write to them in the training loop."
            )

    def restore(self) -> None:
        """Give parameters their requires_grad back, and modules their mode and their own ``train``."""
        if not self._active:
            return
        for p, flag in self._flags:
            p.requires_grad_(flag)
        for module, mode in self._modes:
            module.__dict__.pop("train", None)
            module.training = mode
        self._active = False

    def __enter__(self) -> Frozen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __str__(self) -> str:
        count = sum(p.numel() for p in self.trainable())
        total = sum(p.numel() for p in self.model.parameters())
        return (
            f"{count:,} of {total:,} parameters trained, before {self.at!r}; {len(self.modules)} modules stay in eval"
        )

    def moving(self) -> dict[str, Tensor]:
        """All that training may change: the trained parameters, and the buffers of modules that follow train()."""
        still = {name for name, _ in self._staying_tensors()}
        return {name: t for name, t in _tensors(self.model) if name not in still}

    def _staying_weights(self) -> dict[str, str]:
        """Name → digest of the tensors that stay; a tensor of several names under its first."""
        first = {name for name, _ in (*self.model.named_parameters(), *self.model.named_buffers())}
        return weights_of(self.model, [name for name, _ in self._staying_tensors() if name in first])

    def _staying_tensors(self) -> Iterator[tuple[str, Tensor]]:
        staying = set(self.modules)
        for name, t in _tensors(self.model):
            if isinstance(t, nn.Parameter):
                if name not in self.parameters:
                    yield name, t
            elif name.rpartition(".")[0] in staying:
                yield name, t


def _batch_norms(model: nn.Module, tensors: Sequence[str]) -> list[str]:
    """Paths of the batch norms that hold any of some parameters and buffers."""
    owners = {name.rpartition(".")[0] for name in tensors}
    return [path for path, m in model.named_modules() if isinstance(m, _BatchNorm) and path in owners]


def moved_by_statistics(model: nn.Module, at: str, inputs: Inputs) -> float:
    """How far batch norm in train mode moves a layer's features from those of eval mode, as a share of their norm.

    Over a batch, with whatever modules a ``Frozen`` holds in eval mode; the statistics are given back.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not norms or inputs.batch < 2:
        return 0.0
    kept, modes = [(b, b.clone()) for m in norms for b in m.buffers()], [m.training for m in norms]
    try:
        with FeatureTap(model, at) as tap, eval_mode(model), torch.no_grad():
            model(*inputs.args, **inputs.kwargs)
            still = tap.value.double()
            for m in norms:
                m.train(True)
            model(*inputs.args, **inputs.kwargs)
            away = tap.value.double() - still
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
        for m, mode in zip(norms, modes, strict=True):
            m.training = mode
    return float(torch.linalg.vector_norm(away) / torch.linalg.vector_norm(still).clamp_min(1e-300))


def fails_alone(model: nn.Module, inputs: Inputs) -> str | None:
    """What torch says of one sample in train mode, where batch norm has no statistics of it; None if it runs.

    Modules that a ``Frozen`` holds in eval mode stay there; buffers and modes are given back.
    """
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    modes = [(m, m.training) for m in model.modules()]
    try:
        model.train()
        with torch.no_grad():
            model(*inputs.args, **inputs.kwargs)
    except ValueError as error:
        return str(error) if "more than 1 value per channel" in str(error) else None
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
        for m, mode in modes:
            m.training = mode
    return None


def _staying(model: nn.Module, trained: set[str], marked: set[str], called: set[str]) -> list[str]:
    """Paths of the modules that are in the frozen part only.

    A module follows ``train()`` if the layer's value passes through it, if it holds a trained parameter, if a module
    inside it does, or if nobody calls it (its parameters are read by the module around it) and that one does.
    """
    follows = marked | {name.rpartition(".")[0] for name in trained}
    around = {path[:i] for path in follows for i, c in enumerate(path) if c == "."} | {""}
    staying = []
    for path, _ in model.named_modules(remove_duplicate=False):
        if path in follows or path in around:
            continue
        if path not in called and _caller(path, called) in follows:
            continue
        staying.append(path)
    ids = {id(model.get_submodule(p)) for p in follows | around}
    return [path for path in staying if id(model.get_submodule(path)) not in ids]


def _caller(path: str, called: set[str]) -> str:
    """The nearest module around a path that was called."""
    while path and path not in called:
        path = path.rpartition(".")[0]
    return path


def _stay(self: nn.Module, mode: bool = True) -> nn.Module:
    """``train`` of a frozen module: eval mode, whatever is asked for."""
    return type(self).train(self, False)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers under all their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


class _Mark(torch.autograd.Function):
    """The identity, with a module's path on its node of the autograd graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, lever: Tensor, path: str) -> Tensor:
        ctx.path = path
        return value.clone()  # a view could not be modified in place by the ops after it

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0], None, None


def _lineage(model: nn.Module, inputs: Inputs, at: str) -> tuple[set[str], set[str]]:
    """(paths of the modules whose output the value at the layer depends on, paths of all modules that were called).

    The captured graph does not show modules that do nothing in eval mode (dropout). So one forward pass of the model
    itself marks each module's output in the autograd graph, and the marks behind the layer's value are collected.
    """
    lever = torch.zeros((), requires_grad=True)  # makes every marked value part of the graph, whatever needs gradients
    called: set[str] = set()

    def mark(path: str, module: nn.Module, args: Any, output: Any) -> Any:
        called.add(path)

        def one(leaf: Any) -> Any:
            takes = isinstance(leaf, Tensor) and leaf.is_floating_point()
            return _Mark.apply(leaf, lever, path) if takes else leaf

        return pytree.tree_map(one, output)

    handles = [m.register_forward_hook(partial(mark, path)) for path, m in model.named_modules() if path]
    try:
        with FeatureTap(model, at) as tap, eval_mode(model), torch.enable_grad():
            first = next(model.parameters(), lever)
            call = on_device(inputs, first.device)
            model(*call.args, **call.kwargs)
            value = tap.value
    finally:
        for handle in handles:
            handle.remove()
    if value.grad_fn is None:
        raise TapError(f"the value at {at!r} is detached from what computes it; choose another layer")
    return _behind(value.grad_fn), called


def _behind(node: Any) -> set[str]:
    """Paths of all marks in an autograd graph."""
    paths: set[str] = set()
    seen, stack = {node}, [node]
    while stack:
        current = stack.pop()
        if (path := getattr(current, "path", None)) is not None:
            paths.add(path)
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return paths
