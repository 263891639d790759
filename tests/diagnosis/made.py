"""Diagnoses, runs and trajectories made of synthetic numbers."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frpt.diagnosis import Diagnosis
from frpt.diagnosis.findings import (
    Advice,
    Array,
    Kind,
    LayerFinding,
    PairFinding,
    Response,
    SampleTable,
    Specimen,
    UnitFinding,
)
from frpt.diagnosis.trajectory import Trajectory
from frpt.repairs import Fix, remember, repair
from frpt.train.comparison import ANCHORED, BACKPROP, FRPT, Arm, Comparison
from frpt.train.result import Epoch, Result

CLASSES = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LAYERS: tuple[tuple[str, Kind, tuple[int, ...]], ...] = (
    ("fc", "vector", (64,)),
    ("layer4", "map", (128, 4, 4)),
    ("layer3", "map", (64, 8, 8)),
    ("blocks.1", "tokens", (64, 32)),
    ("layer1", "map", (32, 32, 32)),
)


def shares(rng: np.random.Generator, *shape: int) -> Array:
    """Positive numbers that sum to 1 over the last axis."""
    values = rng.gamma(0.4, size=shape)
    return values / values.sum(-1, keepdims=True)


def blob(rng: np.random.Generator, side: int) -> Array:
    """A smooth spot in [0, 1]."""
    y, x = np.mgrid[:side, :side] / max(1, side - 1)
    cy, cx = rng.uniform(0.2, 0.8, 2)
    values = np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / rng.uniform(0.03, 0.15))
    return values / values.max()


def picture(rng: np.random.Generator, size: int, noise: float) -> Array:
    y, x = np.mgrid[:size, :size] / size
    base = np.stack([x, y, 1 - (x + y) / 2], -1)[:, :, rng.permutation(3)]
    spot = ((x - rng.uniform(0.3, 0.7)) ** 2 + (y - rng.uniform(0.3, 0.7)) ** 2 < 0.06)[..., None]
    image = 0.25 + 0.5 * base + 0.35 * spot + noise * rng.standard_normal((size, size, 3))
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


def response(rng: np.random.Generator, kind: Kind, shape: tuple[int, ...]) -> Response:
    if kind == "vector":
        forward, reconstructed = rng.uniform(-1, 1, (2, shape[0]))
        return Response(kind, forward, reconstructed, np.clip(reconstructed - forward, -1, 1))
    side = math.isqrt(shape[0]) if kind == "tokens" else shape[1]
    return Response(kind, blob(rng, side), blob(rng, side), blob(rng, side))


def layer(rng: np.random.Generator, i: int, classes: int, spec: tuple[str, Kind, tuple[int, ...]]) -> LayerFinding:
    name, kind, shape = spec
    width = shape[-1] if kind == "tokens" else shape[0]
    by_class = rng.uniform(0.1, 0.5, classes) * (1 + 0.3 * i)
    by_class[1:2] = math.nan
    if kind == "vector":
        positions = np.zeros(0)
    elif kind == "tokens":
        positions = shares(rng, shape[0])
    else:
        positions = shares(rng, shape[1] * shape[2]).reshape(shape[1:])
    by_channel = shares(rng, classes, width) if classes else np.zeros((0, width))
    by_channel[1:2] = 0
    return LayerFinding(
        name, shape, kind, 2 * i + 1, 0.12 + 0.09 * i, 0.4 + 0.1 * i, 0.98 - 0.04 * i, 0.99 - 0.04 * i, by_class,
        shares(rng, width), by_channel,
        positions, fault=float(np.exp(-((i - 2) ** 2) / 2)), fault_interval=(0.05, 1.0), sensitivity=0.02 * 4.0**i,
    )  # fmt: skip


def units(rng: np.random.Generator, layers: tuple[str, ...]) -> tuple[UnitFinding, ...]:
    found = []
    for i in range(2 * len(layers)):
        op = ("linear", "relu", "conv2d", "layer_norm")[i % 4]
        linear = op in ("linear", "conv2d")
        found.append(
            UnitFinding(
                f"{op}_{i}", f"net.{op}{i}", f"aten.{op}", op, layers[i // 2] if i % 2 else "", 0.4,
                10.0 ** -(7 - i % 3), 1e-4, 0.05 * (i % 3), float(i % 5), 0.1 + 0.03 * i, 1.1 + 0.1 * i, 1e-6,
                0.01 * 2.0**i, 8.0 if linear else math.nan, 0.02 if linear else math.nan,
            )
        )  # fmt: skip
    return tuple(found)


def diagnosis(
    *,
    classes: tuple[str, ...] = CLASSES,
    layers: tuple[tuple[str, Kind, tuple[int, ...]], ...] = LAYERS,
    samples: int = 60,
    gallery: int = 12,
    size: int | None = 32,
    noise: float = 0.05,
    seed: int = 0,
    **changes: Any,
) -> Diagnosis:
    """size: of the input pictures, None for none. noise: of the pictures, what makes them large. changes: of fields."""
    rng = np.random.default_rng(seed)
    c = len(classes)
    label = rng.integers(0, c, samples) if c else np.full(samples, -1)
    predicted = np.where(rng.random(samples) < 0.4, (label + 1) % max(c, 1), label) if c else label
    corrected = predicted != label if c else rng.random(samples) < 0.8
    deviation = np.where(corrected[:, None], rng.uniform(0.05, 0.9, (samples, len(layers))), 0.0)
    closed = np.where(corrected[:, None], rng.uniform(0.7, 1.0, (samples, len(layers))), math.nan)
    confusion = np.zeros((c, c), dtype=int)
    if c:
        np.add.at(confusion, (label, predicted), 1)
    names = tuple(name for name, _, _ in layers)
    pairs = tuple(
        PairFinding(
            int(a), int(b), int(confusion[a, b]), {n: float(rng.uniform(0.1, 0.6)) for n in names},
            {n: shares(rng, s[-1] if k == "tokens" else s[0]) for n, k, s in layers},
        )
        for a, b in sorted(np.argwhere(confusion * (1 - np.eye(c, dtype=int))).tolist(), key=lambda p: -confusion[*p])
    )  # fmt: skip
    chosen = np.flatnonzero(corrected)[:gallery] if len(np.flatnonzero(corrected)) >= gallery else range(gallery)
    specimens = tuple(
        Specimen(
            int(i), int(label[i]), int(predicted[i]), None if size is None else picture(rng, size, noise),
            dict(zip(names, deviation[i].tolist(), strict=True)), dict(zip(names, closed[i].tolist(), strict=True)),
            {n: response(rng, k, s) for n, k, s in layers},
        )
        for i in chosen
    )  # fmt: skip
    fields: dict[str, Any] = {
        "model": "SimpleCNN",
        "preset": "default",
        "class_names": classes,
        "score_name": "accuracy" if c else "mean squared error",
        "score": float((predicted == label).mean()) if c else 0.0421,
        "layers": tuple(layer(rng, i, c, spec) for i, spec in enumerate(layers)),
        "units": units(rng, names),
        "ranking": tuple(sorted(names, key=lambda n: abs(names.index(n) - 2))),
        "suspects": tuple(names[2:3]),
        "advice": Advice(names[:3], "Beyond layer3 the bound passes 0.5: half of the correction may be error."),
        "confusion": confusion,
        "pairs": pairs,
        "samples": SampleTable(
            np.arange(samples), label, predicted, corrected, deviation, 3 * deviation, closed > 0.9, closed
        ),
        "gallery": specimens,
    }
    return Diagnosis(**{**fields, **changes})


def result(seed: int = 0, epochs: int = 6, gain: float = 0.05, targets: str = "online") -> Result:
    rng = np.random.default_rng(seed)
    history = [
        Epoch(e, 0.7 + gain * (1 - math.exp(-e / 2)) + 0.006 * rng.standard_normal(), 1.0 / e, 0.5 / e, 0.3,
              0.4 / e, 0.95, 12 + e, 5 + e % 2, 1.5, 900.0)
        for e in range(1, epochs + 1)
    ]  # fmt: skip
    return Result(nn.Identity(), "layer3", 0.3, seed, targets, "accuracy", True, 0.7, history)


def comparison(seeds: int = 5) -> Comparison:
    gains = {BACKPROP: 0.02, ANCHORED: 0.025, FRPT: 0.05}
    arms = {n: Arm(n, [result(10 * i + s, gain=g) for s in range(seeds)]) for i, (n, g) in enumerate(gains.items())}
    return Comparison("layer3", 0.3, list(range(seeds)), "accuracy", True, 0.7, arms)


def trajectory(checkpoints: int = 8, layers: tuple[str, ...] = ("fc", "layer4", "layer3")) -> Trajectory:
    rng = np.random.default_rng(3)
    score = np.linspace(0.3, 0.9, checkpoints)
    deviation = np.stack(
        [0.8 - 0.6 * score + 0.02 * i * rng.standard_normal(checkpoints) for i in range(len(layers))], 1
    )
    return Trajectory(tuple(f"epoch {i}" for i in range(checkpoints)), layers, "accuracy", score, deviation)


class Tiny(nn.Module):
    """Two of the layers of ``LAYERS``, on pictures of 8 × 8 pixels."""

    def __init__(self, outputs: int = len(CLASSES)) -> None:
        super().__init__()
        self.layer3 = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU())
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(96, 24), nn.Tanh())
        self.head = nn.Linear(24, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.fc(self.layer3(x)))
        return out


def tiny(patterns: Tensor) -> Tiny:
    """Trained for a moment to tell patterns (classes, 3, 8, 8) apart."""
    torch.manual_seed(0)
    model = Tiny(len(patterns))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        y = torch.randint(len(patterns), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(patterns[y] + torch.randn(64, 3, 8, 8)), y).backward()
        optimizer.step()
    return model.eval()


@functools.cache
def fix(count: int = 12, keep: int = 200, regression: bool = False) -> Fix:
    """A repair of a small trained network. count: samples, one of which cannot be fixed; keep: old ones."""
    g = torch.Generator().manual_seed(1)
    patterns = torch.randn(len(CLASSES), 3, 8, 8, generator=g)
    model = tiny(patterns)
    labels = torch.randint(len(CLASSES), (400,), generator=g)
    old = patterns[labels] + 4 * torch.randn(400, 3, 8, 8, generator=g)
    x, y = patterns[labels[:count]].roll(2, 3) + torch.randn(count, 3, 8, 8, generator=g), labels[:count].clone()
    x[-1], y[-1] = x[0], (y[0] + 1) % len(CLASSES)  # no network can be right on both
    if regression:
        with torch.no_grad():
            out = model(x)
        target = out + 0.1 * out.norm(dim=1, keepdim=True) * torch.randn(out.shape, generator=g)
        return repair(model, x, target, remember(model, old, task="regression", progress=False), budget=1e9)
    memory = remember(model, old, progress=False)
    return repair(model, x, y, memory, keep=(old[:keep], labels[:keep]) if keep else None, strength=30.0)
