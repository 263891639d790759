"""Which labels can win at all in a ReLU network: a mixed-integer linear program, exact where nearest.py is local.

    min ‖a − â‖₁   s.t.   s_y(a) − s_j(a) ≥ margin for j ≠ y,   low ≤ a,   ‖a − â‖_∞ ≤ farthest ‖â‖
    a ReLU h = max(z, 0) with l ≤ z ≤ u:   h ≥ z,   h ≤ z − l(1 − s),   h ≤ u s,   h ≥ 0,   s ∈ {0, 1}

Used by the tests here and by benchmarks/reachable.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn

Row = tuple[dict[int, float], float, float]


def random_network(seed: int, widths: Sequence[int] = (8, 8, 8, 4)) -> nn.Sequential:
    """A ReLU network with PyTorch's first weights."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


class _Program:
    """Variables with their bounds, and linear rows between them."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[int] = []
        self.rows: list[Row] = []

    def add(self, low: float, high: float, whole: int = 0) -> int:
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.low) - 1

    def linear(self, layer: nn.Linear, inputs: list[int]) -> list[int]:
        W, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
        low, high = np.array([self.low[i] for i in inputs]), np.array([self.high[i] for i in inputs])
        up, down = np.maximum(W, 0), np.minimum(W, 0)
        lows, highs = up @ low + down @ high + bias, up @ high + down @ low + bias
        outputs = [self.add(float(a), float(b)) for a, b in zip(lows, highs, strict=True)]
        for j, out in enumerate(outputs):
            row = {i: -float(w) for i, w in zip(inputs, W[j], strict=True)} | {out: 1.0}
            self.rows.append((row, float(bias[j]), float(bias[j])))
        return outputs

    def relu(self, z: int) -> int:
        low, high = self.low[z], self.high[z]
        h = self.add(0.0, max(high, 0.0))
        if low >= 0:
            self.rows.append(({h: 1.0, z: -1.0}, 0.0, 0.0))
        elif high > 0:
            s = self.add(0.0, 1.0, whole=1)
            self.rows.append(({h: 1.0, z: -1.0}, 0.0, np.inf))
            self.rows.append(({h: 1.0, z: -1.0, s: -low}, -np.inf, -low))
            self.rows.append(({h: 1.0, s: -high}, -np.inf, 0.0))
        return h

    def solve(self, cost: list[int]) -> np.ndarray | None:
        matrix = sparse.lil_matrix((len(self.rows), len(self.low)))
        for i, (row, _, _) in enumerate(self.rows):
            for j, value in row.items():
                matrix[i, j] = value
        least, most = [r[1] for r in self.rows], [r[2] for r in self.rows]
        objective = np.zeros(len(self.low))
        objective[cost] = 1.0
        found = milp(
            objective, constraints=LinearConstraint(matrix.tocsr(), least, most), bounds=Bounds(self.low, self.high),
            integrality=self.whole, options={"time_limit": 10},
        )  # fmt: skip
        return None if found.x is None else np.asarray(found.x)


def proved(
    rest: nn.Sequential, anchor: Tensor, label: int, low: float, farthest: float = 10.0, margin: float = 1e-5
) -> Tensor | None:
    """A feature in which the label wins, within so many norms of the anchor: (n,); None where none is proved.

    Run through the network, so that a feature of the program that rounding spoils is no proof. Labels whose nearest
    feature in L1 lies outside the ball are passed over.
    """
    n, centre = len(anchor), anchor.double().numpy()
    radius = farthest * max(float(np.linalg.norm(centre)), 1e-2 * n**0.5)
    program = _Program()
    a = [program.add(max(float(v) - radius, low), float(v) + radius) for v in centre]
    away = [program.add(0.0, radius) for _ in centre]
    for i, d, v in zip(a, away, centre, strict=True):
        program.rows.append(({i: 1.0, d: -1.0}, -np.inf, float(v)))
        program.rows.append(({i: -1.0, d: -1.0}, -np.inf, -float(v)))
    values = a
    for layer in rest:
        values = program.linear(layer, values) if isinstance(layer, nn.Linear) else [program.relu(z) for z in values]
    for j, score in enumerate(values):
        if j != label:
            program.rows.append(({values[label]: 1.0, score: -1.0}, margin, np.inf))
    found = program.solve(away)
    if found is None or np.linalg.norm(found[:n] - centre) > radius:
        return None
    feature = torch.as_tensor(found[:n], dtype=anchor.dtype)
    with torch.no_grad():
        return feature if int(rest(feature[None]).argmax()) == label else None
