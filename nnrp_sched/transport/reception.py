"""From new connections to their handlers: handshakes with a deadline, each in a task of its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.transport.carrier import Carrier
from nnrp_sched.transport.endpoint import Endpoint

_LOGGER = logging.getLogger(__name__)


class Arrival(Carrier, Protocol):
    """A carrier that may still have its handshakes before it."""

    async def open(self) -> None:
        """Wait for the handshakes. Raises `ConnectionLost` when there is no connection."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Reception:
    """Takes in the connections of one listener."""

    def __init__(self, endpoint: Endpoint, *, seconds: float, most: int) -> None:
        """`seconds` is the time for the handshakes of one, `most` how many may be at them."""
        self._endpoint = endpoint
        self._seconds = seconds
        self._most = most
        self._opening = 0
        self._arrived: asyncio.Queue[Arrival | None] = asyncio.Queue()
        """Connections on their way to their tasks; None once there will be no more."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nobody is taken any more."""
        return self._closed

    @property
    def full(self) -> bool:
        """Whether as many are at their handshakes as may be."""
        return self._opening >= self._most

    def take(self, arrival: Arrival) -> None:
        """A new connection; it is aborted when nobody can be taken."""
        if self._closed or self.full:
            if not self._closed:
                _LOGGER.warning("%s: %s handshakes at once", self._endpoint, self._opening)
            arrival.abort()
        else:
            self._opening += 1
            self._arrived.put_nowait(arrival)

    async def run(self, handler: Callable[[Carrier], Awaitable[None]]) -> None:
        """Run `handler` for each until `close` or cancelled; closes each carrier at its end."""

        async def handle(arrival: Arrival) -> None:
            try:
                if await self._opened(arrival):
                    await handler(arrival)
            finally:
                with anyio.CancelScope(shield=True):
                    await arrival.aclose()

        async with anyio.create_task_group() as tasks:
            try:
                while (arrival := await self._arrived.get()) is not None:
                    tasks.start_soon(handle, arrival)
            finally:
                self._closed = True
                while not self._arrived.empty():
                    left = self._arrived.get_nowait()
                    if left is not None:
                        left.abort()

    def close(self) -> None:
        """Take nobody any more; running handlers go on."""
        self._closed = True
        self._arrived.put_nowait(None)

    async def _opened(self, arrival: Arrival) -> bool:
        """Whether a connection came through its handshakes in time."""
        try:
            with anyio.move_on_after(self._seconds) as patience:
                await arrival.open()
        except ConnectionLost as error:
            _LOGGER.info("%s: a handshake failed: %s", self._endpoint, error)
            return False
        except Exception:
            # A fault that one peer's bytes found must not end the listener, and with it the rest.
            _LOGGER.exception("%s: a handshake ended by a fault", self._endpoint)
            return False
        finally:
            self._opening -= 1
        if patience.cancelled_caught:
            _LOGGER.info("%s: no handshake within %g s", self._endpoint, self._seconds)
        return not patience.cancelled_caught
