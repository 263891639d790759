"""Fix: what ``frpt.repair`` returns: the repaired copy, which samples are fixed, what it cost, and the patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from frpt.common.text import html_table, table
from frpt.files.digest import weights_of
from frpt.graph.inputs import Inputs
from frpt.repairs.memory import Memory, Repaired, remember
from frpt.repairs.patch import Patch
from frpt.reverser import Layer, Reverser


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

    broken, mended: rows of ``keep`` that were right and are wrong, or were wrong and are right.
    """

    count: int
    right_before: int
    broken: Tensor
    mended: Tensor

    def __str__(self) -> str:
        after = self.right_before - len(self.broken) + len(self.mended)
        return (
            f"of {self.count} old samples {len(self.broken)} broke and {len(self.mended)} were mended: "
            f"{100 * self.right_before / self.count:.1f} % right before, {100 * after / self.count:.1f} % now"
        )


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

        The latter as they are: the next repair keeps them right as it makes its own right.
        """
        old, right = self.memory_before, self.fixed.nonzero().squeeze(1)
        if len(right) == 0:
            return Memory(old.curvatures, weights_of(self.model), old.samples, old.task, old.scale, old.repaired)
        done = Repaired(self.inputs.taken(right), self.labels[right])
        if old.repaired is not None:
            done = Repaired(old.repaired.inputs.joined(done.inputs), torch.cat([old.repaired.labels, done.labels]))
        more = remember(
            self.start.on(self.model), done.inputs.given, task=old.task, samples=done.inputs.batch, progress=False
        )
        both = old.joined(more)
        return Memory(both.curvatures, both.weights, both.samples, both.task, old.scale, done)

    def explain(self, at: Layer | Sequence[Layer]) -> list[Moved]:
        """Where the features of the fixed samples moved, against what reconstruction asks for.

        Args:
            at: the layers, by name or as modules.

        Returns:
            One row for each layer.
        """
        layers = [self.start.layer(one) for one in ([at] if isinstance(at, str | nn.Module) else at)]
        index = (self.fixed & ~self.right_before).nonzero().squeeze(1)
        if len(index) == 0:
            return []
        some = self.inputs.taken(index)
        x = some.given
        targets = self.start.reconstruct(x, self.labels[index], at=layers)
        after, _ = self.start.on(self.model).values(x, layers)
        rows = []
        for layer in layers:
            rec, axis = targets[layer], self.start.batch_axis(layer)
            before = axis.rows(rec.anchor).double()
            change, asked = axis.rows(after[layer]).double() - before, axis.rows(rec.target).double() - before
            size = torch.linalg.vector_norm(before, dim=1).clamp_min(1e-300)
            deviation = (torch.linalg.vector_norm(change, dim=1) / size).mean()
            cosine = torch.nn.functional.cosine_similarity(change, asked, dim=1).mean()
            rows.append(Moved(layer, float(deviation), float(rec.deviation.mean()), float(cosine)))
        return rows

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
        return text + f" (strength {self.strength:g}, {self.rounds} rounds, {self.seconds:.1f} s)"

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        return [(name, f"{100 * share:.2f} %") for name, share in self.diff.moved.items()]


_COLUMNS = ("parameter", "moved")
