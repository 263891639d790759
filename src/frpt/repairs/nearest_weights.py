"""The nearest weights that are right on some samples, measured by what the network does on its old inputs.

    min over W   Σ_i ℓ(s_i(W)) + λ/2 ‖W − W₀‖²_F

s: by how much a label leads (s = z_y − logsumexp of the others), or what is left of an output target; ℓ: logistic or
squared hinge for leads, squares for output targets; F: the memory's metric, raised by a share ε of its mean.
Gauss–Newton in the dual: with the rows P = ∂s/∂W of all samples, K = P F⁻¹ Pᵀ (N × N) and u = P(W − W₀) − ℓ′/ℓ″,

    W ← W₀ + F⁻¹Pᵀ √ℓ″ β,   (√ℓ″ K √ℓ″ + λ) β = √ℓ″ u

damped where a step does not help (Levenberg–Marquardt), and shortened at the end as long as as many samples stay right.
So N unknowns are solved for and no matrix of the size of the weights is formed. Rows are made weight by weight and
in parts of its outputs: K is their sum, and F⁻¹Pᵀc is F⁻¹ of an ordinary gradient. With many samples K is not formed:
conjugate gradients multiply by P F⁻¹ Pᵀ, two passes over the rows a step.
Called by ``frpt.repairs.repair``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from frpt.common.asked import Asked
from frpt.errors import OptionError
from frpt.graph.capture import Captured
from frpt.graph.inputs import Inputs
from frpt.repairs.curvature import Curvature, rotated
from frpt.repairs.weight_maps import Again, Gradients, Part, Pass, WeightMap, working

Loss = Literal["logistic", "hinge"]
Right = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) of the given samples, or of the old ones, in their order -> which are right: (n,) bool."""


@dataclass(frozen=True)
class NearestWeights:
    """How the nearest weights are looked for. Numbers were chosen on the held-out part of benchmarks/repair.py."""

    loss: Loss = "hinge"
    """The squared hinge asks for a lead and no more, so that it breaks least; logistic goes on pushing."""
    margin: float = 0.1
    """Lead that the hinge asks for: 1 costs twice the old accuracy and helps other samples of the kind no more."""
    raised: float = 0.03
    """ε: share of the metric's mean that is added to every direction; 0.3 breaks a quarter more."""
    least_mean: float = 1e-6
    """Of a weight's mean S, in units of the largest: below, old inputs do not notice the weight at all."""
    levelled: float = 0.5
    """τ: how far layers with many free directions, which can learn samples by heart, are kept from doing all."""
    rounds: int = 20
    """Most Gauss–Newton steps for one strength."""
    damped: int = 8
    """Steps that are tried in turn, each shorter than the one before, until the objective falls."""
    bisections: int = 6
    """How often the way back to the old weights is halved, as long as as many samples stay right."""
    gain: float = 1e-3
    """Share of the objective that a step has to win for another one to be made."""
    least_curvature: float = 0.1
    """ℓ″ of the logistic loss is taken to be at least this: a sample that is far off keeps its say."""
    closed: float = 0.9
    """Share of what an output lacks of its target that has to be gone for a given sample to count as fixed."""
    kept: float = 0.05
    """Of an old sample, or one of an earlier repair, that counts as right: the share of its output target's norm that
    may be missing, or by which more may be missing than before."""
    together: int = 32
    """Samples in a pass."""
    budget: int = 2**28
    """Bytes that the rows of one part may take."""
    held: int = 2**32
    """Bytes of inputs and slopes that are held from one use to the next."""
    dense: int = 2000
    """Rows up to which K is formed, which is quicker; with more, conjugate gradients multiply by it."""
    cg_steps: int = 60
    cg_share: float = 1e-3
    """Most steps of conjugate gradients for one Gauss–Newton step, and the residual's share at which they end."""


def _in_silence(words: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class Weights:
    """A change of the weights: weight name → (groups, outputs, inputs).

    met: (N,) bool, the samples that are right with it. rounds: steps that were made.
    """

    change: dict[str, Tensor]
    met: Tensor
    rounds: int


@dataclass(frozen=True)
class _Linear:
    """The samples at some weights, to first order. moved: P(W − W₀); slope, curvature: ℓ′, ℓ″; gram: K, or None."""

    gradients: Gradients
    moved: Tensor
    slope: Tensor
    curvature: Tensor
    gram: Tensor | None

    def size(self, root: Tensor) -> float:
        """The mean of √ℓ″ K √ℓ″'s diagonal over the rows that ask for something; 1 where K is not formed."""
        if self.gram is None:
            return 1.0
        asked = self.slope != 0
        return float((self.gram.diagonal() * root.square())[asked].mean()) if bool(asked.any()) else 1.0


class Problem:
    """Some samples of a network, and the weights that may move for them.

    labels: (N,) class ids, (N, m) of yes and no, or an output target (N, ...) in floating point. given: how many of the
    samples, the first, are to be fixed; the others are old ones, or those of earlier repairs. right: which of the given
    are right.
    """

    def __init__(
        self,
        captured: Captured,
        maps: Sequence[WeightMap],
        metric: Mapping[str, Curvature],
        inputs: Inputs,
        labels: Tensor,
        options: NearestWeights,
        given: int | None = None,
        right: Right | None = None,
    ) -> None:
        self.captured, self.maps, self.inputs, self.labels, self.options = captured, list(maps), inputs, labels, options
        self.asked = Asked(labels, captured.activation()[0])
        self.present = {node: captured.weight(node) for m in maps for node in m.nodes}
        self.start = {m.name: working(m.matrix(self.present)) for m in maps}
        self.plain = {m.name: metric[m.name].to(self.start[m.name]) for m in maps}
        self.count = inputs.batch
        self.given, self.right = self.count if given is None else given, right
        self._levels = dict.fromkeys(self.start, 1.0)
        self.tell: Callable[[str], None] = _in_silence
        """Called with a few words after each step."""

    @cached_property
    def metric(self) -> dict[str, Curvature]:
        """F of every weight: raised, and scaled by  c_l ∝ (tr K_l)^τ  with K_l = P_l F_l⁻¹ P_lᵀ, tr K as it was.

        tr K_l is how much a weight alone could do for the samples. It grows with the number of directions that the old
        inputs leave free and is largest in the widest matrices, whose answers to two samples have least in common: left
        to themselves these learn the samples by heart.
        """
        raised = self._raised
        if self.options.levelled == 0 or len(raised) == 1:
            return raised
        gradients, _, grams = self._first
        trace = {
            m.name: self._trace(gradients, m, raised[m.name]) if grams is None else float(grams[m.name].trace())
            for m in self.maps
        }
        share = {name: max(d, 1e-12 * sum(trace.values())) ** self.options.levelled for name, d in trace.items()}
        level = sum(trace[name] / share[name] for name in trace) / (sum(trace.values()) or 1.0)
        if not level > 0:
            return raised
        self._levels = {name: level * share[name] for name in trace}
        return {name: c.scaled(self._levels[name]) for name, c in raised.items()}

    @cached_property
    def _raised(self) -> dict[str, Curvature]:
        """By ε of each one's mean; a weight that old inputs hardly notice (before a head of zeros) by more."""
        means = {name: c.mean for name, c in self.plain.items()}
        least = self.options.least_mean * max(means.values()) or 1.0
        return {name: c.raised(self.options.raised * max(means[name], least)) for name, c in self.plain.items()}

    @cached_property
    def _first(self) -> tuple[Gradients, Tensor, dict[str, Tensor] | None]:
        """(rows, s, K_l of every weight in the raised metric where K is formed) of the present weights."""
        gradients, s = self._gradients(self.nothing)
        if len(s) > self.options.dense:
            return gradients, s, None
        return gradients, s, {m.name: self._gram(gradients, m, self._raised[m.name], len(s)) for m in self.maps}

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
        return torch.cat([self.captured.output_of(inputs, weights) for inputs in self._parts()])

    def leads(self, outputs: Tensor) -> Tensor:
        """s: (N,) of class ids; of m entries that are asked for (m · N,), the samples of each entry together."""
        return torch.cat(self.asked.rows(outputs))

    def met(self, outputs: Tensor) -> Tensor:
        """(N,) bool: the labels win, strictly; an output target is met; of the given samples, what ``right`` says."""
        met = self._targets_met(outputs) if self.asked.task == "regression" else self.asked.win(outputs)
        if self.right is not None:
            met[: self.given] = self._judged(self.right, outputs[: self.given].detach())
        return met

    def _targets_met(self, outputs: Tensor) -> Tensor:
        """Given samples: most of what was missing is gone. Others: little is missing, or hardly more than before."""
        size = torch.linalg.vector_norm(self.labels.flatten(1).double(), dim=1).clamp_min(1e-12)
        left = torch.linalg.vector_norm(self.asked.missing(outputs).double(), dim=1)
        allowed = (self.options.kept * size).maximum((1 + self.options.kept) * self._missing_at_first)
        asked = (1 - self.options.closed) * self._missing_at_first[: self.given]
        rounding = 4 * torch.finfo(outputs.dtype).eps * size[: self.given]
        allowed[: self.given] = asked.maximum(rounding)
        small: Tensor = left <= allowed
        return small

    @cached_property
    def _missing_at_first(self) -> Tensor:
        """‖target − output‖ of the present weights: (N,)."""
        missing: Tensor = torch.linalg.vector_norm(self.asked.missing(self.outputs(self.nothing)).double(), dim=1)
        return missing

    def _judged(self, right: Right, outputs: Tensor) -> Tensor:
        said = torch.as_tensor(right(outputs, self.labels[: self.given]))
        if said.dtype != torch.bool or said.shape != (self.given,):
            raise OptionError(
                f"right= has to say True or False for each of the {self.given} samples, as a tensor of shape "
                f"({self.given},), of x as of keep=; it gave {said.dtype} of shape {tuple(said.shape)}"
            )
        return said.to(outputs.device)

    def moved(self, change: Mapping[str, Tensor]) -> dict[str, float]:
        """Weight name → ‖W − W₀‖/‖W₀‖, with the bias as a column."""
        return {
            name: float(torch.linalg.vector_norm(D) / torch.linalg.vector_norm(self.start[name]).clamp_min(1e-12))
            for name, D in change.items()
        }

    def half_distance(self, change: Mapping[str, Tensor]) -> float:
        """½‖W − W₀‖²_F in the memory's own metric; times its ``scale`` about the KL of the outputs on old inputs."""
        return 0.5 * sum(float(self.plain[name].energy(D)) for name, D in change.items())

    def objective(self, change: Mapping[str, Tensor], strength: float) -> tuple[float, Tensor]:
        """(Σ ℓ + λ/2 ‖W − W₀‖², which samples are right)."""
        outputs = self.outputs(change)
        far = sum(float(self.metric[name].energy(D)) for name, D in change.items())
        loss = self._loss(self.leads(outputs).double())[0].sum()
        return float(loss) + strength / 2 * far, self.met(outputs)

    def solve(self, strength: float, start: Mapping[str, Tensor] | None = None) -> Weights:
        """Gauss–Newton steps from a change of the weights (none) until all samples are right or little more is won."""
        change = dict(self.nothing if start is None else start)
        best, met = self.objective(change, strength)
        made, damping = 0, 0
        for _ in range(self.options.rounds):
            linear = self._linear(change)
            before = best
            self.tell(f"step {made + 1}: {self._counted(met)}")
            for held in range(damping, damping + self.options.damped):
                trial = self._step(linear, change, strength, held)
                value, right = (best, met) if trial is None else self.objective(trial, strength)
                if trial is not None and value < best:
                    change, best, met, made = trial, value, right, made + 1
                    damping = max(0, held - 1)
                    break
            if bool(met.all()) or best > (1 - self.options.gain) * before:
                break
        if self.right is not None or self.asked.task != "regression":
            change, met = self._shortened(change, met)
        return Weights(change, met, made)

    def _counted(self, met: Tensor) -> str:
        """How many of the given samples are right, in words."""
        return f"{int(met[: self.given].sum())} of {self.given} samples right"

    def _shortened(self, change: dict[str, Tensor], met: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The least share of a change with which as many samples are right, by bisection: forward passes only."""
        low, high, least = 0.0, 1.0, int(met.sum())
        for _ in range(self.options.bisections):
            share = (low + high) / 2
            trial = {name: share * D for name, D in change.items()}
            right = self.met(self.outputs(trial))
            if int(right.sum()) >= least:
                high, met = share, right
            else:
                low = share
        return {name: high * D for name, D in change.items()}, met

    def _linear(self, change: Mapping[str, Tensor]) -> _Linear:
        """The rows at a change of the weights, and K where it is formed."""
        metric = self.metric
        if any(bool(D.any()) for D in change.values()):
            gradients, s = self._gradients(change)
            dense = len(s) <= self.options.dense
            grams = [self._gram(gradients, m, metric[m.name], len(s)) for m in self.maps] if dense else None
        else:
            gradients, s, known = self._first
            grams = None if known is None else [K / self._levels[name] for name, K in known.items()]
        moved = sum((gradients.along(m, change[m.name]) for m in self.maps), torch.zeros_like(s))
        _, slope, curvature = self._loss(s)
        return _Linear(gradients, moved, slope, curvature, None if grams is None else torch.stack(grams).sum(0))

    def _step(
        self, linear: _Linear, change: Mapping[str, Tensor], strength: float, held: int
    ) -> dict[str, Tensor] | None:
        """The minimiser of the linearised objective; None where it is not finite.

        held > 0: with  μ/2 ‖W − W_now‖²  added, as Levenberg and Marquardt do; μ grows four times with each.
        """
        root = linear.curvature.sqrt()
        mu = 0.0 if held == 0 else linear.size(root) * 4.0 ** (held - 1)
        share = mu / (strength + mu)
        right = root * ((1 - share) * linear.moved - linear.slope / linear.curvature)
        damping = strength + mu
        if linear.gram is not None:
            system = root[:, None] * linear.gram * root
            system.diagonal().add_(damping)
            beta = torch.linalg.solve_ex(system, right)[0]
        else:
            beta = self._conjugate_gradients(linear.gradients, root, damping, right)
        weight = root * beta
        if not bool(torch.isfinite(weight).all()):
            return None
        step = self._spread(linear.gradients, weight)
        return step if share == 0 else {name: D + share * change[name] for name, D in step.items()}

    def _spread(self, gradients: Gradients, weight: Tensor) -> dict[str, Tensor]:
        """F⁻¹Pᵀ times a number for each row: a change of the weights."""
        return {m.name: self.metric[m.name].solve(gradients.weighted_sum(m, weight)) for m in self.maps}

    def _conjugate_gradients(self, gradients: Gradients, root: Tensor, damping: float, right: Tensor) -> Tensor:
        """(√ℓ″ P F⁻¹ Pᵀ √ℓ″ + λ)⁻¹ times the right-hand side, without K."""
        from scipy.sparse.linalg import LinearOperator, cg

        def product(c: Any) -> Any:
            beta = torch.from_numpy(c).to(root)
            change = self._spread(gradients, root * beta)
            kernel = sum((gradients.along(m, change[m.name]) for m in self.maps), torch.zeros_like(beta))
            return (root * kernel + damping * beta).cpu().numpy()

        system = LinearOperator((len(right), len(right)), matvec=product, dtype="float64")
        found, _ = cg(system, right.cpu().numpy(), rtol=self.options.cg_share, maxiter=self.options.cg_steps)
        return torch.from_numpy(found).to(right)

    def _gradients(self, change: Mapping[str, Tensor]) -> tuple[Gradients, Tensor]:
        """(∂s/∂W of every row, s): the rows of each part of the samples together.

        They are held if they fit into memory, and made again at every use if not.
        """
        weights = self.weights(change)
        leads: list[Tensor] = []

        def made() -> Iterator[Part]:
            leads.clear()
            for i, inputs in enumerate(self._parts()):
                forward = Pass(self.captured, self.maps, inputs, weights)
                first = i * self.options.together
                with torch.enable_grad():
                    rows = self.asked.part(slice(first, first + inputs.batch)).rows(forward.output)
                    totals = [s.sum() for s in rows]
                leads.extend(s.detach().double() for s in rows)
                for total in totals:
                    yield forward.gradients(total, retain=True)

        held: list[Part] = []
        used = 0
        for part in made():
            used += part.nbytes
            if used <= self.options.held:
                held.append(part)
            else:
                held.clear()
        parts = held if used <= self.options.held else Again(made)
        return Gradients(self.captured, parts), torch.cat(leads)

    def _gram(self, gradients: Gradients, m: WeightMap, metric: Curvature, count: int) -> Tensor:
        """K_l = P_l F_l⁻¹ P_lᵀ of one weight: (N, N), in double."""
        K = torch.zeros(count, count, dtype=torch.float64, device=self.labels.device)
        size = max(1, self.options.budget // (4 * count * m.groups * m.inputs))
        for first in range(0, m.outputs, size):
            part = slice(first, first + size)
            kept, full = self._rows(gradients, m, metric, part)
            if full is None:
                P = (kept / metric.power[:, part].sqrt()).flatten(1)
                K += (P @ P.T).double()
            else:
                P = (full / metric.rest[:, part].sqrt()).flatten(1)
                less = (1 / metric.power[:, part] - 1 / metric.rest[:, part]) * kept
                K += (P @ P.T).double() + (less.flatten(1) @ kept.flatten(1).T).double()
        return K

    def _trace(self, gradients: Gradients, m: WeightMap, metric: Curvature) -> float:
        """tr P_l F_l⁻¹ P_lᵀ of one weight."""
        total = 0.0
        for pairs in gradients.pairs(m):
            kept, full = rotated(metric, pairs)
            own = 1 / metric.power if full is None else 1 / metric.power - 1 / metric.rest
            total += float((kept.square() * own).sum(dtype=torch.float64))
            if full is not None:
                total += float((full.square() / metric.rest).sum(dtype=torch.float64))
        return total

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
        if self.asked.task == "regression":
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
        """Differentiable by the weights."""
        captured = self.captured
        values = captured.given(inputs) | dict(weights)
        out: Tensor = captured.run(captured.nodes, values, {captured.output}, inputs.batch)[captured.output]
        return out
