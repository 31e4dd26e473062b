"""Carriers over stream sockets: TCP and unix.

They stand on asyncio's transports rather than on anyio's socket streams, because this is the hot
path: an anyio stream pauses and resumes reading around every receive and yields to the loop before
every send, which together cost more than the rest of an event's way (bench/wire_streams.py).
"""

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, cast

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.transport.inflow import Inflow, settle

_CLOSE_SECONDS: Final = 1.0

_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A peer that is gone without a word, as with its power, is noticed within half a minute."""


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
        self._inflow = Inflow(pause=self._pause_reading, resume=self._resume_reading)
        self._writer: asyncio.Future[None] | None = None
        self._paused = False
        self._choked = False
        """Whether reading has to wait until what was written is gone."""
        self._closing = False
        loop = asyncio.get_running_loop()
        self._peer_ended: asyncio.Future[None] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()

    @property
    def name(self) -> str:
        """`tcp` or `unix`, or what the layers on it make of it."""
        return self._name

    @property
    def same_host(self) -> bool:
        """True for a unix socket and for a peer at a loopback address."""
        if self._name == "unix":
            return True
        peer = self.transport.get_extra_info("peername")
        return peer is not None and is_loopback(peer[0])

    @property
    def authenticated(self) -> bool:
        """True for a unix socket: the listener takes only users it knows."""
        return self._name == "unix"

    @property
    def peer(self) -> str:
        """The peer's host; empty for a unix socket, which has none."""
        if self._name == "unix":
            return ""
        peer = self.transport.get_extra_info("peername")
        return "" if peer is None else str(peer[0])

    @property
    def problem(self) -> str:
        """Empty: a bare socket just ends."""
        return ""

    @property
    def transport(self) -> asyncio.Transport:
        """The transport beneath, for peer credentials and socket options."""
        assert self._transport is not None
        return self._transport

    async def open(self) -> None:
        """Wait for handshakes, of which a bare socket has none."""

    def abort(self) -> None:
        """Close at once; what was written may be lost."""
        self.transport.abort()

    async def receive(self) -> bytes:
        """The next bytes, `b""` at the end."""
        return await self._inflow.receive()

    async def deliver(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` from the transport's own callback until the end of the stream."""
        await self._inflow.deliver(sink)

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
        if not self._sends:
            raise ConnectionLost(f"the {self._name} connection is gone")

    async def aclose(self) -> None:
        """Close both directions.

        What was sent still arrives: the peer gets a moment to read it and to close too. A socket
        closed over unread bytes is reset, and a reset takes our last words with it.
        """
        if self._lost.done():
            return
        if not self._closing:
            self._say_goodbye()
        self._closing = True
        self._inflow.end()
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
        raw = self._transport.get_extra_info("socket")
        if raw.family != socket.AF_UNIX:
            # asyncio does this by itself only for sockets made with an explicit protocol number.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for level, option, value in _KEEPALIVE:
                raw.setsockopt(level, option, value)
        if self._connected is not None:
            self._connected(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came; beyond the limit the transport stops reading."""
        if not self._closing:
            self._inflow.put(data)

    def eof_received(self) -> bool:
        """The peer sends no more; it may still read, so the transport stays open."""
        settle(self._peer_ended)
        self._inflow.end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        settle(self._peer_ended)
        settle(self._lost)
        self._inflow.end()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self._paused = False
        settle(self._writer)

    @property
    def _sends(self) -> bool:
        """Whether what is written now may still arrive."""
        return not (self._closing or self.transport.is_closing())

    def _say_goodbye(self) -> None:
        """Write what comes last, before the end of the stream itself; a bare socket has nothing."""

    def _pause_reading(self) -> None:
        self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._choked and not self._inflow.full:
            self.transport.resume_reading()


def is_loopback(host: str) -> bool:
    """Whether an address a socket tells is this host itself."""
    address = ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)  # As a dual-stack listener sees IPv4 peers.
    return (mapped or address).is_loopback
