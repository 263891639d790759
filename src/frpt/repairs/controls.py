"""Controls: what else an owner could do with failing samples, by the same call and with the same result.

    finetune   min  mean_i ℓ(s_i)                                     the failing samples alone
    ewc        min  mean_i ℓ(s_i) + λ/2 Σ_j F_jj (W − W₀)_j²           elastic weight consolidation, Kirkpatrick 2017
    replay     min  mean_i ℓ(s_i) + λ mean KL(p_W₀(·|x) ‖ p_W(·|x))    old inputs x, distilled: LwF, Li and Hoiem 2016

ℓ of the logistic loss is the cross-entropy, since s = z_y − logsumexp of the others; F_jj is the diagonal of the
memory's metric, (U_G²) S (U_A²)ᵀ, so that EWC needs no old data either. Adam on the weights that the nearest weights
may move; batch norm stays in eval mode. For output targets the distillation is half the squared distance.
``frpt.repairs.repair`` takes one of these in the place of the nearest weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Node

from frpt.common.asked import Asked, divergence
from frpt.errors import OptionError
from frpt.graph.capture import Captured
from frpt.graph.inputs import InputLike, Inputs
from frpt.repairs.curvature import Curvature
from frpt.repairs.nearest_weights import NearestWeights, Problem, Right, Weights
from frpt.repairs.weight_maps import WeightMap

Method = Literal["nearest", "replay", "ewc", "finetune"]


@dataclass(frozen=True)
class Descent:
    """How a control descends. Rates and ladders were chosen by benchmarks/repair.py on its held-out part."""

    rate: float
    """Of Adam."""
    ladder: tuple[float, ...]
    """λ from strong to weak; each goes on from the weights of the one before. Fine-tuning has none: one entry."""
    epochs: int = 300
    """Most passes over the samples for one strength."""
    batch: int = 50
    """Samples in a step."""
    replayed: int = 50
    """Old inputs in a step of replay."""
    patience: int = 20
    gain: float = 0.01
    """It ends if in so many passes the objective has not fallen by this share."""


DESCENTS: dict[str, Descent] = {
    "finetune": Descent(rate=3e-4, ladder=(1.0,)),
    "ewc": Descent(rate=3e-4, ladder=(1000.0, 300.0, 100.0, 30.0, 10.0)),
    "replay": Descent(rate=3e-4, ladder=(30.0, 10.0, 3.0, 1.0)),
}


class Control(Problem):
    """Some samples of a network, and plain gradient steps for them.

    old: inputs that replay distils. seed: of the order of the samples.
    """

    def __init__(
        self,
        captured: Captured,
        maps: Sequence[WeightMap],
        metric: Mapping[str, Curvature],
        inputs: Inputs,
        labels: Tensor,
        options: NearestWeights,
        descent: Descent,
        method: Method,
        old: Inputs | None,
        seed: int,
        given: int | None = None,
        right: Right | None = None,
    ) -> None:
        super().__init__(captured, maps, metric, inputs, labels, options, given, right)
        self.descent, self.method, self.old, self.seed = descent, method, old, seed
        self.diagonal = {name: diagonal(c) for name, c in self.plain.items()} if method == "ewc" else {}
        self.taught: Tensor | None = None
        if method == "replay":
            if old is None:
                raise OptionError('method="replay" needs old inputs: pass old=inputs, or keep=(inputs, labels)')
            parts = [old.taken(rows) for rows in torch.arange(old.batch).split(500)]
            self.taught = torch.cat([captured.output_of(part) for part in parts])

    def solve(self, strength: float, start: Mapping[str, Tensor] | None = None) -> Weights:
        """Adam's steps from a change of the weights (none) until all samples are right or little more is won."""
        given = self.nothing if start is None else start
        change = {name: D.detach().clone().requires_grad_() for name, D in given.items()}
        optimizer = torch.optim.Adam(list(change.values()), lr=self.descent.rate)
        order = torch.Generator().manual_seed(self.seed)
        mark, waited, made = math.inf, 0, 0
        for _ in range(self.descent.epochs):
            value, all_right, steps = self._epoch(change, strength, optimizer, order)
            made += steps
            self.tell(f"step {made}")
            if all_right and bool(self.met(self.outputs(change)).all()):
                break
            fallen = value < (1 - self.descent.gain) * mark
            mark, waited = (value, 0) if fallen else (mark, waited + 1)
            if waited >= self.descent.patience or not math.isfinite(value):
                break
        found = {name: D.detach() for name, D in change.items()}
        return Weights(found, self.met(self.outputs(found)), made)

    def _epoch(
        self,
        change: dict[str, Tensor],
        strength: float,
        optimizer: torch.optim.Optimizer,
        order: torch.Generator,
    ) -> tuple[float, bool, int]:
        """(mean objective, whether every sample was right when its turn came, steps) of one pass over the samples."""
        rows = torch.randperm(self.count, generator=order)
        total, all_right = 0.0, True
        parts = rows.split(self.descent.batch)
        for part in parts:
            optimizer.zero_grad()
            with torch.enable_grad():
                weights = self.weights(change)
                outputs = self._run(self.inputs.taken(part), weights)
                loss = self._missing(outputs, self.asked.part(part))
                if self.method == "ewc":
                    loss = loss + strength / 2 * self._moved(change)
                if self.method == "replay":
                    loss = loss + strength * self._forgotten(weights, order)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(part)
            if self.asked.task != "regression":
                all_right &= bool(self.asked.part(part).win(outputs.detach()).all())
        return total / self.count, all_right, len(parts)

    def _missing(self, outputs: Tensor, asked: Asked) -> Tensor:
        """mean ℓ(s) of some samples."""
        rows = torch.cat(asked.rows(outputs))
        if asked.task == "regression":
            return rows.square().sum() / (2 * len(outputs))
        return self._loss(rows)[0].sum() / len(outputs)

    def _moved(self, change: Mapping[str, Tensor]) -> Tensor:
        """Σ_j F_jj (W − W₀)_j²."""
        return torch.stack([(self.diagonal[name] * D.square()).sum() for name, D in change.items()]).sum()

    def _forgotten(self, weights: Mapping[Node, Tensor], order: torch.Generator) -> Tensor:
        """Mean KL of the outputs of some old inputs to what they were."""
        assert self.old is not None
        assert self.taught is not None
        rows = torch.randperm(self.old.batch, generator=order)[: self.descent.replayed]
        outputs, before = self._run(self.old.taken(rows), weights), self.taught[rows.to(self.taught.device)]
        if self.asked.task == "regression":
            return (outputs - before).square().sum() / (2 * len(rows))
        return divergence(before, outputs, self.asked.task, self.asked.ends).mean()


def replayed(old: InputLike | None, keep: tuple[Any, Any] | None) -> Inputs | None:
    """Old inputs that replay may learn from: those given, or the half of ``keep`` that is not reported on."""
    if old is None and keep is None:
        return None
    inputs = Inputs.of(keep[0] if old is None else old)  # type: ignore[index]
    inputs.check_finite()
    return inputs if old is not None else inputs.taken(torch.arange(0, inputs.batch, 2))


def diagonal(c: Curvature) -> Tensor:
    """F_jj of every weight, (groups, outputs, inputs):  (U_G²) S (U_A²)ᵀ,  one S beyond the kept columns of U_A."""
    left, right = c.left.square(), c.right.square().mT
    found = left @ c.power @ right
    if not c.whole:
        beyond = (1 - right.sum(1, keepdim=True)).clamp_min(0)
        found = found + (left @ c.rest) * beyond
    return found
