"""What an owner should know of a repair before trusting it: one-sided or contradictory samples, what is not fixed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from frpt.common.asked import task_of
from frpt.common.text import percent
from frpt.files.digest import sha256_of_item
from frpt.graph.inputs import Inputs

_UNWORTHY = (
    "nothing is changed: every strength that was tried costs more of the old samples (keep=) than it fixes; "
    "pass strength= to insist",
)
MORE = "without modules= all weights may move, and more samples can be fixed"
_NAMED = 8
_FAR = 0.3
"""Share of a weight's norm from which a move is far. Networks of benchmarks/repair.py stay below 0.25; the head of a
small GRU that moved by 0.6 cost 40 times the predicted KL."""
_REPLAYABLE = 500
"""Old samples from which replay is worth a look. With 100 it cost 3 to 9 points of old accuracy more than the nearest
weights, with 500 and 2,000 between 0.3 and 3 (benchmarks/repair_choices.py --only replay)."""

_ONE_SIDED = 0.8
"""Share of the failures with one label from which they are one-sided. Of 20 failures under noise, with 4, 10, 16
and 20 of one label, others gained 10.0, 9.2, 7.4 and 4.8 points (benchmarks/one_sided.py): a quarter is lost at 16."""


def notes_on(
    inputs: Inputs,
    labels: Tensor,
    outputs: Tensor,
    right: Tensor,
    fixed: Tensor,
    budget: float,
    remembered: int,
) -> tuple[str, ...]:
    """Sentences, the weightiest first."""
    notes = []
    twice, against = _copies(inputs, labels)
    if bool(right.all()):
        notes.append("every sample was right already: nothing is changed")
    else:
        notes += _of_copies(twice, against)
        notes += _one_sided(labels, outputs, right)
    if not bool(fixed.all()):
        missed = (~fixed).nonzero().squeeze(1).tolist()
        which = f"{len(missed)} of {len(fixed)} samples are not fixed"
        if budget < math.inf:
            which += f" within a predicted KL of {budget:g}"
        which += f": {_some(missed)}"
        if budget < math.inf and not set(missed) <= {row for rows in against for row in rows}:
            which += "; raise budget= if these matter more than the old inputs"
        notes.append(which)
    if remembered < 100:
        notes.append(f"the memory is of {remembered} inputs only: what it says of the cost is rough below some hundred")
    return tuple(notes)


def far_moves(moved: Mapping[str, float]) -> tuple[str, ...]:
    """A warning where a weight has moved so far that the metric, which is of small changes, says little of the cost."""
    name = max(moved, key=lambda n: moved[n])
    if moved[name] <= _FAR:
        return ()
    return (
        f"{name} moved by {percent(moved[name])} of its norm: the predicted KL is for small changes, and the true "
        "one can be many times that. Count what breaks on old samples (keep=) before you trust this repair",
    )


def on_replay(kept: int) -> tuple[str, ...]:
    """What many old samples could be used for besides choosing the strength."""
    if kept < _REPLAYABLE:
        return ()
    return (
        f"with {kept} old samples method='replay' is a choice as well: other samples of this kind may gain some points "
        "more, and more old ones break. frpt.compare_repairs shows both on yours",
    )


def on_the_change(moved: Mapping[str, float] | None, kept: int | None, nearest: bool, tried: bool) -> tuple[str, ...]:
    """How far the weights move, what old samples at hand would be better for, or why nothing is changed.

    moved: by weight; None where nothing is changed. kept: how many old samples are at hand; None without any.
    """
    if moved is None:
        return _UNWORTHY if kept is not None and tried else ()
    if not nearest:
        return ()
    return (*far_moves(moved), *(() if kept is None else on_replay(kept)))


def _copies(inputs: Inputs, labels: Tensor) -> tuple[list[list[int]], list[list[int]]]:
    """Rows of samples that are there several times: with the same label, and with different ones."""
    seen: dict[str, list[int]] = {}
    for i in range(inputs.batch):
        one = inputs.part(i, i + 1)
        seen.setdefault(sha256_of_item((one.args, one.kwargs)), []).append(i)
    several = [rows for rows in seen.values() if len(rows) > 1]
    against = [rows for rows in several if any(not torch.equal(labels[rows[0]], labels[r]) for r in rows)]
    return [rows for rows in several if rows not in against], against


def _of_copies(twice: list[list[int]], against: list[list[int]]) -> list[str]:
    notes = []
    if against:
        notes.append(f"samples {_some(against[0])} are equal and have different labels: no network can be right on all")
    if twice:
        count = sum(len(rows) - 1 for rows in twice)
        notes.append(f"{count} samples are copies of others, and count as often as they are there")
    return notes


def _one_sided(labels: Tensor, outputs: Tensor, right: Tensor) -> list[str]:
    """Failures of one label, all or most: the cheapest repair gives that label to everything."""
    if task_of(labels) == "regression" or (labels.dim() > 1 and labels.shape[1] > 1):
        return []
    wrong = ~right
    count = int(wrong.sum())
    wanted, counts = labels[wrong].unique(return_counts=True)
    most = int(counts.max())
    if count < 2 or most < _ONE_SIDED * count:
        return []
    label = int(wanted[counts.argmax()])
    own = wrong & (labels.reshape(len(labels)) == label)
    predicted = outputs.argmax(1) if labels.dim() == 1 else 1 - labels[:, 0]  # of one logit: what it is not
    taken = predicted[own].unique()
    who = f"{'all' if most == count else f'{most} of {count}'} failures are of class {label}"
    who += f", taken for {int(taken[0])}" if len(taken) == 1 else ""
    return [
        f"{who}: a repair that sees {'one label only' if most == count else 'hardly another label'} drifts towards "
        f"giving it to everything. Add samples of "
        f"{'class ' + str(int(taken[0])) if len(taken) == 1 else 'other classes'} that are right, or pass keep="
    ]


def _some(rows: list[int]) -> str:
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return ", ".join(map(str, rows[:_NAMED])) + more
