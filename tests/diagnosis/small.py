"""A small made-up diagnosis: three layers of different kinds, four classes, a vision of twelve samples."""

from __future__ import annotations

import math

import numpy as np

from frpt.diagnosis import Diagnosis
from frpt.diagnosis.findings import (
    Advice,
    Array,
    LayerFinding,
    PairFinding,
    Response,
    SampleTable,
    Specimen,
    UnitFinding,
)
from frpt.diagnosis.trajectory import Trajectory

NAMES = ("cat", "dog", "deer", "café <3")
LAYERS = ("head", "encoder.3", "stage2")
SIZES = {"head": (6, ()), "encoder.3": (8, (10,)), "stage2": (16, (4, 5))}
KINDS = {"head": "vector", "encoder.3": "tokens", "stage2": "map"}


def _shares(g: np.random.Generator, *shape: int) -> Array:
    values = g.gamma(0.5, size=shape)
    return values / values.sum(-1, keepdims=True)


def _layer(g: np.random.Generator, name: str, depth: int, deviation: float) -> LayerFinding:
    channels, positions = SIZES[name]
    shape = {"vector": (channels,), "tokens": (*positions, channels), "map": (channels, *positions)}[KINDS[name]]
    by_class = deviation * g.uniform(0.5, 1.5, 4)
    by_class[2] = math.nan
    per_class = _shares(g, 4, channels)
    per_class[2] = 0
    where = _shares(g, math.prod(positions)).reshape(positions) if positions else np.zeros(0)
    return LayerFinding(
        name, shape, KINDS[name], depth, deviation, 3 * deviation, 1 - 0.05 * depth, 1 - 0.1 * depth, by_class,  # type: ignore
        _shares(g, channels), per_class,
        where, float(g.uniform()), (0.0, 1.0), 0.05 * 4.0**depth,
    )  # fmt: skip


def _unit(g: np.random.Generator, i: int, bound: float, layer: str = "") -> UnitFinding:
    op, rule = [("linear", "linear"), ("conv2d", "conv"), ("relu", "relu"), ("block of 7", "composite")][i % 4]
    return UnitFinding(
        f"unit{i}", f"stage{i // 4}", op, rule, layer, 0.3, 1e-6, 1e-4, 0.1, 3.0, 0.2, float(g.uniform(0.5, 3)),
        1e-3, bound, 2.0, 0.1,
    )  # fmt: skip


def _response(g: np.random.Generator, name: str) -> Response:
    if KINDS[name] == "vector":
        maps = [g.uniform(-1, 1, 6) for _ in range(3)]
    else:
        h, w = (3, 3) if KINDS[name] == "tokens" else (4, 5)
        rows, columns = np.mgrid[0:h, 0:w]
        centres = g.uniform(0, (h, w), (3, 2))
        maps = [np.exp(-((rows - r) ** 2 + (columns - c) ** 2) / 2) for r, c in centres]
    maps = [m / np.abs(m).max() for m in maps]
    return Response(KINDS[name], *maps)  # type: ignore[arg-type]


def diagnosis(seed: int = 0) -> Diagnosis:
    g = np.random.default_rng(seed)
    found = tuple(_layer(g, n, i, 0.1 * 2.5**i) for i, n in enumerate(LAYERS))
    bounds = [0.01, 0.05, 0.2, 0.6, 0.9, 3.0, math.inf, math.nan]
    units = tuple(_unit(g, i, b, {2: "encoder.3", 5: "stage2"}.get(i, "")) for i, b in enumerate(bounds))
    label = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    predicted = np.array([0, 1, 1, 1, 0, 3, 2, 2, 2, 3, 1, 0])
    wrong = label != predicted
    deviation = np.where(wrong[:, None], g.lognormal(0, 0.6, (12, 3)) * [0.1, 0.25, 0.6], 0.0)
    closed = np.where(wrong[:, None], g.uniform(0.7, 1, (12, 3)), 1.0)
    confusion = np.zeros((4, 4), int)
    np.add.at(confusion, (label, predicted), 1)
    pair = PairFinding(0, 1, 2, {n: 0.3 for n in LAYERS}, {n: _shares(g, SIZES[n][0]) for n in LAYERS})
    y, x = np.mgrid[0:24, 0:30]
    image = np.stack([8 * x, 10 * y, 128 + 60 * np.sin(x / 3)], -1).astype(np.uint8)
    gallery = tuple(
        Specimen(
            20 + i, int(label[i]), int(predicted[i]), image if i != 4 else None,
            dict(zip(LAYERS, deviation[i], strict=True)), dict(zip(LAYERS, closed[i], strict=True)),
            {n: _response(g, n) for n in LAYERS},
        )
        for i in (1, 4)
    )  # fmt: skip
    table = SampleTable(np.arange(20, 32), label, predicted, wrong, deviation, 3 * deviation, closed > 0.8, closed)
    return Diagnosis(
        "SmallNet", "default", NAMES, "accuracy", float((~wrong).mean()), found, units,
        ("stage2", "head", "encoder.3"), ("stage2",), Advice(("head", "encoder.3"), "their bounds stay below 1"),
        confusion, (pair,), table, gallery,
    )  # fmt: skip


def trajectory(seed: int = 0) -> Trajectory:
    g = np.random.default_rng(seed)
    score = 0.9 - 0.6 * np.exp(-np.arange(12) / 4)
    slopes = np.array([-1.0, -0.4, 0.6])
    deviation = 1 + slopes * score[:, None] + 0.05 * g.normal(size=(12, 3))
    return Trajectory(tuple(f"epoch {5 * i}" for i in range(12)), LAYERS, "accuracy", score, deviation)
