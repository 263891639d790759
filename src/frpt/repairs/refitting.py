"""Refit the weights of one layer after the other, each alone: the losses of samples that it was not fitted to.

For each layer, from the same start, Gauss–Newton steps in its own weights θ:

    min_Δ  ½ (J Δ)ᵀ H (J Δ) − gᵀ(J Δ)      H = diag(p) − p pᵀ, g = e_y − p for class scores;  H = I, g = t − out else;
                                            H = diag(p (1 − p)), g = t − p for the binary cross-entropy

of the values before a softmax or sigmoid that the output ends in: probabilities are no scores. Solved by a few steps of
conjugate gradients on half of the samples, in weights measured by their own size, so that a scale does not stop a
matrix; what counts is the loss of the other half, which also says when to stop. Then the halves change places, so that
every sample is held out once. J Δ is a difference of two forward passes, Jᵀ a backward pass; both start at the layers
before, whose features are recorded once. What a backward pass needs is kept from one forward pass a round, as far as
``Refitting.memory`` goes.
Called by ``frpt.repairs.ranking``, which makes a ranking of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from frpt.embed import class_dim
from frpt.errors import OptionError
from frpt.graph.capture import Captured, eval_mode
from frpt.graph.inputs import Inputs
from frpt.graph.names import OUTPUT
from frpt.reverse.forward import needed
from frpt.reverser import Reverser

LOSSES = {
    "cross_entropy": "the cross-entropy", "bce": "the binary cross-entropy", "mse": "the squared error",
}  # fmt: skip
"""What ``loss`` of ``diagnose`` may be, in words."""

_EMBEDDING = torch.ops.aten.embedding.default

Array = npt.NDArray[Any]
Weights = dict[str, Tensor]
Batches = Sequence[tuple[Any, Tensor]]


@dataclass(frozen=True)
class Refitting:
    """How a layer is refitted.

    benchmarks/diagnosis_numbers.py tries other numbers on digits: in how many of 12 networks with one damaged layer
    that layer is named first (one or two more or less are within chance), and which share of the loss it takes back.
    """

    rounds: int = 6
    # Gauss–Newton steps, at most: a layer that is all but destroyed takes more of them than those behind it, which can
    # make up for it at first (benchmarks/planted_faults.py --falls 0.5).
    gain: float = 0.15
    # Share of the held-out loss that a step has to take back for the next one to be made. In the networks below 0.1,
    # 0.15 and 0.2 name the damaged layer 106, 104 and 107 times, another one 6, 6 and 8 times.
    running: float = 0.6
    # Share of what the first layer takes back of both halves that another one has to for its next step; more saves
    # time. In 242 networks 0.5, 0.6, 0.67 and 0.75 name the damaged layer 104, 106, 107 and 115 times, another one
    # 4, 6, 10 and 17 times (benchmarks/planted_faults.py --network mnist --samples 300 --falls 0.03 0.2 0.5
    # --seeds 202 210 --options running=0.5+gain=0.1 gain=0.1 running=0.67+gain=0.1 gain=0.1+looks=1,2,3).
    looks: tuple[int, ...] = (1, 2)
    # CG steps after which the held-out loss is looked at. In these networks, and with a gain of 0.1 as above, up to 2
    # and up to 3 name the damaged layer 106 and 95 times, another one 6 and 7 times.
    halvings: int = 3
    # How often the first of these steps is halved where none lowers the held-out loss: behind a kink, as where filters
    # are zero, a whole step of a damaged layer can be too long (benchmarks/planted_faults.py).
    stir: float = 1e-3
    # Random change of the weights, relative to their norm, at which slopes are taken: behind a ReLU, what is zero has
    # none where it is.
    anew: tuple[float, ...] = (0.3, 0.03)
    # Sizes, relative to that of the layer's other filters, at which filters of zeros are drawn anew before a step; the
    # better one is kept.
    apart: float = 1e-3
    # Change of the weights, relative to their norm, that derivatives are taken from. Half and double: no change.
    memory: int = 2**29
    # Bytes that may be kept for backward passes; a batch beyond is run forward again for each of them. No result
    # changes.


REFITTING = Refitting()


def refit_losses(
    rev: Reverser,
    one: Batches,
    other: Batches,
    layers: Sequence[str],
    own: Mapping[str, Sequence[str]],
    loss: str,
    options: Refitting = REFITTING,
) -> tuple[Array, dict[str, Array]]:
    """(losses (n,), layer → losses with its own weights refitted alone), of the samples of both halves, held out.

    layers: output first. own: layer → names of its own weights. One without any keeps its losses.
    """
    with eval_mode(rev.model):
        halves = [[_recorded(rev, layers, x, y, loss) for x, y in half] for half in (one, other)]
        parts = {}
        for i, layer in enumerate(layers):
            names = set(own[layer])
            weights = {n: p.detach() for n, p in rev.model.named_parameters() if n in names and p.is_floating_point()}
            if weights:
                first, second = ([b.behind(layers[i + 1 :]) for b in half] for half in halves)
                parts[layer] = [_Part(second, first, options, weights), _Part(first, second, options, weights)]
        _refit(parts, options)
    before = np.concatenate([_losses((b.start for b in half), half) for half in halves])
    after = {layer: np.concatenate([part.lowest for part in held]) for layer, held in parts.items()}
    return before, {layer: after.get(layer, before) for layer in layers}


def _refit(parts: Mapping[str, Sequence[_Part]], options: Refitting) -> None:
    """Step by step, as long as a layer is in the running. parts: layer → one for each half that is held out."""
    for _ in range(options.rounds):
        taken = {layer: sum(part.taken for part in both) for layer, both in parts.items()}
        for layer, both in parts.items():
            if taken[layer] >= options.running * max(taken.values()):
                for part in both:
                    part.step()


@dataclass(frozen=True, eq=False)
class _Batch:
    """Some samples, with their features at every layer recorded.

    end: what the loss is of, the output or the value before its softmax or sigmoid. start: that, as the network has it.
    values: layer → its feature. weights: the network's, by node.
    """

    captured: Captured
    given: dict[Node, Any]
    values: dict[str, tuple[Node, Tensor]]
    start: Tensor
    end: Node
    labels: Tensor
    class_dim: int | None
    ignored: int
    count: int
    weights: dict[Node, str]
    loss: str

    def behind(self, layers: Sequence[str]) -> _Rest:
        """The network from some layers on, or (of none) from its inputs on."""
        given = {**self.given, **{self.values[layer][0]: self.values[layer][1] for layer in layers}}
        return _Rest(self, given, tuple(needed(self.captured, {self.end}, set(given))))


@dataclass(frozen=True, eq=False)
class _Rest:
    """The network from a layer on for some samples, as a function of weights."""

    batch: _Batch
    given: dict[Node, Any]
    nodes: tuple[Node, ...]

    def out(self, own: Weights) -> Tensor:
        b = self.batch
        values = {**self.given, **{node: own[name] for node, name in b.weights.items() if name in own}}
        out: Tensor = b.captured.run(self.nodes, values, {b.end}, b.count, quick=True)[b.end]
        return out

    def pass_from(self, own: Weights) -> _Pass:
        """A forward pass with what a backward pass needs."""
        with torch.enable_grad():
            point = {n: w.detach().requires_grad_() for n, w in own.items()}
            return _Pass(self, own, point, self.out(point))

    @cached_property
    def nbytes(self) -> int:
        """About what a backward pass needs."""
        return self.batch.captured.nbytes((n for n in self.nodes if n not in self.given), self.batch.count)


@dataclass(eq=False)
class _Pass:
    """The output at some weights, and Jᵀ there. kept: the forward pass is there to go back through."""

    rest: _Rest
    own: Weights
    point: Weights
    out: Tensor
    kept: bool = True

    def pulled(self, v: Tensor) -> Weights:
        """Jᵀv. v: like the output."""
        at = self if self.kept else self.rest.pass_from(self.own)
        leaves = list(at.point.values())
        grads = torch.autograd.grad(
            at.out, leaves, v, retain_graph=self.kept, allow_unused=True, materialize_grads=True
        )
        return dict(zip(self.own, grads, strict=True))

    def dropped(self) -> _Pass:
        """The same without what a backward pass needs."""
        return _Pass(self.rest, self.own, {}, self.out.detach(), kept=False)


class _Part:
    """The network from one layer's input on, as a function of that layer's weights.

    own, lowest: the weights with the least held-out losses so far, and these. start, before: their sum at first, and
    a step ago. filters: weights whose rows are such; those of a table of embeddings may well be zero (padding).
    """

    def __init__(self, fitted: Sequence[_Rest], held: Sequence[_Rest], options: Refitting, own: Weights) -> None:
        self.fitted, self.held, self.options, self.own = fitted, held, options, own
        weights = fitted[0].batch.weights.items()
        tables = {name for node, name in weights if any(u.target is _EMBEDDING for u in node.users)}
        self.filters = {name for name, w in own.items() if w.dim() > 1} - tables
        self.lowest = _losses((rest.batch.start for rest in held), [rest.batch for rest in held])
        self.start, self.before = float(self.lowest.sum()), np.inf

    @property
    def taken(self) -> float:
        """How much of the held-out losses is taken back."""
        return self.start - float(self.lowest.sum())

    def step(self) -> None:
        """A further step, if the last one has taken back enough of what there was."""
        if not self.lowest.sum() < (1 - self.options.gain) * self.before:
            return
        own, self.before = self.own, float(self.lowest.sum())
        for start in self._starts(own):
            first = None
            for step in self._steps(start):
                first = first or step
                self._look(_moved(start, step, 1.0))
            for i in range(1, self.options.halvings + 1):
                if self.own is own and first is not None:
                    self._look(_moved(start, first, 0.5**i))

    def _starts(self, own: Weights) -> Iterable[Weights]:
        """The weights moved at random, each by a share of their size, and filters of zeros drawn anew, if there are."""
        dead = {n: own[n].flatten(1).square().sum(1) == 0 for n in self.filters}
        for anew in self.options.anew if any(bool(d.any()) for d in dead.values()) else (0.0,):
            g = torch.Generator().manual_seed(0)
            noise = {n: torch.randn(w.shape, generator=g).to(w) for n, w in own.items()}
            moved = {n: w + self.options.stir * w.square().mean().sqrt() * noise[n] for n, w in own.items()}
            for n, rows in dead.items():
                moved[n][rows] = anew * _size(own[n][~rows]) * noise[n][rows]
            yield moved

    def _look(self, point: Weights) -> None:
        """Keep the weights if their held-out losses are less."""
        losses = _losses((rest.out(point) for rest in self.held), [rest.batch for rest in self.held])
        if losses.sum() < self.lowest.sum():
            self.own, self.lowest = point, losses

    def _steps(self, own: Weights) -> Iterable[Weights]:
        """The step after some numbers of conjugate gradient iterations, preconditioned by the size of each weight."""
        passes, sizes = self._passes(own), _squares(own)
        r = _summed(own, (p.pulled(_slope(p.out.detach(), p.rest.batch)) for p in passes))
        step: Weights = {n: torch.zeros_like(w) for n, w in own.items()}
        p = {n: sizes[n] * r[n] for n in own}
        left = _dot(r, p)
        for i in range(1, self.options.looks[-1] + 1):
            if left <= 0:
                return
            last = i == self.options.looks[-1]
            bend, q = self._curved(own, p, passes, pull=not last)
            if bend <= 0:
                return
            step = {n: step[n] + left / bend * p[n] for n in own}
            if i in self.options.looks:
                yield step
            if last:
                return
            r = {n: r[n] - left / bend * q[n] for n in own}
            z = {n: sizes[n] * r[n] for n in own}
            left, before = _dot(r, z), left
            p = {n: z[n] + left / before * p[n] for n in own}

    def _passes(self, own: Weights) -> list[_Pass]:
        """The fitted samples run forward, kept for backward passes as far as memory goes."""
        left, passes = self.options.memory, []
        for rest in self.fitted:
            made = rest.pass_from(own)
            passes.append(made if (left := left - rest.nbytes) >= 0 else made.dropped())
        return passes

    def _curved(
        self, own: Weights, direction: Weights, passes: Sequence[_Pass], *, pull: bool
    ) -> tuple[float, Weights]:
        """vᵀJᵀHJv, and JᵀHJv where it is wanted (else zero). passes: at ``own``."""
        apart = self.options.apart
        length = apart * (_dot(own, own) / _dot(direction, direction)) ** 0.5 or apart
        moved, bend = _moved(own, direction, length), 0.0
        curved = {n: torch.zeros_like(w) for n, w in own.items()}
        for at in passes:
            out = at.out.detach()
            with torch.no_grad():
                change = (at.rest.out(moved) - out) / length
                bent = _bent(out, at.rest.batch, change)
            bend += float((change.double() * bent.double()).sum())
            if pull:
                curved = {n: curved[n] + part for n, part in at.pulled(bent).items()}
        return bend, curved


def _size(filters: Tensor) -> Tensor:
    """The root mean square of their weights; 1/√(inputs) where there are none. filters: (n, inputs, ...)."""
    return filters.square().mean().sqrt() if len(filters) else filters.new_tensor(filters.shape[1:].numel() ** -0.5)


def _squares(own: Weights) -> dict[str, float]:
    """Mean squares, at least 1e-4 of the largest: weights move by shares of their size, small ones far enough."""
    squares = {n: float(w.square().mean()) for n, w in own.items()}
    least = 1e-4 * max(squares.values()) or 1.0
    return {n: max(square, least) for n, square in squares.items()}


def _moved(own: Weights, step: Weights, length: float) -> Weights:
    return {n: w + length * step[n] for n, w in own.items()}


def _summed(own: Weights, parts: Iterable[Weights]) -> Weights:
    total: Weights = {n: torch.zeros_like(w) for n, w in own.items()}
    for part in parts:
        total = {n: total[n] + part[n] for n in total}
    return total


def _like_output(captured: Captured, labels: Tensor) -> Tensor:
    """Something shaped like the output of as many samples as there are labels."""
    return torch.empty(len(labels), *map(int, captured.output.meta["val"].shape[1:]), device="meta")


def chosen_loss(rev: Reverser, loss: str | None, labels: Sequence[Tensor]) -> str:
    """The loss asked for, or the one that fits the labels and what the output ends in."""
    captured, _ = rev.node(OUTPUT)
    ends = captured.activation()[0]
    yes_no = rev.embedder.yes_no(_like_output(captured, labels[0]), labels[0])
    if loss == "cross_entropy" and yes_no:
        raise OptionError("these labels say yes or no to each output, which has no classes: use loss='bce'")
    if loss is not None:
        return loss
    if yes_no:
        return "bce"
    whole = labels[0].dim() == captured.output.meta["val"].dim()  # a number for each output, not one label for several
    if whole and labels[0].is_floating_point():
        shares = ends == "sigmoid" and all(bool(((y >= 0) & (y <= 1)).all()) for y in labels)
        return "bce" if shares else "mse"
    return "bce" if ends == "sigmoid" else "cross_entropy"


def in_words(rev: Reverser, loss: str) -> str:
    """What a loss is called on a page."""
    ends = rev.node(OUTPUT)[0].activation()[0]
    return LOSSES[loss] + (f" of the values before the final {ends}" if ends and loss != "mse" else "")


def _recorded(rev: Reverser, layers: Sequence[str], x: Any, y: Tensor, loss: str) -> _Batch:
    """One forward pass."""
    inputs = Inputs.of(x)
    captured = rev.node(OUTPUT, inputs)[0]
    given = captured.given(inputs)
    end = captured.output if loss == "mse" else captured.activation()[1]
    nodes = {layer: rev.node(layer, inputs)[1] for layer in layers[1:]}  # the first is the output
    keep = {end, *nodes.values()}
    with torch.no_grad():
        values = captured.run(needed(captured, keep, set(given)), given, keep, inputs.batch, quick=True)
    names = {id(p): n for n, p in rev.model.named_parameters()}
    weights = {n: names[id(captured.held(n))] for n in captured.weights if id(captured.held(n)) in names}
    labels = torch.as_tensor(y).to(next(iter(inputs.tensors)).device)
    output = _like_output(captured, labels)
    if rev.embedder.yes_no(output, labels):
        labels = labels.reshape(output.shape)
    return _Batch(
        captured, given, {layer: (node, values[node]) for layer, node in nodes.items()}, values[end], end, labels,
        rev.embedder.class_dim, rev.embedder.ignore_index, inputs.batch, weights, loss,
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


def _losses(outs: Iterable[Tensor], batches: Sequence[_Batch]) -> Array:
    """(n,), of the samples of all batches."""
    with torch.no_grad():
        return np.concatenate([_loss(out, b).double().cpu().numpy() for out, b in zip(outs, batches, strict=True)])


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
