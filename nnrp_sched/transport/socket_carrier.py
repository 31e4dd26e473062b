"""Carriers over stream sockets: TCP and unix.

They stand on asyncio's transports rather than on anyio's socket streams, because this is the hot
path: an anyio stream pauses and resumes reading around every receive and yields to the loop before
every send, which together cost more than the rest of an event's way (bench/wire_streams.py).
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from ipaddress import ip_address
from typing import cast

from nnrp_sched.errors import ConnectionLost

_READ_LIMIT_BYTES = 256 * 1024
"""Received bytes that wait for `receive` before the peer is made to wait."""
_CLOSE_SECONDS = 1.0


class SocketCarrier(asyncio.Protocol):
    """A connected stream socket as a carrier; also the asyncio protocol of its transport.

    `connected` is called with the carrier once the socket is.
    """

    def __init__(
        self, name: str, connected: Callable[["SocketCarrier"], None] | None = None
    ) -> None:
        self._name = name
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._received: deque[bytes] = deque()
        self._received_bytes = 0
        self._ended = False
        self._sink: Callable[[bytes], None] | None = None
        self._sink_error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._paused = False
        self._closing = False
        loop = asyncio.get_running_loop()
        self._peer_ended: asyncio.Future[None] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()

    @property
    def name(self) -> str:
        """`tcp` or `unix`."""
        return self._name

    @property
    def same_host(self) -> bool:
        """True for a unix socket and for a peer at a loopback address."""
        if self._name == "unix":
            return True
        peer = self.transport.get_extra_info("peername")
        return peer is not None and is_loopback(peer[0])

    @property
    def transport(self) -> asyncio.Transport:
        """The transport beneath, for peer credentials and socket options."""
        assert self._transport is not None
        return self._transport

    async def receive(self) -> bytes:
        """The next bytes, `b""` at the end."""
        while not self._received:
            if self._ended:
                return b""
            await self._next_wake()
        if len(self._received) == 1:
            data = self._received.popleft()
        else:
            data = b"".join(self._received)
            self._received.clear()
        if self._received_bytes >= _READ_LIMIT_BYTES and not self._ended:
            self.transport.resume_reading()
        self._received_bytes = 0
        return data

    async def deliver(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` from the transport's own callback until the end of the stream."""
        while self._received:
            sink(await self.receive())
        self._sink = sink
        try:
            while not self._ended:
                await self._next_wake()
        finally:
            self._sink = None
        if self._sink_error is not None:
            raise self._sink_error

    def write(self, data: bytes) -> bool:
        """Hand over all bytes at once; False when the peer reads too slowly."""
        if not self._closing:
            self.transport.write(data)
        return not self._paused

    async def drained(self) -> None:
        """Wait until the transport's buffer has room, or the connection is gone."""
        while self._paused:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def send(self, data: bytes) -> None:
        """Hand over all bytes and wait for room. Raises `ConnectionLost`."""
        self.write(data)
        await self.drained()
        if self._closing or self.transport.is_closing():
            raise ConnectionLost(f"the {self._name} connection is gone")

    async def aclose(self) -> None:
        """Close both directions.

        What was sent still arrives: the peer gets a moment to read it and to close too. A socket
        closed over unread bytes is reset, and a reset takes our last words with it.
        """
        if self._lost.done():
            return
        self._closing = True
        self._end()
        self.transport.resume_reading()
        if not self._peer_ended.done():
            try:
                self.transport.write_eof()
            except OSError:
                self.transport.abort()  # Reset already, and about to be reported as lost.
            await asyncio.wait([self._peer_ended], timeout=_CLOSE_SECONDS)
        self.transport.close()
        await asyncio.wait([self._lost], timeout=_CLOSE_SECONDS)
        if not self._lost.done():
            self.transport.abort()

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)
        if self._name == "tcp":
            # asyncio does this by itself only for sockets made with an explicit protocol number.
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._connected is not None:
            self._connected(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came; beyond the limit the transport stops reading."""
        if self._closing:
            return
        if self._sink is not None:
            self._pour(data, self._sink)
            return
        self._received.append(data)
        self._received_bytes += len(data)
        if self._received_bytes >= _READ_LIMIT_BYTES:
            self.transport.pause_reading()
        _set(self._reader)

    def eof_received(self) -> bool:
        """The peer sends no more; it may still read, so the transport stays open."""
        _set(self._peer_ended)
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        _set(self._peer_ended)
        _set(self._lost)
        self._end()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self._paused = False
        _set(self._writer)

    def _pour(self, data: bytes, sink: Callable[[bytes], None]) -> None:
        try:
            sink(data)
        except BaseException as error:
            # Raised again in the task that delivers; this is a callback of the event loop.
            self._sink, self._sink_error = None, error
            self._end()

    async def _next_wake(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader

    def _end(self) -> None:
        self._ended = True
        _set(self._reader)


def is_loopback(host: str) -> bool:
    """Whether an address a socket tells is this host itself."""
    address = ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)  # As a dual-stack listener sees IPv4 peers.
    return (mapped or address).is_loopback


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
