"""Two carriers joined in memory, for tests and for clients inside the server's process."""

from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.transport.carrier import Carrier

_PIECE_BYTES = 64 * 1024
_LIMIT_BYTES = 1024 * 1024


class _Pipe:
    """One direction: bytes wait in pieces; from `_LIMIT_BYTES` on it is full."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._bytes = 0
        self.closed = False
        self._changed = anyio.Event()

    @property
    def full(self) -> bool:
        return not self.closed and self._bytes >= _LIMIT_BYTES

    def put(self, piece: bytes) -> None:
        if not self.closed:
            self._pieces.append(piece)
            self._bytes += len(piece)
            self._notify()

    async def room(self) -> None:
        while self.full:
            await self._changed.wait()

    async def get(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        while not self.closed and not self._pieces:
            await self._changed.wait()
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self._bytes -= len(piece)
        self._notify()
        return piece

    def close_writing(self) -> None:
        self.closed = True
        self._notify()

    def close_reading(self) -> None:
        self._pieces.clear()
        self._bytes = 0
        self.close_writing()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class _MemoryCarrier:
    """One end of a pair."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, same_host: bool) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._same_host = same_host

    @property
    def name(self) -> str:
        return "memory"

    @property
    def same_host(self) -> bool:
        return self._same_host

    @property
    def authenticated(self) -> bool:
        return self._same_host  # Nothing but this process can be at the other end.

    @property
    def peer(self) -> str:
        return "memory"

    @property
    def problem(self) -> str:
        return ""

    async def receive(self) -> bytes:
        return await self._incoming.get()

    async def deliver(self, sink: Callable[[bytes], None]) -> None:
        while data := await self.receive():
            sink(data)

    def write(self, data: bytes) -> bool:
        for start in range(0, len(data), _PIECE_BYTES):
            self._outgoing.put(data[start : start + _PIECE_BYTES])
        return not self._outgoing.full

    async def drained(self) -> None:
        await self._outgoing.room()

    async def send(self, data: bytes) -> None:
        self.write(data)
        await self.drained()
        if self._outgoing.closed:
            raise ConnectionLost("the other end of the memory carrier is closed")

    async def aclose(self) -> None:
        self._incoming.close_reading()
        self._outgoing.close_writing()


def memory_pair(*, same_host: bool = True) -> tuple[Carrier, Carrier]:
    """Two joined carriers; a direction is full with 1 MiB.

    `same_host` False makes them look like carriers between two hosts.
    What was sent before a close still arrives; then the end of the stream follows.
    """
    there, back = _Pipe(), _Pipe()
    return _MemoryCarrier(back, there, same_host), _MemoryCarrier(there, back, same_host)
