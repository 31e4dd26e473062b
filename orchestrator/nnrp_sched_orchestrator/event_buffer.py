"""The bounded buffer between a piece of work and the one who reads its events."""

import time
from collections import deque
from collections.abc import Callable
from typing import Generic

import anyio

from nnrp_sched_orchestrator.records import EventT


class EventBuffer(Generic[EventT]):
    """Events in order. Who puts waits for room; who takes waits for events.

    Events may be given up (`give_up`): they are then thrown away, and reading is an error, because
    a reader would miss some without knowing.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Hold up to `limit` events; `clock` gives seconds that only rise."""
        self._limit = limit
        self._clock = clock
        self._events: deque[EventT] = deque()
        self._arrival = anyio.Event()
        """Set when there is something to take, or nothing comes any more."""
        self._room = anyio.Event()
        """Set when there may be room, or none is needed any more."""
        self._closed = False
        self.given_up = False
        self.was_read = False
        """Whether anybody ever tried to take an event."""
        self.last_taken = clock()
        """When an event was last taken, or the buffer was made."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def full(self) -> bool:
        """Whether an event finds no room."""
        return len(self._events) >= self._limit

    @property
    def finished(self) -> bool:
        """Whether nothing is left and nothing more comes."""
        return self._closed and not self._events

    def put(self, event: EventT) -> bool:
        """Add an event; False when there was no room. After the end it is thrown away."""
        if self._closed or self.given_up:
            return True
        if self.full:
            return False
        self._events.append(event)
        self._arrival.set()
        return True

    async def room(self) -> None:
        """Wait until an event was taken, or `wake` was called."""
        if self._room.is_set():
            self._room = anyio.Event()
        await self._room.wait()

    def wake(self) -> None:
        """Let who waits for room look again."""
        self._room.set()

    async def take(self) -> EventT | None:
        """The next event; None at the end.

        Raises `RuntimeError` once the events were given up. Of several readers each gets some.
        """
        self.was_read = True
        while not self._events and not self._closed and not self.given_up:
            if self._arrival.is_set():
                self._arrival = anyio.Event()
            await self._arrival.wait()
        if self.given_up:
            raise RuntimeError(
                "the events of this stream were given up: nobody read them while its result, or "
                "the events of its agent, were waited for; read it from the beginning"
            )
        if not self._events:
            return None
        event = self._events.popleft()
        self.last_taken = self._clock()
        self._room.set()
        return event

    def give_up(self) -> None:
        """Nobody wants the events."""
        self.given_up = True
        self._events.clear()
        self._arrival.set()
        self._room.set()

    def close(self) -> None:
        """No more events come; those that wait can still be taken."""
        self._closed = True
        self._arrival.set()
        self._room.set()
