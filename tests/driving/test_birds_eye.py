"""Pictures of scenes: what is in them, and that nothing outside them is touched."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from frpt.diagnosis.figures.canvas import BLUE, GREEN, RED
from frpt.driving import make_scene, picture, score
from frpt.errors import InputError, OptionError


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_plans_have_their_colours_and_scores() -> None:
    scene = make_scene(0, 9)
    plans = {"before": scene.reference * [1.0, 0.5, 1.0], "target": scene.reference, "after": scene.reference * 0.99}
    figure = picture(scene, plans)
    scores = score(scene, np.stack(list(plans.values())))["PDMS"]
    assert labels(figure) == [f"{name} {value:.2f}" for name, value in zip(plans, scores, strict=True)]
    (ax,) = figure.axes
    lines = {line.get_label(): to_hex(line.get_color()) for line in ax.lines}
    assert [lines[name].lower() for name in labels(figure)] == [c.lower() for c in (RED, GREEN, BLUE)]


def test_all_of_ego_and_the_plans_is_within_the_frame_ahead_up() -> None:
    for index in range(8):
        scene = make_scene(0, index)
        (ax,) = picture(scene).axes
        (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        x, y = -scene.reference[:, 1], scene.reference[:, 0]
        assert left < x.min() < x.max() < right
        assert bottom < -1.2 < y.max() < top
        assert ax.get_aspect() == 1


def test_every_object_is_drawn() -> None:
    scene = next(s for s in (make_scene(0, i) for i in range(20)) if len(s.objects) >= 3)
    (ax,) = picture(scene).axes
    places = [patch.get_path().vertices[:4].mean(0) for patch in ax.patches]
    for item in scene.objects:
        x, y, _ = item.poses[0]
        assert min(np.linalg.norm(p - [-y, x]) for p in places) < 1e-6


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_written(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"scene{suffix}"
    picture(make_scene(0, 3), path=file)
    assert file.stat().st_size > 3000
    if suffix == ".png":
        assert Image.open(file).size[1] > 600


def test_nothing_global_is_touched() -> None:
    before, figures = dict(mpl.rcParams), plt.get_fignums()
    picture(make_scene(0, 3))
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == figures


def test_without_plans_and_with_bad_ones() -> None:
    scene = make_scene(0, 3)
    assert labels(picture(scene, {})) == []
    assert len(labels(picture(scene, {"mine": scene.reference, "yours": scene.reference}))) == 2
    with pytest.raises(InputError, match="'before' must be 8 finite poses"):
        picture(scene, {"before": scene.reference[:4]})
    with pytest.raises(InputError, match="'before' must be 8 finite poses"):
        picture(scene, {"before": scene.reference * np.nan})
    with pytest.raises(OptionError, match="are written as"):
        picture(scene, path="scene.gif")
