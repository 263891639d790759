"""The time a composite unit may take, and which unit is at work: for the solvers that stop, and the bars that tell.

A solver asks ``problem.clock.over()`` between its steps; progress bars, in a thread of their own, show ``at_work()``.
"""

from __future__ import annotations

import time
import warnings
from types import TracebackType

from frpt.errors import SlowUnitWarning

_AT_WORK: list[Clock] = []
"""Clocks that run, outermost first."""


class Clock:
    """Runs while a unit is being solved, as a context. told: units that have been warned of, one set per network."""

    def __init__(self, unit: str = "", seconds: float | None = None, told: set[str] | None = None) -> None:
        self.unit, self.seconds = unit, seconds
        self.told = set() if told is None else told
        self.stopped = False
        self._begun: float | None = None

    def __enter__(self) -> Clock:
        self._begun = now()
        _AT_WORK.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _AT_WORK.remove(self)
        taken, self._begun = self.taken, None
        if self.stopped and kind is None and self.unit not in self.told:
            self.told.add(self.unit)
            warnings.warn(
                f"{self.unit}: stopped after {taken:.0f} s of Limits.seconds = {self.seconds:g}; samples not "
                "finished keep the best feature so far and are reported as fallback. Allow more seconds, reconstruct "
                "fewer samples at a time, take a solver without an explicit Jacobian (Composite(method='secant'), or "
                "a lower jacobian_entries), or choose a later layer.",
                SlowUnitWarning,
                stacklevel=2,
            )

    @property
    def taken(self) -> float:
        """Seconds since the unit was begun."""
        return 0.0 if self._begun is None else now() - self._begun

    def over(self) -> bool:
        """Whether the time is used up; whoever asks has to stop."""
        if self.seconds is not None and self.taken > self.seconds:
            self.stopped = True
        return self.stopped


def at_work(after: float = 10.0) -> str:
    """The unit that has been at work for long, and for how long; empty where none has.

    after: seconds from which on it is named. In ten a reader begins to wonder.
    """
    clock = next(iter(_AT_WORK), None)
    if clock is None or (taken := clock.taken) < after:
        return ""
    return f"{clock.unit}: {taken:.0f} s"


def now() -> float:
    return time.monotonic()
