"""How fast a pool gives leases, and so how long its queue takes."""

from collections.abc import Callable
from typing import Final

from nnrp_sched_orchestrator.stopwatch import milliseconds

_SMOOTHING: Final = 0.2
"""The weight of the newest interval."""


class Pace:
    """A moving mean of the time between leases that were waited for."""

    def __init__(self, clock: Callable[[], float] = milliseconds) -> None:
        """`clock` gives milliseconds that only rise."""
        self._clock = clock
        self._last: float | None = None
        self._interval: float | None = None

    def start(self) -> None:
        """Something begins to wait in an empty queue: what passed before tells nothing."""
        self._last = None

    def granted(self) -> None:
        """A lease was given."""
        now = self._clock()
        if self._last is not None:
            passed = now - self._last
            known = passed if self._interval is None else self._interval
            self._interval = known + _SMOOTHING * (passed - known)
        self._last = now

    def estimate_ms(self, position: int) -> float | None:
        """How long whoever stands at a position will still wait; None while nobody knows."""
        if self._interval is None or self._last is None:
            return None
        # When nothing has moved for longer than usual, the mean is no news any more.
        passed = self._clock() - self._last
        first = max(0.0, self._interval - passed)
        return first + position * max(self._interval, passed)
