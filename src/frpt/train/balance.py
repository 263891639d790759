"""The weight of the reconstruction loss, from moving averages of both losses (paper III-A, supplement B.1.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from frpt.errors import NonFiniteError, OptionError

BOUNDS = (1e-5, 10.0)
"""Of λ, as in the paper."""


def check_c_rec(c_rec: float) -> float:
    """c_rec as a float in [0, 1]."""
    if isinstance(c_rec, bool) or not isinstance(c_rec, int | float) or not 0 <= c_rec <= 1:
        raise OptionError(
            f"c_rec must be a number in [0, 1] (0: plain back-propagation), got {c_rec!r}; the paper uses 0.1 to 1"
        )
    return float(c_rec)


class LossBalance:
    """task + λ·rec with λ = clip(c_rec · m_task / (m_rec + eps), clip), and λ = 0 where c_rec = 0.

    m_q ← beta · m_q + (1 − beta) · L_q, started at the first loss; no gradient passes through λ.
    """

    def __init__(
        self, c_rec: float = 0.3, beta: float = 0.9, eps: float = 1e-8, clip: tuple[float, float] = BOUNDS
    ) -> None:
        if not 0 <= beta < 1:
            raise OptionError(f"beta must be in [0, 1), got {beta}")
        if not eps > 0:
            raise OptionError(f"eps must be positive, got {eps}")
        if len(clip) != 2 or not 0 <= clip[0] <= clip[1]:
            raise OptionError(f"clip must be a pair 0 <= low <= high, got {clip}")
        self.c_rec = check_c_rec(c_rec)
        self.beta, self.eps, self.clip = beta, eps, (float(clip[0]), float(clip[1]))
        self.task: float | None = None
        self.rec: float | None = None

    @property
    def weight(self) -> float:
        """λ as the moving averages stand now; 0 before the first update."""
        if self.c_rec == 0 or self.task is None or self.rec is None:
            return 0.0
        low, high = self.clip
        return min(max(self.c_rec * self.task / (self.rec + self.eps), low), high)

    def update(self, task: float | Tensor, rec: float | Tensor) -> float:
        """Take in the losses of one step and return λ; across processes pass the averages over all of them."""
        losses = []
        for name, value, mean in (("task", task, self.task), ("reconstruction", rec, self.rec)):
            loss = float(value.detach()) if isinstance(value, Tensor) else float(value)
            if not math.isfinite(loss):
                raise NonFiniteError(
                    f"the {name} loss is {loss}: training has diverged. Lower the learning rate, or look for NaN in "
                    "the data or the targets."
                )
            losses.append(loss if mean is None else self.beta * mean + (1 - self.beta) * loss)
        self.task, self.rec = losses
        return self.weight

    def __call__(self, task: Tensor, rec: Tensor) -> Tensor:
        """The loss to minimise, after an update; the task loss itself where c_rec = 0."""
        if self.c_rec == 0:
            return task
        return task + self.update(task, rec) * rec

    def state_dict(self) -> dict[str, float | None]:
        """The two moving averages."""
        return {"task": self.task, "rec": self.rec}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Continue from moving averages that ``state_dict`` returned."""
        missing = {"task", "rec"} - set(state)
        if missing:
            raise OptionError(f"a LossBalance state holds 'task' and 'rec'; {', '.join(sorted(missing))} is missing")
        self.task, self.rec = state["task"], state["rec"]
