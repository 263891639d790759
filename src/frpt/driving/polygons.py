"""Geometry that the score stands on: points in polygons, boxes that meet, places along a line; all in batches.

``areas`` and ``pdm_score`` call it. Answers are exact for the coordinates given, touching included: every decision is
the sign of a determinant, taken in floating point where that is certain and in rational numbers where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


def side(a: Array, b: Array, c: Array) -> Array:
    """On which side of the line from a to b the point c lies: above zero left, below zero right, zero on the line.

    The determinant (b − a) × (c − a), of which the sign is exact.

    Args:
        a, b, c: Points (…, 2), broadcast against each other.

    Returns:
        (…) numbers; their signs can be trusted, their sizes are rounded.
    """
    left = (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1])
    right = (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
    found = left - right
    # Shewchuk 1997, "Adaptive precision floating-point arithmetic", orient2d: |error| ≤ (3 + 16ε)ε(|left| + |right|).
    doubtful = np.abs(found) < 3.3306690738754716e-16 * (np.abs(left) + np.abs(right))
    if doubtful.any():
        shape = (*found.shape, 2)
        for place in np.argwhere(doubtful):
            p, q, r = (
                [Fraction(float(value)) for value in np.broadcast_to(point, shape)[tuple(place)]] for point in (a, b, c)
            )
            exact = (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])
            found[tuple(place)] = (exact > 0) - (exact < 0)
    return np.asarray(found)


@dataclass(frozen=True, eq=False)
class Slabs:
    """A polygon cut at every vertex's x, so that a point is compared only with the few edges above or below it.

    Between two neighbouring cuts no edge begins or ends. A point is inside if an odd number of edges runs below it, and
    none through it. The polygon need not be convex. Slab 0 is left of the first cut, the last right of the last cut.
    """

    cuts: Array  # (s,) the vertices' x, sorted, each once
    starts: Array  # (c, 2, s + 1) left ends of the edges across each slab; at y = ∞, above all, where there are fewer
    steps: Array  # (c, 2, s + 1) from there to their right ends
    ends: Array  # (c, 2, s + 1) their right ends
    walls: Array  # (3, w) x, lowest and highest y of edges without extent in x, and of vertices
    doubt: float  # determinants up to this size may have a wrong sign

    @classmethod
    def of(cls, points: Array) -> Slabs:
        """The slabs of the polygon with these points (n, 2), closed from the last to the first."""
        other = np.roll(points, -1, axis=0)
        rightward = (points[:, 0] < other[:, 0])[:, None]
        left, right = np.where(rightward, points, other), np.where(rightward, other, points)
        slanted = left[:, 0] < right[:, 0]
        cuts = np.unique(points[:, 0])
        first, last = (np.searchsorted(cuts, end[slanted, 0]) for end in (left, right))
        spans = last - first
        edge = np.repeat(np.flatnonzero(slanted), spans)
        slab = np.repeat(first - np.cumsum(spans) + spans, spans) + np.arange(len(edge))
        order = np.argsort(slab, kind="stable")
        edge, slab = edge[order], slab[order]
        counts = np.bincount(slab, minlength=len(cuts))
        row = np.arange(len(slab)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts, steps, ends = (np.zeros((counts.max(), 2, len(cuts) + 1)) for _ in range(3))
        starts[:, 1], steps[:, 0] = np.inf, 1.0
        for table, values in ((starts, left), (steps, right - left), (ends, right)):
            table[row, :, slab + 1] = values[edge]
        low, high = np.minimum(points, other)[~slanted], np.maximum(points, other)[~slanted]
        walls = np.concatenate([np.stack([low[:, 0], low[:, 1], high[:, 1]], -1), points[:, [0, 1, 1]]])
        # A sign is wrong only if both products of the determinant are nearly the same, and then both are below
        # 1.5 width · height; the error is at most 3.4e-16 of their sum (see ``side``).
        return cls(cuts, starts, steps, ends, walls.T, 1.1e-15 * float(np.prod(np.ptp(points, axis=0))))

    def contain(self, points: Array) -> Bools:
        """Which points lie strictly inside; a point on the border does not.

        Args:
            points: (…, 2).

        Returns:
            (…) true or false.
        """
        flat = points.reshape(-1, 2)
        x, y = flat[:, 0].copy(), flat[:, 1].copy()
        slab = np.searchsorted(self.cuts, x, side="right")
        inside, border = np.zeros(len(x), dtype=np.bool_), np.zeros(len(x), dtype=np.bool_)
        for start, step, end in zip(self.starts, self.steps, self.ends, strict=True):
            turn = step[0, slab] * (y - start[1, slab]) - step[1, slab] * (x - start[0, slab])
            unsure = np.flatnonzero(np.abs(turn) <= self.doubt)
            turn[unsure] = side(start[:, slab[unsure]].T, end[:, slab[unsure]].T, flat[unsure])
            inside ^= turn > 0
            border |= turn == 0
        inside &= ~border
        # Edges that end at the point's x, or stand on it, are in no slab of the point.
        at_cut = np.flatnonzero(inside)
        at_cut = at_cut[x[at_cut] == self.cuts[slab[at_cut] - 1]]
        wall_x, low, high = self.walls
        at = (x[at_cut, None] == wall_x) & (y[at_cut, None] >= low) & (y[at_cut, None] <= high)
        inside[at_cut] = ~at.any(-1)
        return inside.reshape(points.shape[:-1])


def corners(centre: Array, heading: Array, length: float | Array, width: float | Array) -> Array:
    """The corners of boxes, counter-clockwise: front left, rear left, rear right, front right.

    Written as the devkit writes it, cos(θ + π/2) for −sin θ included: boxes that touch there touch here.

    Args:
        centre: (…, 2).
        heading: (…).
        length, width: Sizes along and across the heading, broadcast against the heading.

    Returns:
        (…, 4, 2).
    """
    along = np.stack([np.cos(heading), np.sin(heading)], -1)
    across = np.stack([np.cos(heading + np.pi / 2), np.sin(heading + np.pi / 2)], -1)
    half_length, half_width = np.asarray(length)[..., None] / 2, np.asarray(width)[..., None] / 2
    signs = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    return np.stack([centre + (j * half_width * across + i * half_length * along) for i, j in signs], -2)


def meet(a: Array, b: Array) -> Bools:
    """Whether convex shapes have a point in common, borders included.

    They have none exactly if an edge of one has all of the other strictly on its outer side.

    Args:
        a: Corners counter-clockwise, (n, p, 2); two corners make a line segment.
        b: Corners counter-clockwise of shapes with an inside, (n, r, 2).

    Returns:
        (n,) true or false.
    """
    apart = np.zeros(len(a), dtype=np.bool_)
    for one, other in ((a, b), (b, a)):
        outside = side(one[:, :, None], np.roll(one, -1, axis=1)[:, :, None], other[:, None]) < 0
        apart |= outside.all(-1).any(-1)
    return ~apart


def boxes_meet(a: Array, b: Array) -> Bools:
    """``meet`` for boxes, most of which are decided by how far they are apart along their four directions.

    Args:
        a, b: Corners as ``corners`` gives them, (n, 4, 2).

    Returns:
        (n,) true or false.
    """
    gap = (b[:, 0] + b[:, 2] - a[:, 0] - a[:, 2]).T / 2
    halves = [(box[:, 0] - box[:, other]).T / 2 for box in (a, b) for other in (1, 3)]
    overlap = np.full(len(a), np.inf)
    for x, y in halves:
        reach = sum(np.abs(x * half[0] + y * half[1]) for half in halves)
        np.minimum(overlap, (reach - np.abs(x * gap[0] + y * gap[1])) / np.hypot(x, y), out=overlap)
    met = overlap > 0
    unsure = np.flatnonzero(np.abs(overlap) < 1e-9)  # metres; far more than rounding within 100 km
    met[unsure] = meet(a[unsure], b[unsure])
    return met


def along(line: Array, points: Array) -> Array:
    """How far along a line its nearest places to some points are; the first of several nearest places.

    Args:
        line: Vertices (n, 2).
        points: (p, 2).

    Returns:
        (p,) lengths from the line's beginning.
    """
    start, step = line[:-1], np.diff(line, axis=0)
    squared = np.einsum("ij,ij->i", step, step)
    start, step, squared = start[squared > 0], step[squared > 0], squared[squared > 0]
    length = np.sqrt(squared)
    share = np.clip(((points[:, None] - start) * step).sum(-1) / squared, 0, 1)
    gap = points[:, None] - (start + share[..., None] * step)
    nearest = np.einsum("pij,pij->pi", gap, gap).argmin(-1)
    before = np.cumsum(length) - length
    return np.asarray(before[nearest] + share[np.arange(len(points)), nearest] * length[nearest])
