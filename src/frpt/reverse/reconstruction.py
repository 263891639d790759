"""What a reconstruction returns: the target feature, and of a walk one report for each unit.

Made by ``frpt.reverse.batch``; users get it from ``Reverser.reconstruct``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from frpt.common.text import html_table, percent, table
from frpt.graph.plan import Unit
from frpt.solvers.base import Measured


@dataclass(frozen=True)
class UnitReport:
    """How one unit of a walk went, per sample of the batch; zero for samples it was not solved for.

    solved: those that need a correction.
    ccp_before, ccp: ‖Φ(a) − t‖/‖t‖ at the anchor and at the solution. deviation: ‖a − â‖/‖â‖. All: (b,).
    """

    name: str
    path: str
    op: str
    rule: str
    solved: Tensor
    ccp_before: Tensor
    ccp: Tensor
    deviation: Tensor
    fallback: Tensor
    iterations: Tensor

    @staticmethod
    def of(unit: Unit, solution: Measured, index: Tensor, batch: int) -> UnitReport:
        """A report on the whole batch from the solution of the samples ``index``."""

        def spread(v: Tensor) -> Tensor:
            return torch.zeros(batch, dtype=v.dtype, device=v.device).index_copy(0, index, v)

        s = solution
        return UnitReport(
            unit.name,
            unit.path,
            unit.op,
            unit.match.rule,
            spread(torch.ones_like(index, dtype=torch.bool)),
            spread(s.ccp_before),
            spread(s.ccp),
            spread(s.deviation),
            spread(s.fallback),
            spread(s.iterations),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Reconstruction:
    """The feature a layer should have produced; made by ``Reverser.reconstruct``. Print it for a summary.

    Attributes:
        layer: its name.
        target: the reconstructed feature, like the layer's output; the anchor itself, bit for bit, for samples that
            need no correction and for those for which no feature was found in which the label wins.
        anchor: the recorded feature.
        deviation: (b,), ‖target − anchor‖/‖anchor‖.
        corrected: (b,) bool, the samples whose label does not win by itself (or whose output target is not met).
        closed: (b,), the share of the output's residual that is gone when the network runs on from the target: for
            labels the distance to the nearest output in which they win, else the distance to the output target.
        share: (b,), the share of a sample's labels that win when the network runs on from the target; None where labels
            are no class ids.
        margin_met: (b,) bool, whether all of a sample's labels win by the ``margin`` that was asked for (all but a
            hundredth of it) when the network runs on from the target; None without a margin, or where no labels win.
            A label that does not get its margin still wins if that was found: see ``wins``.
        reference_deviation: (b,), the same as ``deviation`` in the reference's metric: how many standard deviations of
            the layer's own variation the target lies from the anchor, per entry; None without a reference.
        passes: (b,), forward and backward passes spent on each sample; a forward pass alone counts 0.35.
        note: that the output cannot be moved from this layer, and where that is lost; "" if it can.
    """

    layer: str
    target: Tensor
    anchor: Tensor
    deviation: Tensor
    corrected: Tensor
    closed: Tensor
    share: Tensor | None = None
    margin_met: Tensor | None = None
    reference_deviation: Tensor | None = None
    passes: Tensor | None = None
    note: str = ""
    walk: Callable[[], tuple[UnitReport, ...]] = field(default=tuple, repr=False)

    @cached_property
    def units(self) -> tuple[UnitReport, ...]:
        """One report for each op of the walk back, output first, with its consistency and deviation.

        Of the paper's preset it is how the target was made. Of others it is an explanation that is made when asked for:
        what an op-by-op walk would do with the same labels.
        """
        return self.walk()

    @property
    def wins(self) -> Tensor:
        """(b,) bool: the network run on from the target predicts the label, strictly (every label of several).

        For an output target instead of labels: less than a hundredth of the output's residual is left.
        """
        return self.closed > 0.99 if self.share is None else self.share == 1

    def __str__(self) -> str:
        made = self.passes is None or "units" in self.__dict__  # a walk's own, or asked for before
        if not made or not bool(self.corrected.any()) or not self.units:
            return self._summary
        note = (
            ""
            if self.passes is None
            else "\nas an explanation, a walk back op by op with the same labels (another answer):"
        )
        return f"{self._summary}{note}\n{table(_COLUMNS, unit_rows(self.units))}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = unit_rows(self.units) if self.passes is None and bool(self.corrected.any()) else []
        return html_table(self._summary, _COLUMNS, rows)

    def __getstate__(self) -> dict[str, object]:
        """What is pickled: the network that could make the walk stays behind, a walk that was made does not."""
        units = self.__dict__.get("units", self.units if self.passes is None else ())
        return {**self.__dict__, "walk": partial(tuple, units)}

    @property
    def _summary(self) -> str:
        count, batch = int(self.corrected.sum()), len(self.corrected)
        head = f"{self.layer!r}: {count} of {batch} samples corrected"
        if count == 0:
            return head + ", the others had their target already"
        wins = self.wins & self.corrected
        if self.share is None:
            closed = float(self.closed[self.corrected].mean())
            head += f", {percent(closed)} of the output's residual closed"
        else:
            head += f", the label wins in {int(wins.sum())}"
            if bool((self.share[self.corrected] % 1 > 0).any()):
                head += f" ({percent(float(self.share[self.corrected].mean()))} of the labels)"
        if self.margin_met is not None:
            head += f", the margin is there in {int((self.margin_met & self.corrected).sum())} of {count}"
        stuck = self.corrected & ~wins & (self.deviation == 0)
        moved = self.corrected & ~stuck
        if bool(moved.any()):
            head += f", mean deviation {float(self.deviation[moved].mean()):.3g}"
            if self.reference_deviation is not None:
                head += f" ({float(self.reference_deviation[moved].mean()):.3g} in the reference's metric)"
        if self.share is not None and bool(stuck.any()):
            head += (
                f"\nfor {int(stuck.sum())} no feature within ten norms of the anchor was found in which the label "
                "wins: the anchor is their target"
            )
        if self.note and not bool(wins[self.corrected].all()):
            head += f"\n{self.note}"
        return head


_COLUMNS = ("unit", "op", "rule", "CCP before", "CCP after", "deviation", "fallback", "iterations")


def unit_rows(units: Sequence[UnitReport]) -> list[tuple[str, ...]]:
    """One line for each unit of a walk, means over the samples it was solved for."""
    return [
        (
            u.name, u.op, u.rule, f"{float(u.ccp_before[u.solved].mean()):.1e}", f"{float(u.ccp[u.solved].mean()):.1e}",
            f"{float(u.deviation[u.solved].mean()):.1e}", f"{int(u.fallback[u.solved].sum())}/{int(u.solved.sum())}",
            f"{float(u.iterations[u.solved].double().mean()):.0f}",
        )
        for u in units
    ]  # fmt: skip
