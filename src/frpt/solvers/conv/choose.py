"""Which way a convolution is solved, and why: from its sizes, the memory budget and the conditioning of its symbol.

``Convolutions`` holds the options of a preset; ``Convolutions.choose`` is asked by ``frpt.rules.conv``, once for each
unit when the way back is planned. All ways but the two FFT ones give the anchored minimum-norm least-squares solution

    a = â + A⁺(t − Φ(â))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from torch._subclasses.fake_tensor import is_fake

from frpt.common.checks import require_numbers_positive, require_one_of
from frpt.errors import BudgetError, OptionError
from frpt.solvers.conv.operator import Convolution
from frpt.solvers.conv.per_frequency import Spectral
from frpt.solvers.conv.torus import Torus, fitting
from frpt.solvers.conv.woodbury import Woodbury
from frpt.solvers.linear.cgls import ConjugateGradients

ConvSolver = Literal["auto", "exact", "matrix", "cg", "fft_padded", "fft_boundary"]
CONV_SOLVERS: tuple[ConvSolver, ...] = ("auto", "exact", "matrix", "cg", "fft_padded", "fft_boundary")
Way = Literal["blocks", "matrix", "seam", "circulant", "cg", "fft_padded", "fft_boundary"]


@dataclass(frozen=True)
class ConvPlan:
    """How one convolution is solved. Printed, it is the note in the plan.

    way: how; why: in a few words; at_once: samples the budget holds at a time; size: the torus, in coarse positions per
    axis, () where there is none.
    """

    way: Way
    why: str
    at_once: int
    size: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.way}: {self.why}"


@dataclass(frozen=True)
class Convolutions:
    """How convolutions are solved.

    Args:
        method: "auto" and "exact", the cheapest exact way; "matrix", "cg", "fft_padded", "fft_boundary": that one (see
            ``frpt.ops.conv``).
        fill: what the FFT solvers put where a map has no output: "residual", no change, or (the paper) "zeros", a
            target of zero.
        dense_entries: largest explicit matrix that ``auto`` takes. Chosen where the torus becomes cheaper: at 16² of
            docs/benchmarks.md ("Against the size of the map") the matrix is, at 32² the torus.
        dense_factor: so many times larger ones are taken where the torus is poor: padding that is not toroidal, or
            conditions above ``ill_conditioned``. Chosen by hand: 16 million entries are factorised in seconds.
        seam_entries: largest boundary system (its entries) that ``auto`` factorises. 8,400 unknowns, 0.5 GiB: up to
            256² with four channels (docs/benchmarks.md, case II).
        ill_conditioned: condition number from which a matrix is preferred where it is affordable: it has a QR to fall
            back on, and the normal equations of the torus have lost 14 of 16 digits by then.
        budget: bytes that solving one convolution may take beside its inputs and its result; samples go through in
            parts. 4 GiB leaves room on a machine of 8.
        exact: the solver on a torus.
        cg: plain conjugate gradients.

    Raises:
        OptionError: a number is not positive, or ``method`` or ``fill`` is another word.

    Example:
        >>> import frpt
        >>> from dataclasses import replace
        >>> from frpt.options import PRESETS
        >>> quick = replace(PRESETS["default"], conv=frpt.Convolutions(method="fft_padded"))
        >>> quick.conv.method
        'fft_padded'
    """

    method: ConvSolver = "auto"
    fill: Literal["residual", "zeros"] = "residual"
    dense_entries: int = 1_000_000
    dense_factor: int = 16
    seam_entries: int = 70_000_000
    ill_conditioned: float = 1e7
    budget: int = 4 * 2**30
    exact: Woodbury = field(default_factory=Woodbury)
    cg: ConjugateGradients = field(default_factory=ConjugateGradients)

    def __post_init__(self) -> None:
        if self.method not in CONV_SOLVERS:
            raise OptionError(f"unknown convolution solver {self.method!r}: there are {', '.join(CONV_SOLVERS)}")
        require_one_of(self, "fill", ("residual", "zeros"))
        require_numbers_positive(self)

    def choose(self, conv: Convolution) -> ConvPlan:
        """The way that was asked for, or the cheapest exact one.

        Raises:
            BudgetError: not even one sample fits into the memory budget.
        """
        if self.method in ("auto", "exact"):
            return self._cheapest(conv)
        if self.method == "matrix":
            self._need(_matrix_bytes(conv), f"the explicit matrix of {_entries(conv):,} entries")
            return self._fitted(conv, "matrix", "asked for", _matrix_bytes(conv))
        if self.method == "cg":
            return self._fitted(conv, "cg", "asked for")
        way: Way = "fft_padded" if self.method == "fft_padded" else "fft_boundary"
        size = fitting(conv, "padded" if way == "fft_padded" else "none")
        torus = Torus(conv, size)
        kept = Spectral.fits(torus, self.budget)
        why = "asked for" if kept else f"asked for; spectra of {_text(torus.symbol_bytes)} made anew for every batch"
        return self._fitted(conv, way, why, self.budget // 2, size, torus.system_bytes)

    def _cheapest(self, conv: Convolution) -> ConvPlan:
        """Block-diagonal, then a small matrix, then the torus with its seam, the torus alone, and no preconditioner."""
        if conv.disjoint:
            return self._fitted(conv, "blocks", "windows do not overlap")
        entries = _entries(conv)
        affordable = _matrix_bytes(conv) <= self.budget
        if affordable and entries <= self.dense_entries * (1 if conv.toroidal else self.dense_factor):
            return self._fitted(conv, "matrix", f"{entries:,} entries", _matrix_bytes(conv))
        size = fitting(conv)
        torus = Torus(conv, size)
        known = ""
        if not is_fake(conv.weight):
            if torus.deficient:
                return self._fitted(conv, "cg", "filters of deficient rank")
            known = f", condition about {torus.condition:.0e}"
            ill = torus.condition > self.ill_conditioned
            if affordable and ill and entries <= self.dense_factor * self.dense_entries:
                return self._fitted(conv, "matrix", f"{entries:,} entries{known}", _matrix_bytes(conv))
        return self._on_torus(conv, torus, known)

    def _on_torus(self, conv: Convolution, torus: Torus, known: str) -> ConvPlan:
        """With the seam where that can be factorised, the torus alone, or none of it where spectra are too large."""
        seam, size = torus.seam_size, torus.size
        each = torus.system_bytes + conv.system_bytes
        spectra = 3 * torus.symbol_bytes
        factor = 4 * torus.groups * seam**2 * conv.weight.element_size() + 3 * torus.pair_bytes  # damped, undamped
        room = self.budget - each
        if conv.toroidal and torus.groups * seam**2 <= self.seam_entries and spectra + factor <= room:
            why = f"torus {_sizes(size)}, boundary system of {seam}{known}"
            return self._fitted(conv, "seam", why, spectra + factor, size, each)
        if spectra <= room:
            reason = f"boundary system of {seam} too large" if conv.toroidal else f"{conv.geometry.mode} padding"
            return self._fitted(conv, "circulant", f"torus {_sizes(size)}, {reason}{known}", spectra, size, each)
        return self._fitted(conv, "cg", f"spectra of {_text(spectra)} exceed the budget")

    def _fitted(
        self,
        conv: Convolution,
        way: Way,
        why: str,
        kept: int = 0,
        size: tuple[int, ...] = (),
        each: int | None = None,
    ) -> ConvPlan:
        """A plan with as many samples at a time as fit beside what is kept."""
        each = conv.system_bytes if each is None else each
        if way in ("blocks", "matrix"):
            each = 6 * (math.prod(conv.inputs) + math.prod(conv.outputs)) * conv.weight.element_size()
        self._need(kept + each, f"one sample by {way}")
        return ConvPlan(way, why, int(self.budget - kept) // each, size)

    def _need(self, size: int, what: str) -> None:
        if size > self.budget:
            raise BudgetError(
                f"a convolution's solve needs {_text(size)} for {what}, more than the memory budget of "
                f"{_text(int(self.budget))}. Raise Convolutions.budget"
                + ("." if self.method == "auto" else ", or take solver auto.")
            )


def _entries(conv: Convolution) -> int:
    return math.prod(conv.inputs) * math.prod(conv.outputs)


def _matrix_bytes(conv: Convolution) -> int:
    """The matrix, the unit inputs it is made from, and its factors."""
    inputs, outputs = math.prod(conv.inputs), math.prod(conv.outputs)
    return conv.weight.element_size() * (3 * inputs * outputs + inputs**2 + 2 * min(inputs, outputs) ** 2)


def _sizes(size: tuple[int, ...]) -> str:
    return "×".join(map(str, size))


def _text(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale / 4:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"
