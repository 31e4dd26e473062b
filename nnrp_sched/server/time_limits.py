"""The times by which one operation has to end (wire digest 3.7)."""

import asyncio
from collections.abc import Callable
from typing import Final

from nnrp_sched.server.ending import Ending

_FARTHEST_SECONDS: Final = 365 * 24 * 3600.0
"""A limit beyond this is none; no timer is set for it."""


class TimeLimits:
    """One timer for each source of a limit; the one that is over first ends the operation.

    A later word of the same source replaces the earlier one, also to a later time.
    """

    __slots__ = ("_closed", "_stop", "_timers")

    def __init__(self, stop: Callable[[Ending], None]) -> None:
        self._stop = stop
        self._timers: dict[Ending, asyncio.TimerHandle] = {}
        self._closed = False

    def set(self, ending: Ending, seconds: float) -> None:
        """End the operation with `ending` in so many seconds; at once when they are over."""
        timer = self._timers.pop(ending, None)
        if timer is not None:
            timer.cancel()
        if self._closed or seconds > _FARTHEST_SECONDS:
            return
        if seconds <= 0:
            self._stop(ending)
        else:
            loop = asyncio.get_running_loop()
            self._timers[ending] = loop.call_later(seconds, self._over, ending)

    def close(self) -> None:
        """The operation has ended: no timer is left, and none is set any more."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _over(self, ending: Ending) -> None:
        del self._timers[ending]
        self._stop(ending)
