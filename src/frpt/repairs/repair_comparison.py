"""``frpt.compare_repairs``: the nearest weights beside their controls, on the same samples, in one table.

Users call it before they trust a repair; benchmarks/repair.py does the same with strengths chosen beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from frpt.common.text import html_table, table
from frpt.datasets.labelled import whole_set
from frpt.embed import as_labels
from frpt.errors import LabelError, OptionError
from frpt.files.progress import Progress
from frpt.graph.inputs import InputLike, Inputs, Picker
from frpt.repairs.controls import Method
from frpt.repairs.fix import run
from frpt.repairs.memory import Memory
from frpt.repairs.repair import repair
from frpt.reverser import Reverser, make_reverser

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Outcome:
    """One method with one seed; shares in percent.

    fixed: of the failing samples. kind, old: right among samples of their kind and among old ones; kind is NaN where
    none were given. broken, mended: old samples that were right and are wrong, and the reverse. predicted_kl: what the
    memory says of the cost.
    """

    method: str
    seed: int
    fixed: float
    kind: float
    old: float
    broken: int
    mended: int
    predicted_kl: float
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class RepairComparison:
    """Several ways to repair the same network; made by ``compare_repairs``, prints as a table.

    Attributes:
        count: failing samples, those that are wrong before.
        old_count: old samples that were measured on; replay did not see them.
        kind_before, old_before: right in percent before any repair.
        outcomes: one for each method and seed.
    """

    count: int
    old_count: int
    kind_before: float
    old_before: float
    outcomes: tuple[Outcome, ...]

    def mean(self, method: str, value: str) -> float:
        """The mean over seeds of one column, as ``Outcome`` names it."""
        values = [float(getattr(o, value)) for o in self.outcomes if o.method == method]
        if not values:
            raise OptionError(f"{method!r} was not compared: there are {', '.join(self._methods())}")
        return sum(values) / len(values)

    def to_pandas(self) -> pd.DataFrame:
        """A row per method and seed."""
        import pandas as pd

        return pd.DataFrame([asdict(o) for o in self.outcomes])

    def __str__(self) -> str:
        return self._title() + "\n" + table(self._columns(), self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._columns(), self._rows())

    def _methods(self) -> list[str]:
        return list(dict.fromkeys(o.method for o in self.outcomes))

    def _title(self) -> str:
        kind = "" if self._kindless else f"{self.kind_before:.1f} % of their kind and "
        seeds = len({o.seed for o in self.outcomes})
        return (
            f"{self.count} failing samples, means of {seeds} seed{'s' * (seeds > 1)}; before: {kind}"
            f"{self.old_before:.1f} % of {self.old_count} old samples right"
        )

    @property
    def _kindless(self) -> bool:
        return self.kind_before != self.kind_before

    def _columns(self) -> tuple[str, ...]:
        kind = () if self._kindless else ("kind %",)
        return ("method", "fixed %", *kind, "old %", "broken", "mended", "seconds")

    def _rows(self) -> list[tuple[str, ...]]:
        shares = ("fixed", "old") if self._kindless else ("fixed", "kind", "old")
        return [
            (
                method,
                *(f"{self.mean(method, share):.1f}" for share in shares),
                *(f"{self.mean(method, count):.0f}" for count in ("broken", "mended")),
                f"{self.mean(method, 'seconds'):.2f}",
            )
            for method in self._methods()
        ]


def compare_repairs(
    model: nn.Module | Reverser,
    x: InputLike,
    y: Any,
    memory: Memory,
    *,
    old: Any,
    kind: Any = None,
    methods: Sequence[Method] = ("nearest", "replay", "ewc", "finetune"),
    seeds: Iterable[int] = (0,),
    modules: Sequence[str] | Literal["auto"] | None = None,
    progress: bool = True,
    output: Picker = None,
) -> RepairComparison:
    """Repair the same samples in several ways, and count what each fixes, breaks and takes.

    All may move the same weights and stop by the same rule: when every sample is right, or little more is won. Every
    second old sample is given to replay, without its label; all methods are measured on the others. The rest have the
    memory alone.

    Args:
        model: the trained classifier, or a ``Reverser`` of it; it is not changed.
        x: the failing samples, batch first, as the model takes them.
        y: their class ids (N,).
        memory: what the network does on its old inputs (``frpt.remember``).
        old: old samples that none of the methods should break, the memory's own not among them: (inputs, class ids), or
            a data set, a ``DataLoader`` or a stream of them.
        kind: held-out samples like the failing ones, in the same forms.
        methods: which to compare; ``frpt.repair`` says what they are.
        seeds: each method runs once with each; of the nearest weights the seed changes nothing.
        modules: names of the modules whose weights may move, or "auto", as ``frpt.repair`` takes them.
        progress: show a bar.
        output: which tensor of the model's output is meant, where the network was given, as ``Reverser`` takes it.

    Returns:
        One row for each method, with means over the seeds; ``to_pandas`` has them one by one.

    Raises:
        OptionError: without a method or a seed.
        LabelError: for labels that are no class ids, or not as many as samples.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
        >>> memory = frpt.remember(model, torch.randn(200, 4), progress=False)
        >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> inputs = torch.randn(200, 4)
        >>> old = inputs, model(inputs).argmax(1)
        >>> table = frpt.compare_repairs(model, x, y, memory, old=old, methods=("nearest", "ewc"), progress=False)
        >>> table.mean("nearest", "fixed")
        100.0
    """
    seeds = _listed(seeds)
    if not methods or not seeds:
        raise OptionError("there is nothing to compare: name at least one method and one seed")
    rev = make_reverser(model, Inputs.of(x).given, {"output": output})
    replayed, measured = _halves(*_samples(whole_set(old, rev.model), "old"))
    others = None if kind is None else _samples(whole_set(kind, rev.model), "kind")
    given = _samples((x, y), "x")
    measured[0].check_like(given[0], "old: ")
    if others is not None:
        others[0].check_like(given[0], "kind: ")
    failing = ~_right(rev, rev.model, given)
    before = _right(rev, rev.model, measured)
    outcomes = []
    with Progress("comparing repairs", len(methods) * len(seeds), unit="repairs", shown=progress) as bar:
        for method, seed in product(methods, seeds):
            bar.describe(f"{method}, seed {seed}")
            seen = replayed.given if method == "replay" else None
            fix = repair(rev, x, y, memory, method=method, old=seen, modules=modules, seed=seed, progress=False)
            after = _right(rev, fix.model, measured)
            outcomes.append(
                Outcome(
                    method=method,
                    seed=seed,
                    fixed=_percent(fix.fixed[failing]),
                    kind=float("nan") if others is None else _percent(_right(rev, fix.model, others)),
                    old=_percent(after),
                    broken=int((before & ~after).sum()),
                    mended=int((~before & after).sum()),
                    predicted_kl=fix.predicted_kl,
                    seconds=fix.seconds,
                )
            )
            bar.advance()
    kind_before = float("nan") if others is None else _percent(_right(rev, rev.model, others))
    return RepairComparison(int(failing.sum()), len(before), kind_before, _percent(before), tuple(outcomes))


_Samples = tuple[Inputs, Tensor]


def _listed(seeds: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(seeds, Iterable):
        raise OptionError(f"seeds must be several numbers, such as range({seeds!r}), got {seeds!r}")
    return tuple(seeds)


def _samples(given: tuple[Any, Any], name: str) -> _Samples:
    """Inputs and labels that fit each other."""
    inputs, labels = Inputs.of(given[0]), as_labels(given[1])
    inputs.check_finite()
    if labels.is_floating_point() or labels.dim() == 0:
        raise LabelError(
            f"{name}: repairs are compared by class ids (N,) or yes and no, got {tuple(labels.shape)} of {labels.dtype}"
        )
    if len(labels) != inputs.batch:
        raise LabelError(f"{name}: there are {inputs.batch} samples and {len(labels)} labels")
    return inputs, labels


def _halves(inputs: Inputs, labels: Tensor) -> tuple[Inputs, _Samples]:
    """(every second input, for replay; the other samples, to measure on)."""
    if inputs.batch < 2:
        raise OptionError("old: at least two samples, one for replay and one to measure on")
    first, second = torch.arange(0, inputs.batch, 2), torch.arange(1, inputs.batch, 2)
    return inputs.taken(first), (inputs.taken(second), labels[second])


def _right(rev: Reverser, model: nn.Module, samples: _Samples) -> Tensor:
    """(N,) bool."""
    inputs, labels = samples
    lead = rev.embedder.leads(run(model, inputs, rev.output).cpu(), labels.cpu())
    return (lead > 0).reshape(len(labels), -1).all(1)


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean()) if right.numel() else 100.0
