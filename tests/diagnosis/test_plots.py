"""Every figure is drawn, shows the numbers it is about, is written in every format, and leaves no global state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from torch import nn

import frpt
from frpt.common.text import percent
from frpt.diagnosis import Diagnosis
from frpt.diagnosis.figures import plots
from frpt.errors import OptionError, UnknownLayerError
from frpt.train.comparison import Arm
from frpt.train.result import Epoch, Result
from tests.diagnosis.small import LAYERS, NAMES, diagnosis, trajectory


def compared(seeds: int = 4, epochs: int = 6) -> frpt.Comparison:
    g = np.random.default_rng(0)
    arms = {}
    for name, gain in (("back-propagation", 0.02), ("anchor-only", 0.015), ("FR-PT", 0.04)):
        runs = []
        for seed in range(seeds):
            curve = 0.7 + gain * (1 - np.exp(-np.arange(1, epochs + 1) / 2)) + 0.003 * g.normal(size=epochs)
            rows = [Epoch(i + 1, float(v), 0.5, None, 0.0, None, None, 3, 1, 1.0, 10.0) for i, v in enumerate(curve)]
            runs.append(Result(nn.Identity(), "stage2", 0.3, seed, "offline", "accuracy", True, 0.7, rows))
        arms[name] = Arm(name, runs)
    return frpt.Comparison("stage2", 0.3, list(range(seeds)), "accuracy", True, 0.7, arms)


D = diagnosis()
FIGURES: dict[str, Callable[..., Figure]] = {
    "deviation": lambda **k: plots.deviation(D, **k),
    "classes": lambda **k: plots.classes(D, **k),
    "trust": lambda **k: plots.trust(D, **k),
    "channels": lambda **k: plots.channels(D, "stage2", **k),
    "channels of a class": lambda **k: plots.channels(D, "stage2", "dog", **k),
    "positions": lambda **k: plots.positions(D, "stage2", **k),
    "positions of tokens": lambda **k: plots.positions(D, "encoder.3", **k),
    "responses": lambda **k: plots.responses(D, 21, **k),
    "responses without a picture": lambda **k: plots.responses(D, 24, **k),
    "pair": lambda **k: plots.pair(D, "cat", 1, **k),
    "trajectory": lambda **k: plots.trajectory(trajectory(), **k),
    "comparison": lambda **k: plots.comparison(compared(), **k),
}
STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("name", FIGURES)
def test_written(name: str, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    suffix = list(STARTS)[list(FIGURES).index(name) % 3]
    path = tmp_path / "new" / f"figure{suffix}"
    figure = FIGURES[name](path=path)
    assert type(figure) is Figure
    assert path.read_bytes().startswith(STARTS[suffix])
    assert path.stat().st_size > 2000
    assert dict(mpl.rcParams) == before
    with pytest.raises(OptionError, match=r"\.png, \.svg, \.pdf"):
        FIGURES[name](path=tmp_path / "figure.jpeg")


def test_no_window_is_opened() -> None:
    from matplotlib import pyplot as plt

    before = plt.get_fignums()
    for draw in FIGURES.values():
        draw()
    assert plt.get_fignums() == before


def words(figure: Figure) -> str:
    figure.draw_without_rendering()
    found = [t for ax in figure.axes for t in ax.findobj(mpl.text.Text)]
    return "\n".join(t.get_text() for t in [*found, *figure.texts])


def test_deviation_shows_means_and_spread() -> None:
    figure = plots.deviation(D)
    (ax,) = figure.axes
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [float(line.get_xdata()[0]) for line in dots] == [f.deviation for f in D.layers]  # type: ignore[index]
    moved = D.samples.deviation[D.samples.corrected]
    whiskers = [line.get_xdata() for line in ax.lines if line.get_linewidth() == 1.2]
    for column, ends in zip(moved.T, whiskers, strict=True):
        np.testing.assert_allclose(ends, np.percentile(column, [5, 95]))
    assert [t.get_text() for t in ax.get_yticklabels()] == list(LAYERS)
    assert "stage2" in ax.get_title(loc="left")


def test_classes_leaves_out_what_is_not_there() -> None:
    figure = plots.classes(D)
    shown = figure.axes[0].images[0].get_array()
    assert shown is not None
    assert shown.shape == (3, 4)
    assert np.ma.getmaskarray(shown)[:, 2].all()
    assert not np.ma.getmaskarray(shown)[:, [0, 1, 3]].any()
    assert all(n in words(figure) for n in NAMES)


def test_trust_shows_one_number_for_each_inner_layer_beside_the_threshold() -> None:
    figure = plots.trust(D)
    inner = [f for f in D.layers if f.depth > 0]
    (ax,) = figure.axes
    marks = {float(line.get_xdata()[0]) for line in ax.lines if list(line.get_ydata()) == [0, 1]}  # type: ignore
    assert 0.7 in marks
    dots = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"]  # type: ignore
    assert dots == [f.trust for f in inner]
    assert all(f.name in words(figure) for f in inner)
    assert f"{inner[0].trust:.2f}" in words(figure)


def test_a_layer_without_a_correction_is_not_trusted() -> None:
    layers = [replace(f, sensitivity=float("inf")) for f in D.layers]
    (ax,) = plots.trust(replace(D, layers=tuple(layers))).axes
    dots = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"]  # type: ignore
    assert dots == [0.0] * sum(f.depth > 0 for f in layers)


def test_channels_are_ordered() -> None:
    shares = D.layers[2].channels_by_class[1]
    left, right = plots.channels(D, "stage2", "dog").axes
    heights = [p.get_height() for p in left.patches]  # type: ignore[attr-defined]
    assert heights == sorted(shares, reverse=True)[:16]
    assert int(left.get_xticklabels()[0].get_text()) == int(np.argmax(shares))
    np.testing.assert_allclose(right.lines[0].get_ydata()[-1], 1)  # type: ignore[index]


def test_positions_lie_on_their_grid() -> None:
    shown = plots.positions(D, "stage2").axes[0].images[0].get_array()
    np.testing.assert_array_equal(shown, D.layers[2].positions)
    tokens = plots.positions(D, "encoder.3")
    np.testing.assert_array_equal(
        tokens.axes[0].images[0].get_array(), D.layers[1].positions[1:].reshape(3, 3)
    )  # fmt: skip
    assert percent(float(D.layers[1].positions[0])) in words(tokens)
    line = plots.positions(replace(D, gallery=()), "encoder.3")
    assert len(line.axes[0].patches) == 10


def test_responses_lie_over_the_picture() -> None:
    figure = plots.responses(D, 21, layers=["stage2"])
    given, *maps = figure.axes
    assert np.array_equal(given.images[0].get_array(), D.gallery[0].image)  # type: ignore[arg-type]
    response = D.gallery[0].responses["stage2"]
    for ax, expected in zip(maps, (response.forward, response.reconstructed, response.difference), strict=True):
        laid = np.asarray(ax.images[0].get_array())
        grey = D.gallery[0].image @ np.array([0.299, 0.587, 0.114]) / 255  # type: ignore[operator]
        times = laid.shape[0] // grey.shape[0]
        added = np.abs(laid - grey.repeat(times, 0).repeat(times, 1)[..., None]).sum(-1)
        assert laid.min() >= 0
        assert laid.max() <= 1
        assert added.max() > 0.1
        row, column = np.unravel_index(np.argmax(expected), expected.shape)
        h, w = laid.shape[0] / expected.shape[0], laid.shape[1] / expected.shape[1]
        spot = laid[int((row + 0.5) * h), int((column + 0.5) * w)]
        assert spot[0] > spot[2]  # strong is warm
    text = words(figure)
    assert "taken for dog, is cat" in text
    assert "stage2" in text


def test_trajectory_reports_correlations() -> None:
    t = trajectory()
    text = words(plots.trajectory(t))
    for layer in LAYERS:
        c = t.correlation(layer)
        assert f"r = {c.pearson:+.2f}".replace("-", "−") in text
        assert f"ρ = {c.spearman:+.2f}".replace("-", "−") in text
    few = replace(t, checkpoints=t.checkpoints[:2], score=t.score[:2], deviation=t.deviation[:2])
    assert "r = –, p –" in words(plots.trajectory(few))


def test_comparison_pairs_seeds() -> None:
    c = compared()
    left, right = plots.comparison(c).axes
    assert len(left.lines) == 3 * (4 + 1)
    assert left.lines[4].get_ydata()[0] == c.start  # type: ignore[index]
    np.testing.assert_allclose(right.lines[0].get_ydata(), c.difference("anchor-only").values)
    assert plots.comparison(compared(seeds=1, epochs=1)).axes


def test_what_is_not_there_is_said() -> None:
    cases: list[tuple[type[Exception], str, Callable[[], Figure]]] = [
        (UnknownLayerError, "stage3", lambda: plots.channels(D, "stage3")),
        (UnknownLayerError, "stage3", lambda: plots.responses(D, 21, ["stage3"])),
        (OptionError, "no class 'cow'.*cat", lambda: plots.channels(D, "stage2", "cow")),
        (OptionError, "no class 4", lambda: plots.channels(D, "stage2", 4)),
        (OptionError, "vector", lambda: plots.positions(D, "head")),
        (OptionError, "21, 24", lambda: plots.responses(D, 3)),
        (OptionError, "cat → dog", lambda: plots.pair(D, "dog", "cat")),
        (OptionError, "no classes", lambda: plots.classes(replace(D, class_names=()))),
        (OptionError, "no inner layer", lambda: plots.trust(replace(D, layers=D.layers[:1]))),
    ]
    for kind, message, draw in cases:
        with pytest.raises(kind, match=message):
            draw()


def test_long_names_are_cut_in_front() -> None:
    long = "backbone.encoder.stages.3.blocks.11.attention.projection.output"
    text = words(plots.trust(replace(D, layers=tuple(replace(f, name=long) for f in D.layers))))
    assert "attention.projection.output" in text
    assert long not in text


def test_nothing_to_correct() -> None:
    """A network without errors has no deviation; the figures stay empty, and are figures."""
    nobody = replace(D.samples, corrected=np.zeros(12, bool))
    plain = [replace(f, deviation=float("nan"), by_class=np.full(4, np.nan)) for f in D.layers]
    empty: Diagnosis = replace(D, samples=nobody, layers=tuple(plain), ranking=(), suspects=(), pairs=(), gallery=())
    for draw in (plots.deviation, plots.classes, plots.trust):
        assert words(draw(empty))
