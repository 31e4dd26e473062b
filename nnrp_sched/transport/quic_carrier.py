"""QUIC as a carrier: one bidirectional stream, opened by the client (wire digest 1.1)."""

import asyncio
from collections.abc import Callable
from typing import Final

from aioquic.asyncio.protocol import QuicConnectionProtocol, QuicStreamHandler
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from nnrp_sched.errors import ConnectionLost
from nnrp_sched.transport.inflow import Inflow, settle
from nnrp_sched.transport.quic_window import backlog, follow_reader
from nnrp_sched.transport.socket_carrier import is_loopback

IDLE_SECONDS: Final = 20.0
"""A peer that is silent for so long is gone; a live one answers pings."""
PING_SECONDS: Final = 5.0
"""How often each end asks whether the other is there."""
_CLOSE_SECONDS: Final = 1.0
_FULL_BYTES: Final = 256 * 1024
"""Unacknowledged bytes from which on the peer reads too slowly."""
_PROTOCOL_VIOLATION: Final = 1
"""Our own error code for a peer that opens more than the one stream."""

_CERTIFICATE_ALERTS: Final = range(0x100 + 42, 0x100 + 49)
"""TLS alerts from bad_certificate to unknown_ca, as QUIC numbers them."""


class QuicCarrier(QuicConnectionProtocol):
    """One QUIC connection as a carrier; also aioquic's protocol of its datagrams."""

    def __init__(
        self, quic: QuicConnection, stream_handler: QuicStreamHandler | None = None
    ) -> None:
        super().__init__(quic, stream_handler)
        self._inflow = Inflow(pause=_nothing, resume=self._transmit_soon)
        self._received_bytes = 0
        follow_reader(quic, lambda: self._received_bytes - self._inflow.waiting_bytes)
        self._stream_id: int | None = None
        self._early = bytearray()
        """What a server wrote before its client has opened the stream."""
        self._writer: asyncio.Future[None] | None = None
        self._paused = self._closing = self._deaf = False
        """Deaf: the peer takes nothing more on the stream."""
        self._problem = ""
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._peer_ended: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._pinging = self._loop.call_later(PING_SECONDS, self._ping)

    @property
    def name(self) -> str:
        """`quic`."""
        return "quic"

    @property
    def same_host(self) -> bool:
        """True for a peer at a loopback address."""
        peer = self._quic.get_peer_address()
        return peer is not None and is_loopback(peer[0])

    @property
    def authenticated(self) -> bool:
        """False: aioquic's servers do not verify client certificates."""
        return False

    @property
    def peer(self) -> str:
        """The peer's host."""
        peer = self._quic.get_peer_address()
        return "" if peer is None else str(peer[0])

    @property
    def problem(self) -> str:
        """Why the connection or its stream ended early."""
        return self._problem

    @property
    def waiting_bytes(self) -> int:
        """Bytes that came and were not read."""
        return self._inflow.waiting_bytes

    async def open(self) -> None:
        """Wait for the handshake. Raises `ConnectionLost` that says why there is none."""
        await asyncio.wait([self._opened])
        if self._lost.done():
            raise ConnectionLost(self._problem or "the peer left during the handshake")

    def open_stream(self) -> None:
        """Open the one stream, as the client does."""
        self._stream_id = self._quic.get_next_available_stream_id()

    def abort(self) -> None:
        """Close at once; what was written may be lost."""
        if not self._lost.done():
            self.close()
            self._end("closed by this side")

    async def receive(self) -> bytes:
        """The next bytes, `b""` at the end."""
        return await self._inflow.receive()

    async def deliver(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` as datagrams come, until the end of the stream."""
        await self._inflow.deliver(sink)

    def write(self, data: bytes) -> bool:
        """Hand over all bytes at once; False when the peer reads too slowly."""
        if self._closing or self._deaf:
            return not self._paused
        if self._stream_id is None:
            self._early += data
        else:
            self._quic.send_stream_data(self._stream_id, data)
            self._transmit_soon()
        self._paused = self._paused or self._backlog >= _FULL_BYTES
        return not self._paused

    async def drained(self) -> None:
        """Wait until there is room for more, or the connection is gone."""
        while self._paused:
            self._writer = self._loop.create_future()
            await self._writer

    async def send(self, data: bytes) -> None:
        """Hand over all bytes and wait for room. Raises `ConnectionLost`."""
        self.write(data)
        await self.drained()
        if self._closing or self._deaf:
            raise ConnectionLost("the quic connection is gone")

    async def aclose(self) -> None:
        """End the stream, see that what was sent arrives, close the connection."""
        if self._lost.done():
            return
        if not self._closing and not self._deaf and self._stream_id is not None:
            self._quic.send_stream_data(self._stream_id, b"", end_stream=True)
            self.transmit()
        self._closing = True
        self._inflow.end()
        await self._arrival_of_the_rest()
        if self._opened.done():
            await asyncio.wait([self._peer_ended], timeout=_CLOSE_SECONDS)
        self.abort()

    async def _arrival_of_the_rest(self) -> None:
        """Wait as long as the peer acknowledges something every second."""
        left = self._backlog + 1
        while not self._lost.done() and not self._deaf and 0 < self._backlog < left:
            left = self._backlog
            await asyncio.wait([self._lost], timeout=_CLOSE_SECONDS if left > _FULL_BYTES else 0.05)

    @property
    def _backlog(self) -> int:
        if self._stream_id is None:
            return len(self._early)
        return backlog(self._quic, self._stream_id)

    # --- aioquic --------------------------------------------------------------------------------

    def quic_event_received(self, event: QuicEvent) -> None:
        """What a datagram amounts to."""
        match event:
            case HandshakeCompleted():
                settle(self._opened)
            case StreamDataReceived():
                self._on_data(event)
            case StreamReset() if event.stream_id == self._stream_id:
                self._problem = f"the peer reset the stream (error {event.error_code})"
                self._on_stream_end()
                self._on_deafness()
            case StopSendingReceived() if event.stream_id == self._stream_id:
                self._problem = f"the peer reads no more (error {event.error_code})"
                self._on_stream_end()
                self._on_deafness()
            case ConnectionTerminated():
                self._end(_words(event))
            case _:
                pass

    def transmit(self) -> None:
        """Send what is due; then there may be room for more."""
        if self._lost.done():
            return
        super().transmit()
        if self._paused and self._backlog < _FULL_BYTES // 2:
            self._make_room()

    def error_received(self, exc: Exception) -> None:
        """The peer's host says that nobody is at its port; only a client's socket hears that."""
        if isinstance(exc, ConnectionRefusedError):
            self._end("nobody is at the port")

    def _on_data(self, event: StreamDataReceived) -> None:
        self._received_bytes += len(event.data)
        if self._stream_id is None and event.stream_id % 4 == 0:
            self._stream_id = event.stream_id
            self._quic.send_stream_data(event.stream_id, bytes(self._early))
            self._early.clear()
        if event.stream_id != self._stream_id:
            self._problem = "the peer opened a second stream"
            self.close(_PROTOCOL_VIOLATION, self._problem)
            self._end(self._problem)
            return
        if event.data and not self._closing:
            self._inflow.put(event.data)
        if event.end_stream:
            self._on_stream_end()

    def _on_stream_end(self) -> None:
        settle(self._peer_ended)
        self._inflow.end()

    def _on_deafness(self) -> None:
        self._deaf = True
        self._make_room()

    def _make_room(self) -> None:
        self._paused = False
        settle(self._writer)

    def _end(self, problem: str) -> None:
        """The connection is gone: everyone who waits is told, and no timer is left."""
        self._problem = self._problem or problem
        self._pinging.cancel()
        settle(self._lost)
        settle(self._opened)
        self._on_stream_end()
        self._on_deafness()

    def _ping(self) -> None:
        """Keep the connection known on the way, and notice when the peer is gone."""
        self._pinging = self._loop.call_later(PING_SECONDS, self._ping)
        if self._opened.done():
            self._quic.send_ping(0)
            self.transmit()


def _words(ended: ConnectionTerminated) -> str:
    if ended.error_code == 0:
        return ""
    reason = ended.reason_phrase or f"error {ended.error_code:#x}"
    if ended.error_code in _CERTIFICATE_ALERTS:
        return f"QUIC: the certificate is not trusted: {reason}"
    return f"QUIC: {reason}"


def _nothing() -> None:
    """The window closes by itself while nobody reads."""
