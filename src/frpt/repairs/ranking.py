"""Which layer carries the fault: the loss that refitting it alone takes back, on samples it was not fitted to.

A trained network rests at a minimum of its loss in the weights of every layer. A fault in the weights of one leaves an
error in the range of that layer's Jacobian: a step in these very weights takes it back whole, one in the weights of
another layer only in part. For each layer, from the same start, Gauss–Newton steps in its own weights θ:

    min_Δ  ½ (J Δ)ᵀ H (J Δ) − gᵀ(J Δ)      H = diag(p) − p pᵀ, g = e_y − p for class scores;  H = I, g = t − out else

by a few steps of conjugate gradients on half of the samples; what counts is the loss of the other half, which also says
when to stop. J Δ is a difference of two forward passes, Jᵀ a backward pass; both start at the layer before.
Called by ``frpt.diagnosis``, which ranks layers by it, and by ``frpt.repair(modules="auto")``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
# Most samples to refit layers with, half of them held out. 192: 10 of 12, sound 0.02; 384: 12, 0.03; 768: 12,
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
    faults = refit(rev, fitted, held, layers)
    best = max((layer for layer in layers if own[layer]), key=lambda layer: faults[layer], default=None)
    return None if best is None or faults[best] <= 0 else Faulty(best, faults[best], own[best])


def own_weights(rev: Reverser, layers: Sequence[str]) -> dict[str, list[str]]:
    """Layer → the parameters and buffers its value depends on and the next layer's does not. layers: output first."""
    found = {}
    for i, layer in enumerate(layers):
        behind = set(rev.upstream(layers[i + 1])) if i + 1 < len(layers) else set()
        found[layer] = [n for n in rev.upstream(layer) if n not in behind]
    return found


def refit(rev: Reverser, fitted: Batches, held: Batches, layers: Sequence[str]) -> dict[str, float]:
    """Layer → share of the held-out loss that refitting its own weights takes back; 0 for a layer without any.

    fitted, held: (inputs, labels), batch by batch. layers: output first; a layer's own weights are those its value
    depends on and the next layer's does not.
    """
    faults: dict[str, float] = {}
    names_of = own_weights(rev, layers)
    with eval_mode(rev.model):
        for i, layer in enumerate(layers):
            before = layers[i + 1] if i + 1 < len(layers) else None
            names = set(names_of[layer])
            own = {n: p.detach() for n, p in rev.model.named_parameters() if n in names and p.is_floating_point()}
            faults[layer] = _Part(rev, before, fitted, held).taken_back(own) if own else 0.0
    return faults


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

    def out(self, own: Weights) -> Tensor:
        values = {**self.given, **{node: own[name] for node, name in self.weights.items() if name in own}}
        out: Tensor = self.captured.run(self.nodes, values, {self.captured.output}, self.count)[self.captured.output]
        return out


class _Part:
    """The network from one layer's input on, as a function of that layer's weights."""

    def __init__(self, rev: Reverser, before: str | None, fitted: Batches, held: Batches) -> None:
        self.fitted, self.held = ([_batch(rev, before, x, y) for x, y in part] for part in (fitted, held))

    def taken_back(self, own: Weights) -> float:
        """1 − loss after / loss before, of the held-out samples."""
        start = lowest = self._loss(own)
        for _ in range(_ROUNDS):
            best = own
            for step in self._steps(own):
                for length in _LENGTHS:
                    point = {n: w + length * step[n] for n, w in own.items()}
                    if (loss := self._loss(point)) < lowest:
                        lowest, best = loss, point
            if best is own:
                break
            own = best
        return 1 - lowest / start if start > 0 else 0.0

    def _loss(self, own: Weights) -> float:
        with torch.no_grad():
            return sum(float(_loss(b.out(own), b)) for b in self.held)

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


def _batch(rev: Reverser, before: str | None, x: Any, y: Tensor) -> _Batch:
    inputs = Inputs.of(x)
    captured, node = rev.node(before or OUTPUT, inputs)
    given, output = captured.given(inputs), captured.output
    if before is not None:
        with torch.no_grad():
            given[node] = captured.run(needed(captured, {node}, set(given)), given, {node}, inputs.batch)[node]
    names = {id(p): n for n, p in rev.model.named_parameters()}
    weights = {n: names[id(captured.held(n))] for n in captured.weights if id(captured.held(n)) in names}
    labels = torch.as_tensor(y).to(next(iter(inputs.tensors)).device)
    return _Batch(
        captured, needed(captured, {output}, set(given)), given, labels, rev.embedder.class_dim, inputs.batch, weights
    )


def _axis(out: Tensor, b: _Batch) -> int:
    return class_dim(out, b.labels) if b.class_dim is None else b.class_dim


def _loss(out: Tensor, b: _Batch) -> Tensor:
    """Cross-entropy of class ids, else the squared error; summed over the batch."""
    if b.labels.is_floating_point():
        return F.mse_loss(out, b.labels.to(out), reduction="sum")
    return F.cross_entropy(out.movedim(_axis(out, b), -1).flatten(0, -2), b.labels.flatten(), reduction="sum")


def _slope(out: Tensor, b: _Batch) -> Tensor:
    """g, like the output; zero where a label is ignored."""
    if b.labels.is_floating_point():
        return b.labels.to(out) - out
    axis = _axis(out, b)
    p = out.movedim(axis, -1).softmax(-1)
    g = F.one_hot(b.labels.clamp_min(0), p.shape[-1]).to(p) - p
    return ((b.labels >= 0)[..., None] * g).movedim(-1, axis)


def _bent(out: Tensor, b: _Batch, change: Tensor) -> Tensor:
    """H times a change of the output."""
    if b.labels.is_floating_point():
        return change
    axis = _axis(out, b)
    p, q = out.movedim(axis, -1).softmax(-1), change.movedim(axis, -1)
    return ((b.labels >= 0)[..., None] * p * (q - (p * q).sum(-1, keepdim=True))).movedim(-1, axis)


def _dot(a: Weights, b: Weights) -> float:
    return float(sum((a[n].double() * b[n].double()).sum() for n in a))
