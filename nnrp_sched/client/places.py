"""How many operations of a session may run at once: what was granted, and the server's last word.

A server that negotiated `control.credit_backpressure` says when nothing more can start and when it
can again (wire digest 3.8). Whoever waits for a place waits for that too, but never for ever on a
word that does not come: after the server's own `retry_after` one operation tries.
"""

import asyncio
from collections import deque
from collections.abc import Callable

_NO_TIME_TOLD = 1.0
"""Seconds to wait when a server is pressed and does not say for how long."""


class Places:
    """Places for operations, given to those who wait in the order they came."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._capacity = limit
        self._taken = 0
        self._closed = False
        """Whether nothing starts for now, whatever room there is."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._changed: Callable[[], None] | None = None

    @property
    def taken(self) -> int:
        """Places in use."""
        return self._taken

    @property
    def capacity(self) -> int:
        """Places there are, by what was granted; while `paused` no further one is to be had."""
        return self._capacity

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever there may be more room, or the session is lost."""
        self._changed = changed

    async def acquire(self) -> None:
        """Take a place, waiting for one if there is none; to be released later."""
        if not self._waiting and self._has_room:
            self._taken += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.release()  # It was given a place in the same moment.
            else:
                self._waiting.remove(waiter)
            raise

    def release(self) -> None:
        """Give a place back."""
        self._taken -= 1
        self._wake()

    def grant(self, window: int) -> None:
        """The server lets so many more start."""
        self._stop_timer()
        self._closed = window <= 0
        self._capacity = min(self._limit, self._taken + window)
        self._wake()

    def press(self, retry_after_ms: int) -> None:
        """Nothing more can start; when the time is over and no word came, one tries."""
        self._stop_timer()
        self._closed = True
        seconds = retry_after_ms / 1000 or _NO_TIME_TOLD
        self._timer = asyncio.get_running_loop().call_later(seconds, self.grant, 1)

    def pause(self) -> None:
        """Nothing starts until the server says so."""
        self._stop_timer()
        self._closed = True

    def open(self) -> None:
        """The session is lost: whoever waits for a place goes on, and meets its error."""
        self._stop_timer()
        self._closed = False
        self._capacity = self._limit
        self._wake()

    @property
    def paused(self) -> bool:
        """Whether nothing starts for now, by the server's word."""
        return self._closed

    @property
    def _has_room(self) -> bool:
        return not self._closed and self._taken < self._capacity

    def _wake(self) -> None:
        while self._waiting and self._has_room:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._taken += 1
                waiter.set_result(None)
        if self._changed is not None:
            self._changed()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
