"""A bounded queue of bytes in front of a carrier, written by one task."""

from collections import deque

import anyio

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.transport.carrier import Carrier

_BATCH_BYTES = 256 * 1024


class Outbox:
    """Everything one connection wants to send, in order.

    Producers append without a task switch; the writer sends whatever has gathered since its last
    write as one piece, so a burst of small packets costs one system call. `limit` is the number of
    waiting bytes at which `put` starts to wait.
    """

    def __init__(self, carrier: Carrier, *, limit: int) -> None:
        self._carrier = carrier
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._filled: anyio.Event | None = None
        self._drained: anyio.Event | None = None
        self._flushed: anyio.Event | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes accepted and not yet handed to the carrier."""
        return self._bytes

    def put_now(self, data: bytes) -> None:
        """Append without waiting: for replies and terminals, whose number the state machines bound.

        After the carrier is gone this does nothing: there is nobody left to tell.
        """
        if self._closed:
            return
        self._waiting.append(data)
        self._bytes += len(data)
        if self._filled is not None:
            self._filled.set()
            self._filled = None

    async def put(self, data: bytes) -> None:
        """Append, waiting while the queue is over its limit.

        Raises `ConnectionLost` when the carrier is gone.
        """
        if self._bytes >= self._limit:
            await self.wait_below(self._limit)
        if self._closed:
            raise ConnectionLost("the connection closed while an event was waiting to be sent")
        self.put_now(data)

    async def wait_below(self, limit: int) -> None:
        """Wait until fewer than `limit` bytes wait, or the carrier is gone."""
        while self._bytes >= limit and not self._closed:
            if self._drained is None:
                self._drained = anyio.Event()
            await self._drained.wait()

    async def run(self) -> None:
        """Write until closed, cancelled or the carrier fails; then wake everyone who waits."""
        try:
            while not self._closed:
                if not self._waiting:
                    self._notify_flushed()
                    self._filled = anyio.Event()
                    await self._filled.wait()
                    continue
                batch = self._take()
                await self._carrier.send(batch)
                self._bytes -= len(batch)
                if self._drained is not None:
                    self._drained.set()
                    self._drained = None
        except ConnectionLost:
            return  # The reader sees the same loss and ends the connection.
        finally:
            self.close()

    async def flush(self) -> None:
        """Wait until everything appended so far is with the carrier, or the carrier is gone."""
        if self._bytes and not self._closed:
            if self._flushed is None:
                self._flushed = anyio.Event()
            await self._flushed.wait()

    def close(self) -> None:
        """Take nothing more, forget what waits, and wake everyone who waits."""
        self._closed = True
        self._waiting.clear()
        self._bytes = 0
        self._notify_flushed()
        for event in (self._drained, self._filled):
            if event is not None:
                event.set()

    def _take(self) -> bytes:
        first = self._waiting.popleft()
        if not self._waiting or len(first) >= _BATCH_BYTES:
            return first
        batch = [first]
        size = len(first)
        while self._waiting and size < _BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1])
        return b"".join(batch)

    def _notify_flushed(self) -> None:
        if self._flushed is not None:
            self._flushed.set()
            self._flushed = None
