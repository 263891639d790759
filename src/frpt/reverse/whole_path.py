"""The answer by the whole path: from the layer to the output as one function, solved from the anchor.

One label a sample, or a few of yes and no: the nearest feature in which they win (``solvers.nearest``). Many labels, or
an output target:
the nearest feature whose output is the target (``solvers.reach``). Samples that are right already are left alone.
Called by ``Reverser.reconstruct`` for every preset but the paper's, which walks op by op (``frpt.reverse.backward``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.fx import Node

from frpt.common.batch_axis import BatchAxis
from frpt.common.clock import Clock
from frpt.embed import Embedder
from frpt.errors import ReferenceMismatchError
from frpt.graph.inputs import Inputs
from frpt.graph.plan import Plan, Unit
from frpt.options import NearestWinning
from frpt.reverse.backward import Walk
from frpt.reverse.batch import Batch
from frpt.reverse.forward import needed
from frpt.reverse.network import Network
from frpt.reverse.reconstruction import Reconstruction, UnitReport
from frpt.solvers.base import UnitAxes, row_norm
from frpt.solvers.blocks.problem import BlockFunction, Problem
from frpt.solvers.blocks.reach import Aim
from frpt.solvers.contest import Contest
from frpt.solvers.nearest import Winning
from frpt.solvers.variation import Variation, Variations

_FORWARD, _BACKWARD = 0.35, 0.65
"""What a forward and a backward pass take of both together."""
_INSIDE = 0.01
"""How far beyond the margin many labels are aimed at, as a share of the spread of a sample's scores."""
_FEW, _RIVALS = 32, 8
"""Labels of yes and no of a sample up to which each is a constraint of its own, and how many gradients of them are
kept: choices. More are aimed at together, as pixels are."""


class WholePath(Batch):
    """One batch, and the answer at any planned layer."""

    def __init__(
        self,
        network: Network,
        embedder: Embedder,
        inputs: Inputs,
        plans: Sequence[Plan],
        y: Tensor,
        known: Mapping[Node, Tensor] | None = None,
        reference: Variations | None = None,
        *,
        quick: bool = False,
    ) -> None:
        side = {node for plan in plans if plan.whole is not None for node in plan.whole.side}
        self.scores: Node = network.captured.activation()[1] if embedder.margin is None else network.captured.output
        super().__init__(network, embedder, inputs, plans, y, known, {*side, self.scores}, (), quick=quick)
        assert self.preset.nearest is not None
        self.options: NearestWinning = self.preset.nearest
        self.gate = replace(self.preset.gate, deviation=min(self.preset.gate.deviation, self.options.farthest))
        self.reference = reference
        self.binary = embedder.yes_no(self.output, self.y)
        self.margin = self._margins(embedder) if embedder.picks(self.y) else None
        if self.margin is None:
            self.target = embedder(self.output, self.y)
            self.corrected = self.axis.rows(self.target != self.output).any(1)
        else:
            self.target = embedder.nearest(self.output, self.y, self.margin)
            lead = embedder.leads(self.output, self.y).reshape(len(self.y), -1).amin(1)
            self.corrected = (lead <= 0) | (lead < (0.0 if embedder.margin is None else self.margin))

    def to(self, plan: Plan) -> Reconstruction:
        """The answer at a layer."""
        passes = torch.zeros(len(self.corrected), dtype=torch.float64, device=self.output.device)
        value, out = self.record.values[plan.at], self.output
        if len(self.index):
            value, out, spent = self._solved(plan)
            passes = passes.index_copy(0, self.index, spent)
        inside = partial(self._in_reference, plan)
        return self._result(plan, value, out, self._explained(plan), passes, inside)

    def _solved(self, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        """(feature, the output it leads to, passes spent) of the samples to be corrected."""
        if plan.whole is None:
            wanted = self.axis.take(self.target, self.index)
            return wanted, wanted, torch.zeros(len(self.index), dtype=torch.float64, device=wanted.device)
        if not plan.closable:
            return self._walked(plan, plan.whole)
        few = self.binary and self.output[0].numel() <= _FEW
        single = (few or (self.y.dim() == 1 and self.output.dim() == 2)) and self.axis == BatchAxis()
        if self.margin is not None and single:
            return self._winning(plan, plan.whole, self.margin)
        return self._reaching(plan, plan.whole)

    def _margins(self, embedder: Embedder) -> Tensor:
        return embedder.margins(self.axis.front(self.output), self.binary)

    def _variation(self, plan: Plan) -> Variation | None:
        """What the reference knows of a layer."""
        found = None if self.reference is None else self.reference.of(plan.layer)
        anchor = self.record.values[plan.at]
        if found is not None and found.mean.shape != self.record.batch_axis(plan.at).front(anchor).shape[1:]:
            raise ReferenceMismatchError(
                f"{plan.layer!r} has samples of shape {tuple(found.mean.shape)} in it and "
                f"{tuple(self.record.batch_axis(plan.at).front(anchor).shape[1:])} here"
            )
        return None if found is None else found.to(anchor.float() if anchor.dtype.itemsize < 4 else anchor)

    def _winning(self, plan: Plan, path: Unit, margin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One label a sample; the anchor where no feature is found in which it wins."""
        contest, at = self._contest(*self._of_scores(path, margin), quick=True)
        found = self._found(plan, contest, self.index)
        value = at.input.back(found.value).to(self.record.values[path.source].dtype)
        out = self.record.run(path, value, self.index)
        turned = (found.wins & ~self._right(out)).nonzero().squeeze(1)
        if len(turned):  # by rounding: once more with the model's own, at the very output
            exact = self._contest(path, margin, self.embedder, quick=False)[0].part(turned)
            found = found.put(turned, self._found(plan, exact, self.index[turned]))
            value = at.input.back(found.value).to(value.dtype)
            out = self.record.run(path, value, self.index)
        value, out = self._kept(path, value, out)
        return value, out, _FORWARD * found.forwards.double() + _BACKWARD * found.iterations.double()

    def _of_scores(self, path: Unit, margin: Tensor) -> tuple[Unit, Tensor, Embedder]:
        """The path up to the scores before a final softmax or sigmoid, in which the same labels win; their margins.

        Probabilities near 0 and 1 hardly move with their feature, so that steps along their gradients lead astray.
        """
        if self.scores is self.captured.output or self.scores not in (path.source, *path.nodes):
            return path, margin, self.embedder
        known = {path.source, *path.side}
        nodes = tuple(n for n in needed(self.captured, {self.scores}, known) if n in path.nodes)
        embedder = replace(self.embedder, threshold=0.0)
        scores = self.record.batch_axis(self.scores).front(self.record.values[self.scores])
        return replace(path, sink=self.scores, nodes=nodes), embedder.margins(scores, self.binary), embedder

    def _contest(self, path: Unit, margin: Tensor, embedder: Embedder, *, quick: bool) -> tuple[Contest, UnitAxes]:
        """Which label shall win at the end of the path, for the samples to be corrected; where samples are."""
        fn, anchor, _, at = self.record.block(path, self.index, quick=quick)
        label = self.y[self.index]
        if self.binary:
            fn, label = self._opposed(fn, embedder)
        contest = Contest(
            fn, anchor, label, margin[self.index].to(anchor.dtype), self.gate,
            self.network.range(path.source), repeats=self.captured.dynamic,
        )  # fmt: skip
        return contest, at

    def _opposed(self, fn: BlockFunction, embedder: Embedder) -> tuple[BlockFunction, Tensor]:
        """Labels of yes and no as a contest of classes: the path to its scores, and class ids."""
        mine = self.y[self.index]
        label = embedder.opposed(self.axis.take(self.output, self.index), mine)[1]
        return lambda a, rows: embedder.opposed(fn(a, rows), mine[rows])[0], label

    def _found(self, plan: Plan, contest: Contest, index: Tensor) -> Winning:
        """The features in which labels win by their margin, or else by a hair. index: the contest's samples."""
        options, variation = self.options, self._variation(plan)
        if self.binary:
            options = replace(options, competitors=max(options.competitors, min(self.output[0].numel(), _RIVALS)))

        def solved(contest: Contest) -> Winning:
            if variation is None:
                return options.solve(contest)
            return self.preset.likeliest.solve(contest, variation, options)

        found = solved(contest)
        lost = (~found.wins).nonzero().squeeze(1)
        if self.embedder.margin and len(lost):
            hair = self._margins(replace(self.embedder, margin=None))[index[lost]]
            found = found.put(lost, solved(replace(contest.part(lost), margin=hair.to(contest.anchor.dtype))))
        return found

    def _reaching(self, plan: Plan, path: Unit) -> tuple[Tensor, Tensor, Tensor]:
        """Many labels a sample, or an output target: as near to it as the path gets."""
        fn, anchor, output, at = self.record.block(path, self.index)
        solver, limits = self.preset.reach, self.preset.composite.limits
        if not self.y.is_floating_point():  # class labels, for which a little of the residual may decide
            solver = replace(solver, spare=0.0)
        target = at.output.front(self.axis.take(self.target, self.index)).to(anchor.dtype)
        lone = target.dim() == 1  # a number for each sample: solvers want an axis beside the batch
        if lone:
            plain = fn
            fn = lambda a, rows: plain(a, rows)[:, None]  # noqa: E731
            target, output = target[:, None], output[:, None]
        problem = Problem(
            fn, anchor, target, output, self.gate, replace(limits, iterations=solver.iterations),
            self.network.range(path.source), repeats=self.captured.dynamic, stop_at=solver.stop_at,
            clock=Clock(path.where, limits.seconds, self.network.told),
        )  # fmt: skip
        variation = self._variation(plan)
        if variation is None:
            solution, reached = solver.solve(problem, self._aim(at.output))
        else:
            solution, reached = solver.solve_within(problem, variation, self._aim(at.output))
        reached = reached.squeeze(1) if lone else reached
        return at.input.back(solution.value), at.output.back(reached), solution.iterations.double()

    def _aim(self, at: BatchAxis) -> Aim | None:
        """Outputs in which all labels win are acceptable; the aim lies a little inside, being reached only nearly."""
        margin = self.margin
        if margin is None:
            return None
        inside = margin + _INSIDE * at.front(self.output).flatten(1).double().std(1, correction=0)

        def aim(out: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            index, plain = self.index[rows], at.back(out)
            near = at.front(self.embedder.nearest(plain, self.y[index], margin[index])).to(out)
            within = at.front(self.embedder.nearest(plain, self.y[index], inside[index])).to(out)
            return within, row_norm(out - near)

        return aim

    def _walked(self, plan: Plan, path: Unit) -> tuple[Tensor, Tensor, Tensor]:
        """Where no gradient leads from the output to the layer, op by op."""
        walk = Walk(self.network, Embedder("regression"), self.inputs, [plan], self.target, self.known)
        value = self.record.batch_axis(plan.at).take(walk.to(plan).target, self.index)
        value, out = self._kept(path, value, self.record.run(path, value, self.index))
        return value, out, torch.ones(len(self.index), dtype=torch.float64, device=value.device)

    def _right(self, out: Tensor) -> Tensor:
        """Whether all labels win and nothing overflowed, or no labels shall win: (k,) bool."""
        if self.margin is None:
            return torch.ones(len(self.index), dtype=torch.bool, device=out.device)
        share = self.embedder.share(out, self.y[self.index])
        assert share is not None
        return (share == 1) & torch.isfinite(self.axis.rows(out)).all(1)

    def _kept(self, path: Unit, value: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """The features and the outputs they lead to; anchors where labels shall win and do not, or it overflows."""
        keep = (~self._right(out)).nonzero().squeeze(1)
        if len(keep) == 0:
            return value, out
        mine = self.index[keep]
        value = self.record.batch_axis(path.source).put(value, keep, self.record.taken(path.source, mine))
        return value, self.axis.put(out, keep, self.axis.take(self.output, mine))

    def _in_reference(self, plan: Plan, target: Tensor, anchor: Tensor) -> Tensor | None:
        """The root mean square change of an entry, in standard deviations of the reference: (b,)."""
        variation = self._variation(plan)
        if variation is None:
            return None
        rows = self.record.batch_axis(plan.at).rows(target - anchor).to(variation.mean)
        return variation.norm(rows) / math.sqrt(rows.shape[1])

    def _asked(self, output: Tensor) -> Tensor:
        return self.target if self.margin is None else self.embedder.nearest(output, self.y, self.margin)

    def _explained(self, plan: Plan) -> Callable[[], tuple[UnitReport, ...]]:
        """The walk to the layer, made when somebody asks for it."""

        def walk() -> tuple[UnitReport, ...]:
            with torch.no_grad():
                made = Walk(self.network, self.embedder, self.inputs, [plan], self.y, self.known)
                return tuple(made.units(plan)[0])

        return walk
