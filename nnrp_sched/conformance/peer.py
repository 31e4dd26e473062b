"""The client of the conformance cases: one connection, one session, every packet noted."""

import secrets
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import anyio
import msgspec

from nnrp_sched.conformance.framing import framed, offer
from nnrp_sched.conformance.recipe import Framing
from nnrp_sched.errors import ConnectionLost, PeerUnreachable, RemoteProtocolError
from nnrp_sched.profile.control import build_control
from nnrp_sched.profile.json_values import JsonObject
from nnrp_sched.transport import Carrier, ClientSecurity, Endpoint, connect_carrier
from nnrp_sched.wire import (
    ClientConnection,
    ClientEvent,
    ConnectionCloseReceived,
    ConnectionFailed,
    ControlReceived,
    HelloAcknowledged,
    Packet,
    PacketReader,
    Reply,
    ResultReceived,
    SessionClosed,
    SessionFailed,
    SessionOpened,
    SessionOpenRejected,
    encode_packet,
)

NO_SECURITY: Final = ClientSecurity()

E = TypeVar("E", bound=ClientEvent)

_OPERATION_ID_BITS: Final = 62
_PACKET_BYTES: Final = 64 * 1024 * 1024
_BREAKS: Final = (ConnectionFailed, ConnectionCloseReceived, SessionFailed, SessionOpenRejected)


class Peer:
    """A session on a connection of its own."""

    def __init__(self, carrier: Carrier) -> None:
        self.packets: list[Packet] = []
        """Everything the server sent."""
        self.session_id = 0
        self._carrier = carrier
        self._wire = ClientConnection()
        self._reader = PacketReader(_PACKET_BYTES)
        self._events: deque[ClientEvent] = deque()
        self._operation_id = secrets.randbits(_OPERATION_ID_BITS) + 1

    @property
    def carrier_name(self) -> str:
        """What carries the bytes: `tcp`, `unix`, …"""
        return self._carrier.name

    async def open(self, token: bytes = b"") -> None:
        """Hello and one session; raises `ConnectionLost` when the server has none for us."""
        await self.send(self._wire.hello(token))
        await self._expect(HelloAcknowledged)
        await self.send(self._wire.open_session())
        self.session_id = (await self._expect(SessionOpened)).session_id

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._carrier.send(data)

    async def submit(self, document: bytes, framing: Framing) -> int:
        """Submit a document in a body that may break the profile's rules; the frame's id."""
        frame_id, data = self._wire.submit(self.session_id, b"{}", operation_id=self._operation_id)
        (packet,) = _packets(data)
        await self.send(encode_packet(framed(packet, document, framing)))
        self._operation_id += 1
        return frame_id

    async def negotiate(self, tokens: Sequence[str]) -> None:
        """Offer capabilities; the server has taken them before what follows (wire digest 3.9)."""
        await self.send(encode_packet(offer(self.session_id, tokens)))

    async def cancel(self, frame_id: int, kind: str) -> None:
        """Send CANCEL, FRAME_CANCEL or ABORT, unless the operation has ended."""
        if self._wire.in_flight(self.session_id, frame_id):
            command = {
                "cancel": self._wire.cancel,
                "frame_cancel": self._wire.frame_cancel,
                "abort": self._wire.abort,
            }[kind]
            await self.send(command(self.session_id, frame_id))

    async def next_event(self) -> ClientEvent | None:
        """The next event that is for us; None at the end of the stream."""
        while True:
            while self._events:
                event = self._events.popleft()
                if not isinstance(event, Reply):
                    return event
                await self.send(event.data)
            data = await self._carrier.receive()
            if not data:
                return None
            self._note(data)
            if not self._wire.closed:
                self._events.extend(self._wire.receive(data))

    async def close_session(self) -> None:
        """Close the session and wait for the acknowledgement; raises `ConnectionLost`."""
        await self.send(self._wire.close_session(self.session_id))
        await self._expect(SessionClosed)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._carrier.aclose()

    async def _expect(self, kind: type[E]) -> E:
        while True:
            event = await self.next_event()
            if isinstance(event, kind):
                return event
            if event is None or isinstance(event, _BREAKS):
                raise ConnectionLost(f"the server gave no {kind.__name__} but {event!r}")

    def _note(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (packet := self._reader.next_packet()) is not None:
                self.packets.append(packet)
        except RemoteProtocolError:
            # The machine meets the same fault and reports it as the end of the connection.
            self._reader = PacketReader(_PACKET_BYTES)


def _packets(data: bytes) -> list[Packet]:
    reader = PacketReader(_PACKET_BYTES)
    reader.feed(data)
    packet = reader.next_packet()
    return [] if packet is None else [packet]


@asynccontextmanager
async def connected(
    endpoint: Endpoint, seconds: float, security: ClientSecurity = NO_SECURITY
) -> AsyncGenerator[Peer]:
    """A peer with an open session; connecting and opening are bounded by `seconds`, each.

    Raises `PeerUnreachable`, `ConnectionLost`, and `SecurityError` for a certificate or token of
    our own that cannot be used.
    """
    carrier: Carrier | None = None
    with anyio.move_on_after(seconds):
        carrier = await connect_carrier(endpoint, security)
    if carrier is None:
        raise PeerUnreachable(f"no connection to {endpoint} in {seconds:g} s")
    peer = Peer(carrier)
    try:
        with anyio.move_on_after(seconds) as limit:
            await peer.open(security.token_bytes or b"")
        if limit.cancelled_caught:
            raise ConnectionLost(f"{endpoint} opened no session in {seconds:g} s")
        yield peer
    finally:
        with anyio.CancelScope(shield=True):
            await peer.aclose()


async def fetch_capabilities(
    endpoint: Endpoint, security: ClientSecurity = NO_SECURITY, *, seconds: float = 10.0
) -> JsonObject:
    """The capability document of a server with `nnrp-sched-control/1`.

    Raises `ConnectionLost` when it has none to give: the profile defines no way to ask for it
    (wire digest 6, 41), so other servers need it in a file.
    """
    async with connected(endpoint, seconds, security) as peer:
        with anyio.move_on_after(seconds):
            await peer.submit(build_control("capabilities.get", {}), Framing())
            while True:
                event = await peer.next_event()
                if isinstance(event, ControlReceived):
                    continue
                if not isinstance(event, ResultReceived) or event.document is None:
                    break
                answer = msgspec.json.decode(event.document, type=JsonObject)
                if answer.get("type") != "response.completed":
                    break
                document: JsonObject = answer["body"]
                return document
    raise ConnectionLost(
        f"{endpoint} has no capability document to give; name a capability manifest (--manifest)"
    )
