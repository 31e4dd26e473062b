"""The events of all streams of one agent, in one order."""

import asyncio
import itertools
import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import anyio

from nnrp_sched.errors import ReaderTooSlow
from nnrp_sched_orchestrator.event_buffer import EventBuffer
from nnrp_sched_orchestrator.records import StreamEvent


class AgentTap:
    """Takes the events of an agent's streams for the one who listens."""

    def __init__(self, agent: str, limit: int, stall_seconds: float) -> None:
        """Up to `limit` events wait; whoever reads none of them for `stall_seconds` is left."""
        self._agent = agent
        self._limit = limit
        self._stall_seconds = stall_seconds
        self._numbers = itertools.count(1)
        self._buffer: EventBuffer[StreamEvent[Any]] | None = None
        self._ended = False
        self._loop = asyncio.get_running_loop()

    @property
    def open(self) -> bool:
        """Whether anybody listens."""
        return self._buffer is not None

    def listen(self) -> "AgentEvents":
        """Begin to listen; raises `RuntimeError` while somebody else does."""
        if self._buffer is not None:
            raise RuntimeError(f"the events of agent {self._agent!r} are being read already")
        buffer = EventBuffer[StreamEvent[Any]](self._limit)
        if self._ended:
            buffer.close()
        else:
            self._buffer = buffer
        return AgentEvents(self, buffer)

    async def take(self, stream_id: str, event: Any) -> None:
        """Take an event; waits while there is no room, for a limited time."""
        buffer = self._buffer
        if buffer is None:
            return
        told = StreamEvent(stream_id, self._agent, next(self._numbers), event)
        while not buffer.put(told):
            with anyio.move_on_after(self._stall_seconds) as stall:
                await buffer.room()
            if stall.cancelled_caught and buffer.full:
                self.leave(buffer)
                buffer.give_up()

    def leave(self, buffer: EventBuffer[StreamEvent[Any]]) -> None:
        """Whoever listened does so no more; events go on without."""
        if self._buffer is buffer:
            self._buffer = None
        buffer.close()

    def forget(self, buffer: EventBuffer[StreamEvent[Any]]) -> None:
        """Whoever listened was garbage collected, in whatever thread that happened."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.leave, buffer)

    def close(self) -> None:
        """The agent has ended."""
        self._ended = True
        if self._buffer is not None:
            self.leave(self._buffer)


class AgentEvents:
    """An iterator over what an agent's streams tell, each event with its number.

    Ends with the agent. Leaving it ends no stream.
    """

    def __init__(self, tap: AgentTap, buffer: EventBuffer[StreamEvent[Any]]) -> None:
        self._tap = tap
        self._buffer = buffer
        forgotten = weakref.finalize(self, tap.forget, buffer)
        forgotten.atexit = False

    def __aiter__(self) -> AsyncIterator[StreamEvent[Any]]:
        """Itself: it can be read once."""
        return self

    async def __anext__(self) -> StreamEvent[Any]:
        """The next event; raises `ReaderTooSlow` when it was not read for too long."""
        if self._buffer.given_up:
            raise ReaderTooSlow("the agent's events were not read, and went on without this reader")
        event = await self._buffer.take()
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Listen no more."""
        self._tap.leave(self._buffer)

    async def __aenter__(self) -> Self:
        """Listen for the time of a block."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Listen no more."""
        await self.aclose()
