"""LinearMap: what a linear solver has to offer. ``gate.anchored`` solves with any of them; rules make them.

    solve(r)      = A⁺ r                    the minimum-norm least-squares correction
    damped(r, α)  = (AᵀA + αI)⁻¹ Aᵀ r      the Tikhonov correction, the gate's fallback

The least work for a new kind of map: the two products ``apply`` and ``adjoint``, and ``solve``, ``damped`` by whatever
its structure allows (``cgls.CGLS`` has both from the products alone).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LinearMap(Protocol):
    """A linear map A with whatever of its inverse depends on the weights only.

    Systems are rows: x: (s, *in), y: (s, *out), each of the s systems independent of the others.
    """

    reduces: bool
    """Case I (outputs ≤ inputs: consistency can be asked for) or case II."""
    direct: bool
    """A⁺ r costs about as much as A x: it may be applied again and again."""

    @property
    def deficient(self) -> bool | Tensor:
        """Numerically rank-deficient: A⁺ is truncated and every solution counts as a fallback."""
        ...

    @property
    def frobenius(self) -> float | Tensor:
        """‖A‖_F; it, σ_max and ``deficient`` are (s,) where every system has a matrix of its own."""
        ...

    @property
    def sigma_max(self) -> float | Tensor: ...
    def rows(self, index: Tensor) -> LinearMap:
        """The map of the systems ``index: (k,)`` only; itself where all systems share one matrix."""
        ...

    def apply(self, x: Tensor) -> Tensor: ...
    def adjoint(self, y: Tensor) -> Tensor: ...
    def solve(self, residual: Tensor) -> Tensor:
        """A⁺ r, the minimum-norm least-squares correction."""
        ...

    def damped(self, residual: Tensor, alpha: Tensor) -> Tensor:
        """(AᵀA + αI)⁻¹ Aᵀ r with alpha: (s,)."""
        ...
