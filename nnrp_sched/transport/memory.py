"""Two carriers joined in memory, for tests and for clients inside the server's process."""

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.transport.carrier import Carrier

_PIECE_BYTES = 64 * 1024
_MAX_PIECES = 16


class _MemoryCarrier:
    """One end: bytes travel in pieces, so that what lies in between is bounded in bytes."""

    def __init__(
        self,
        incoming: MemoryObjectReceiveStream[bytes],
        outgoing: MemoryObjectSendStream[bytes],
    ) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def name(self) -> str:
        return "memory"

    async def receive(self) -> bytes:
        try:
            return await self._incoming.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            return b""

    async def send(self, data: bytes) -> None:
        try:
            if len(data) <= _PIECE_BYTES:
                if data:
                    await self._outgoing.send(data)
                return
            for start in range(0, len(data), _PIECE_BYTES):
                await self._outgoing.send(data[start : start + _PIECE_BYTES])
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionLost("the other end of the memory carrier is closed") from error

    async def aclose(self) -> None:
        self._incoming.close()
        self._outgoing.close()


def memory_pair() -> tuple[Carrier, Carrier]:
    """Two joined carriers; at most 1 MiB waits in each direction."""
    to_second, from_first = anyio.create_memory_object_stream[bytes](_MAX_PIECES)
    to_first, from_second = anyio.create_memory_object_stream[bytes](_MAX_PIECES)
    return _MemoryCarrier(from_second, to_second), _MemoryCarrier(from_first, to_first)
