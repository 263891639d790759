"""Models that cannot be captured are refused with the cause, the place and the remedy, by every way in."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import CaptureError, OptionError

X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


class Around(nn.Module):
    """A plain head on something else."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(x))
        return out


def quiet(make: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: TorchScript and torch.ao are deprecated
        return make()


def quantised() -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    made: nn.Module = quantize_dynamic(plain(), {nn.Linear}, dtype=torch.qint8)
    return made


def partly_meta() -> nn.Module:
    model = plain()
    model[2] = nn.Linear(8, 3, device="meta")
    return model.eval()


KINDS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "scripted": (lambda: torch.jit.script(plain()), "the model is TorchScript", "Pass the nn.Module"),
    "traced": (lambda: torch.jit.trace(plain(), X), "the model is TorchScript", "Pass the nn.Module"),
    "frozen": (lambda: torch.jit.freeze(torch.jit.script(plain())), "the model is TorchScript", "Pass the nn.Module"),
    "inside": (lambda: Around(torch.jit.script(plain())), "module 'inner' of the model is TorchScript", "Pass"),
    "quantised": (quantised, r"module '0' of the model is quantised \(Linear\)", "in floating point"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)).eval(), "'0.weight' has no shape", "Run it once"),
    "meta": (partly_meta, "'2.weight' is on the meta device", "to_empty"),
}


@pytest.mark.parametrize(("make", "cause", "remedy"), KINDS.values(), ids=KINDS.keys())
def test_the_cause_is_named(make: Callable[[], nn.Module], cause: str, remedy: str) -> None:
    model = quiet(make)
    ways: list[Callable[[], object]] = [
        lambda: frpt.Reverser(model, X),
        lambda: frpt.diagnose(model, TensorDataset(X, Y), progress=False),
        lambda: frpt.remember(model, X, progress=False),
        lambda: frpt.post_train(model, TensorDataset(X, Y), at="0", progress=False),
        lambda: frpt.post_train(model, TensorDataset(X, Y), at="0", c_rec=0, progress=False),
        lambda: frpt.compare(model, TensorDataset(X, Y), at="0", val=TensorDataset(X, Y), seeds=[0], progress=False),
    ]
    for way in ways:
        with pytest.raises(CaptureError, match=cause) as caught:
            way()
        assert remedy in str(caught.value)


def test_a_lazy_model_that_was_run_is_a_model() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3)).eval()
    with torch.no_grad():
        model(X)
    assert bool(frpt.Reverser(model, X).reconstruct(X, Y, at="1").wins.all())


def pruned() -> nn.Sequential:
    model = plain()
    prune.l1_unstructured(model[0], "weight", 0.5)  # type: ignore[no-untyped-call]
    return model


def normalised() -> nn.Sequential:
    model = plain()
    for i in (0, 2):
        parametrizations.weight_norm(model[i])
    return model


def test_a_model_that_cannot_be_copied() -> None:
    model = pruned()
    memory = frpt.remember(model, X, progress=False)
    for way in (
        lambda: frpt.repair(model, X[:2], Y[:2], memory),
        lambda: frpt.repair(model, X[:2], Y[:2], keep=(X, Y)),
        lambda: frpt.post_train(model, TensorDataset(X, Y), at="0", progress=False),
    ):
        with pytest.raises(
            OptionError, match=r"'0\.weight' is no weight but computed.*prune\.remove\(module, 'weight'\)"
        ):
            way()
    prune.remove(model[0], "weight")  # type: ignore[no-untyped-call]
    assert bool(frpt.repair(model, X[:2], Y[:2], frpt.remember(model, X, progress=False)).fixed.all())


def test_weights_that_are_computed_cannot_be_moved() -> None:
    model = normalised()
    with pytest.raises(OptionError, match=r"those of '0', '2' are computed .*remove_parametrizations"):
        frpt.remember(model, X, progress=False)
    for i in (0, 2):
        parametrize.remove_parametrizations(model[i], "weight")
    assert bool(frpt.repair(model, X[:2], Y[:2], frpt.remember(model, X, progress=False)).fixed.all())


def test_where_nothing_can_be_differentiated() -> None:
    rev = frpt.Reverser(plain(), X)
    for way in (
        lambda: rev.reconstruct(X, Y, at="1"),
        lambda: frpt.diagnose(rev, (X, Y), progress=False),
        lambda: frpt.remember(rev, X, progress=False),
    ):
        with torch.inference_mode(), pytest.raises(OptionError, match=r"call it outside torch\.inference_mode"):
            way()
