"""The nearest weights that are right on some samples, measured by what the network does on its old inputs.

    min over W   mean_i ℓ(s_i(W)) + λ/2 ‖W − W₀‖²_F

s: by how much a label leads (s = z_y − logsumexp of the others), or what is left of an output target; ℓ: logistic or
squared hinge for leads, squares for output targets; F: the memory's metric, raised by a share ε of its mean.
Gauss–Newton in the dual: with the rows P = ∂s/∂W of all samples, K = P F⁻¹ Pᵀ (N × N) and u = P(W − W₀) − ℓ′/ℓ″,

    W ← W₀ + F⁻¹Pᵀ √ℓ″ β,   (√ℓ″ K √ℓ″ + λN) β = √ℓ″ u

so that N unknowns are solved for and no matrix of the size of the weights is formed. Rows are made weight by weight and
in parts of its outputs: K is their sum, and F⁻¹Pᵀc is F⁻¹ of an ordinary gradient.
Called by ``frpt.repairs.repair``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from frpt.graph.capture import Captured
from frpt.graph.inputs import Inputs
from frpt.repairs.curvature import Curvature, rotated
from frpt.repairs.weight_maps import Gradients, Pass, WeightMap, working

Loss = Literal["logistic", "hinge"]


@dataclass(frozen=True)
class NearestWeights:
    """How the nearest weights are looked for. The numbers are those of the study on CIFAR-10 (docs/repair.md)."""

    loss: Loss = "logistic"
    """Logistic generalises better to samples like the given ones; the squared hinge breaks least."""
    margin: float = 1.0
    """Lead that the hinge asks for."""
    raised: float = 0.3
    """ε: share of the metric's mean that is added to every direction."""
    rounds: int = 20
    """Most Gauss–Newton steps for one strength."""
    steps: tuple[float, ...] = (1.0, 0.5, 0.25, 0.1)
    """Shares of a step that are tried in turn, until the objective falls."""
    gain: float = 1e-3
    """Share of the objective that a step has to win for another one to be made."""
    least_curvature: float = 0.1
    """ℓ″ of the logistic loss is taken to be at least this: a sample that is far off keeps its say."""
    enough: float = 0.05
    """Share of an output target's norm that may be missing for a sample to count as fixed."""
    together: int = 32
    """Samples in a pass."""
    budget: int = 2**28
    """Bytes that the rows of one part may take."""


@dataclass(frozen=True)
class Weights:
    """A change of the weights: weight name → (groups, outputs, inputs).

    met: (N,) bool, the samples that are right with it. rounds: steps that were made.
    """

    change: dict[str, Tensor]
    met: Tensor
    rounds: int


class Problem:
    """Some samples of a network, and the weights that may move for them.

    labels: (N,) class ids, or an output target (N, ...) in floating point.
    """

    def __init__(
        self,
        captured: Captured,
        maps: Sequence[WeightMap],
        metric: Mapping[str, Curvature],
        inputs: Inputs,
        labels: Tensor,
        options: NearestWeights,
    ) -> None:
        self.captured, self.maps, self.inputs, self.labels, self.options = captured, list(maps), inputs, labels, options
        self.present = {node: captured.weight(node) for m in maps for node in m.nodes}
        self.start = {m.name: working(m.matrix(self.present)) for m in maps}
        self.metric = {m.name: metric[m.name].to(self.start[m.name]).raised(options.raised) for m in maps}
        self.plain = {m.name: metric[m.name].to(self.start[m.name]) for m in maps}
        self.count = inputs.batch

    @property
    def nothing(self) -> dict[str, Tensor]:
        """No change."""
        return {name: torch.zeros_like(W) for name, W in self.start.items()}

    def weights(self, change: Mapping[str, Tensor]) -> dict[Node, Tensor]:
        """The weights after a change, shaped and typed as the model has them."""
        return {
            node: value
            for m in self.maps
            for node, value in m.parameters(self.start[m.name] + change[m.name], self.present).items()
        }

    def outputs(self, change: Mapping[str, Tensor]) -> Tensor:
        """The network's outputs for the samples after a change."""
        weights = self.weights(change)
        with torch.no_grad():
            parts = [self._run(inputs, weights) for inputs in self._parts()]
        return torch.cat(parts)

    def leads(self, outputs: Tensor) -> Tensor:
        """s: (N,) of labels; of an output target with m entries (m · N,), the samples of each entry together."""
        if self.labels.is_floating_point():
            return _residual(outputs, self.labels).T.flatten()
        return lead(outputs, self.labels)

    def met(self, outputs: Tensor) -> Tensor:
        """(N,) bool: the label wins, strictly; of an output target, its residual is at most ``enough``."""
        if self.labels.is_floating_point():
            size = torch.linalg.vector_norm(self.labels.flatten(1).double(), dim=1).clamp_min(1e-12)
            left = torch.linalg.vector_norm(_residual(outputs, self.labels).double(), dim=1)
            small: Tensor = left <= self.options.enough * size
            return small
        others = outputs.scatter(1, self.labels[:, None], -torch.inf).amax(1)
        return outputs.gather(1, self.labels[:, None]).squeeze(1) > others

    def predicted_kl(self, change: Mapping[str, Tensor]) -> float:
        """½‖W − W₀‖²_F in the memory's own metric: about the mean KL of the outputs on old inputs."""
        return 0.5 * sum(float(self.plain[name].energy(D)) for name, D in change.items())

    def objective(self, change: Mapping[str, Tensor], strength: float) -> tuple[float, Tensor]:
        """(mean ℓ + λ/2 ‖W − W₀‖², which samples are right)."""
        outputs = self.outputs(change)
        far = sum(float(self.metric[name].energy(D)) for name, D in change.items())
        loss = self._loss(self.leads(outputs).double())[0].sum() / self.count
        return float(loss) + strength / 2 * far, self.met(outputs)

    def solve(self, strength: float, start: Mapping[str, Tensor] | None = None) -> Weights:
        """Gauss–Newton steps from a change of the weights (none) until all samples are right or little more is won."""
        change = dict(self.nothing if start is None else start)
        best, met = self.objective(change, strength)
        made = 0
        for _ in range(self.options.rounds):
            aim = self._step(change, strength)
            if aim is None:
                break
            before = best
            for share in self.options.steps:
                trial = {name: D + share * (aim[name] - D) for name, D in change.items()}
                value, right = self.objective(trial, strength)
                if value < best:
                    change, best, met, made = trial, value, right, made + 1
                    break
            if bool(met.all()) or best > (1 - self.options.gain) * before:
                break
        return Weights(change, met, made)

    def _step(self, change: Mapping[str, Tensor], strength: float) -> dict[str, Tensor] | None:
        """The minimiser of the objective linearised at a change; None where it is not finite."""
        gradients, s = self._gradients(change)
        K, moved = self._gram(gradients, change, len(s))
        _, slope, curvature = self._loss(s)
        root = curvature.sqrt()
        system = root[:, None] * K * root
        system.diagonal().add_(strength * self.count)
        beta = torch.linalg.solve_ex(system, root * (moved - slope / curvature))[0]
        weight = root * beta
        if not bool(torch.isfinite(weight).all()):
            return None
        return {m.name: self.metric[m.name].solve(gradients.weighted_sum(m, weight)) for m in self.maps}

    def _gradients(self, change: Mapping[str, Tensor]) -> tuple[Gradients, Tensor]:
        """(∂s/∂W of every row, s)."""
        weights = self.weights(change)
        parts: list[list[Gradients]] = []
        leads: list[list[Tensor]] = []
        start = 0
        for inputs in self._parts():
            forward = Pass(self.captured, self.maps, inputs, weights)
            labels = self.labels[start : start + inputs.batch]
            with torch.enable_grad():
                single = not labels.is_floating_point()
                rows = [lead(forward.output, labels)] if single else list(_residual(forward.output, labels).T)
                totals = [s.sum() for s in rows]
            parts.append([forward.gradients(total, retain=True) for total in totals])
            leads.append([s.detach().double() for s in rows])
            start += inputs.batch
        ordered = [part for several in zip(*parts, strict=True) for part in several]  # all samples of each row
        joined = Gradients(self.captured, [pair for part in ordered for pair in part.parts])
        return joined, torch.cat([s for several in zip(*leads, strict=True) for s in several])

    def _gram(self, gradients: Gradients, change: Mapping[str, Tensor], count: int) -> tuple[Tensor, Tensor]:
        """(K = P F⁻¹ Pᵀ: (N, N), P(W − W₀): (N,)), in double."""
        K = torch.zeros(count, count, dtype=torch.float64, device=self.labels.device)
        moved = torch.zeros(count, dtype=torch.float64, device=self.labels.device)
        for m in self.maps:
            metric, D = self.metric[m.name], change[m.name]
            turned = metric.rotated(D)
            size = max(1, self.options.budget // (4 * count * m.groups * m.inputs))
            for first in range(0, m.outputs, size):
                part = slice(first, first + size)
                kept, full = self._rows(gradients, m, metric, part)
                rows = full if full is not None else kept
                D_part = turned[:, part] if full is not None else (turned @ metric.right)[:, part]
                moved += (rows * D_part).flatten(1).sum(1).double()
                if full is None:
                    P = (kept / metric.power[:, part].sqrt()).flatten(1)
                    K += (P @ P.T).double()
                else:
                    P = (full / metric.rest[:, part].sqrt()).flatten(1)
                    less = (1 / metric.power[:, part] - 1 / metric.rest[:, part]) * kept
                    K += (P @ P.T).double() + (less.flatten(1) @ kept.flatten(1).T).double()
        return K, moved

    def _rows(self, gradients: Gradients, m: WeightMap, metric: Curvature, part: slice) -> tuple[Tensor, Tensor | None]:
        """The rows of some outputs (in the metric's own basis) for all samples."""
        some = Curvature(
            metric.left[..., part], metric.right, metric.power, metric.rest, metric.left_values, metric.right_values
        )
        parts = [rotated(some, pairs) for pairs in gradients.pairs(m)]
        kept = torch.cat([k for k, _ in parts])
        full = None if parts[0][1] is None else torch.cat([f for _, f in parts if f is not None])
        return kept, full

    def _loss(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(ℓ, ℓ′, ℓ″) of every row."""
        if self.labels.is_floating_point():
            return s.square() / 2, s, torch.ones_like(s)
        if self.options.loss == "hinge":
            short = (self.options.margin - s).clamp_min(0.0)
            return short.square() / 2, -short, torch.where(short > 0, 1.0, 1e-3)
        chance = torch.sigmoid(-s)
        return F.softplus(-s), -chance, (chance * (1 - chance)).clamp_min(self.options.least_curvature)

    def _parts(self) -> list[Inputs]:
        size = self.options.together
        return [self.inputs.part(i, min(i + size, self.count)) for i in range(0, self.count, size)]

    def _run(self, inputs: Inputs, weights: Mapping[Node, Tensor]) -> Tensor:
        captured = self.captured
        values = captured.given(inputs) | dict(weights)
        out: Tensor = captured.run(captured.nodes, values, {captured.output}, inputs.batch)[captured.output]
        return out


def lead(outputs: Tensor, labels: Tensor) -> Tensor:
    """s = z_y − logsumexp of the other scores: (N,). outputs: (N, classes)."""
    own = labels[:, None]
    return outputs.gather(1, own).squeeze(1) - outputs.scatter(1, own, -torch.inf).logsumexp(1)


def _residual(outputs: Tensor, target: Tensor) -> Tensor:
    """target − output: (N, m)."""
    return (target.to(outputs) - outputs).flatten(1)
