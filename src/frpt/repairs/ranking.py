"""Which layer carries the fault: the loss that refitting it alone takes back, on samples it was not fitted to.

A trained network rests at a minimum of its loss in the weights of every layer. A fault in the weights of one leaves an
error in the range of that layer's Jacobian: a step in these very weights takes it back whole, one in the weights of
another layer only in part. ``refitting.py`` takes these steps, layer by layer.
Called by ``frpt.diagnosis``, which ranks layers by it, and by ``frpt.repair(modules="auto")``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from frpt.datasets.labelled import spread
from frpt.errors import FrptError, OptionError
from frpt.graph.inputs import Inputs
from frpt.graph.names import OUTPUT
from frpt.repairs.refitting import REFITTING, Array, Batches, Refitting, chosen_loss, in_words, refit_losses
from frpt.reverser import Reverser

# Where these numbers come from is not on record. benchmarks/diagnosis_numbers.py tries others on digits: in how many of
# 12 networks with one damaged layer that layer is named first (one or two more or less are within chance), and the
# largest fault of the sound network, which should be small.
SAMPLES = 768
# Most samples to refit layers with, half of them held out at a time. 192 and 384: 12 of 12, sound 0.006; 768 and 1280:
# 12, 0.000.
LEAST_SAMPLES = 64
# Even where memory is short. A choice: 192 are few already.
MEMORY = 512 * 2**20
# Bytes for inputs and features of these samples: limits SAMPLES for large inputs, and has no other effect.
_MOST = 12
# Layers looked at where the user names none: as many rows as a figure shows well; a choice, not measured.
_LEAST = 2
# Modules that a level of nesting has to have for its modules to be these layers.
BATCH = 64
# Samples in a pass; changes no result. With 300 and with 16, CREPE takes a quarter longer: the memory of large features
# is given back and cleared anew in each pass.

CLEAR = 0.05
# Share of the loss that refitting a layer has to take back for it to stand out. On digits (benchmarks/
# diagnosis_numbers.py) layers of a sound network take back 0.01 at most, damaged ones 0.1 or more, 0.63 on average.
ALIKE = 0.9
# A layer that takes back so much of what the first one does is not told from it, however many samples there are: others
# can make up for a fault nearly as well as the layer that has it. Of 153 networks with a planted fault (RNet and the
# MNIST SimpleCNN, benchmarks/planted_faults.py, seeds 0 to 2), 1, 0.9 and 0.8 name a wrong layer 9, 1 and 1 times, the
# right one 48, 29 and 20 times.
MANY = 2 / 3
# Share of the layers from which on a list of several says nothing, and is not given: lists of four of five have the
# damaged layer as often as chance has (39 of 48, chance 36), and sound networks get them, too (MTCNN's RNet, before
# there was this limit); of the MNIST SimpleCNN's lists of two of three 34 of 34 have it, chance 23
# (benchmarks/planted_faults.py, seeds 300 to 304).
FEWEST = 16
# Samples from which on a layer is named: of fewer the bootstrap's intervals are too narrow. Of 24 sound networks, on 4,
# 6 or 10 of their failures alone layers are named or listed 11 times of 72, on 16 to 48 of them 5 times of 96
# (benchmarks/diagnosis_numbers.py failures).
_LEVEL, _RESAMPLES = 0.95, 2000
# Of the bootstrap intervals: customary.


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
    """The output and these layers in the reverse order of the network; names of the output itself left out.

    A layer stands behind all that its value depends on, however short the way from them to the output is (a skip).
    """
    inner = [name for name in dict.fromkeys(names) if name != OUTPUT and len(rev.plan(name))]

    def place(name: str) -> int:
        captured, node = rev.node(name)
        return captured.order[node]

    return [OUTPUT, *sorted(inner, key=place, reverse=True)]


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
        [(inputs.taken(rows).given, labels[rows.to(labels.device)]) for rows in part.split(BATCH)]
        for part in (some[:half], some[half:])
    )
    faults = refit(rev, fitted, held, layers).ranked(seed).faults
    best = max((layer for layer in layers if own[layer]), key=lambda layer: faults[layer].share, default=None)
    return None if best is None or faults[best].share <= 0 else Faulty(best, faults[best].share, own[best])


def own_weights(rev: Reverser, layers: Sequence[str]) -> dict[str, list[str]]:
    """Layer → the parameters and buffers its value depends on and no deeper one's does. layers: output first."""
    found: dict[str, list[str]] = {}
    taken: set[str] = set()
    for layer in reversed(layers):
        mine = rev.upstream(layer)
        found[layer] = [n for n in mine if n not in taken]
        taken.update(mine)
    return {layer: found[layer] for layer in layers}


@dataclass(frozen=True)
class Refits:
    """Losses of the held-out samples. before: (n,). after: layer → (n,), with this layer's weights alone refitted."""

    before: Array
    after: dict[str, Array]
    loss: str = ""
    """Which loss, in words."""
    recurrent: tuple[str, ...] = ()
    """Layers with recurrent weights, of which few steps refit little: they are not told from the first."""
    coarse: bool = False
    """Losses are of a network in bfloat16: differences between them are its rounding, in part."""

    def ranked(self, seed: int = 0, alike: float = ALIKE) -> Ranking:
        """Layers by what their refit takes back, with bootstrap intervals over the samples."""
        drawn = _drawn(len(self.before), seed)
        whole = np.ones((1, len(self.before)))
        share = {name: float(self._share(name, whole)[0]) for name in self.after}
        spread = {name: self._share(name, drawn) for name in self.after}
        order = tuple(sorted(share, key=lambda name: -share[name]))
        faults = {name: Fault(share[name], *_interval(spread[name])) for name in order}
        first = order[0]
        ahead = {name: _interval(alike * spread[first] - spread[name])[0] > 0 for name in order[1:]}
        near = (first, *(name for name in order[1:] if not ahead[name] or name in self.recurrent))
        told = len(order) > 1 and (len(near) == 1 or len(near) <= MANY * len(order)) and not self.coarse
        told = told and faults[first].low >= CLEAR and len(self.before) >= FEWEST
        return Ranking(faults, near if told else (), self.loss, self.recurrent)

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

    A layer is told from the first where the interval of its share lies below ``ALIKE`` of the first one's; recurrent
    ones never are. There are no suspects if they were more than ``MANY`` of the layers, if the first layer's interval
    does not lie above ``CLEAR``, of fewer samples than ``FEWEST``, in bfloat16, or of a single layer: none stands out.
    """

    faults: dict[str, Fault]
    suspects: tuple[str, ...]
    loss: str = ""
    recurrent: tuple[str, ...] = ()


def refit(
    rev: Reverser,
    one: Batches,
    other: Batches,
    layers: Sequence[str],
    loss: str | None = None,
    options: Refitting = REFITTING,
) -> Refits:
    """Refit the weights of each layer alone, to one half of the samples and then to the other.

    one, other: (inputs, labels), batch by batch. layers: output first; a layer's own weights are those its value
    depends on and no deeper layer's does. One without any keeps its losses.
    """
    chosen = chosen_loss(rev, loss, [torch.as_tensor(y) for _, y in (*one, *other)])
    own = own_weights(rev, layers)
    before, after = refit_losses(rev, one, other, layers, own, chosen, options)
    recurrent = tuple(name for name in layers if _recurrent(rev, own[name]))
    return Refits(before, after, in_words(rev, chosen), recurrent, coarse(rev))


def coarse(rev: Reverser) -> bool:
    """Whether weights are in bfloat16: refits that are told apart in float32 came out otherwise there."""
    return any(p.dtype == torch.bfloat16 for p in rev.model.parameters())


def _recurrent(rev: Reverser, weights: Iterable[str]) -> bool:
    """Whether some of these weights are applied again and again along a sequence."""
    modules = {rev.model.get_submodule(name.rpartition(".")[0]) for name in weights}
    return any(isinstance(m, nn.RNNBase | nn.RNNCellBase) for m in modules)


def _drawn(count: int, seed: int) -> Array:
    """(resamples, n), how often each sample is drawn."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), _RESAMPLES)


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
