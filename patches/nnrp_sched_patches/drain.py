"""How fast the engine's queue drains, for the estimate of a wait."""

from collections import deque

_SAMPLES = 64
"""Recent starts that the mean goes over: enough to be steady, few enough to follow the load."""
_LEAST_SAMPLES = 3
_MEDIAN = 0.31
"""Of a start's interval: by so much the median of a sum of waits is below its mean."""


class DrainRate:
    """The mean time between two requests that leave a queue that was not empty.

    Requests end, and others start, nearly independently of each other, as long as their lengths
    differ: how long ago the last start was then says next to nothing about the next one, and the
    wait for the k-th is gamma distributed, with a median of about k - 0.31 mean intervals. Where
    all are of one length the lot starts at once, and the mean holds over such lots. Compared with
    others, on a real engine too: bench/queue_delay.py.
    """

    def __init__(self) -> None:
        self._intervals: deque[float] = deque(maxlen=_SAMPLES)
        self._last: float | None = None

    def started(self, waited_since: float | None, at: float) -> None:
        """A request in line since `waited_since` began to run at `at`; times in ms.

        Only one that was already waiting when the start before it happened tells how fast the
        engine takes them; any other tells how fast they arrive.
        """
        if self._last is not None and waited_since is not None and waited_since <= self._last <= at:
            self._intervals.append(at - self._last)
        self._last = at if self._last is None else max(at, self._last)

    def wait(self, position: int) -> float | None:
        """Milliseconds that a request will still wait with `position` others before it.

        As likely too long as too short; None while too few starts were seen to say so.
        """
        if len(self._intervals) < _LEAST_SAMPLES:
            return None
        return (position + 1 - _MEDIAN) * sum(self._intervals) / len(self._intervals)
