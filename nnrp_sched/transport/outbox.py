"""A bounded queue of bytes in front of a carrier."""

import asyncio

import anyio

from nnrp_sched.transport.carrier import Carrier


class Outbox:
    """Everything one connection wants to send, in order.

    Producers append without a task switch. The first packet of a turn of the event loop goes to the
    carrier at once; what follows in the same turn goes as one piece at its end. So a packet alone
    waits for nothing and a burst costs two system calls. When the carrier has no room, `run` waits
    for it and the queue
    grows; from `limit` bytes on it is full, and its producers have to wait.
    """

    def __init__(self, carrier: Carrier, *, limit: int) -> None:
        self._carrier = carrier
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._closed = False
        self._flushing = False
        """Whether this turn's flush is on its way, or `run` has it in hand."""
        self._full = anyio.Event()
        self._emptied: anyio.Event | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes accepted and not yet handed to the carrier."""
        return self._bytes

    @property
    def full(self) -> bool:
        """Whether whoever can wait should `wait_below` the limit before adding more."""
        return self._bytes >= self.limit

    def put(self, data: bytes) -> None:
        """Append without waiting.

        After the end of the connection this does nothing: there is nobody left to tell.
        """
        if self._closed:
            return
        self._waiting.append(data)
        self._bytes += len(data)
        if not self._flushing:
            self._flushing = True
            if self._write():
                self._loop.call_soon(self._flush)
            else:
                self._full.set()

    async def wait_below(self, limit: int) -> None:
        """Wait until fewer than `limit` bytes wait, or the connection has ended."""
        while self._bytes >= limit and not self._closed:
            if self._emptied is None:
                self._emptied = anyio.Event()
            await self._emptied.wait()

    async def run(self) -> None:
        """Resume whenever the carrier has room again; until closed or cancelled."""
        try:
            while not self._closed:
                await self._full.wait()
                self._full = anyio.Event()
                await self._carrier.drained()
                self._flush()
        finally:
            self.close()

    def close(self) -> None:
        """Hand over what waits, take nothing more, and wake everyone who waits."""
        if not self._closed:
            self._write()
        self._closed = True
        self._full.set()

    def _flush(self) -> None:
        """Hand everything over; when the carrier is full, leave the next time to `run`."""
        if self._closed or self._write():
            self._flushing = False
        else:
            self._full.set()

    def _write(self) -> bool:
        if not self._waiting:
            return True
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        if self._emptied is not None:
            self._emptied.set()
            self._emptied = None
        return self._carrier.write(data)
