"""Carriers over stream sockets: TCP and unix."""

import anyio
from anyio.abc import SocketStream

from nnrp_sched.errors import ConnectionLost

_RECEIVE_BYTES = 64 * 1024


class SocketCarrier:
    """A connected stream socket as a carrier."""

    def __init__(self, stream: SocketStream, name: str) -> None:
        self._stream = stream
        self._name = name

    @property
    def name(self) -> str:
        """`tcp` or `unix`."""
        return self._name

    @property
    def stream(self) -> SocketStream:
        """The stream beneath, for peer credentials and socket options."""
        return self._stream

    async def receive(self) -> bytes:
        """The next bytes, `b""` at the end."""
        try:
            return await self._stream.receive(_RECEIVE_BYTES)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return b""

    async def send(self, data: bytes) -> None:
        """Hand over all bytes. Raises `ConnectionLost`."""
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionLost(f"the {self._name} connection is gone") from error

    async def aclose(self) -> None:
        """Close both directions."""
        await self._stream.aclose()
