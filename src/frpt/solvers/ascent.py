"""Far starts for samples whose label wins nowhere near the anchor: steepest ascent of its lead, from many places.

    a ← a + h_t v,   v ← μ v + (1 − μ) ∇ℓ/‖∇ℓ‖,   ℓ(a) = min_j (s_y(a) − s_j(a)),   ‖a − â‖ ≤ farthest,  low ≤ a ≤ high

A path of few units has regions in which all that could raise the label is dead: there the gradient is zero, or leads
into a corner. Starts on spheres around the anchor see the other regions. The steps h_t shrink from a fifth of the
sphere's radius, so that an ascent crosses many kinks first and settles between them at last. Every sample gets the same
directions, in norms of its own anchor: its answer does not depend on its batch.
Called by ``nearest`` for the samples that are lost otherwise, which pulls what is found here back to the anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frpt.common.checks import require_numbers_positive
from frpt.solvers.base import Working, row_norm
from frpt.solvers.contest import Contest


@dataclass(frozen=True)
class Ascent:
    """Ascents of the label's lead from many starts, in rounds; a sample is done after a round that finds a win.

    The numbers were chosen on random networks of width 8 (``benchmarks/reachable.py``).

    Args:
        rounds: how many starts each round has.
        narrow: entries of a feature up to which it gets all these starts; a wider one gets fewer in proportion, since
            in wide paths the gradient is hardly ever dead.
        steps: most passes of one ascent.
        radii: of the spheres that starts lie on, in turn, as shares of the farthest distance.
        longest: the first step, as a share of the start's radius.
        shortest: the last one.
        inertia: μ.
        hope: a sample is given up after a round that brought its lead less than this share of what it lacks.
        kept: winning points of a sample that are pulled back to the anchor, the nearest ones.
        nearer: once the label has won, one more round looks for a win within this share of the distance; and so on.

    Raises:
        OptionError: a number is not positive.

    Example:
        >>> import frpt
        >>> nearest = frpt.NearestWinning(ascent=frpt.options.Ascent(rounds=(16,)))
    """

    rounds: tuple[int, ...] = (16, 48, 192)
    narrow: int = 64
    steps: int = 40
    radii: tuple[float, ...] = (1.0, 0.3)
    longest: float = 0.2
    shortest: float = 0.005
    inertia: float = 0.5
    hope: float = 0.1
    kept: int = 3
    nearer: float = 0.8

    def __post_init__(self) -> None:
        require_numbers_positive(self)

    def solve(self, contest: Contest, lead: Tensor, farthest: Tensor, together: int) -> Climbed:
        """Winning points of every sample of the contest, as far as any start leads to one.

        lead: (b,), the label's at the anchor. farthest: (b,), as a distance. together: most points in a pass.
        """
        climbed = Climbed.none(contest, self.kept)
        width = contest.anchor[0].numel()
        lacks = (contest.margin.double() - lead).clamp_min(0.0)
        noise = torch.Generator().manual_seed(0)
        left = torch.arange(len(contest.label), device=contest.label.device)
        for planned in self.rounds:
            count = max(1, planned * self.narrow // max(width, self.narrow))
            ways = torch.randn(count, width, generator=noise)
            ways = (ways / torch.linalg.vector_norm(ways, dim=1, keepdim=True)).to(contest.anchor)
            ways *= ways.new_tensor([self.radii[i % len(self.radii)] for i in range(count)])[:, None]
            copies = together if contest.repeats else 1  # samples times starts in a pass
            for group in ways.split(max(1, min(count, copies))):
                for rows in left.split(max(1, copies // len(group)) if contest.repeats else len(left)):
                    _climb(contest, self, climbed, rows, group, farthest)
            gained = climbed.lead[left] - lead[left]
            left = left[~climbed.won[left] & (gained >= self.hope * lacks[left])]
            if len(left) == 0:
                break
        return climbed


@dataclass
class Climbed:
    """What was found. point: (b, kept, n), the nearest winning points first; distance: (b, kept), infinite for none.

    lead: (b,), the largest that was seen. passes: (b,), forward and backward.
    """

    point: Tensor
    distance: Tensor
    lead: Tensor
    passes: Tensor

    @staticmethod
    def none(contest: Contest, kept: int) -> Climbed:
        anchor = contest.anchor.flatten(1)
        b = len(anchor)
        distance = torch.full((b, kept), torch.inf, dtype=torch.float64, device=anchor.device)
        lead = distance.new_full((b,), -torch.inf)
        return Climbed(anchor[:, None].repeat(1, kept, 1), distance, lead, torch.zeros_like(contest.label))

    @property
    def won(self) -> Tensor:
        """(b,) bool: some start led to a win."""
        return self.distance[:, 0] < torch.inf

    def add(self, rows: Tensor, point: Tensor, distance: Tensor) -> None:
        """More points of the samples ``rows: (k,)``. point: (k, m, n); distance: (k, m)."""
        points = torch.cat([self.point[rows], point], 1)
        near = torch.cat([self.distance[rows], distance], 1).sort(dim=1, stable=True)
        first = near.indices[:, : self.distance.shape[1]]
        self.distance[rows] = near.values[:, : first.shape[1]]
        self.point[rows] = points.gather(1, first[:, :, None].expand(-1, -1, points.shape[2]))


@dataclass
class _State(Working):
    """The ascents still on their way. place: (k,), among all of the pass. row: (k,), its sample in the contest.

    a, anchor, v: (k, n). farthest, radius: (k,), the largest distance, and that which the ascent began with.
    """

    place: Tensor
    row: Tensor
    a: Tensor
    anchor: Tensor
    v: Tensor
    farthest: Tensor
    radius: Tensor


def _climb(contest: Contest, options: Ascent, climbed: Climbed, rows: Tensor, ways: Tensor, farthest: Tensor) -> None:
    """One ascent for each of the samples ``rows: (k,)`` from each start ``ways: (m, n)``, in farthest distances."""
    k, m = len(rows), len(ways)
    row = rows.repeat_interleave(m)
    anchor, far = contest.anchor.flatten(1)[row], farthest[row].to(contest.anchor.dtype)
    radius = far * torch.linalg.vector_norm(ways, dim=1).repeat(k)
    start = contest.within.clamp(anchor + far[:, None] * ways.repeat(k, 1), anchor)
    place = torch.arange(len(row), device=row.device)
    state = _State(place, row, start, anchor, torch.zeros_like(start), far, radius)
    point, distance = start.clone(), torch.full((len(row),), torch.inf, dtype=torch.float64, device=row.device)
    for step in range(options.steps):
        lead, slope = _look(contest, state)
        climbed.passes.index_add_(0, state.row, torch.ones_like(state.row))
        climbed.lead.scatter_reduce_(0, state.row, lead.double(), "amax")
        wins = contest.wins(lead, state.row)
        point[state.place[wins]] = state.a[wins]
        distance[state.place[wins]] = contest.distance((state.a - state.anchor)[wins])
        _step(contest, state, slope, options, step / max(options.steps - 1, 1))
        state.keep(~wins & (state.v != 0).any(1))
        if len(state.row) == 0:
            break
    climbed.add(rows, point.reshape(k, m, -1), distance.reshape(k, m))


def _look(contest: Contest, state: _State) -> tuple[Tensor, Tensor]:
    """(ℓ: (k,), ∇ℓ: (k, n), without what points out of the range)."""
    with torch.enable_grad():
        at = state.a.reshape(len(state.row), *contest.anchor.shape[1:]).detach().requires_grad_(True)
        lead = contest.leads(contest.fn(at, state.row), state.row).amin(1)
        (slope,) = torch.autograd.grad(lead.sum(), at)
    slope = slope.flatten(1).nan_to_num(0.0, 0.0, 0.0)
    if contest.within.bounded:
        stays = contest.within.clamp(state.a + slope, state.anchor) == state.a
        slope = torch.where(stays, 0.0, slope)
    return lead.detach(), slope


def _step(contest: Contest, state: _State, slope: Tensor, options: Ascent, done: float) -> None:
    """One step of the ascent; back onto the farthest sphere where it has left it."""
    tiny = torch.finfo(slope.dtype).tiny
    unit = slope / torch.linalg.vector_norm(slope, dim=1, keepdim=True).clamp_min(tiny)
    state.v = options.inertia * state.v + (1 - options.inertia) * unit
    length = state.radius * options.longest * (options.shortest / options.longest) ** done
    point = contest.within.clamp(state.a + length[:, None] * state.v, state.anchor)
    way = point - state.anchor
    share = (state.farthest / row_norm(way).to(way.dtype).clamp_min(tiny)).clamp(max=1.0)
    state.a = state.anchor + share[:, None] * way
