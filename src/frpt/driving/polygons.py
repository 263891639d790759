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
    none through it. The polygon need not be convex.
    """

    cuts: Array  # (s + 1,) the vertices' x, sorted, each once
    edges: Indices  # (s, c) edges that cross the slab from cut i to cut i + 1
    there: Bools  # (s, c) false where the row has fewer edges
    starts: Array  # (e, 2) the edges' ends with smaller x
    ends: Array  # (e, 2) their ends with larger x
    upright: Array  # (u, 3) x, lowest and highest y of the edges without extent in x; vertices are among them

    @classmethod
    def of(cls, points: Array) -> Slabs:
        """The slabs of the polygon with these points (n, 2), closed from the last to the first."""
        other = np.roll(points, -1, axis=0)
        rightward = points[:, 0] < other[:, 0]
        low, high = np.where(rightward[:, None], points, other), np.where(rightward[:, None], other, points)
        slanted = low[:, 0] < high[:, 0]
        starts, ends = low[slanted], high[slanted]
        cuts = np.unique(points[:, 0])
        first, last = np.searchsorted(cuts, starts[:, 0]), np.searchsorted(cuts, ends[:, 0])
        spans = last - first
        edge = np.repeat(np.arange(len(starts)), spans)
        slab = np.repeat(first - np.cumsum(spans) + spans, spans) + np.arange(len(edge))
        order = np.argsort(slab, kind="stable")
        edge, slab = edge[order], slab[order]
        counts = np.bincount(slab, minlength=len(cuts) - 1)
        place = np.arange(len(slab)) - np.repeat(np.cumsum(counts) - counts, counts)
        edges = np.zeros((len(counts), counts.max(initial=0)), dtype=np.intp)
        there = np.zeros(edges.shape, dtype=np.bool_)
        edges[slab, place], there[slab, place] = edge, True
        standing = points[:, 0] == other[:, 0]
        walls = np.stack([points[:, 0], np.minimum(points, other)[:, 1], np.maximum(points, other)[:, 1]], -1)[standing]
        return cls(cuts, edges, there, starts, ends, np.concatenate([walls, points[:, [0, 1, 1]]]))

    def contain(self, points: Array) -> Bools:
        """Which points lie strictly inside; a point on the border does not.

        Args:
            points: (…, 2).

        Returns:
            (…) true or false.
        """
        flat = points.reshape(-1, 2)
        slab = np.searchsorted(self.cuts, flat[:, 0], side="right") - 1
        near = np.flatnonzero((slab >= 0) & (slab < len(self.edges)))
        slab, point = slab[near], flat[near]
        edge, there = self.edges[slab], self.there[slab]
        turn = side(self.starts[edge], self.ends[edge], point[:, None])
        inside = (np.count_nonzero(there & (turn > 0), axis=-1) % 2 == 1) & ~(there & (turn == 0)).any(-1)
        # Edges that end at the point's x, or stand on it, are in no slab of the point.
        at_cut = np.flatnonzero(inside & (point[:, 0] == self.cuts[slab]))
        x, y = point[at_cut, 0, None], point[at_cut, 1, None]
        inside[at_cut] = ~((x == self.upright[:, 0]) & (y >= self.upright[:, 1]) & (y <= self.upright[:, 2])).any(-1)
        found = np.zeros(len(flat), dtype=np.bool_)
        found[near] = inside
        return found.reshape(points.shape[:-1])


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
