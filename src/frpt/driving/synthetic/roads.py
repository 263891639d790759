"""Roads of synthetic scenes: a lane's centre line of a given curvature, lanes beside it, crossing streets.

Called by ``making.py``, which draws them, and ``expert.py``, which drives on them. A place is (s, d): s metres along
the centre line of ego's lane, d metres to its left. Ego is beside s = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frpt.driving.scene import Area, Array

STEP = 0.5
"""Metres between the points of a centre line, and where it begins and ends: as in the devkit's maps."""
BEGIN, END = -20.0, 119.5


@dataclass(frozen=True)
class Line:
    """The centre line of ego's lane. s: (n,), evenly spaced; points: (n, 2); heading, curvature: (n,)."""

    s: Array
    points: Array
    heading: Array
    curvature: Array

    def at(self, s: Array, d: Array | float = 0.0) -> tuple[Array, Array]:
        """(points (..., 2), headings (...)) at places (s, d); beyond its ends the line goes straight on."""
        inside = np.clip(s, self.s[0], self.s[-1])
        heading = np.interp(inside, self.s, self.heading)
        x, y = (np.interp(inside, self.s, self.points[:, i]) for i in (0, 1))
        along, left = s - inside, np.asarray(d, dtype=float)
        x = x + along * np.cos(heading) - left * np.sin(heading)
        y = y + along * np.sin(heading) + left * np.cos(heading)
        return np.stack([x, y], -1), heading

    def bend(self, s: Array) -> Array:
        """Curvature at s, positive to the left."""
        return np.interp(s, self.s, self.curvature)


@dataclass(frozen=True)
class Lane:
    """left: offset of its centre from that of ego's lane, in metres to the left. forward: in ego's direction."""

    name: str
    left: float
    width: float
    forward: bool

    @property
    def borders(self) -> tuple[float, float]:
        """Offsets of its right and its left border."""
        return self.left - self.width / 2, self.left + self.width / 2


@dataclass(frozen=True)
class Road:
    """A line with lanes beside it, the rightmost first.

    crossing: s of the middle of a street that crosses it, if one does. streets: those that join, and where they meet.
    """

    line: Line
    lanes: tuple[Lane, ...]
    crossing: float | None = None
    streets: tuple[Area, ...] = ()

    @property
    def borders(self) -> tuple[float, float]:
        """Offsets of the road's right and left border."""
        return self.lanes[0].borders[0], self.lanes[-1].borders[1]

    @property
    def areas(self) -> tuple[Area, ...]:
        """Lanes, the road that they make, streets that join, intersections."""
        lanes = [Area(lane.name, "lane", strip(self.line, *lane.borders)) for lane in self.lanes]
        return (*lanes, Area("road", "roadblock", strip(self.line, *self.borders)), *self.streets)


def line_of(curvature: Array, heading: float, left: float) -> Line:
    """The line with a curvature at each of its points, as ego sees it from ``left`` metres beside s = 0.

    heading: ego's, relative to the line's. The heading of a step is that of its middle (trapezoid rule).
    """
    s: Array = np.linspace(BEGIN, END, len(curvature))
    turned = np.concatenate([[0.0], np.cumsum((curvature[1:] + curvature[:-1]) / 2 * STEP)])
    turned -= np.interp(0.0, s, turned) + heading
    middle = (turned[1:] + turned[:-1]) / 2
    points = np.concatenate([np.zeros((1, 2)), np.cumsum(STEP * np.stack([np.cos(middle), np.sin(middle)], -1), 0)])
    origin = np.array([np.interp(0.0, s, points[:, i]) for i in (0, 1)])
    away = left * np.array([-np.sin(-heading), np.cos(-heading)])
    return Line(s, points - origin - away, turned, curvature)


def bent(begin: float, ramp: float, angle: float, radius: float) -> Array:
    """The curvature of a line that turns by an angle (to the left) around a radius, with a ramp before and after.

    It turns by ramp/radius at least, where the angle is smaller than that.
    """
    s = np.arange(BEGIN, END + STEP / 2, STEP)
    arc = max(abs(angle) * radius - ramp, 0.0)  # a ramp turns by half of what its length would at the full curvature
    corners = np.cumsum([begin, ramp, arc, ramp])
    curvature: Array = np.interp(s, corners, [0.0, 1.0, 1.0, 0.0]) * np.sign(angle) / radius
    return curvature


def strip(line: Line, right: float, left: float, between: tuple[float, float] = (BEGIN, END)) -> Array:
    """The outline between two offsets of a line: along the left one and back along the right one. (2n, 2)"""
    s = line.s[(line.s >= between[0]) & (line.s <= between[1])]
    return np.concatenate([line.at(s, left)[0], line.at(s, right)[0][::-1]])


def block(line: Line, s: float, along: tuple[float, float], side: tuple[float, float]) -> Array:
    """A rectangle beside the line at s: from and to, metres in the direction it has there and to its left. (4, 2)"""
    (corner,), (heading,) = line.at(np.array([s]))
    u, n = np.array([np.cos(heading), np.sin(heading)]), np.array([-np.sin(heading), np.cos(heading)])
    around = [(along[0], side[0]), (along[1], side[0]), (along[1], side[1]), (along[0], side[1])]
    return np.stack([corner + a * u + b * n for a, b in around])
