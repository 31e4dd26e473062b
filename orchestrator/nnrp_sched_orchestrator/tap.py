"""Somebody who listens to all streams of an agent."""

from collections.abc import Callable
from typing import Any, Protocol


class Tap(Protocol):
    """Gets every event of the streams it is told of."""

    @property
    def open(self) -> bool:
        """Whether anybody listens."""
        ...

    async def take(self, stream_id: str, event: Any) -> None:
        """Take an event; waits while too many are unread, but never for ever."""
        ...


class NoTap:
    """Nobody listens."""

    open = False

    async def take(self, stream_id: str, event: Any) -> None:
        """Nothing to do."""


NO_TAP = NoTap()


class OwnEvents:
    """For a stream that repeats what others tell: only its own events go on to the tap."""

    def __init__(self, tap: Tap, own: Callable[[Any], bool]) -> None:
        self._tap = tap
        self._own = own

    @property
    def open(self) -> bool:
        """Whether anybody listens."""
        return self._tap.open

    async def take(self, stream_id: str, event: Any) -> None:
        """Hand it on, unless another stream has told it."""
        if self._own(event):
            await self._tap.take(stream_id, event)
