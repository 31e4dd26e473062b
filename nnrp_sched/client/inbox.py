"""What has arrived for one operation and was not read yet."""

import asyncio
from collections import deque

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.wire import OperationFailed, ProgressStage, ResultDropped, ResultReceived

Terminal = ResultReceived | ResultDropped | OperationFailed | NnrpSchedError
"""What ends an operation: one of three messages, or the loss of what carried it."""


class Inbox:
    """Event documents in order, then one terminal.

    The connection's reader fills it without waiting. Of several consumers each document reaches
    one, the terminal all.
    """

    __slots__ = (
        "_documents",
        "_limit",
        "_terminal",
        "_waiters",
        "overflowed",
        "retry_after_ms",
        "stage",
    )

    def __init__(self, limit: int, *, newest_only: bool = False) -> None:
        """Hold up to `limit` documents; with `newest_only`, one that a newer one replaces."""
        self.overflowed = False
        """Set when a document found the inbox full; it and all later ones were left out."""
        self.stage: ProgressStage | None = None
        """How far the server said the operation is."""
        self.retry_after_ms: int | None = None
        """When to try again, if the server said so with the terminal."""
        self._limit = limit
        self._documents: deque[bytes] = deque(maxlen=1 if newest_only else None)
        self._terminal: Terminal | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def finished(self) -> bool:
        """Whether the terminal has arrived; documents may still wait before it."""
        return self._terminal is not None

    def put(self, document: bytes) -> bool:
        """Add an event document; False when there was no room."""
        if self.overflowed or len(self._documents) >= self._limit:
            self.overflowed = True
            return False
        self._documents.append(document)
        self._notify()
        return True

    def finish(self, terminal: Terminal) -> None:
        """Set the terminal; the first one counts."""
        if self._terminal is None:
            self._terminal = terminal
            self._notify()

    async def get(self) -> bytes | Terminal:
        """The next document, or the terminal once all documents were read."""
        while True:
            if self._documents:
                return self._documents.popleft()
            if self._terminal is not None:
                return self._terminal
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def ended(self) -> None:
        """Wait for the terminal, and leave everything to whoever reads."""
        while self._terminal is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
