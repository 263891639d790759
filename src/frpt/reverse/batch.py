"""One batch of samples and labels: its forward pass recorded, and what is asked of its output.

``Batch`` is what the two ways of answering have in common: ``frpt.reverse.whole_path`` solves the path from the layer
to the output at once, ``frpt.reverse.backward`` walks it op by op.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.fx import Node

from frpt.common.batch_axis import BatchAxis, relative
from frpt.embed import Embedder
from frpt.errors import MarginWarning
from frpt.graph.final import warn_of_probabilities
from frpt.graph.inputs import Inputs
from frpt.graph.plan import Plan
from frpt.reverse.forward import Record
from frpt.reverse.network import Network, check_finite
from frpt.reverse.reconstruction import Reconstruction, UnitReport


class Batch(ABC):
    """The record of a batch, the output target of its samples, and which of them need a correction.

    known: values of nodes that are given instead of computed. keep: nodes whose values are needed beside the output and
    the layers; checked: those that must be finite. quick: passes may round differently than the model does.
    """

    target: Tensor
    """Like the output: the output that is asked for."""
    corrected: Tensor
    """(b,) bool: the samples whose output is not yet what is asked for."""

    def __init__(
        self,
        network: Network,
        embedder: Embedder,
        inputs: Inputs,
        plans: Sequence[Plan],
        y: Tensor,
        known: Mapping[Node, Tensor] | None,
        keep: Iterable[Node],
        checked: Iterable[Node],
        *,
        quick: bool = False,
    ) -> None:
        self.network, self.preset, self.embedder, self.inputs = network, network.preset, embedder, inputs
        self.captured, self.known = network.captured, known
        asked = {self.captured.output, *(plan.at for plan in plans)}
        self.record = Record(self.captured, inputs, {*asked, *keep}, known, quick=quick)
        check_finite(self.record, {*asked, *checked})
        self.output: Tensor = self.record.values[self.captured.output]
        self.axis: BatchAxis = self.record.batch_axis(self.captured.output)
        self.y = y.to(self.output.device)
        embedder.ask(self.output, self.y)
        if embedder.picks(self.y):
            warn_of_probabilities(self.captured.output, self.output, embedder.yes_no(self.output, self.y))

    @cached_property
    def index(self) -> Tensor:
        """The samples that need a correction: (k,)."""
        return self.corrected.nonzero().squeeze(1)

    @abstractmethod
    def to(self, plan: Plan) -> Reconstruction:
        """The answer at a layer."""

    def to_all(self, plans: Sequence[Plan]) -> dict[str, Reconstruction]:
        """The answers at some layers by their names; a warning where a margin is not there. For ``reconstruct``."""
        results = {plan.layer: self.to(plan) for plan in plans}
        short = [name for name, rec in results.items() if rec.margin_met is not None and not bool(rec.margin_met.all())]
        if short:  # without counts: of many batches the same words, which Python shows once
            warnings.warn(
                f"the margin of {self.embedder.margin:g} is missing in some samples at {', '.join(map(repr, short))}: "
                "no feature with it was found for them, and their labels win by less, or not at all. Print the "
                "reconstruction for how many, see its `margin_met` for which, or ask for a smaller margin.",
                MarginWarning,
                stacklevel=3,
            )
        return results

    def _result(
        self,
        plan: Plan,
        value: Tensor,
        output: Tensor,
        walk: Callable[[], tuple[UnitReport, ...]],
        passes: Tensor | None = None,
        reference_deviation: Callable[[Tensor, Tensor], Tensor | None] = lambda target, anchor: None,
    ) -> Reconstruction:
        """What is reported, from the features and the outputs of the samples that need a correction."""
        anchor, axis = self.record.values[plan.at], self.record.batch_axis(plan.at)
        target, reached = anchor.clone(), self.output
        if len(self.index):
            target = axis.put(anchor, self.index, value)
            reached = self.axis.put(self.output, self.index, output)
        moved = axis.norm(target.double() - anchor.double())
        return Reconstruction(
            layer=plan.layer,
            target=target,
            anchor=anchor,
            deviation=relative(moved, axis.norm(anchor)),
            corrected=self.corrected,
            closed=self._closed(reached),
            share=self.embedder.share(reached, self.y),
            margin_met=self.embedder.margin_met(reached, self.y),
            passes=passes,
            reference_deviation=reference_deviation(target, anchor),
            note=plan.note,
            walk=walk,
        )

    def _closed(self, reached: Tensor) -> Tensor:
        """The share of each sample's residual that is gone: (b,)."""
        before = self.axis.norm(self.target.double() - self.output.double())
        left = self.axis.norm(self._asked(reached).double() - reached.double())
        return torch.where(self.corrected, 1 - relative(left, before), 1.0)

    def _asked(self, output: Tensor) -> Tensor:
        """The acceptable output that is nearest to an output."""
        return self.target
