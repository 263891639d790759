"""What a diagnosis holds: findings per layer, reverse unit, confused pair and chosen sample, and numbers per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from frpt.diagnosis.report.runs import Run

Kind = Literal["map", "tokens", "vector"]
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class LayerFinding:
    """One layer, over the samples that need a correction.

    name: as ``Reverser.layers`` has it. shape: of one sample. kind: a "map" has channels and positions in space (1 to 3
    axes), "tokens" has channels per token, a "vector" neither. depth: reverse units between the output and the layer.
    deviation: mean of ‖a* − â‖/‖â‖; reference_deviation: the same in the reference's metric, NaN without one.
    wins: share of the samples for which the network run on from a* predicts the label (or meets the output target).
    closed: mean share of the output's residual gone when the network runs on from a*.
    by_class: (classes,) mean deviation of the samples of a class; NaN where none needs a correction.
    channels: (channels,) share of the squared correction ‖a* − â‖² each channel carries, mean over samples; sums to 1.
    channels_by_class: (classes, channels), the same for the samples of a class; zeros where there are none.
    positions: (h, w), (length,) or (tokens,): the same share per position; size 0 for a vector.
    fault: how much the layer looks like the place where the network goes wrong, see ``diagnosis/ranking.py``.
    sensitivity: how much the correction a* − â changes, relative to its size, from a feature moved by a tenth of it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    depth: int
    deviation: float
    reference_deviation: float
    wins: float
    closed: float
    by_class: Array
    channels: Array
    channels_by_class: Array
    positions: Array
    fault: float
    sensitivity: float


@dataclass(frozen=True)
class UnitFinding:
    """One op of a walk back to the deepest layer, measured on some of the samples that need a correction.

    name, path, op, rule: as in the plan. layer: the diagnosed layer this unit arrives at, "" if none.
    ccp_before, ccp, worst: ‖Φ(a) − t‖/‖t‖ at the anchor, at the solution (means) and at the worst sample.
    fallback: share of samples for which the gate fell back. iterations: mean. deviation: mean ‖a − â‖/‖â‖.
    rho: measured ‖R(t + ξ) − R(t)‖/‖ξ‖. epsilon: bound on the unit's own error, relative to ‖a − â‖.
    bound: Theorem 2's bound on the error at this unit's input, relative to ‖a − â‖ there.
    sigma_max, sigma_min: extreme singular values of a linear map (of a convolution: over frequencies); NaN for others.
    """

    name: str
    path: str
    op: str
    rule: str
    layer: str
    ccp_before: float
    ccp: float
    worst: float
    fallback: float
    iterations: float
    deviation: float
    rho: float
    epsilon: float
    bound: float
    sigma_max: float
    sigma_min: float


@dataclass(frozen=True, eq=False)
class PairFinding:
    """Samples of class ``label`` taken for class ``predicted``.

    count: how many there are. deviation: by layer, mean. channels: by layer, (channels,) shares of the correction.
    """

    label: int
    predicted: int
    count: int
    deviation: dict[str, float]
    channels: dict[str, Array]


@dataclass(frozen=True, eq=False)
class Response:
    """Where a layer responds, for one sample: of the forward feature, the reconstructed one, and their difference.

    Maps (h, w) in [0, 1] (Grad-CAM, each normalised by itself), or channel attributions (channels,) in [-1, 1] for a
    vector; tokens as the grid they come from.
    """

    kind: Kind
    forward: Array
    reconstructed: Array
    difference: Array


@dataclass(frozen=True, eq=False)
class Specimen:
    """A sample to look at. index: in the data set. image: (h, w, 3) uint8, None if the input is no picture.

    label, predicted: class ids, -1 without classes. deviation, closed, responses: by layer.
    """

    index: int
    label: int
    predicted: int
    image: Array | None
    deviation: dict[str, float]
    closed: dict[str, float]
    responses: dict[str, Response]


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Numbers per sample. index, label, predicted: (n,) int; corrected: (n,) bool; the rest: (n, layers).

    reference_deviation: NaN without a reference.
    """

    index: Array
    label: Array
    predicted: Array
    corrected: Array
    deviation: Array
    reference_deviation: Array
    wins: Array
    closed: Array

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class Advice:
    """Which layers can be trusted as l_R, output first, and why; no layer if none can."""

    layers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Where a network goes wrong. layers, units: output first. class_names: () where labels are no class ids.

    score: accuracy, or the mean squared error where labels are no class ids. confusion: (classes, classes), a row per
    label. ranking: layer names, the likeliest place of the fault first.
    """

    model: str
    preset: str
    class_names: tuple[str, ...]
    score_name: str
    score: float
    layers: tuple[LayerFinding, ...]
    units: tuple[UnitFinding, ...]
    ranking: tuple[str, ...]
    advice: Advice
    confusion: Array
    pairs: tuple[PairFinding, ...]
    samples: SampleTable
    gallery: tuple[Specimen, ...] = field(default=())

    def to_html(self, path: str | Path, *, title: str | None = None, results: Sequence[Run] = ()) -> Path:
        """Write one self-contained page. results: comparisons, runs and trajectories to show on it as well."""
        from frpt.diagnosis.report import to_html

        return to_html(self, path, title=title, results=results)

    def to_pandas(self, table: str = "layers") -> pd.DataFrame:
        """A table: layers, units, classes, samples, channels or pairs."""
        from frpt.diagnosis import tables

        return tables.table(self, table)

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write all tables into a directory."""
        from frpt.diagnosis import tables

        return tables.write_csv(self, folder)

    def plot(self, figure: str, *of: str | int, path: str | Path | None = None) -> Figure:
        """A figure, also written to ``path`` (png, svg, pdf): deviation, classes, trust; channels and positions of a
        layer; responses of a sample of the gallery; pair of a label and what it is taken for."""
        from frpt.diagnosis.figures import plots

        return plots.draw(self, figure, *of, path=path)

    def __str__(self) -> str:
        from frpt.diagnosis.text import text

        return text(self)
