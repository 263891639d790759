"""The nearest feature in which the label wins, for any differentiable path from the feature to the scores.

    min ½‖a − â‖²_M   subject to   c_j(a) = s_y(a) − s_j(a) − margin ≥ 0 for every class j ≠ y,   low ≤ a ≤ high

Sequential quadratic programming with an active set, every sample by itself. One forward and one backward pass a step:
the forward pass gives every c_j(a), the backward pass the gradient of the least of them. Gradients of the classes that
were the least before are kept, at most ``competitors`` of them: they are stale by a step or two, their c_j is not. With
the rows G of these gradients the quadratic program

    min ½‖v − centre‖²_M   subject to   c + G(v − a) ≥ 0,   low ≤ v ≤ high

has the solution v = clamp(centre + M⁻¹Gᵀλ), λ ≥ 0, looked for in its dual: ``competitors`` unknowns for each sample.
Called by ``frpt.reverse.whole_path``; knows a function and its constraints, not what layer they came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.ascent import Ascent
from frpt.solvers.base import Range, Solution, Working, row_norm
from frpt.solvers.contest import Contest
from frpt.solvers.linear.gate import admissible


@dataclass(frozen=True)
class Winning(Solution):
    """value: (b, *in), the anchor where the label wins in no feature that was tried: that is its ``fallback``.

    iterations: (b,), backward passes spent on each sample; forwards: (b,), forward passes.
    """

    forwards: Tensor

    @property
    def wins(self) -> Tensor:
        """(b,) bool."""
        return ~self.fallback


@dataclass(frozen=True)
class NearestWinning:
    """Active-set SQP for  min ½‖a − â‖²_M  subject to  c_j(a) ≥ 0,  low ≤ a ≤ high.

    The numbers were chosen on MNIST's and CIFAR-10's SimpleCNN and on CREPE, where none of them is critical
    (``benchmarks/nearest.py``).

    Args:
        competitors: classes whose gradients are kept for each sample.
        steps: most forward and backward passes from one start.
        patience: steps in a row that may win little before a sample whose label wins is done.
        persistence: steps in a row that may bring the label no nearer to winning before a start is given up.
        stride: longest step, in norms of the anchor.
        gain: share of the distance a step has to win to count.
        beyond: how far the first step goes beyond the linearised boundary, as a share of its length; twice as far each
            time, up to ``most_beyond``, until the label has won.
        most_beyond: the largest such share.
        polish_beyond: the same once the label has won.
        halved: a step that leaves more than this share of what the label lacks is slow, and the next step's centre
            moves from the anchor to where the sample is.
        shrink: how much of the way back to the anchor is left then.
        rounds: most looks, in a step, at which entries sit on the bound of their range.
        shorten: the last stretch, as a share of the way, in which to look for where the label just still wins.
        looks: forward passes for that.
        probes: random points to start again from, the best of them, where no step makes the label win; 0: none.
        radii: their distances, in norms of the anchor.
        ascent: starts all over the features within ``farthest``, for samples that are still lost; None: none.
        farthest: norms of the anchor within which a target has to lie; one farther away is no feature this layer would
            produce.
        together: most samples in a pass: more are no faster on a CPU.
        budget: bytes that the gradients and steps of the samples in a pass may take.

    Raises:
        OptionError: a number is not positive.

    Example:
        >>> import frpt
        >>> from dataclasses import replace
        >>> from frpt.options import PRESETS
        >>> quick = replace(PRESETS["default"], name="quick", nearest=frpt.NearestWinning(steps=8, probes=0))
        >>> quick.nearest.competitors
        3
    """

    competitors: int = 3
    steps: int = 40
    patience: int = 2
    persistence: int = 10
    stride: float = 0.5
    gain: float = 0.01
    beyond: float = 0.01
    most_beyond: float = 0.1
    polish_beyond: float = 5e-3
    halved: float = 0.5
    shrink: float = 0.3
    rounds: int = 2
    shorten: float = 0.01
    looks: int = 3
    probes: int = 48
    radii: tuple[float, ...] = (0.3, 1.0, 2.0, 4.0)
    ascent: Ascent | None = field(default_factory=Ascent)
    farthest: float = 10.0
    together: int = 1024
    budget: int = 2**28

    def __post_init__(self) -> None:
        require_numbers_positive(self, "probes")

    def solve(self, contest: Contest) -> Winning:
        """The nearest winning feature of every sample; the anchor where there is none to be had."""
        shape = contest.anchor.shape
        contest = replace(contest, within=contest.within.around(contest.anchor))
        best = _Best(contest.anchor.flatten(1))
        for rows in self.chunks(contest):
            _search(contest, self, best, rows, contest.anchor.flatten(1)[rows])
        if self.probes:
            for rows in self.chunks(contest, (~best.winning).nonzero().squeeze(1)):
                _search(contest, self, best, rows, _elsewhere(contest, self, best, rows))
        if self.ascent is not None:
            best.forget(~admissible(best.value, contest.anchor.flatten(1), contest.gate))
            for rows in self.chunks(contest, (~best.winning).nonzero().squeeze(1)):
                _ascend(contest, self, self.ascent, best, rows)
        _shorten(contest, self, best)
        wins = best.winning & admissible(best.value, contest.anchor.flatten(1), contest.gate)
        value = torch.where(wins[:, None], best.value, contest.anchor.flatten(1)).reshape(shape)
        return Winning(value, ~wins, best.backwards, best.forwards)

    def chunks(self, contest: Contest, rows: Tensor | None = None) -> tuple[Tensor, ...]:
        """Samples, all of them or ``rows``, as many together as go into a pass."""
        if rows is None:
            rows = torch.arange(len(contest.anchor), device=contest.anchor.device)
        return rows.split(self.most(contest)) if len(rows) else ()

    def most(self, contest: Contest) -> int:
        """Most samples in a pass: what rows, moves, the program and a pass take has to fit into the budget."""
        one = contest.anchor[:1].nbytes * (2 * self.competitors + 8)
        return max(8, min(self.together, self.budget // max(one, 1)))


@dataclass
class _State(Working):
    """The samples still at work.

    index: (k,), their place in the contest. a, anchor: (k, n). rows: (k, m, n), G. moves: the same, M⁻¹Gᵀ; None where
    M = I. rival: (k, m), the class of each row, -1 for none. weight: (k, m), λ. back: (k,), how far back to the anchor
    the centre lies. short, least: (k,), by how much the label missed last, and at its best. wins: (k,), whether it does
    at a. idle: (k,), steps in a row that brought little.
    """

    index: Tensor
    a: Tensor
    anchor: Tensor
    rows: Tensor
    moves: Tensor | None
    rival: Tensor
    weight: Tensor
    back: Tensor
    short: Tensor
    least: Tensor
    wins: Tensor
    idle: Tensor


class _Best:
    """The nearest winning feature of every sample so far. value: (b, n); distance: (b,), infinite for none;
    lead: (b,), by how much the label wins there."""

    def __init__(self, anchor: Tensor) -> None:
        self.value = anchor.clone()
        self.distance = torch.full((len(anchor),), torch.inf, dtype=torch.float64, device=anchor.device)
        self.lead = torch.zeros_like(self.distance)
        self.forwards = torch.zeros(len(anchor), dtype=torch.long, device=anchor.device)
        self.backwards = torch.zeros_like(self.forwards)

    @property
    def winning(self) -> Tensor:
        """(b,) bool: the label has won somewhere."""
        return self.distance < torch.inf

    def forget(self, rows: Tensor) -> None:
        """Samples whose feature will not do. rows: (b,) bool."""
        self.distance[rows] = torch.inf

    def take(self, index: Tensor, value: Tensor, distance: Tensor, lead: Tensor, better: Tensor) -> None:
        self.value[index[better]] = value[better]
        self.lead[index[better]] = lead[better].double()
        self.distance[index[better]] = distance[better]


def _search(contest: Contest, options: NearestWinning, best: _Best, index: Tensor, start: Tensor) -> None:
    """Steps from the start until nothing more is won."""
    anchor = contest.anchor.flatten(1)[index]
    (k, n), m = anchor.shape, options.competitors
    rows = anchor.new_zeros(k, m, n)
    state = _State(
        index, start.clone(), anchor, rows, None if contest.metric is None else torch.zeros_like(rows),
        index.new_full((k, m), -1),
        torch.zeros(k, m, dtype=torch.float64, device=anchor.device), anchor.new_ones(k),
        anchor.new_full((k,), torch.inf), anchor.new_full((k,), torch.inf), torch.zeros_like(index, dtype=torch.bool),
        torch.zeros_like(index),
    )  # fmt: skip
    norms = contest.norms()
    for tried in range(options.steps):
        lead = _look(contest, state, best, options)
        beyond = min(options.beyond * 2**tried, options.most_beyond)
        _step(contest, state, best, lead, norms[state.index], beyond, options)
        won = best.winning[state.index]
        state.keep(state.idle < torch.where(won, options.patience, options.persistence))
        if len(state.index) == 0:
            return


def _look(contest: Contest, state: _State, best: _Best, options: NearestWinning) -> Tensor:
    """One forward and backward pass: what a wins, and the row of its closest rival. Returns c: (k, classes)."""
    index = state.index
    with torch.enable_grad():
        point = state.a.reshape(len(index), *contest.anchor.shape[1:]).detach().requires_grad_(True)
        scores = contest.fn(point, index)
        leads = contest.leads(scores.detach(), index)
        least, rival = leads.min(1)
        pull = torch.zeros_like(scores).scatter(1, contest.label[index][:, None], 1.0)
        pull.scatter_(1, rival[:, None], -1.0)
        (row,) = torch.autograd.grad(scores, point, pull)
    best.forwards[index] += 1
    best.backwards[index] += 1
    wins = contest.wins(least, index)
    distance = contest.distance(state.a - state.anchor)
    before = best.distance[index]
    much = wins & (distance < (1 - options.gain) * before)
    best.take(index, state.a, distance, least, wins & (distance < before))
    short = torch.where(wins, torch.inf, contest.margin[index] - least)
    searching = before == torch.inf
    slow = ~wins & searching & (short > options.halved * state.short)
    state.back = torch.where(slow, options.shrink * state.back, torch.where(wins, 1.0, state.back))
    nearer = searching & (wins | (short < (1 - options.gain) * state.least))
    state.idle = torch.where(much | nearer, 0, state.idle + 1)
    state.short, state.least, state.wins = short, torch.minimum(state.least, short), wins
    _remember(contest, state, row.flatten(1).nan_to_num(0.0, 0.0, 0.0), rival, leads)
    return leads - contest.margin[index][:, None]


def _remember(contest: Contest, state: _State, row: Tensor, rival: Tensor, leads: Tensor) -> None:
    """The new row in the place of the same class, else in a free place or that of the class that is farthest behind."""
    same = state.rival == rival[:, None]
    behind = torch.where(state.rival >= 0, leads.gather(1, state.rival.clamp_min(0)), torch.inf)
    place = torch.where(same.any(1), same.long().argmax(1), behind.argmax(1))
    each = torch.arange(len(place), device=place.device)
    state.weight[each, place] = torch.where(same.any(1), state.weight[each, place], 0.0)
    state.rows[each, place], state.rival[each, place] = row, rival
    if state.moves is not None and contest.metric is not None:
        state.moves[each, place] = contest.metric.spread(row)


def _step(
    contest: Contest, state: _State, best: _Best, lead: Tensor, norms: Tensor, beyond: float, options: NearestWinning
) -> None:
    """a ← the solution of the quadratic program, a little beyond; a sample that it promises nothing more is done.

    Where the last step lost a label that had won, half way back to where it did.
    """
    won = best.winning[state.index]
    centre = torch.lerp(state.a, state.anchor, torch.where(won, 1.0, state.back)[:, None].to(state.a.dtype))
    known = state.rival >= 0
    c = torch.where(known, lead.gather(1, state.rival.clamp_min(0)), torch.inf)
    linearised = c.double() + _dot(state.rows, centre - state.a)
    point = _program(contest.within, state, centre, torch.where(known, linearised, torch.inf), options)
    farther = torch.where(won, options.polish_beyond, beyond)[:, None].to(point.dtype)
    point = contest.within.clamp(centre + (1 + farther) * (point - centre), state.anchor)
    promised = contest.distance(point - state.anchor)
    done = won & (promised >= (1 - options.gain) * best.distance[state.index])
    state.idle = torch.where(done, options.patience, state.idle)
    point = torch.where((won & ~state.wins)[:, None], (point + best.value[state.index]) / 2, point)
    way = point - state.a
    length = row_norm(way)
    share = (options.stride * norms / length.clamp_min(1e-300)).clamp(max=1.0)
    point = torch.where((share < 1)[:, None], state.a + share[:, None].to(way.dtype) * way, point)
    sound = torch.isfinite(length)  # else the path overflowed at a: half way back
    if not bool(sound.all()):
        point = torch.where(sound[:, None], point, torch.lerp(state.a, state.anchor, 0.5))
        state.weight = state.weight.nan_to_num(0.0, 0.0, 0.0)
    state.a = point


def _program(within: Range, state: _State, centre: Tensor, c: Tensor, options: NearestWinning) -> Tensor:
    """v: (k, n). c: (k, m), the linearised constraints at the centre. Semi-smooth Newton on which entries are fixed.

    Entries that would leave the range are fixed on its bound, and λ is computed again for the others; the first guess
    of which these are comes from the last step's λ.
    """
    moves = state.rows if state.moves is None else state.moves
    if not within.bounded:
        state.weight = complementary((state.rows @ moves.mT).double(), -c)
        return centre + _combine(moves, state.weight)
    free = centre + _combine(moves, state.weight)
    point = within.clamp(free, state.anchor)
    for _ in range(options.rounds):
        bound = point != free
        fixed = bound.to(point.dtype)
        missing = c + _dot(state.rows, (point - centre) * fixed)
        state.weight = complementary(((state.rows * (1 - fixed)[:, None]) @ moves.mT).double(), -missing)
        free = centre + _combine(moves, state.weight)
        point = within.clamp(free, state.anchor)
        if bool(((point != free) == bound).all()):
            break
    return point


def complementary(K: Tensor, r: Tensor) -> Tensor:
    """λ ≥ 0 with Kλ ≥ r and λᵀ(Kλ − r) = 0, by a primal-dual active set. K: (k, m, m) positive semi-definite.

    A row that cannot move anything (K_jj = 0) keeps λ_j = 0; rows that are copies of each other share theirs by the
    ridge.
    """
    m = K.shape[-1]
    size = K.diagonal(dim1=1, dim2=2)
    largest = size.amax(1, keepdim=True)
    live = size > 1e-12 * largest.clamp_min(1e-290)
    eye = torch.eye(m, dtype=K.dtype, device=K.device)
    K = K + 1e-9 * largest.clamp_min(1e-290)[..., None] * eye
    scale = torch.where(r > -torch.inf, r, 0.0).abs().amax(1, keepdim=True)
    active = (r > 0) & live
    weight = torch.zeros_like(r)
    for _ in range(m + 1):
        part = torch.where(active[:, :, None] & active[:, None, :], K, eye)
        weight = torch.linalg.solve_ex(part, torch.where(active, r, 0.0))[0]
        missing = r - (weight.contiguous()[:, None] @ K).squeeze(1)
        again = (active & (weight > 0)) | (~active & live & (missing > 1e-9 * scale))
        if bool((again == active).all()):
            break
        active = again
    return weight.clamp_min(0.0).contiguous()  # the solver's layout would make later products slow


def _elsewhere(contest: Contest, options: NearestWinning, best: _Best, rows: Tensor) -> Tensor:
    """A start away from anchors where no gradient leads anywhere: of some random points the one nearest to a win.

    The same noise for every sample, in norms of its own: samples stay independent.
    """
    anchor, norms = contest.anchor.flatten(1)[rows], contest.norms()[rows]
    noise = torch.Generator().manual_seed(0)
    start, most = anchor.clone(), torch.full((len(rows),), -torch.inf, device=anchor.device)
    for i in range(options.probes):
        way = torch.randn(anchor.shape[1], generator=noise).to(anchor)
        length = (options.radii[i % len(options.radii)] * norms)[:, None].to(anchor.dtype)
        point = contest.within.clamp(anchor + length * way / torch.linalg.vector_norm(way), anchor)
        lead = _lead(contest, point, rows, best)
        start = torch.where((lead > most)[:, None], point, start)
        most = torch.maximum(most, lead)
    return start


def _ascend(contest: Contest, options: NearestWinning, ascent: Ascent, best: _Best, rows: Tensor) -> None:
    """Winning points found far from the anchor, and from the nearest of them searches for nearer ones.

    What is found lies where a start happened to lead: so once more within a share of its distance, while that helps.
    """
    lead = _lead(contest, contest.anchor.flatten(1)[rows], rows, best).double()
    farthest = min(options.farthest, contest.gate.deviation) * contest.norms()[rows]
    while len(rows):
        part = contest.part(rows)
        climbed = ascent.solve(part, lead, farthest, options.most(contest))
        best.forwards[rows] += climbed.passes
        best.backwards[rows] += climbed.passes
        for k in range(ascent.kept):
            found = (climbed.distance[:, k] < torch.inf).nonzero().squeeze(1)
            if len(found):
                _pull(part.part(found), options, best, rows[found], climbed.point[found, k])
        ascent = replace(ascent, rounds=ascent.rounds[:1])
        reached = row_norm(best.value[rows] - contest.anchor.flatten(1)[rows])
        rows, lead, farthest = (v[climbed.won] for v in (rows, lead, ascent.nearer * reached))


def _pull(part: Contest, options: NearestWinning, best: _Best, index: Tensor, start: Tensor) -> None:
    """A search of its own from winning points: one that begins farther away may end nearer."""
    mine = _Best(part.anchor.flatten(1))
    _search(part, options, mine, torch.arange(len(index), device=index.device), start)
    best.take(index, mine.value, mine.distance, mine.lead, mine.distance < best.distance[index])
    best.forwards[index] += mine.forwards
    best.backwards[index] += mine.backwards


def _lead(contest: Contest, point: Tensor, rows: Tensor, best: _Best) -> Tensor:
    """By how much the label wins over its closest rival at a point: (k,), -inf where scores are NaN."""
    with torch.no_grad():
        scores = contest.fn(point.reshape(len(rows), *contest.anchor.shape[1:]), rows)
    best.forwards[rows] += 1
    return contest.leads(scores, rows).amin(1)


def _shorten(contest: Contest, options: NearestWinning, best: _Best) -> None:
    """The last stretch: back towards the anchor as far as the label still wins; forward passes only.

    By false position: along so short a way the lead is nearly linear, and three looks reach what bisection takes ten
    for. Each look aims a little on the winning side of the straight line's zero.
    """
    anchor = contest.anchor.flatten(1)
    for rows in options.chunks(contest, best.winning.nonzero().squeeze(1)):
        way, near, margin = best.value[rows] - anchor[rows], best.value[rows], contest.margin[rows].double()
        high = torch.ones(len(rows), dtype=torch.float64, device=anchor.device)
        low, over = high - options.shorten, best.lead[rows] - margin
        short, share = torch.full_like(over, -torch.inf), low
        for _ in range(options.looks):
            point = contest.within.clamp(anchor[rows] + share[:, None].to(way.dtype) * way, anchor[rows])
            lead = _lead(contest, point, rows, best)
            wins = contest.wins(lead, rows)
            near = torch.where(wins[:, None], point, near)
            excess = lead.double() - margin
            low, high = torch.where(wins, low, share), torch.where(wins, share, high)
            short, over = torch.where(wins, short, excess), torch.where(wins, excess, over)
            part = (over / (over - short)).nan_to_num(0.5).clamp(0.02, 0.98)
            share = high - 0.98 * part * (high - low)
        best.value[rows] = near


def _dot(rows: Tensor, v: Tensor) -> Tensor:
    """rows · v: (k, m), in double. rows: (k, m, n), v: (k, n)."""
    return (v[:, None] @ rows.mT).squeeze(1).double()  # rows @ v takes eight times as long on a CPU


def _combine(rows: Tensor, weight: Tensor) -> Tensor:
    """Σ_j weight_j row_j: (k, n)."""
    return (weight.to(rows.dtype).contiguous()[:, None] @ rows).squeeze(1)
