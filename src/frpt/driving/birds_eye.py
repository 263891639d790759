"""A scene from above, ego at the bottom: lanes, objects and where they go, plans and how they are driven.

Users call ``picture``; so does the gallery of a diagnosis, through ``DrivingData.picture``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from torch import Tensor

from frpt.diagnosis.figures.canvas import BLUE, CYCLE, GREEN, GREY, ORANGE, PURPLE, RED, drawn, sheet
from frpt.driving.areas import EGO_WIDTH
from frpt.driving.dynamics import simulate
from frpt.driving.pdm_score import score
from frpt.driving.scene import Array, Scene, SceneObject
from frpt.driving.synthetic.expert import FRONT, REAR
from frpt.driving.synthetic.renderer import markings
from frpt.errors import InputError

TARGET = "target"
COLOURS = {"before": RED, TARGET: GREEN, "after": BLUE}
"""Of the plans that the gallery shows; others take the figures' usual ones in turn."""
KINDS = {"vehicle": "#4A5560", "pedestrian": ORANGE, "bicycle": PURPLE}
VERGE, ROAD, STRIPE, AGAINST = "#E6ECDF", "#C9CCD1", "#FFFFFF", "#E0B030"
HIGH, WIDE = 36.0, 0.8
"""Metres from bottom to top, at least; the picture's width, as a share of its height."""
LATER = (10, 20, 30, 40)
"""Steps of 0.1 s at which objects that move are shown again."""


@drawn
def picture(scene: Scene, plans: Mapping[str, Tensor | Array] | None = None, path: str | Path | None = None) -> Figure:
    """A scene from above with plans in it.

    Dots are the poses of a plan, every 0.5 s; the line is how a car that follows it drives, the box where it is at 4 s.
    Each plan's PDMS stands beside its name. Objects are shown where they are now and, faintly, where they will be.

    Args:
        scene: The scene.
        plans: Name → (8, 3) poses; "before", "target" and "after" have colours of their own. The scene's reference, as
            "target", by default.
        path: A file to write it to as well: .png, .svg or .pdf.

    Returns:
        The figure, which belongs to no window.

    Raises:
        InputError: A plan has another shape or is not finite.
        OptionError: The file is none of these formats.

    Example:
        >>> scene = frpt.driving.make_scene(seed=0, index=3)
        >>> figure = frpt.driving.picture(scene, {"target": scene.reference})
    """
    shown = {TARGET: scene.reference} if plans is None else {n: _plan(n, poses) for n, poses in plans.items()}
    figure = sheet(3.6, 4.8)
    ax = figure.subplots()
    ax.set_facecolor(VERGE)
    _draw_road(ax, scene)
    for item in scene.objects:
        _draw_object(ax, item)
    handles = []
    if shown:
        together = np.stack(list(shown.values()))
        scores, driven = score(scene, together)["PDMS"], simulate(scene, together)
        states = np.stack([driven.x, driven.y, driven.heading], -1)
        spare = [c for c in CYCLE if c not in COLOURS.values()]
        for i, (name, poses) in enumerate(shown.items()):
            colour = COLOURS.get(name, spare[i % len(spare)])
            label = f"{name} {scores[i]:.2f}"
            handles.append(_draw_plan(ax, poses, states[i], colour, label))
    ax.add_patch(Polygon(up(ego_box(np.zeros(3))), closed=True, fc="#222222", ec="white", lw=0.8, zorder=6))
    _frame(ax, [np.zeros((1, 3)), scene.reference, *shown.values()])
    if handles:
        figure.legend(handles=handles, title="plan and its PDMS", title_fontsize=8, loc="outside lower center", ncols=3,
                      handlelength=1.2, columnspacing=1.2)  # fmt: skip
    return figure


def up(points: Array) -> Array:
    """Points (..., 2) as the picture has them: ahead is up, left is left."""
    return np.stack([-points[..., 1], points[..., 0]], -1)


def ego_box(pose: Array) -> Array:
    """(4, 2) corners of ego's box, its rear axle at a pose."""
    return _corners(pose, (-REAR, FRONT), (-EGO_WIDTH / 2, EGO_WIDTH / 2))


def _corners(pose: Array, along: tuple[float, float], side: tuple[float, float]) -> Array:
    c, s = np.cos(pose[2]), np.sin(pose[2])
    around = np.array([(along[0], side[0]), (along[1], side[0]), (along[1], side[1]), (along[0], side[1])])
    corners: Array = pose[:2] + around @ np.array([[c, s], [-s, c]])
    return corners


def _draw_road(ax: Axes, scene: Scene) -> None:
    """The road, its markings and the centre line."""
    for area in scene.areas:
        ax.add_patch(Polygon(up(area.points), closed=True, fc=ROAD, ec=ROAD, lw=0.5, zorder=1))
    lanes = [a for a in scene.areas if a.kind == "lane"]
    white, yellow = markings([a.points for a in lanes], [a.name in scene.route for a in lanes])
    for stripes, colour in ((white, STRIPE), (yellow, AGAINST)):
        ax.add_collection(PolyCollection(list(up(stripes)), facecolor=colour, edgecolor=colour, lw=0.4, zorder=2))
    for area in scene.areas:
        if area.kind == "intersection":
            ax.add_patch(Polygon(up(area.points), closed=True, fc=ROAD, ec="none", zorder=2.1))
    ax.plot(*up(scene.centre_line).T, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=2.2)


def _draw_object(ax: Axes, item: SceneObject) -> None:
    """Where it is now and, if it moves, where it will be."""
    half = (-item.length / 2, item.length / 2), (-item.width / 2, item.width / 2)
    colour = KINDS.get(item.kind, RED)
    if np.linalg.norm(item.poses[-1, :2] - item.poses[0, :2]) > item.width / 2:
        later = [up(_corners(item.poses[k], *half)) for k in LATER]
        ax.add_collection(PolyCollection(later, facecolor="none", edgecolor=colour, lw=0.6, alpha=0.55, zorder=3))
        trail = up(item.poses[: LATER[-1] + 1, :2])
        ax.add_collection(LineCollection([trail], colors=[colour], lw=0.6, alpha=0.55, zorder=3))
    box = up(_corners(item.poses[0], *half))
    ax.add_patch(Polygon(box, closed=True, fc=colour, ec="white", lw=0.5, zorder=4))


def _draw_plan(ax: Axes, poses: Array, states: Array, colour: str, label: str) -> Line2D:
    """The driven path, the poses and the box at the end; the target is a broad band below the others."""
    width, alpha, order = (5.0, 0.5, 4.5) if label.startswith(TARGET) else (1.8, 0.95, 5.0)
    (line,) = ax.plot(*up(states[:, :2]).T, color=colour, lw=width, alpha=alpha, label=label, zorder=order)
    ax.plot(*up(poses[:, :2]).T, "o", color=colour, ms=3.2, mec="white", mew=0.5, zorder=5.5)
    end = up(ego_box(states[-1]))
    ax.add_patch(Polygon(end, closed=True, fc="none", ec=colour, lw=width / 2 + 0.4, alpha=alpha, zorder=order))
    return line


def _frame(ax: Axes, paths: Iterable[Array]) -> None:
    """A frame that holds ego, the plans and some of what is around them; a scale instead of ticks."""
    points = up(np.concatenate([p[:, :2] for p in paths]))
    low, high = points.min(0) - 7, points.max(0) + 9
    height = max(HIGH, float(high[1] - low[1]), float(high[0] - low[0]) / WIDE)
    left, bottom = (low[0] + high[0] - WIDE * height) / 2, low[1]
    ax.set_xlim(left, left + WIDE * height)
    ax.set_ylim(bottom, bottom + height)
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    x, y = left + 0.04 * height, bottom + 0.04 * height
    ax.plot([x, x + 10], [y, y], color="#444444", lw=1.5, solid_capstyle="butt", zorder=7)
    ax.text(x + 5, y + 0.012 * height, "10 m", ha="center", va="bottom", fontsize=7, color="#444444", zorder=7)


def _plan(name: str, poses: Tensor | Array) -> Array:
    plan = np.asarray(poses.detach().cpu() if isinstance(poses, Tensor) else poses, dtype=np.float64)
    if plan.shape != (8, 3) or not np.isfinite(plan).all():
        raise InputError(f"the plan {name!r} must be 8 finite poses (x, y, heading), got shape {plan.shape}")
    return plan
