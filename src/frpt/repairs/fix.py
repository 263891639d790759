"""Fix: what ``frpt.repair`` returns: the repaired copy, which samples are fixed, what it cost, and the patch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frpt.common.text import html_table, percent, table
from frpt.files.digest import weights_of
from frpt.graph.capture import Captured, eval_mode
from frpt.graph.inputs import Inputs, Picker, pick
from frpt.graph.names import OUTPUT
from frpt.repairs.memory import Memory, Repaired, remember
from frpt.repairs.nearest_weights import Problem
from frpt.repairs.patch import Patch
from frpt.repairs.ranking import outermost, output_first
from frpt.reverser import Layer, Reverser, layer_names


@dataclass(frozen=True)
class Tried:
    """One strength λ on the way. fixed: share of the samples that are right. kl: predicted change on old inputs.

    broken: share of the old samples that it broke, less what it mended; NaN without old samples.
    """

    strength: float
    fixed: float
    kl: float
    broken: float


@dataclass(frozen=True)
class Kept:
    """Old samples that had no part in choosing the strength. right_before: how many were right.

    broken, mended: rows of ``keep`` that were right and are wrong, or were wrong and are right. inputs, labels: all of
    ``keep``, as they were given.
    """

    count: int
    right_before: int
    broken: Tensor
    mended: Tensor
    inputs: Inputs = field(repr=False)
    labels: Tensor = field(repr=False)

    def __str__(self) -> str:
        after = self.right_before - len(self.broken) + len(self.mended)
        return (
            f"of {self.count} old samples {len(self.broken)} broke and {len(self.mended)} were mended: "
            f"{percent(self.right_before / self.count)} right before, {percent(after / self.count)} now"
        )


class Held:
    """Old samples: what they were, and what a change of the weights makes of them."""

    def __init__(self, captured: Captured, keep: tuple[Any, Tensor], problem: Problem) -> None:
        inputs = Inputs.of(keep[0])
        labels = keep[1].to(problem.labels.device)
        judged = 0 if problem.right is None else inputs.batch  # all by the owner, or none as a sample to be fixed
        self.problem = Problem(
            captured, problem.maps, problem.plain, inputs, labels, problem.options, judged, problem.right
        )
        self.before = self.problem.met(self.problem.outputs(self.problem.nothing))
        self.chooses = torch.arange(inputs.batch) % 2 == 0

    def net_broken(self, change: dict[str, Tensor]) -> float:
        """On the half that chooses: the share of old samples that are wrong now, less that of before."""
        after = self.problem.met(self.problem.outputs(change))
        lost = self.before.double() - after.double()
        return float(lost[self.chooses].mean())

    def report(self, change: dict[str, Tensor]) -> Kept:
        """On the other half."""
        after = self.problem.met(self.problem.outputs(change))[~self.chooses]
        before = self.before[~self.chooses]
        broken, mended = before & ~after, ~before & after
        rows = (~self.chooses).nonzero().squeeze(1)
        return Kept(
            len(before), int(before.sum()), rows[broken.cpu()], rows[mended.cpu()], self.problem.inputs,
            self.problem.labels,
        )  # fmt: skip


@dataclass(frozen=True)
class Moved:
    """What a repair did to one layer's features of the fixed samples. Means over these samples.

    deviation: ‖after − before‖/‖before‖. asked: the deviation of the target that reconstruction asks for. cosine:
    between the two changes: near 1, the repair did there what the diagnosis says.
    """

    layer: str
    deviation: float
    asked: float
    cosine: float


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Where the features of the fixed samples moved, against what reconstruction asks for; prints as a table.

    samples: how many were fixed. rows: one for each layer; none where no sample was fixed.
    """

    samples: int
    rows: tuple[Moved, ...]

    def __iter__(self) -> Iterator[Moved]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return self._title + ("\n" + table(_EXPLAINED, self._cells) if self.rows else "")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._title, _EXPLAINED, self._cells)

    @property
    def _title(self) -> str:
        if not self.rows:
            return "no sample was fixed: there is nothing to explain"
        of = "1 fixed sample" if self.samples == 1 else f"{self.samples} fixed samples"
        return f"features of {of}: how far they moved, beside how far their nearest target is"

    @property
    def _cells(self) -> list[tuple[str, ...]]:
        return [(m.layer, percent(m.deviation), percent(m.asked), f"{m.cosine:+.2f}") for m in self.rows]


_EXPLAINED = ("layer", "moved", "target", "cosine")


@dataclass(frozen=True, eq=False, repr=False)
class Fix:
    """A repair. Print it for a summary.

    Attributes:
        model: the repaired copy.
        fixed: (N,) bool, the samples that are right in it, found by running it.
        right_before: (N,) bool, those that were right before.
        earlier_lost: samples of earlier repairs, which the memory holds, that are wrong again.
        diff: the patch from the network to the repaired one.
        predicted_kl: of the outputs on old inputs, in nats: ½‖W − W₀‖²_F times the memory's ``scale``.
        strength: λ that was chosen; NaN where nothing is changed.
        rounds: Gauss–Newton steps that were made; Adam's, of a control.
        seconds: that it took.
        notes: what to know before trusting it.
        curve: the strengths that were tried, with what each gives and costs.
        kept: what became of the old samples; None without ``keep``.
        method: "nearest", or the control that made it.
    """

    model: nn.Module
    fixed: Tensor
    right_before: Tensor
    earlier_lost: int
    diff: Patch
    predicted_kl: float
    strength: float
    rounds: int
    seconds: float
    notes: tuple[str, ...]
    curve: tuple[Tried, ...]
    kept: Kept | None
    inputs: Inputs = field(repr=False)
    labels: Tensor = field(repr=False)
    start: Reverser = field(repr=False)
    memory_before: Memory = field(repr=False)
    method: str = "nearest"

    @cached_property
    def memory(self) -> Memory:
        """The memory of the repaired network, for the next repair: old inputs, and the samples that are right now.

        The latter as they are: the next repair keeps them right as it makes its own right. Of output targets, what the
        repaired network gives for them.
        """
        old, right = self.memory_before, self.fixed.nonzero().squeeze(1)
        if len(right) == 0:
            return Memory(old.curvatures, weights_of(self.model), old.samples, old.task, old.scale, old.repaired)
        labels = self.outputs()[1].to(self.labels) if self.labels.is_floating_point() else self.labels
        done = Repaired(self.inputs.taken(right), labels[right])
        if old.repaired is not None:
            done = Repaired(old.repaired.inputs.joined(done.inputs), torch.cat([old.repaired.labels, done.labels]))
        more = remember(
            self.start.on(self.model), done.inputs.given, task=old.task, samples=done.inputs.batch, progress=False
        )
        both = old.joined(more)
        return Memory(both.curvatures, both.weights, both.samples, both.task, old.scale, done)

    def explain(self, at: Layer | Sequence[Layer] | None = None) -> Explanation:
        """Where the features of the fixed samples moved, against what reconstruction asks for.

        Args:
            at: the layers, by name or as modules; by default the outermost modules that can be reconstructed.

        Returns:
            One row for each layer: print it for a table.

        Raises:
            UnknownLayerError: for a layer that is not there.
        """
        if at is None:
            at = [name for name in output_first(self.start, outermost(self.start)) if name != OUTPUT]
        layers = layer_names(self.start.model, at)
        index = (self.fixed & ~self.right_before).nonzero().squeeze(1)
        if len(index) == 0 or not layers:
            return Explanation(len(index), ())
        x = self.inputs.taken(index).given
        targets = self.start.reconstruct(x, self.labels[index], at=layers)
        after, _ = self.start.on(self.model).values(x, layers)
        rows = []
        for layer in layers:
            rec, axis = targets[layer], self.start.batch_axis(layer)
            before = axis.rows(rec.anchor).double()
            change, asked = axis.rows(after[layer]).double() - before, axis.rows(rec.target).double() - before
            size = torch.linalg.vector_norm(before, dim=1).clamp_min(1e-300)
            deviation = (torch.linalg.vector_norm(change, dim=1) / size).mean()
            cosine = F.cosine_similarity(change, asked, dim=1).mean()
            rows.append(Moved(layer, float(deviation), float(rec.deviation.mean()), float(cosine)))
        return Explanation(len(index), tuple(rows))

    def outputs(self, inputs: Inputs | None = None) -> tuple[Tensor, Tensor]:
        """(before, after): what the network gave for some inputs, and what the repaired copy gives.

        Args:
            inputs: the samples of the repair by default.

        Returns:
            Two tensors as the network gives them.
        """
        inputs = self.inputs if inputs is None else inputs
        before, after = (run(model, inputs, self.start.output) for model in (self.start.model, self.model))
        return before, after

    def __str__(self) -> str:
        lines = [self._summary]
        if self.kept is not None:
            lines.append(str(self.kept))
        lines += [f"note: {note}" for note in self.notes]
        if self._rows:
            lines.append(table(_COLUMNS, self._rows))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        text = ". ".join([self._summary, *([str(self.kept)] if self.kept else []), *self.notes])
        return html_table(text, _COLUMNS, self._rows)

    @property
    def _summary(self) -> str:
        wrong = ~self.right_before
        now = int((self.fixed & wrong).sum())
        text = "" if self.method == "nearest" else f"{self.method}: "
        text += f"{now} of {int(wrong.sum())} failing samples fixed"
        if bool(self.right_before.any()):
            text += (
                f", {int((self.fixed & self.right_before).sum())} of {int(self.right_before.sum())} others still right"
            )
        if self.earlier_lost:
            text += f", {self.earlier_lost} of earlier repairs wrong again"
        text += f"; predicted KL on old inputs {self.predicted_kl:.2g}"
        strength = f"strength {self.strength:g}, " if self.strength == self.strength else ""  # NaN: nothing is changed
        return text + f" ({strength}{self.rounds} rounds, {self.seconds:.1f} s)"

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        return [(name, percent(share)) for name, share in self.diff.moved.items()]


_COLUMNS = ("parameter", "moved")


def run(model: nn.Module, inputs: Inputs, output: Picker) -> Tensor:
    """A model's output, run as its owner would, in parts."""
    starts = range(0, inputs.batch, _TOGETHER)
    parts = [inputs.part(i, min(i + _TOGETHER, inputs.batch)) for i in starts]
    with eval_mode(model), torch.no_grad():
        return torch.cat([pick(model(*part.args, **part.kwargs), output) for part in parts])


_TOGETHER = 500
"""Samples in a pass."""
