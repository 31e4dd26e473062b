"""How fast places become free in a server, and so how long a refused client should wait."""

import time
from collections.abc import Callable
from typing import Final

_SMOOTHING: Final = 0.2
"""The weight of the newest interval."""
_UNKNOWN_MS: Final = 1000
_SHORTEST_MS: Final = 50
_LONGEST_MS: Final = 30_000


class Load:
    """A moving mean of the time between the ends of operations."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that only rise."""
        self._clock = clock
        self._last: float | None = None
        self._interval: float | None = None

    def released(self) -> None:
        """A place became free."""
        now = self._clock()
        if self._last is not None:
            passed = now - self._last
            known = passed if self._interval is None else self._interval
            self._interval = known + _SMOOTHING * (passed - known)
        self._last = now

    @property
    def retry_after_ms(self) -> int:
        """After how many milliseconds a place is likely to be free; never a promise."""
        if self._interval is None or self._last is None:
            return _UNKNOWN_MS
        # When nothing has ended for longer than usual, the mean is no news any more.
        seconds = max(self._interval, self._clock() - self._last)
        return round(min(_LONGEST_MS, max(_SHORTEST_MS, seconds * 1000)))
