"""Train exactly what a layer's value depends on; everything else stays as it is, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import MethodType, TracebackType

import torch
from torch import Tensor, nn

from frpt.errors import FreezeError
from frpt.graph.inputs import InputLike
from frpt.reverser import Reverser
from frpt.train.lineage import lineage


def freeze(model: nn.Module, by: Reverser | InputLike, at: str) -> Frozen:
    """Make exactly the parameters that the value at layer ``at`` depends on trainable, and freeze all else.

    by: a Reverser on this model (or on one of the same architecture), or example inputs. Until ``restore()``, or the
    end of a ``with`` block, modules of the frozen part stay in eval mode through every ``model.train()``.
    """
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
    marked, called = lineage(model, rev.example, at)
    return Frozen(model, at, trained, _staying(model, set(trained), marked, called))


class Frozen:
    """A model split at a layer. ``parameters``: the trained ones by name. ``modules``: paths that stay in eval mode."""

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
        self._digests = {name: _digest(t) for name, t in self._staying_tensors()}

    def trainable(self) -> list[nn.Parameter]:
        """The trained parameters, each once: what an optimizer takes."""
        return list({id(p): p for p in self.parameters.values()}.values())

    def check(self) -> None:
        """Raise FreezeError unless every frozen parameter and buffer is bit for bit what it was at the start."""
        now = dict(self._staying_tensors())
        changed = [name for name, digest in self._digests.items() if name not in now or _digest(now[name]) != digest]
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

    def _staying_tensors(self) -> Iterator[tuple[str, Tensor]]:
        staying = set(self.modules)
        for name, t in _tensors(self.model):
            if isinstance(t, nn.Parameter):
                if name not in self.parameters:
                    yield name, t
            elif name.rpartition(".")[0] in staying:
                yield name, t


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


def _digest(t: Tensor) -> bytes:
    data = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes() + str((t.dtype, tuple(t.shape))).encode()).digest()


def fingerprint(model: nn.Module) -> str:
    """sha256 over all parameters and buffers, with their names."""
    whole = hashlib.sha256()
    for name, t in _tensors(model):
        whole.update(name.encode() + _digest(t))
    return whole.hexdigest()
