"""What a diagnosis holds, as plain data: findings per layer, reverse unit, confused pair and sample.

``survey.py`` fills these classes. Everything that shows them (``tables.py``, ``figures/``, ``report/``) reads them from
here and nothing else; ``diagnosis.py`` puts the methods that users call on top.
Throughout, â is the recorded feature of a layer (the anchor) and a* the reconstructed one (the target).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from frpt.datasets.labelled import LabelledSamples

Kind = Literal["map", "tokens", "vector"]
Array = NDArray[Any]


class BriefRepr:
    """A dataclass that prints its arrays by their shapes, so that a notebook shows a line and not pages of numbers."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={_brief(getattr(self, f.name))}" for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({shown})"


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{'×'.join(map(str, value.shape))} {value.dtype}>"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_brief(v)}" for k, v in value.items()) + "}"
    return repr(value)


@dataclass(frozen=True, eq=False, repr=False)
class LayerFinding(BriefRepr):
    """One layer, over the samples that need a correction.

    Attributes:
        name: as ``Reverser.layers`` has it.
        shape: of one sample.
        kind: a "map" has channels and positions in space (1 to 3 axes), "tokens" has channels per token, a "vector"
            neither.
        depth: reverse units between the output and the layer; 0 for the output.
        deviation: mean of ‖a* − â‖/‖â‖.
        reference_deviation: mean of the same change in standard deviations of the layer's features, NaN without a
            reference.
        wins: share of the samples for which the network run on from a* predicts the label (or meets the output target).
        closed: mean share of the output's residual that is gone when the network runs on from a*.
        by_class: (classes,), mean deviation of the samples of a class; NaN where none needs a correction.
        channels: (channels,), share of the squared correction ‖a* − â‖² that each channel carries, mean over samples;
            sums to 1.
        channels_by_class: (classes, channels), the same for the samples of a class; zeros where there are none.
        positions: (h, w), (length,) or (tokens,), the same share per position; size 0 for a vector.
        fault: share of the loss that refitting this layer's weights alone takes back, on samples it was not fitted to
            (``ranking.py``). The layer with the largest is the likeliest place of the fault.
        fault_interval: 95 % interval of it, by the bootstrap over these samples.
        sensitivity: how much the correction a* − â changes, relative to its size, when the feature it starts from is
            moved at random by a tenth of it (``trust.py``).

    Example:
        >>> layer = diagnosis.layers[1]
        >>> layer.name, layer.kind, layer.channels.shape
        ('0', 'map', (4,))
        >>> round(float(layer.channels.sum()), 6)
        1.0
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
    fault_interval: tuple[float, float]
    sensitivity: float

    @property
    def trust(self) -> float:
        """How far the layer's targets can be trusted, 0 to 1: wins · (1 − sensitivity), the second factor at least 0.

        The share of the samples whose label wins from the target, times the share of a correction that stays when the
        feature it starts from is moved at random by a tenth of it.
        """
        steady = 1.0 - self.sensitivity
        return self.wins * (0.0 if steady < 0 else steady)


@dataclass(frozen=True, repr=False)
class UnitFinding(BriefRepr):
    """One op on the way back to the deepest layer; only for presets that make targets op by op (``preset="paper"``).

    Measured on some of the samples that need a correction. Φ is the op, t its target, a its answer, â its anchor.

    Attributes:
        name: of the unit, as in the plan.
        path: the module it stands in.
        op: the ATen op, or how many of them a block has.
        rule: what reverses it.
        layer: the diagnosed layer that this unit arrives at, "" if none.
        ccp_before: mean of ‖Φ(â) − t‖/‖t‖, what is missing before.
        ccp: mean of ‖Φ(a) − t‖/‖t‖, what is missing at the answer.
        worst: the largest of these over the samples.
        fallback: share of the samples for which the gate fell back.
        iterations: mean.
        deviation: mean of ‖a − â‖/‖â‖.
        rho: measured ‖R(t + ξ) − R(t)‖/‖ξ‖, how much the unit amplifies an error of its target.
        epsilon: bound on the unit's own error, relative to ‖a − â‖.
        bound: Theorem 2's bound on the error at this unit's input, relative to ‖a − â‖ there.
        sigma_max: largest singular value of a linear map (of a convolution: over frequencies); NaN for other ops.
        sigma_min: the smallest.

    Example:
        >>> walked = frpt.diagnose(net, data, ["0"], preset="paper", gallery=0, progress=False)
        >>> [unit.op for unit in walked.units]
        ['linear', 'view', 'relu']
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


@dataclass(frozen=True, eq=False, repr=False)
class PairFinding(BriefRepr):
    """Samples of one class that are taken for another.

    Attributes:
        label: their class.
        predicted: the class the network says.
        count: how many there are.
        deviation: layer → mean of ‖a* − â‖/‖â‖ over these samples.
        channels: layer → (channels,), shares of the squared correction.

    Example:
        >>> pair = diagnosis.pairs[0]
        >>> pair.count == int(diagnosis.confusion[pair.label, pair.predicted])
        True
    """

    label: int
    predicted: int
    count: int
    deviation: dict[str, float]
    channels: dict[str, Array]


@dataclass(frozen=True, eq=False, repr=False)
class Response(BriefRepr):
    """Where a layer responds, for one sample: Grad-CAM of the forward feature, the reconstructed one, their difference.

    Attributes:
        kind: of the layer.
        forward: (h, w) in [0, 1], normalised by itself; for a vector (channels,) in [-1, 1], gradient times activation;
            tokens as the grid they come from.
        reconstructed: the same for the target a*.
        difference: the same for a* − â.
    """

    kind: Kind
    forward: Array
    reconstructed: Array
    difference: Array


@dataclass(frozen=True, eq=False, repr=False)
class Specimen(BriefRepr):
    """A sample to look at, with its response maps.

    Attributes:
        index: in the data set.
        label: class id, -1 without classes.
        predicted: class id, -1 without classes.
        image: (h, w, 3) uint8, None if the input is no picture.
        deviation: layer → ‖a* − â‖/‖â‖.
        closed: layer → share of the output's residual that is gone.
        responses: layer → where it responds.
        drawings: layer → (h, w, 3) uint8: output before, label, and output when the network runs on from the layer's
            target, as drawn by ``pictures`` of ``diagnose`` or, for a label at every pixel, as maps of classes.
        name: the data set's name of it, "" without one.
        words: the texts of its tokens, () without a vocabulary.
        says: label and prediction in words, where they are no class ids.

    Example:
        >>> specimen = diagnosis.gallery[0]
        >>> specimen.image.shape, sorted(specimen.responses)
        ((8, 8, 3), ['0', 'out'])
    """

    index: int
    label: int
    predicted: int
    image: Array | None
    deviation: dict[str, float]
    closed: dict[str, float]
    responses: dict[str, Response]
    drawings: Mapping[str, Array] = field(default_factory=dict)
    name: str = ""
    words: tuple[str, ...] = ()
    says: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class SampleTable(BriefRepr):
    """Numbers per sample, in the order of the data set; n samples, l layers (output first).

    Attributes:
        index: (n,) int, in the data set.
        label: (n,) int, class id, -1 without classes.
        predicted: (n,) int, class id, -1 without classes.
        corrected: (n,) bool, the samples that need a correction.
        deviation: (n, l), ‖a* − â‖/‖â‖.
        reference_deviation: (n, l), in standard deviations of the layer's features; NaN without a reference.
        wins: (n, l) bool, the network run on from a* predicts the label.
        closed: (n, l), share of the output's residual that is gone.
        label_yes: (n, o) bool, which of o outputs a label says yes to, and none that it ignores; None unless labels say
            yes or no to several outputs.
        predicted_yes: (n, o) bool, which of these the network says yes to; None likewise.

    Example:
        >>> table = diagnosis.samples
        >>> len(table), table.deviation.shape
        (40, (40, 2))
        >>> wrong = table.index[table.corrected]
    """

    index: Array
    label: Array
    predicted: Array
    corrected: Array
    deviation: Array
    reference_deviation: Array
    wins: Array
    closed: Array
    label_yes: Array | None = None
    predicted_yes: Array | None = None

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class Advice:
    """Which layers can be trusted as l_R, the layer that post-training reconstructs.

    Attributes:
        layers: output first; () if none can.
        reason: in a sentence.

    Example:
        >>> diagnosis.advice.layers
        ('0',)
    """

    layers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """The fields of a ``Diagnosis``, which says what each of them is. What shows a diagnosis takes this class."""

    model: str
    preset: str
    class_names: tuple[str, ...]
    score_name: str
    score: float
    layers: tuple[LayerFinding, ...]
    units: tuple[UnitFinding, ...]
    ranking: tuple[str, ...]
    suspects: tuple[str, ...]
    advice: Advice
    confusion: Array
    pairs: tuple[PairFinding, ...]
    samples: SampleTable
    gallery: tuple[Specimen, ...] = ()
    reference: str = ""
    normalisation: tuple[Any, Any] = (None, None)
    loss: str = ""
    sample_names: Mapping[int, str] = field(default_factory=dict)
    source: LabelledSamples | None = None
    recurrent: tuple[str, ...] = ()
    unmoved: Mapping[str, str] = field(default_factory=dict)
    output_names: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def regression(self) -> bool:
        """Labels are outputs to be met; nothing wins."""
        return self.score_name == "mse"
