"""Which layer carries the fault: the loss that refitting it alone takes back, on samples it was not fitted to.

A trained network rests at a minimum of its loss in the weights of every layer. A fault in the weights of one leaves an
error in the range of that layer's Jacobian: a step in these very weights takes it back whole, one in the weights of
another layer only in part. For each layer, from the same start, Gauss–Newton steps in its own weights θ:

    min_Δ  ½ (J Δ)ᵀ H (J Δ) − gᵀ(J Δ)      H = diag(p) − p pᵀ, g = e_y − p for class scores;  H = I, g = t − out else;
                                            H = diag(p (1 − p)), g = t − p for the binary cross-entropy

of the values before a softmax or sigmoid that the output ends in: probabilities are no scores. Solved
by a few steps of conjugate gradients on half of the samples; what counts is the loss of the other half, which also says
when to stop. Then the halves change places, so that every sample is held out once. J Δ is a difference of two forward
passes, Jᵀ a backward pass; both start at the layer before.
Called by ``frpt.diagnosis``, which ranks layers by it, and by ``frpt.repair(modules="auto")``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from frpt.datasets.labelled import spread
from frpt.embed import class_dim
from frpt.errors import FrptError, OptionError
from frpt.graph.capture import Captured, eval_mode
from frpt.graph.inputs import Inputs
from frpt.graph.names import OUTPUT
from frpt.reverse.forward import needed
from frpt.reverser import Reverser

# Where these numbers come from is not on record. benchmarks/diagnosis_numbers.py tries others on digits: in how many of
# 12 networks with one damaged layer that layer is named first (one or two more or less are within chance), and the
# largest fault of the sound network, which should be small.
SAMPLES = 768
# Most samples to refit layers with, half of them held out at a time. 192: 10 of 12, sound 0.02; 384: 12, 0.03; 768: 12,
# 0.01; 1280: 12, 0.00.
LEAST_SAMPLES = 64
# Even where memory is short. A choice: 192 are few already.
MEMORY = 512 * 2**20
# Bytes for inputs and features of these samples: limits SAMPLES for large inputs, and has no other effect.
_ROUNDS = 2
# Gauss–Newton steps. 1, 2 and 4: 12 of 12; a damaged layer takes back 0.56, 0.63 and 0.66 of the loss.
_LOOKS = (1, 2, 4, 6)
# CG steps after which the held-out loss is looked at. Up to 3, 6 and 12: 12 of 12, 0.62, 0.63 and 0.63 of the loss.
_LENGTHS = (1.0, 0.5)
# Of a step, those that are tried. The full one alone: 12 of 12, 0.63 of the loss as well.
_APART = 1e-3
# Change of the weights, relative to their norm, that derivatives are taken from. Half and double: no change.
_MOST = 12
# Layers looked at where the user names none: as many rows as a figure shows well; a choice, not measured.
_LEAST = 2
# Modules that a level of nesting has to have for its modules to be these layers.
_BATCH = 64
# Samples in a pass of ``most_faulty``; changes no result.

LOSSES = {
    "cross_entropy": "the cross-entropy", "bce": "the binary cross-entropy", "mse": "the squared error",
}  # fmt: skip
"""What ``loss`` of ``diagnose`` may be, in words."""
CLEAR = 0.05
# Share of the loss that refitting a layer has to take back for it to stand out. On digits (benchmarks/
# diagnosis_numbers.py) layers of a sound network take back 0.03 at most, damaged ones 0.08 or more, 0.63 on average.
_LEVEL, _RESAMPLES = 0.95, 2000
# Of the bootstrap intervals: customary.

Array = npt.NDArray[Any]
Weights = dict[str, Tensor]
Batches = Sequence[tuple[Any, Tensor]]


def outermost(rev: Reverser) -> list[str]:
    """Modules at the first level of nesting with at least two that can be walked back to; at most twelve of them."""
    modules = {name for name, _ in rev.model.named_modules() if name}
    names = [name for name in rev.layers if name in modules]
    reachable: list[str] = []
    for level in range(1, 1 + max((name.count(".") + 1 for name in names), default=0)):
        reachable = [name for name in names if name.count(".") + 1 == level and _reachable(rev, name)]
        if len(reachable) >= _LEAST:
            break
    return [reachable[i] for i in spread(len(reachable), _MOST)] if reachable else []


def output_first(rev: Reverser, names: Iterable[str]) -> list[str]:
    """The output and these layers, ordered by how far each is from the output; names of the output itself left out."""
    ordered = sorted(dict.fromkeys([OUTPUT, *names]), key=lambda name: len(rev.plan(name)))
    return [name for name in ordered if name == OUTPUT or len(rev.plan(name))]


def _reachable(rev: Reverser, name: str) -> bool:
    """Whether there is a way back to a layer, with samples to tell apart."""
    try:
        rev.batch_axis(name)
        return len(rev.plan(name)) > 0
    except FrptError:
        return False


@dataclass(frozen=True)
class Faulty:
    """The layer whose refit takes back the largest share of the loss. weights: its own, by name."""

    layer: str
    share: float
    weights: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"modules='auto': refitting {self.layer} alone takes back {100 * self.share:.0f} % of the loss on held-out "
            f"samples, the most of any layer; only its weights may move ({', '.join(self.weights)})"
        )


def most_faulty(rev: Reverser, inputs: Inputs, labels: Tensor, movable: Sequence[str], seed: int) -> Faulty | None:
    """The layer to blame among the outermost modules and the output; None where refitting none of them helps.

    Half of the samples refit, the others judge. movable: weights that a repair can move; layers without one are not
    looked for.
    """
    if inputs.batch < 2:
        raise OptionError(
            "modules='auto' refits layers on half of the samples and judges them by the others: pass at least two "
            "failing samples, or some old ones as keep="
        )
    layers = output_first(rev, outermost(rev))
    own = {layer: tuple(n for n in names if n in set(movable)) for layer, names in own_weights(rev, layers).items()}
    some = torch.randperm(inputs.batch, generator=torch.Generator().manual_seed(seed))[:SAMPLES]
    half = len(some) // 2
    fitted, held = (
        [(inputs.taken(rows).given, labels[rows.to(labels.device)]) for rows in part.split(_BATCH)]
        for part in (some[:half], some[half:])
    )
    faults = refit(rev, fitted, held, layers).ranked(seed).faults
    best = max((layer for layer in layers if own[layer]), key=lambda layer: faults[layer].share, default=None)
    return None if best is None or faults[best].share <= 0 else Faulty(best, faults[best].share, own[best])


def own_weights(rev: Reverser, layers: Sequence[str]) -> dict[str, list[str]]:
    """Layer → the parameters and buffers its value depends on and the next layer's does not. layers: output first."""
    found = {}
    for i, layer in enumerate(layers):
        behind = set(rev.upstream(layers[i + 1])) if i + 1 < len(layers) else set()
        found[layer] = [n for n in rev.upstream(layer) if n not in behind]
    return found


@dataclass(frozen=True)
class Refits:
    """Losses of the held-out samples. before: (n,). after: layer → (n,), with this layer's weights alone refitted."""

    before: Array
    after: dict[str, Array]
    loss: str = ""
    """Which loss, in words."""

    def ranked(self, seed: int = 0) -> Ranking:
        """Layers by what their refit takes back, with bootstrap intervals over the samples."""
        drawn = _drawn(len(self.before), seed)
        whole = np.ones((1, len(self.before)))
        share = {name: float(self._share(name, whole)[0]) for name in self.after}
        spread = {name: self._share(name, drawn) for name in self.after}
        order = tuple(sorted(share, key=lambda name: -share[name]))
        faults = {name: Fault(share[name], *_interval(spread[name])) for name in order}
        first = order[0]
        near = tuple(name for name in order if name == first or _interval(spread[first] - spread[name])[0] <= 0)
        return Ranking(faults, near if faults[first].low >= CLEAR else (), self.loss)

    def _share(self, layer: str, counts: Array) -> Array:
        """(r,), 1 − loss after / loss before, with each sample counted so many times. counts: (r, n)."""
        before, after = counts @ self.before, counts @ self.after[layer]
        taken: Array = 1 - after / np.where(before > 0, before, 1.0)
        return np.where(before > 0, taken, 0.0)


@dataclass(frozen=True)
class Fault:
    """share: of the held-out loss that refitting a layer takes back. low, high: its 95 % interval over samples."""

    share: float
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Ranking:
    """faults: by layer, the largest share first. suspects: the first layer and those that cannot be told from it.

    There are no suspects if the first layer's interval does not lie above ``CLEAR``: no layer stands out.
    """

    faults: dict[str, Fault]
    suspects: tuple[str, ...]
    loss: str = ""


def refit(rev: Reverser, one: Batches, other: Batches, layers: Sequence[str], loss: str | None = None) -> Refits:
    """Refit the weights of each layer alone, to one half of the samples and then to the other.

    one, other: (inputs, labels), batch by batch. layers: output first; a layer's own weights are those its value
    depends on and the next layer's does not. One without any keeps its losses.
    """
    chosen = _chosen(rev, loss, [torch.as_tensor(y) for _, y in (*one, *other)])
    folds = [_refit(rev, fitted, held, layers, chosen) for fitted, held in ((one, other), (other, one))]
    after = {name: np.concatenate([fold.after[name] for fold in folds]) for name in layers}
    return Refits(np.concatenate([fold.before for fold in folds]), after, _in_words(rev, chosen))


def _refit(rev: Reverser, fitted: Batches, held: Batches, layers: Sequence[str], loss: str) -> Refits:
    """The losses of one half, with layers refitted to the other."""
    after: dict[str, Array] = {}
    names_of = own_weights(rev, layers)
    with eval_mode(rev.model):
        for i, layer in enumerate(layers):
            before = layers[i + 1] if i + 1 < len(layers) else None
            names = set(names_of[layer])
            own = {n: p.detach() for n, p in rev.model.named_parameters() if n in names and p.is_floating_point()}
            part = _Part(rev, before, fitted, held, loss)
            if i == 0:
                start = part.losses({})
            after[layer] = part.losses(part.refitted(own)) if own else start
    return Refits(start, after)


@dataclass(frozen=True)
class _Batch:
    """Some samples, with the feature of the layer before recorded."""

    captured: Captured
    nodes: list[Node]
    given: dict[Node, Any]
    labels: Tensor
    class_dim: int | None
    count: int
    weights: dict[Node, str]
    loss: str
    end: Node
    """What the loss is of: the output, or the value before its softmax or sigmoid."""
    ignored: int

    def out(self, own: Weights) -> Tensor:
        values = {**self.given, **{node: own[name] for node, name in self.weights.items() if name in own}}
        out: Tensor = self.captured.run(self.nodes, values, {self.end}, self.count)[self.end]
        return out


class _Part:
    """The network from one layer's input on, as a function of that layer's weights."""

    def __init__(self, rev: Reverser, before: str | None, fitted: Batches, held: Batches, loss: str) -> None:
        self.fitted, self.held = ([_batch(rev, before, x, y, loss) for x, y in part] for part in (fitted, held))

    def refitted(self, own: Weights) -> Weights:
        """The weights with the least loss on the held-out samples of all that were tried."""
        lowest = float(self.losses(own).sum())
        for _ in range(_ROUNDS):
            best = own
            for step in self._steps(own):
                for length in _LENGTHS:
                    point = {n: w + length * step[n] for n, w in own.items()}
                    if (loss := float(self.losses(point).sum())) < lowest:
                        lowest, best = loss, point
            if best is own:
                break
            own = best
        return own

    def losses(self, own: Weights) -> Array:
        """(n,), of the held-out samples."""
        with torch.no_grad():
            parts = [_loss(b.out(own), b).double().cpu().numpy() for b in self.held]
        return np.concatenate(parts)

    def _steps(self, own: Weights) -> Iterable[Weights]:
        """The step after some numbers of conjugate gradient iterations."""
        with torch.no_grad():
            outs = [b.out(own) for b in self.fitted]
        r = self._pulled(own, [_slope(out, b) for out, b in zip(outs, self.fitted, strict=True)])
        step: Weights = {n: torch.zeros_like(w) for n, w in own.items()}
        p, size = r, _dot(r, r)
        for i in range(1, _LOOKS[-1] + 1):
            if size <= 0:
                return
            q = self._curved(own, p, outs)
            bend = _dot(p, q)
            if bend <= 0:
                return
            step = {n: step[n] + size / bend * p[n] for n in own}
            r = {n: r[n] - size / bend * q[n] for n in own}
            size, old = _dot(r, r), size
            p = {n: r[n] + size / old * p[n] for n in own}
            if i in _LOOKS:
                yield step

    def _curved(self, own: Weights, direction: Weights, outs: Sequence[Tensor]) -> Weights:
        """JᵀHJ v. outs: of the batches, at ``own``."""
        length = _APART * (_dot(own, own) / _dot(direction, direction)) ** 0.5 or _APART
        moved = {n: w + length * direction[n] for n, w in own.items()}
        with torch.no_grad():
            changes = [(b.out(moved) - out) / length for b, out in zip(self.fitted, outs, strict=True)]
        bent = [_bent(out, b, c) for b, out, c in zip(self.fitted, outs, changes, strict=True)]
        return self._pulled(own, bent)

    def _pulled(self, own: Weights, vectors: Sequence[Tensor]) -> Weights:
        """Jᵀv. vectors: like the output, one for each batch."""
        total: Weights = {n: torch.zeros_like(w) for n, w in own.items()}
        for b, v in zip(self.fitted, vectors, strict=True):
            with torch.enable_grad():
                point = {n: w.detach().requires_grad_() for n, w in own.items()}
                out = b.out(point)
            grads = torch.autograd.grad(out, list(point.values()), v, allow_unused=True, materialize_grads=True)
            total = {n: total[n] + g for n, g in zip(point, grads, strict=True)}
        return total


def _drawn(count: int, seed: int) -> Array:
    """(resamples, n), how often each sample is drawn."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), _RESAMPLES)


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def _chosen(rev: Reverser, loss: str | None, labels: Sequence[Tensor]) -> str:
    """The loss asked for, or the one that fits the labels and what the output ends in."""
    if loss is not None:
        return loss
    captured, _ = rev.node(OUTPUT)
    ends = captured.activation()[0]
    if rev.embedder.yes_no(_like_output(captured, labels[0]), labels[0]):
        return "bce"
    whole = labels[0].dim() == captured.output.meta["val"].dim()  # a number for each output, not one label for several
    if whole and labels[0].is_floating_point():
        shares = ends == "sigmoid" and all(bool(((y >= 0) & (y <= 1)).all()) for y in labels)
        return "bce" if shares else "mse"
    return "bce" if ends == "sigmoid" else "cross_entropy"


def _like_output(captured: Captured, labels: Tensor) -> Tensor:
    """Something shaped like the output of as many samples as there are labels."""
    return torch.empty(len(labels), *map(int, captured.output.meta["val"].shape[1:]), device="meta")


def _in_words(rev: Reverser, loss: str) -> str:
    ends = rev.node(OUTPUT)[0].activation()[0]
    return LOSSES[loss] + (f" of the values before the final {ends}" if ends and loss != "mse" else "")


def _batch(rev: Reverser, before: str | None, x: Any, y: Tensor, loss: str) -> _Batch:
    inputs = Inputs.of(x)
    captured, node = rev.node(before or OUTPUT, inputs)
    given = captured.given(inputs)
    end = captured.output if loss == "mse" else captured.activation()[1]
    if before is not None:
        with torch.no_grad():
            given[node] = captured.run(needed(captured, {node}, set(given)), given, {node}, inputs.batch)[node]
    names = {id(p): n for n, p in rev.model.named_parameters()}
    weights = {n: names[id(captured.held(n))] for n in captured.weights if id(captured.held(n)) in names}
    labels = torch.as_tensor(y).to(next(iter(inputs.tensors)).device)
    output = _like_output(captured, labels)
    if rev.embedder.yes_no(output, labels):
        labels = labels.reshape(output.shape)
    return _Batch(
        captured, needed(captured, {end}, set(given)), given, labels, rev.embedder.class_dim, inputs.batch, weights,
        loss, end, rev.embedder.ignore_index,
    )  # fmt: skip


def _axis(out: Tensor, b: _Batch) -> int:
    return class_dim(out, b.labels) if b.class_dim is None else b.class_dim


def _wanted(out: Tensor, b: _Batch) -> Tensor:
    """What each entry of the output should be: the labels, or one-hot where they are class ids."""
    if b.labels.shape == out.shape:
        return b.labels.to(out) if b.labels.is_floating_point() else (b.labels == 1).to(out)
    hot = F.one_hot(b.labels.clamp_min(0), out.shape[_axis(out, b)]).movedim(-1, _axis(out, b))
    return hot.to(out)


def _counts(out: Tensor, b: _Batch) -> Tensor:
    """1, or 0 where a label is ignored; to be multiplied with something like the output."""
    if b.labels.shape == out.shape:
        return torch.ones_like(out) if b.labels.is_floating_point() else (b.labels != b.ignored).to(out)
    return (b.labels != b.ignored).unsqueeze(_axis(out, b)).to(out)


def _loss(out: Tensor, b: _Batch) -> Tensor:
    """(b,), summed over the labels of a sample."""
    if b.loss == "mse":
        each = (out - _wanted(out, b)).square()
    elif b.loss == "bce":
        each = F.binary_cross_entropy_with_logits(out, _wanted(out, b), reduction="none")
    else:
        each = -_wanted(out, b) * out.log_softmax(_axis(out, b))
    return (_counts(out, b) * each).reshape(b.count, -1).sum(1)


def _slope(out: Tensor, b: _Batch) -> Tensor:
    """g, like the output; zero where a label is ignored."""
    made = {"mse": lambda: out, "bce": out.sigmoid, "cross_entropy": lambda: out.softmax(_axis(out, b))}[b.loss]()
    return _counts(out, b) * (_wanted(out, b) - made)


def _bent(out: Tensor, b: _Batch, change: Tensor) -> Tensor:
    """H times a change of the output."""
    if b.loss == "mse":
        return _counts(out, b) * change
    if b.loss == "bce":
        p = out.sigmoid()
        return _counts(out, b) * p * (1 - p) * change
    axis = _axis(out, b)
    p = out.softmax(axis)
    return _counts(out, b) * p * (change - (p * change).sum(axis, keepdim=True))


def _dot(a: Weights, b: Weights) -> float:
    return float(sum((a[n].double() * b[n].double()).sum() for n in a))
