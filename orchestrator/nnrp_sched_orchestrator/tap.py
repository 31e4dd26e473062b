"""Somebody who listens to all streams of an agent."""

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
