"""Options, typed and frozen, with the paper's symbols; and the two presets, named after who believes in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal

import torch

from frpt.errors import OptionError

ConvSolver = Literal["auto", "exact", "matrix", "cg", "fft_padded", "fft_boundary"]
CONV_SOLVERS: tuple[ConvSolver, ...] = ("auto", "exact", "matrix", "cg", "fft_padded", "fft_boundary")
CompositeSolver = Literal["auto", "gauss_newton", "secant", "newton_krylov", "min_norm_newton", "adam"]
COMPOSITE_SOLVERS: tuple[CompositeSolver, ...] = (
    "auto", "gauss_newton", "secant", "newton_krylov", "min_norm_newton", "adam",
)  # fmt: skip
Embedding = Literal["nearest", "max_assign", "one_hot", "regression"]


def _require_positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not (isinstance(value, int | float) and value > 0 and not math.isnan(value)):
            raise OptionError(f"{type(owner).__name__}.{name} must be a positive number, got {value!r}")


@dataclass(frozen=True)
class Gate:
    """Reliability gate and Tikhonov fallback (Supplement A.2); the defaults are the paper's (B.1.2).

    A solution passes if it is finite, ``‖x‖∞ ≤ magnitude`` (M_∞; an anchor beyond it raises the bound to twice its
    own), ``‖x − x̂‖ / ‖x̂‖ ≤ deviation`` (M_dev), and it is consistent: ``ρ₁ ≤ residual`` (M₁) where the map reduces
    width, ``ρ₂ ≤ optimality`` (M₂) where it expands it. None takes M₁ and M₂ by precision: 1e-4 and 1e-3 in float64,
    ten times that in float32.
    """

    enabled: bool = True
    magnitude: float = 1e3
    deviation: float = 1e2
    residual: float | None = None
    optimality: float | None = None
    kappa: float = 1e3
    """κ_eff: the fallback damps with α ≥ (σ_max / κ_eff)²."""
    floor: float = 1e-2
    """The reference norm of the deviation test is at least ``floor · √n``."""
    coefficients: Literal["unitary", "raw"] = "unitary"
    """Which Fourier coefficients the FFT solvers' bounds ``magnitude`` and ``floor`` are for: of the unitary transform,
    so that they mean the same at every map size; or of the plain one, √(h · w) times as large, as in the paper's code.
    """

    def __post_init__(self) -> None:
        if self.coefficients not in ("unitary", "raw"):
            raise OptionError(f"Gate.coefficients must be unitary or raw, got {self.coefficients!r}")
        _require_positive(self, "magnitude", "deviation", "kappa", "floor")
        for name in ("residual", "optimality"):
            if getattr(self, name) is not None:
                _require_positive(self, name)

    def thresholds(self, dtype: torch.dtype) -> tuple[float, float]:
        """(M₁, M₂) for solves carried out in ``dtype``."""
        scale = 1.0 if dtype in (torch.float64, torch.complex128) else 10.0
        residual = 1e-4 * scale if self.residual is None else self.residual
        optimality = 1e-3 * scale if self.optimality is None else self.optimality
        return residual, optimality


@dataclass(frozen=True)
class SolverOptions:
    """How solvers work: precision, iteration limits, memory."""

    dtype: torch.dtype = torch.float64
    """Precision of linear solves and reverse rules."""
    composite: CompositeSolver = "auto"
    large: Literal["secant", "adam"] = "secant"
    """What ``auto`` takes where the Jacobian is larger than ``jacobian_entries``."""
    damping: float = 1.0
    """First step length of Gauss–Newton."""
    adam_rate: float = 1e-2
    """Learning rate of the ``adam`` solver; the paper's (B.1.2)."""
    longest_step: float = math.inf
    """Norm a Gauss–Newton or Adam step of a sample is cut to."""
    iterations: int = 25
    """Upper limit of passes a composite solver makes over a block; of steps for Gauss–Newton and Adam."""
    path_iterations: int = 40
    """Upper limit of passes over the whole path, for each start and aim, where the target is an output."""
    tolerance: float = 1e-6
    """Relative CCP residual at which a composite solve stops."""
    memory: int = 10
    """Pairs the secant solver keeps per sample."""
    jacobian_entries: int = 90_000
    """Largest Jacobian that ``auto`` materialises for Gauss–Newton."""
    jacobian_counts: Literal["sample", "batch"] = "sample"
    """Whose entries ``jacobian_entries`` limits. A batch of b samples has (b · inputs)(b · outputs), as one Jacobian.

    The paper's text (III-C, B.1.2) says "the estimated number of entries" and not of what; its code counts the batch,
    and the ``paper`` preset follows it. The solver of a block then depends on the batch size, and with it the target
    of a sample on the company it is in: which is why the other presets do not.
    """
    conv: ConvSolver = "auto"
    """How convolutions are solved: see ``frpt.ops.conv``."""
    fill: Literal["residual", "zeros"] = "residual"
    """What the FFT solvers put where a map has no output: no change, or (the paper) a target of zero."""
    dense_entries: int = 1_000_000
    """Largest explicit matrix of a convolution that ``auto`` takes; 16 times that where its other ways are poor."""
    seam_entries: int = 70_000_000
    """Largest boundary system (its entries) that ``auto`` factorises for a convolution on a large map."""
    budget: int = 4 * 2**30
    """Bytes that solving one convolution may take beside its inputs and its result; samples go through in parts."""
    exact_tolerance: float = 1e-6
    exact_iterations: int = 1000
    """Relative error of the exact convolution solver's answer, and its limit of preconditioned steps."""
    linear_iterations: int = 100
    linear_tolerance: float = 1e-9
    """Limits of plain conjugate gradients on a linear map; the paper's (B.1.2)."""
    seconds: float | None = 1800.0
    """Time that one composite unit, or the path as a whole, may take with one batch; None: any.

    A solver that has used it up stops with the best so far: samples not finished count as a fallback, and a
    ``SlowUnitWarning`` names the unit. It is looked at between steps, and between the rows of a Jacobian; the
    factorisation of the Jacobians that memory holds at a time is not interrupted (two of 3,072 × 3,072 took a minute
    on one core). Such a result depends on the machine and what else it does, and cannot be
    reproduced. The default, half an hour for a batch, is out of reach of normal work: it keeps a Jacobian that fits
    into memory and not into a day from being waited for.
    """
    range_iterations: int = 100
    """Limit of the corrections that keep a target inside the range of the op before (see docs/method.md)."""

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise OptionError(f"SolverOptions.dtype must be torch.float32 or torch.float64, got {self.dtype}")
        if self.large not in ("secant", "adam"):
            raise OptionError(f"SolverOptions.large must be secant or adam, got {self.large!r}")
        if self.composite not in COMPOSITE_SOLVERS:
            raise OptionError(f"unknown composite solver {self.composite!r}: there are {', '.join(COMPOSITE_SOLVERS)}")
        if self.conv not in CONV_SOLVERS:
            raise OptionError(f"unknown convolution solver {self.conv!r}: there are {', '.join(CONV_SOLVERS)}")
        if self.jacobian_counts not in ("sample", "batch"):
            raise OptionError(f"SolverOptions.jacobian_counts must be sample or batch, got {self.jacobian_counts!r}")
        if self.fill not in ("residual", "zeros"):
            raise OptionError(f"SolverOptions.fill must be residual or zeros, got {self.fill!r}")
        choices = ("dtype", "composite", "large", "jacobian_counts", "conv", "fill", "seconds")
        numbers = [f.name for f in fields(self) if f.name not in choices]
        _require_positive(self, *numbers, *(["seconds"] if self.seconds is not None else []))


@dataclass(frozen=True)
class NearestOptions:
    """How the nearest winning feature is looked for (``frpt.solvers.nearest``).

    The numbers were chosen on MNIST's and CIFAR-10's SimpleCNN and on CREPE, where none of them is critical
    (``benchmarks/nearest.py``).
    """

    competitors: int = 3
    """Classes whose gradients are kept for each sample."""
    steps: int = 40
    """Most forward and backward passes from one start."""
    patience: int = 3
    """Steps in a row that may win little before a sample whose label wins is done."""
    persistence: int = 10
    """Steps in a row that may bring the label no nearer to winning before a start is given up."""
    stride: float = 0.5
    """Longest step, in norms of the anchor."""
    gain: float = 0.01
    """Share of the distance a step has to win to count."""
    beyond: float = 0.01
    """How far the first step goes beyond the linearised boundary, as a share of its length; twice as far each time,"""
    most_beyond: float = 0.1
    """up to this, until the label has won."""
    polish_beyond: float = 5e-3
    """The same once the label has won."""
    halved: float = 0.5
    """A step that leaves more than this share of what the label lacks is slow, and"""
    shrink: float = 0.3
    """the next step's centre lies that much nearer to where the sample is than to the anchor."""
    rounds: int = 2
    """Most looks, in a step, at which entries are held on the bound of their range."""
    shorten: float = 0.01
    """The last stretch, as a share of the way, in which to look for where the label just still wins,"""
    looks: int = 3
    """with so many forward passes."""
    probes: int = 48
    """Where no step makes the label win: random points to start again from, the best of them,"""
    radii: tuple[float, ...] = (0.3, 1.0, 2.0, 4.0)
    """so many norms of the anchor away."""
    pull: float = 0.1
    """With a reference: the share of the first step that goes along the gradient, the rest to the label's mean.

    This number and the next were chosen by ``benchmarks/restore.py``, whose docstring says on which cases.
    """
    telling: float = 0.1
    """Share η₀ of a feature's variance between classes under which a label's mean says less, and less is gone to it."""
    farthest: float = 10.0
    """Norms of the anchor within which a target has to lie; one farther away is no feature this layer would produce."""
    together: int = 1024
    """Most samples in a pass: more are no faster on a CPU."""
    budget: int = 2**28
    """Bytes that the gradients and steps of the samples in a pass may take."""

    def __post_init__(self) -> None:
        _require_positive(self, *(f.name for f in fields(self) if f.name not in ("radii", "probes")))


@dataclass(frozen=True)
class Preset:
    """A complete set of choices. ``rules`` names the registry consulted first, before the default rules."""

    name: str
    embed: Embedding = "nearest"
    gate: Gate = field(default_factory=Gate)
    solver: SolverOptions = field(default_factory=SolverOptions)
    rules: str = "default"
    blocks: str = "finest"
    ranges: bool = True
    """Keep a target inside the range of the op that has to produce it (a ReLU's is never negative)."""
    nearest: NearestOptions | None = NearestOptions()
    """Solve the path from the layer to the output as a whole, from the anchor; None: op by op, as the paper does."""
    stop_at: float = 1e-3
    """Share of the output's residual that may be left where the target is an output and not a label that shall win."""


PRESETS = {
    "default": Preset("default"),
    "online": Preset(
        "online",
        solver=SolverOptions(dtype=torch.float32, iterations=10),
        nearest=NearestOptions(steps=8, patience=1, looks=2, probes=0),
        stop_at=0.2,
    ),
    "paper": Preset(
        "paper",
        gate=Gate(coefficients="raw"),
        solver=SolverOptions(
            large="adam",
            damping=0.8,
            longest_step=10.0,
            iterations=20,
            jacobian_entries=50_000_000,
            jacobian_counts="batch",
            conv="fft_padded",
            fill="zeros",
        ),
        rules="paper",
        blocks="stages",
        ranges=False,
        nearest=None,
    ),
}


def preset(choice: str | Preset) -> Preset:
    """The preset of that name; a ``Preset`` of one's own passes through."""
    if isinstance(choice, Preset):
        return choice
    if choice not in PRESETS:
        raise OptionError(f"unknown preset {choice!r}: there are {', '.join(map(repr, PRESETS))}")
    return PRESETS[choice]
