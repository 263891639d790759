"""``frpt.repair``: some failing samples, a memory of old ones, and the nearest weights that are right on the former.

Strengths λ are tried from strong to weak, each from the weights of the one before. Without old samples the first is
taken at which every sample is right, as long as the predicted change on old inputs stays within a budget; with some
(``keep``) the one that fixes most and breaks least on half of them, and the other half says what it broke.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from frpt.common.asked import Task, fitting, task_of
from frpt.common.checks import check_seed
from frpt.datasets.labelled import whole_set
from frpt.embed import as_labels
from frpt.errors import InputError, LabelError, OptionError
from frpt.files.progress import Progress
from frpt.graph.capture import Captured, eval_mode
from frpt.graph.final import warn_of_probabilities
from frpt.graph.inputs import InputLike, Inputs, Picker
from frpt.graph.refused import check_copyable, check_gradients
from frpt.repairs.controls import DESCENTS, Control, Method, replayed
from frpt.repairs.fix import Fix, Held, Tried, run
from frpt.repairs.memory import Memory, captured_graph, remember
from frpt.repairs.nearest_weights import Loss, NearestWeights, Problem, Right, Weights
from frpt.repairs.notes import MORE, notes_on, on_the_change
from frpt.repairs.patch import Patch
from frpt.repairs.ranking import most_faulty
from frpt.repairs.weight_maps import WeightMap, chosen, weight_maps
from frpt.reverser import Reverser, make_reverser

_TASKS = {"classification": "a classifier", "binary": "answers of yes and no", "regression": "outputs that are numbers"}
_LABELS = {"classification": "class ids", "binary": "yes and no", "regression": "output targets"}


@dataclass(frozen=True)
class Strengths:
    """Which strengths are tried, and how one of them is chosen."""

    ladder: tuple[float, ...] = (1e4, 3e3, 1e3, 3e2, 1e2, 30.0)
    """λ from strong to weak: at 10,000 some samples are fixed, at 30 all that can be (benchmarks/repair.py)."""
    first: float = 3e3
    """Without old samples to choose by, the first that is tried: most repairs fix nearly every sample with it."""
    strongest: float = 3e6
    step: float = 3.0
    """Where the first costs more than the budget, stronger ones, by this factor, up to that."""
    budget: float = 0.3
    """Predicted KL on old inputs that a repair may cost, in nats: about three points of CIFAR-10's accuracy."""
    worth: float = 10.0
    """With old samples: how many percent of the given samples one percent of broken old ones outweighs."""

    def tried_by(self, keep: bool) -> tuple[float, ...]:
        """The strengths to be tried in turn. keep: whether old samples choose among them."""
        if keep or len(self.ladder) == 1:
            return self.ladder
        return tuple(strength for strength in self.ladder if strength <= self.first)

    @staticmethod
    def of_outputs() -> Strengths:
        """For output targets, whose loss and metric are both squares of outputs."""
        return Strengths(ladder=(10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01), first=10.0, strongest=1e4)


def repair(
    model: nn.Module | Reverser,
    x: InputLike,
    y: Any,
    memory: Memory | str | Path | None = None,
    *,
    keep: Any = None,
    method: Method = "nearest",
    old: InputLike | None = None,
    modules: Sequence[str] | Literal["auto"] | None = None,
    loss: Loss | None = None,
    margin: float | None = None,
    strength: float | None = None,
    budget: float | None = None,
    right: Right | None = None,
    seed: int = 0,
    progress: bool = True,
    output: Picker = None,
) -> Fix:
    """Fix failing samples now, and break as little else as possible.

    Args:
        model: the trained network, or a ``Reverser`` of it; it is not changed.
        x: the failing samples, batch first, as the model takes them; samples that are right may be among them.
        y: their labels: class ids (N,); 0 and 1 for each output, yes or no; or for regression the outputs they should
            have.
        memory: what the network does on its old inputs (``frpt.remember``), or the directory it was saved in.
        keep: some old samples that should stay as they are: (inputs, labels), or a data set, a ``DataLoader`` or a
            stream of them, read as a whole. They choose the strength and are reported on; they are no training
            data. Without a memory one is made of their inputs. With output targets one is broken when its output is
            farther from its target than before by more than 5 %, and by more than 5 % of the target's norm in all.
            With ``right`` one is broken when that calls it right before and not after.
        method: "nearest", the nearest weights; or a control to compare it with: "finetune" on the samples alone, "ewc"
            (a diagonal metric), "replay" (old inputs, distilled). ``budget`` is of the nearest weights only.
        old: old inputs without labels, for "replay"; by default the half of ``keep`` that chooses the strength.
        modules: names of the modules whose weights may move; all linear maps and convolutions by default. "auto": those
            of the one layer that the diagnosis's fault ranking names, by these samples and half of ``keep``.
        loss: "hinge", which asks for a lead and no more, or "logistic", which goes on pushing and breaks more. By
            default hinge for the nearest weights, and for the controls logistic, which is the cross-entropy.
        margin: the lead the hinge asks for; 0.1 by default.
        strength: λ, how strongly the old behaviour is held on to; by default chosen. With it ``budget`` has no say.
        budget: predicted KL on old inputs that the repair may cost, 0.3 by default.
        right: when a sample counts as right, for outputs of which something else matters than nearness to a label: a
            function of outputs and labels that returns (N,) bools, such as "this plan stays on the road". It is asked
            about all of x and, where there are some, about all of ``keep``, each in its order. By default the label
            has to win; of an output target, 90 % of what is missing has to be gone.
        seed: of the memory that is made of ``keep``, and of the order in which a control takes its samples.
        progress: show a bar.
        output: which tensor of the model's output is meant, where the network was given, as ``Reverser`` takes it.

    Returns:
        The repaired copy, which samples are fixed (found by running it), what it cost, and the patch.

    Raises:
        MemoryMismatchError: for a memory of other weights.
        InputError, LabelError: for samples or labels that the network does not take.
        OptionError: without a memory and without ``keep``; for modules that have no weights to move; for a model that
            cannot be copied; for "replay" without old inputs.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
        >>> memory = frpt.remember(model, torch.randn(200, 4), progress=False)
        >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> fix = frpt.repair(model, x, y, memory, progress=False)
        >>> bool(fix.fixed.all())
        True
    """
    started = time.perf_counter()
    check_gradients()
    check_seed(seed)
    inputs = Inputs.of(x)
    inputs.check_finite()
    rev = make_reverser(model, inputs.given, {"output": output})
    check_copyable(rev.model)
    captured = captured_graph(rev)
    labels = _asked(captured, inputs, y)
    if keep is not None:
        keep = _old_samples(captured, whole_set(keep, rev.model), inputs, labels)
    replay = replayed(old, keep)
    if replay is not None:
        replay.check_like(inputs, "old: ")
    memory = _memory(memory, rev, task_of(labels), keep, seed, progress)
    solver = _solver(method, loss, margin)
    choice = _choice(method, memory.task, strength, budget)
    most = len(choice.tried_by(keep is not None))
    with eval_mode(rev.model), Progress("repairing", most, unit="strengths", rated=False, shown=progress) as bar:
        before = _outputs(captured, inputs)
        labels = labels.to(before.device)
        if memory.task != "regression":
            warn_of_probabilities(captured.output, before, memory.task == "binary")
        bar.describe("ranking layers" if modules == "auto" else "repairing")
        maps, where = _movable(rev, captured, modules, inputs, labels, keep, seed)
        memory.check_knows(maps)
        samples = (*_with_earlier(inputs, labels, memory), solver)
        if method == "nearest":
            problem = Problem(captured, maps, memory.curvatures, *samples, inputs.batch, right)
        else:
            problem = Control(
                captured, maps, memory.curvatures, *samples, DESCENTS[method], method, replay, seed,
                inputs.batch, right,
            )  # fmt: skip
        bar.describe("repairing")
        met = problem.met(problem.outputs(problem.nothing))
        held = None if keep is None else Held(captured, keep, problem)
        tried = _tried(problem, choice, held, met, memory.scale, bar)
    best = _best(tried, choice, held is not None, met)
    best, repaired, fixed = _repaired(rev, captured, problem, best, met)
    kept = None if held is None else held.report(problem.nothing if best is None else best.weights.change)
    moved = None if best is None else problem.moved(best.weights.change)
    limit = math.inf if strength is not None or (best is None and held is not None) else choice.budget
    if modules == "auto" and not bool(fixed.all()):
        where += (MORE,)
    return Fix(
        model=repaired,
        fixed=fixed[: inputs.batch],
        right_before=met[: inputs.batch],
        earlier_lost=int((met & ~fixed)[inputs.batch :].sum()),
        diff=Patch.between(rev.model, repaired),
        predicted_kl=0.0 if best is None else best.kl,
        strength=float("nan") if best is None else best.strength,
        rounds=sum(t.weights.rounds for t in tried),
        seconds=time.perf_counter() - started,
        notes=notes_on(inputs, labels, before, met[: inputs.batch], fixed[: inputs.batch], limit, memory.samples)
        + where
        + on_the_change(moved, None if held is None else held.problem.count, method == "nearest", bool(tried)),
        curve=tuple(Tried(t.strength, float(t.weights.met.double().mean()), t.kl, t.broken) for t in tried),
        kept=kept,
        inputs=inputs,
        labels=labels,
        start=rev,
        memory_before=memory,
        method=method,
    )


def check_options(
    rev: Reverser, modules: Sequence[str] | Literal["auto"] | None, method: Method, loss: Loss | None,
    margin: float | None, budget: float | None,
) -> None:  # fmt: skip
    """Refuse what ``repair`` would refuse of these; ``frpt repair`` calls it before it looks for failures."""
    _solver(method, loss, margin)
    _choice(method, "classification", None, budget)
    if modules != "auto":
        chosen(weight_maps(captured_graph(rev))[0], modules)


def _memory(
    memory: Memory | str | Path | None,
    rev: Reverser,
    task: Task,
    keep: tuple[Any, Tensor] | None,
    seed: int,
    progress: bool,
) -> Memory:
    """The memory that was given, or one of the old samples; refused if it is of other weights or another task."""
    if isinstance(memory, str | Path):
        memory = Memory.load(memory)
    if memory is None:
        if keep is None:
            raise OptionError(
                "repair needs to know what to leave alone: pass memory=frpt.remember(model, old_inputs), or some old "
                "samples as keep=(inputs, labels)"
            )
        memory = remember(rev, keep[0], task=task, seed=seed, progress=progress)
    memory.check(rev.model)
    if memory.task != task:
        raise OptionError(
            f"this memory is of {_TASKS[memory.task]}, and the labels are {_LABELS[task]}: make one with "
            f'frpt.remember(..., task="{task}")'
        )
    return memory


def _solver(method: Method, loss: Loss | None, margin: float | None) -> NearestWeights:
    if loss not in (None, *get_args(Loss)):
        raise OptionError(f"loss must be {' or '.join(get_args(Loss))}, got {loss!r}")
    usual: Loss = NearestWeights.loss if method == "nearest" else "logistic"
    return NearestWeights(
        loss=loss or usual, margin=NearestWeights.margin if margin is None else _positive("margin", margin)
    )


def _movable(
    rev: Reverser,
    captured: Captured,
    modules: Sequence[str] | Literal["auto"] | None,
    inputs: Inputs,
    labels: Tensor,
    keep: tuple[Any, Tensor] | None,
    seed: int,
) -> tuple[list[WeightMap], tuple[str, ...]]:
    """(the weights that may move, what is to be said of their choice)."""
    maps = weight_maps(captured)[0]
    free = [m for m in maps if all(captured.held(node).requires_grad for node in m.nodes)]
    frozen = len(maps) - len(free)
    if modules is None and free and frozen:
        return free, (f"{frozen} weights with requires_grad=False are held; name them in modules= to let them move",)
    if modules != "auto":
        return chosen(maps, [modules] if isinstance(modules, str) else modules), ()
    if keep is not None:  # the half that chooses
        old, known = Inputs.of(keep[0]), keep[1].to(labels)
        rows = torch.arange(0, old.batch, 2)
        inputs, labels = inputs.joined(old.taken(rows)), torch.cat([labels, known[rows.to(known.device)]])
    named = most_faulty(rev, inputs, labels, [m.name for m in maps], seed)
    if named is None:
        return maps, ("modules='auto': refitting no layer alone helps held-out samples, so all weights may move",)
    return [m for m in maps if m.name in named.weights], (str(named),)


def _choice(method: Method, task: Task, strength: float | None, budget: float | None) -> Strengths:
    """The strengths that a method tries; what a control costs is measured, not limited."""
    given = None if strength is None else (_positive("strength", strength),)
    if method == "nearest":
        limit = Strengths.budget if budget is None else _positive("budget", budget)
        usual = Strengths.of_outputs() if task == "regression" else Strengths()
        return replace(usual, ladder=given or usual.ladder, budget=limit)
    if method not in DESCENTS:
        raise OptionError(f"method must be nearest, {', '.join(DESCENTS)}, got {method!r}")
    if method == "finetune" and given:
        raise OptionError("fine-tuning has no strength; leave strength= out")
    return Strengths(ladder=given or DESCENTS[method].ladder, first=math.inf, budget=math.inf)


@dataclass(frozen=True)
class _Attempt:
    """The weights for one strength, and their cost. kl: predicted, on old inputs."""

    strength: float
    weights: Weights
    kl: float
    broken: float
    """Share of the old samples it broke, less what it mended; NaN without old samples."""


def _tried(
    problem: Problem, choice: Strengths, held: Held | None, right: Tensor, scale: float, bar: Progress
) -> list[_Attempt]:
    """Weights for one strength after the other, until all samples are right or the budget is used up."""
    tried: list[_Attempt] = []
    change = None
    if bool(right.all()):
        return tried
    single = len(choice.ladder) == 1
    for strength in choice.tried_by(held is not None):
        tried.append(_attempt(problem, strength, change, held, scale, bar))
        change = tried[-1].weights.change
        counts = [int(t.weights.met.sum()) for t in tried[-3:]]
        in_vain = held is None and len(counts) == 3 and counts[2] <= counts[0]  # the two weaker ones of the last three
        done = bool(tried[-1].weights.met.all()) or tried[-1].kl > choice.budget or in_vain
        bar.advance(last=done)
        if done:
            break
    while tried[0].kl > choice.budget and not single and tried[0].strength < choice.strongest:
        tried.insert(0, _attempt(problem, choice.step * tried[0].strength, None, held, scale, bar))
    return tried


def _attempt(
    problem: Problem,
    strength: float,
    start: dict[str, Tensor] | None,
    held: Held | None,
    scale: float,
    bar: Progress,
) -> _Attempt:
    problem.tell = lambda words: bar.advance(0, f"strength {strength:g}, {words}")
    weights = problem.solve(strength, start)
    right = weights.met[: problem.given]
    problem.tell(f"{int(right.sum())} of {len(right)} samples right")
    broken = float("nan") if held is None else held.net_broken(weights.change)
    return _Attempt(strength, weights, scale * problem.half_distance(weights.change), broken)


def _best(tried: Sequence[_Attempt], choice: Strengths, held: bool, right: Tensor) -> _Attempt | None:
    """The attempt to be kept; None where none of them is better than leaving the network alone."""

    def worth(attempt: _Attempt) -> float:
        gained = float(attempt.weights.met.double().mean() - right.double().mean())
        return gained - (choice.worth * attempt.broken if held and not single else 0.0)

    single = len(choice.ladder) == 1  # a strength that was asked for is judged by what it fixes alone
    allowed = [a for a in tried if single or a.kl <= choice.budget]
    best = max(allowed, key=worth, default=None)
    return best if best is not None and worth(best) > 0 else None


def _repaired(
    rev: Reverser, captured: Captured, problem: Problem, best: _Attempt | None, met: Tensor
) -> tuple[_Attempt | None, nn.Module, Tensor]:
    """(the attempt, a copy of the model with its weights, which samples are right in it); never worse than before."""
    repaired = copy.deepcopy(rev.model)
    if best is not None:
        _set(repaired, captured, problem, best.weights)
    fixed = problem.met(run(repaired, problem.inputs, rev.output))
    if int(fixed.sum()) < int(met.sum()):  # rounding
        return None, copy.deepcopy(rev.model), met
    return best, repaired, fixed


def _with_earlier(inputs: Inputs, labels: Tensor, memory: Memory) -> tuple[Inputs, Tensor]:
    """The samples, and after them those that earlier repairs fixed."""
    if memory.repaired is None:
        return inputs, labels
    return inputs.joined(memory.repaired.inputs), torch.cat([labels, memory.repaired.labels.to(labels)])


def _old_samples(captured: Captured, keep: tuple[Any, Any], inputs: Inputs, labels: Tensor) -> tuple[InputLike, Tensor]:
    """Old samples and their labels, refused where they are of another kind than those to be repaired."""
    old = Inputs.of(keep[0])
    old.check_finite()
    old.check_like(inputs, "keep: ")
    known = _asked(captured, old, keep[1], "keep: ")
    if task_of(known) != task_of(labels):
        raise LabelError(
            f"keep: its labels are {_LABELS[task_of(known)]}, those of the samples to be repaired are "
            f"{_LABELS[task_of(labels)]}"
        )
    if old.batch < 2:
        raise InputError("keep: at least two samples, one that chooses the strength and one to be reported on")
    return old.given, known


def _asked(captured: Captured, inputs: Inputs, y: Any, what: str = "") -> Tensor:
    """The labels of samples, refused where they do not fit the outputs. what: begins the errors."""
    labels = as_labels(y)
    if (given := len(labels) if labels.dim() else 1) != inputs.batch:
        raise LabelError(f"{what}there are {inputs.batch} samples and {given} labels")
    output = captured.output.meta["val"]
    return fitting(labels, (inputs.batch, *map(int, output.shape[1:])), output.dtype, what)


def _outputs(captured: Captured, inputs: Inputs) -> Tensor:
    out = captured.output_of(inputs)
    if not bool(torch.isfinite(out).all()):
        raise InputError("the network's output is NaN or infinite for some of the samples")
    return out


def _set(model: nn.Module, captured: Captured, problem: Problem, weights: Weights) -> None:
    """The changed weights into a copy of the model."""
    new = problem.weights(weights.change)
    with torch.no_grad():
        for node, value in new.items():
            path, _, name = captured.weights[node].rpartition(".")
            getattr(model.get_submodule(path), name).copy_(value)


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise OptionError(f"{name} must be a positive number, got {value!r}")
    return float(value)
