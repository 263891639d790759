"""Random networks from a seed, and what a reconstruction in one comes to. Used by the tests and benchmarks/fuzz.py.

Nearly all of the time goes into capturing a network. So four networks in a row have one architecture, which is
captured once; weights, inputs, labels and the layer are each one's own.
"""

from __future__ import annotations

import functools
import random
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import frpt
from frpt.errors import FrptError

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Identity,
    lambda: nn.GELU("tanh"), lambda: nn.LeakyReLU(1e-6), lambda: nn.Threshold(0.1, 0.0), lambda: nn.Dropout(0.3),
)  # fmt: skip


class Do(nn.Module):
    """A function as a module."""

    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.what(x)


class Branches(nn.Module):
    """x + f(x), f(x) · g(x), or both beside each other, of two modules that keep the shape."""

    def __init__(self, how: str, f: nn.Module, g: nn.Module) -> None:
        super().__init__()
        self.how, self.f, self.g = how, f, g

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "add":
            return x + self.f(x)
        if self.how == "gate":
            return self.f(x) * torch.sigmoid(self.g(x))
        return torch.cat([self.f(x), self.g(x)], 1)


class Recurrent(nn.Module):
    """The outputs of an LSTM or a GRU at every step."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], size: int, hidden: int) -> None:
        super().__init__()
        self.cell = kind(size, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cell(x)[0]
        return out


ELEMENTWISE: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.exp, torch.abs, torch.square, torch.sin, torch.atan, torch.erf, lambda x: x.clamp(-1, 0.5), lambda x: -x,
    lambda x: (x.abs() + 0.1).sqrt(), lambda x: (x.abs() + 0.1).log(), lambda x: 1 / (x.square() + 0.5),
    lambda x: x / (x.abs().mean(-1, keepdim=True) + 1e-3), lambda x: torch.where(x > 0, x, 0.3 * x), lambda x: x**3,
    lambda x: torch.softmax(x, -1), lambda x: torch.maximum(x, 0.5 * x), lambda x: x * 1e-4, lambda x: x * 1e3,
    lambda x: torch.nn.functional.normalize(x, dim=-1), lambda x: x.flip(-1), lambda x: x.roll(1, -1), torch.round,
)  # fmt: skip


DRAWS = 4
"""Networks of one architecture."""


@dataclass(frozen=True)
class Architecture:
    """A network whose weights are drawn anew for each seed, and captured at its first use."""

    model: nn.Module
    kind: str
    example: Tensor
    preset: str

    @functools.cached_property
    def reverser(self) -> frpt.Reverser:
        return frpt.Reverser(self.model, self.example, preset=self.preset)


@dataclass(frozen=True)
class Made:
    """A network with inputs and labels, in words for a report."""

    architecture: Architecture
    x: Tensor
    y: Tensor

    @property
    def model(self) -> nn.Module:
        return self.architecture.model

    @property
    def words(self) -> str:
        return f"{tuple(self.x.shape)} {self.x.dtype} {self.architecture.preset}: {self.model}"


@functools.lru_cache(maxsize=1)
def architecture(seed: int) -> Architecture:
    return Maker(seed).architecture()


class Maker:
    """One random network; everything is drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        torch.manual_seed(seed)

    def make(self, of: Architecture) -> Made:
        """Weights, inputs and labels for an architecture."""
        for module in of.model.modules():
            for name in ("reset_parameters", "_reset_parameters"):
                getattr(module, name, lambda: None)()
        self._spoil(of.model)
        x = self._values(of.kind, torch.Size((self.r.randint(1, 5), *of.example.shape[1:]))).to(of.example.dtype)
        with torch.no_grad():
            out = of.model(x)
        return Made(of, x, self._labels(out))

    def architecture(self) -> Architecture:
        kind = self.r.choice(("vector", "vector", "image", "image", "line", "steps", "text"))
        batch, layers = self.r.randint(1, 5), []
        x = self._values(drawn := kind, self._sizes(kind, batch))
        shape = torch.Size(x.shape)
        if kind == "text":
            layers.append(nn.Embedding(11, width := self.r.choice((4, 6, 8))))
            shape, kind = torch.Size((*shape, width)), "steps"
        for _ in range(self.r.randint(1, 6)):
            layer = self._layer(kind, shape)
            grown = layer.eval()(torch.zeros(2, *shape[1:])).shape
            if 0 < grown.numel() <= 40_000:
                layers.append(layer)
                shape = torch.Size((batch, *grown[1:]))
        classes = self.r.choice((1, 2, 3, 5, 12))
        model = nn.Sequential(*layers, *self._head(kind, shape, classes)).eval()
        dtype = self.r.choice((torch.float32,) * 6 + (torch.float64, torch.bfloat16))
        model, x = model.to(dtype), x if not x.is_floating_point() else x.to(dtype)
        with torch.no_grad():
            model(x)
        return Architecture(model, drawn, x, self.r.choice(("default",) * 6 + ("paper", "online")))

    def _sizes(self, kind: str, batch: int) -> torch.Size:
        r = self.r
        sizes = {
            "text": (r.randint(2, 7),),
            "vector": (r.randint(1, 12),),
            "image": (r.choice((1, 2, 3, 4)), r.randint(3, 9), r.randint(3, 9)),
            "line": (r.choice((1, 2, 4)), r.randint(4, 20)),
            "steps": (r.randint(2, 6), r.choice((4, 6, 8))),
        }
        return torch.Size((batch, *sizes[kind]))

    def _values(self, kind: str, size: torch.Size) -> Tensor:
        if kind == "text":
            return torch.randint(11, size)
        return torch.randn(size) * self.r.choice((1.0, 1.0, 1e-3, 1e3))

    def _layer(self, kind: str, shape: torch.Size, nested: bool = False) -> nn.Module:
        r = self.r
        choice = r.random()
        if choice < 0.3:
            return r.choice(ACTIVATIONS)()
        if choice < 0.4:
            return Do(r.choice(ELEMENTWISE))
        if choice < 0.55 and not nested:
            parts = [nn.Sequential(self._same(kind, shape), r.choice(ACTIVATIONS)()) for _ in range(2)]
            how = r.choice(("add", "gate", "beside") if kind != "steps" else ("add", "gate"))
            return Branches(how, *parts)
        if choice < 0.65:
            return self._norm(kind, shape)
        return self._linear(kind, shape)

    def _linear(self, kind: str, shape: torch.Size) -> nn.Module:
        r, wide = self.r, self.r.randint(1, 12)
        if kind == "vector":
            return nn.Linear(shape[1], wide, bias=r.random() < 0.8)
        if kind == "steps":
            if r.random() < 0.25:
                return nn.TransformerEncoderLayer(shape[2], 2, 8, 0.0, batch_first=True, norm_first=r.random() < 0.5)
            if r.random() < 0.2:
                return Recurrent(r.choice((nn.LSTM, nn.GRU)), shape[2], shape[2])
            return nn.Linear(shape[2], shape[2])
        smallest = min(shape[2:])
        k = r.randint(1, min(3, smallest))
        groups = shape[1] if r.random() < 0.2 else 1
        options = {"stride": r.choice((1, 1, 2)), "padding": r.randint(0, k - 1)}
        if r.random() < 0.25 and smallest >= 2:
            pools = (nn.MaxPool2d, nn.AvgPool2d) if kind == "image" else (nn.MaxPool1d, nn.AvgPool1d)
            return r.choice(pools)(2)
        if r.random() < 0.1:
            return nn.Upsample(scale_factor=2, mode="nearest")
        conv = nn.Conv2d if kind == "image" else nn.Conv1d
        if r.random() < 0.15:
            conv = nn.ConvTranspose2d if kind == "image" else nn.ConvTranspose1d
        mode = r.choice(("zeros", "zeros", "reflect", "circular")) if "Transpose" not in conv.__name__ else "zeros"
        return conv(
            shape[1], groups * r.randint(1, 4) if groups > 1 else wide, k, groups=groups, padding_mode=mode, **options
        )

    def _same(self, kind: str, shape: torch.Size) -> nn.Module:
        """A linear map that keeps the shape."""
        if kind in ("vector", "steps"):
            return nn.Linear(shape[-1], shape[-1])
        conv = nn.Conv2d if kind == "image" else nn.Conv1d
        k = 3 if min(shape[2:]) >= 2 and self.r.random() < 0.7 else 1
        return conv(shape[1], shape[1], k, padding=k // 2)

    def _norm(self, kind: str, shape: torch.Size) -> nn.Module:
        if kind in ("vector", "steps"):
            plain = kind == "vector" and self.r.random() < 0.5
            return nn.BatchNorm1d(shape[1]) if plain else nn.LayerNorm(shape[-1])
        if self.r.random() < 0.3:
            return nn.GroupNorm(1, shape[1])
        return nn.BatchNorm2d(shape[1]) if kind == "image" else nn.BatchNorm1d(shape[1])

    def _head(self, kind: str, shape: torch.Size, classes: int) -> list[nn.Module]:
        r = self.r
        if kind in ("image", "line") and r.random() < 0.15:  # a label for every position
            return [nn.Conv2d(shape[1], classes, 1) if kind == "image" else nn.Conv1d(shape[1], classes, 1)]
        head: list[nn.Module] = []
        if kind in ("image", "line") and r.random() < 0.5:
            head.append(nn.AdaptiveAvgPool2d(1) if kind == "image" else nn.AdaptiveAvgPool1d(1))
            shape = torch.Size((shape[0], shape[1]))
        head += [nn.Flatten(), nn.Linear(shape[1:].numel(), classes)]
        if r.random() < 0.2:
            head.append(r.choice((nn.Softmax(1), nn.Sigmoid(), nn.LogSoftmax(1))))
        return head

    def _spoil(self, model: nn.Module) -> None:
        """Sometimes what goes wrong in practice: zero or huge weights, dead units, shared layers, odd statistics."""
        r, how = self.r, self.r.random()
        weights = [p for p in model.parameters() if p.dim() > 1]
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        with torch.no_grad():
            for norm in norms:
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.2, 3.0)
                if r.random() < 0.1:
                    norm.weight.zero_()
            if how < 0.05:
                r.choice(weights).zero_()
            elif how < 0.1:
                r.choice(weights).mul_(r.choice((1e-6, 1e4)))
            elif how < 0.15:
                r.choice(list(model.parameters())).sub_(100.0)
            elif how < 0.2:
                chosen = r.choice(weights)
                chosen[:1] = chosen[-1:]

    def _labels(self, out: Tensor) -> Tensor:
        r = self.r
        if out.shape[1] == 1 or r.random() < 0.15:
            return (out.float().nan_to_num(0.0, 1.0, -1.0) + r.choice((0.01, 1.0)) * torch.randn(out.shape)).to(out)
        return torch.randint(out.shape[1], (out.shape[0], *out.shape[2:]))


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """TimeoutError after so many seconds of processor time: other processes may share the machine."""

    def late(*_: object) -> None:
        raise TimeoutError(f"over {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(seed: int, seconds: float = 60.0) -> tuple[str, str]:
    """("right", "refused: …", or what went wrong; details) of one reconstruction in a random network."""
    try:
        of = architecture(seed // DRAWS)
        maker = Maker(seed)
        made = maker.make(of)
    except (RuntimeError, ValueError) as error:  # a network that torch itself does not take
        return "not made", str(error)
    weights = [p.clone() for p in (*made.model.parameters(), *made.model.buffers())]
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    try:
        with warnings.catch_warnings(), limited(seconds):
            warnings.simplefilter("ignore")
            found = _reconstructed(made, maker.r)
    except FrptError as error:
        return f"refused: {type(error).__name__}", f"{error}\n{made.words}"
    except TimeoutError as error:
        return "hanging", f"{error}\n{made.words}"
    except Exception:
        return "raw", f"{traceback.format_exc()}\n{made.words}"
    same = all(
        torch.equal(a, b) for a, b in zip(weights, (*made.model.parameters(), *made.model.buffers()), strict=True)
    )
    if not same or not torch.equal(state, torch.get_rng_state()) or threads != torch.get_num_threads():
        return "changed", made.words
    return found, made.words


def _reconstructed(made: Made, r: random.Random) -> str:
    rev = made.architecture.reverser
    at = r.choice(rev.layers)
    rec = rev.reconstruct(made.x, made.y, at=at)
    numbers = (rec.target, rec.deviation, rec.closed, *(() if rec.share is None else (rec.share,)))
    if not all(bool(torch.isfinite(v).all()) for v in numbers):
        return "non-finite"
    samples = rev.batch_axis(at)
    still = samples.rows(rec.target) == samples.rows(rec.anchor)
    if not bool(still[~rec.corrected].all()):
        return "no fixed point"
    if rec.share is not None and made.y.dim() == 1:
        out = rev.run(made.x, at, rec.target)
        lead = out.gather(1, made.y[:, None])[:, 0] - out.scatter(1, made.y[:, None], -torch.inf).amax(1)
        if not bool((lead[rec.wins] >= 0).all()):
            return "wins without winning"
    str(rec), str(rev.plan(at))
    return "right"
