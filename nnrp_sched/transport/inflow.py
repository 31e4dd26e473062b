"""What a carrier has received and its reader has not taken yet."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

LIMIT_BYTES: Final = 256 * 1024
"""Received bytes that wait before the peer is made to wait."""


class Inflow:
    """A bounded queue of bytes with one reader, or a sink that takes everything at once."""

    def __init__(self, *, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """`pause` is called when it is full, `resume` when there is room again."""
        self._pause = pause
        self._resume = resume
        self._pieces: deque[bytes] = deque()
        self._sink: Callable[[bytes], None] | None = None
        self._sink_error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        self.waiting_bytes = 0
        self.ended = False

    @property
    def full(self) -> bool:
        """Whether nothing more should be put in."""
        return self.waiting_bytes >= LIMIT_BYTES

    def put(self, data: bytes) -> None:
        """Take the next bytes, at least one."""
        if self._sink is not None:
            self._pour(data, self._sink)
            return
        self._pieces.append(data)
        self.waiting_bytes += len(data)
        if self.full:
            self._pause()
        self._wake()

    def end(self) -> None:
        """Nothing more comes; what waits can still be read."""
        self.ended = True
        self._wake()

    async def receive(self) -> bytes:
        """The next bytes, `b""` at the end."""
        while not self._pieces:
            if self.ended:
                return b""
            await self._next_wake()
        if len(self._pieces) == 1:
            data = self._pieces.popleft()
        else:
            data = b"".join(self._pieces)
            self._pieces.clear()
        was_full, self.waiting_bytes = self.full, 0
        if was_full and not self.ended:
            self._resume()
        return data

    async def deliver(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` from the carrier's own callback until the end; raises what it raises."""
        while self._pieces:
            sink(await self.receive())
        self._sink = sink
        try:
            while not self.ended:
                await self._next_wake()
        finally:
            self._sink = None
        if self._sink_error is not None:
            raise self._sink_error

    def _pour(self, data: bytes, sink: Callable[[bytes], None]) -> None:
        try:
            sink(data)
        except BaseException as error:
            # Raised again in the task that delivers; this is a callback of the event loop.
            self._sink, self._sink_error = None, error
            self.end()

    async def _next_wake(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader

    def _wake(self) -> None:
        settle(self._reader)


def settle(future: "asyncio.Future[None] | None") -> None:
    """Wake whoever waits, if anybody does."""
    if future is not None and not future.done():
        future.set_result(None)
