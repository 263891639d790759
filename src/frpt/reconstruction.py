"""What a reconstruction returns: the target feature, and one report per reverse unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.graph.plan import Unit, table
from frpt.solvers.base import Solution


@dataclass(frozen=True)
class UnitReport:
    """How one unit went, per sample of the batch; zero for samples it was not solved for.

    solved: those that need a correction and that the units before did not lose.
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
    def of(unit: Unit, solution: Solution, index: Tensor, batch: int) -> UnitReport:
        """A report on the whole batch from the solution of the samples ``index``."""

        def spread(v: Tensor) -> Tensor:
            return torch.zeros(batch, dtype=v.dtype, device=v.device).index_copy(0, index, v)

        s = solution
        return UnitReport(
            unit.name,
            unit.path,
            unit.op,
            unit.choice.rule,
            spread(torch.ones_like(index, dtype=torch.bool)),
            spread(s.ccp_before),
            spread(s.ccp),
            spread(s.deviation),
            spread(s.fallback),
            spread(s.iterations),
        )


@dataclass(frozen=True)
class Reconstruction:
    """The feature a layer should have produced.

    target, anchor: like the layer's output, the reconstructed and the forward feature. deviation: (b,), relative.
    corrected: (b,) bool, the samples whose output target differs from the forward output. closed: (b,), the share of
    the output's residual that is gone when the network runs on from the target. units: output first.
    """

    layer: str
    target: Tensor
    anchor: Tensor
    deviation: Tensor
    corrected: Tensor
    closed: Tensor
    units: tuple[UnitReport, ...]

    def __str__(self) -> str:
        count, batch = int(self.corrected.sum()), len(self.corrected)
        head = f"{self.layer!r}: {count} of {batch} samples corrected"
        if count == 0:
            return head + ", the others had their target already"
        mean = float(self.deviation[self.corrected].mean())
        share = float(self.closed[self.corrected].mean())
        head += f", mean relative deviation {mean:.3g}, {100 * share:.1f} % of the output's residual closed"
        if not self.units:
            return head
        columns = ("unit", "op", "rule", "CCP before", "CCP after", "deviation", "fallback", "iterations")
        rows = []
        for u in self.units:
            mine = u.solved
            rows.append(
                (
                    u.name,
                    u.op,
                    u.rule,
                    f"{float(u.ccp_before[mine].mean()):.1e}",
                    f"{float(u.ccp[mine].mean()):.1e}",
                    f"{float(u.deviation[mine].mean()):.1e}",
                    f"{int(u.fallback[mine].sum())}/{int(mine.sum())}",
                    f"{float(u.iterations[mine].double().mean()):.0f}",
                )
            )
        return head + "\n" + table(columns, rows)
