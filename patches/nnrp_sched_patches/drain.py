"""How fast the engine's queue drains, for the estimate of a wait."""

from collections import deque

_SAMPLES = 32
"""Recent starts that the mean goes over: enough to be steady, few enough to follow the load."""
_LEAST_SAMPLES = 3


class DrainRate:
    """The mean time between two requests that leave a queue that was not empty."""

    def __init__(self) -> None:
        self._intervals: deque[float] = deque(maxlen=_SAMPLES)
        self._last: float | None = None

    def started(self, queued: float | None, at: float) -> None:
        """A request queued at `queued` first ran at `at`; times in ms.

        Only one that was already waiting when the start before it happened tells how fast the
        engine takes them; any other tells how fast they arrive.
        """
        if self._last is not None and queued is not None and queued <= self._last <= at:
            self._intervals.append(at - self._last)
        self._last = at if self._last is None else max(at, self._last)

    def wait(self, position: int, now: float) -> float | None:
        """Milliseconds that a request will still wait with `position` others before it.

        None while too few starts were seen to say so.
        """
        if self._last is None or len(self._intervals) < _LEAST_SAMPLES:
            return None
        mean = sum(self._intervals) / len(self._intervals)
        return max(0.0, (position + 1) * mean - (now - self._last))
