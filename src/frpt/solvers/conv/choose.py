"""Which way a convolution is solved, and why: from its sizes, the memory budget and the conditioning of its symbol."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch._subclasses.fake_tensor import is_fake

from frpt.errors import BudgetError
from frpt.options import SolverOptions
from frpt.solvers.conv.operator import Convolution
from frpt.solvers.conv.per_frequency import Spectral
from frpt.solvers.conv.torus import Torus, fitting

Way = Literal["blocks", "matrix", "seam", "circulant", "cg", "fft_padded", "fft_boundary"]

_ILL = 1e7
"""Condition number from which an explicit matrix is preferred where it is affordable: it has a QR to fall back on."""


@dataclass(frozen=True)
class Choice:
    """way: how it is solved; why: a few words for the plan; at_once: samples the budget holds at a time."""

    way: Way
    why: str
    at_once: int
    size: tuple[int, ...] = ()
    """The torus, in coarse positions per axis."""


def choose(conv: Convolution, options: SolverOptions) -> Choice:
    """The solver that was asked for, or the cheapest exact one."""
    if options.conv in ("auto", "exact"):
        return _cheapest(conv, options)
    if options.conv == "matrix":
        _need(_matrix_bytes(conv), options, f"the explicit matrix of {_entries(conv):,} entries")
        return _fitted(conv, options, "matrix", "asked for", _matrix_bytes(conv))
    if options.conv == "cg":
        return _fitted(conv, options, "cg", "asked for")
    way: Way = "fft_padded" if options.conv == "fft_padded" else "fft_boundary"
    size = fitting(conv, "padded" if way == "fft_padded" else "none")
    torus = Torus(conv, size)
    kept = Spectral.fits(torus, options.budget)
    why = "asked for" if kept else f"asked for; spectra of {_text(torus.symbol_bytes)} made anew for every batch"
    return _fitted(conv, options, way, why, options.budget // 2, size, torus.system_bytes)


def _cheapest(conv: Convolution, options: SolverOptions) -> Choice:
    """Block-diagonal, then a small matrix, then the torus with its seam, the torus alone, and no preconditioner."""
    if conv.disjoint:
        return _fitted(conv, options, "blocks", "windows do not overlap")
    entries = _entries(conv)
    affordable = _matrix_bytes(conv) <= options.budget
    if affordable and entries <= options.dense_entries * (1 if conv.toroidal else 16):
        return _fitted(conv, options, "matrix", f"{entries:,} entries", _matrix_bytes(conv))
    size = fitting(conv)
    torus = Torus(conv, size)
    known = ""
    if not is_fake(conv.weight):
        if torus.deficient:
            return _fitted(conv, options, "cg", "filters of deficient rank")
        known = f", condition about {torus.condition:.0e}"
        if affordable and torus.condition > _ILL and entries <= 16 * options.dense_entries:
            return _fitted(conv, options, "matrix", f"{entries:,} entries{known}", _matrix_bytes(conv))
    seam = torus.seam_size
    each = torus.system_bytes + conv.system_bytes
    spectra = 3 * torus.symbol_bytes
    factor = 4 * torus.groups * seam**2 * conv.weight.element_size() + 3 * torus.pair_bytes  # damped beside undamped
    room = options.budget - each
    if conv.toroidal and torus.groups * seam**2 <= options.seam_entries and spectra + factor <= room:
        why = f"torus {_sizes(size)}, boundary system of {seam}{known}"
        return _fitted(conv, options, "seam", why, spectra + factor, size, each)
    if spectra <= room:
        reason = f"boundary system of {seam} too large" if conv.toroidal else f"{conv.geometry.mode} padding"
        return _fitted(conv, options, "circulant", f"torus {_sizes(size)}, {reason}{known}", spectra, size, each)
    return _fitted(conv, options, "cg", f"spectra of {_text(spectra)} exceed the budget")


def _fitted(
    conv: Convolution,
    options: SolverOptions,
    way: Way,
    why: str,
    kept: int = 0,
    size: tuple[int, ...] = (),
    each: int | None = None,
) -> Choice:
    """A choice with as many samples at a time as fit beside what is kept."""
    each = conv.system_bytes if each is None else each
    if way in ("blocks", "matrix"):
        each = 6 * (math.prod(conv.inputs) + math.prod(conv.outputs)) * conv.weight.element_size()
    _need(kept + each, options, f"one sample by {way}")
    return Choice(way, why, int(options.budget - kept) // each, size)


def _need(size: int, options: SolverOptions, what: str) -> None:
    if size > options.budget:
        raise BudgetError(
            f"a convolution's solve needs {_text(size)} for {what}, more than the memory budget of "
            f"{_text(int(options.budget))}. Raise SolverOptions.budget"
            + ("." if options.conv == "auto" else ", or take solver auto.")
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
