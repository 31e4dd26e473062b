"""What both ends of a connection share: reading, dispatch, and what is answered alike."""

from typing import Any, ClassVar, TypeVar

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.codec import RawPacket, decode_packet, encode_packet
from nnrp_sched.wire.connection_state import ConnectionPhase, ConnectionState
from nnrp_sched.wire.enums import ErrorCode, MessageType
from nnrp_sched.wire.events import ConnectionCloseReceived, ControlReceived
from nnrp_sched.wire.layout import Layout, Scope
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.notices import diagnostic_text
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session import Session
from nnrp_sched.wire.session_messages import Metadata, TransportProbe, TransportProbeAck

MetadataT = TypeVar("MetadataT", bound=Metadata)


class ConnectionMachine(ConnectionState):
    """The base of the two roles."""

    _before_ready: ClassVar[frozenset[MessageType]]
    """What the peer may send while the greeting lasts."""

    # --- receiving ------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> list[Any]:
        events: list[Any] = []
        self._events = events
        if self._phase is not ConnectionPhase.CLOSED:
            self._reader.feed(data)
            try:
                self._read_packets()
            except RemoteProtocolError as error:
                self._fail(error)
        return events

    def _read_packets(self) -> None:
        next_raw = self._reader.next_raw
        while (raw := next_raw()) is not None:
            self._take(raw)
            if self._phase is ConnectionPhase.CLOSED:
                return

    def _receive_end(self) -> list[Any]:
        events: list[Any] = []
        self._events = events
        if not self.closed:
            try:
                self._reader.end()
            except RemoteProtocolError as error:
                self._fail(error)
            self._phase = ConnectionPhase.CLOSED
        return events

    def _take(self, raw: RawPacket) -> None:
        """Check what is the same for every message, then let the role handle it."""
        packet = decode_packet(raw)
        layout = LAYOUTS[packet.message_type]
        name = layout.message_type.name
        if self._peer not in layout.senders:
            raise RemoteProtocolError(
                f"{name} is not for a {self._peer.name.lower()} to send",
                code=ErrorCode.INVALID_STATE,
            )
        if (
            self._phase is ConnectionPhase.GREETING
            and packet.message_type not in self._before_ready
        ):
            raise RemoteProtocolError(f"{name} came before the hello", code=ErrorCode.INVALID_STATE)
        if layout.scope is Scope.CONNECTION and (packet.session_id or packet.frame_id):
            raise RemoteProtocolError(
                f"{name} concerns the connection and carries session {packet.session_id}, "
                f"frame {packet.frame_id}",
                code=ErrorCode.MALFORMED_HEADER,
            )
        if not layout.supported:
            self._refuse_unsupported(packet)
            return
        session = self._sessions.get(packet.session_id)
        if (
            session is None
            and layout.scope is not Scope.CONNECTION
            and (packet.session_id or layout.scope is not Scope.SESSION_ADVICE)
            and not self._may_lack_session(packet)
        ):
            self._unknown_session(packet)
            return
        fault = layout.value_fault(packet)
        if fault is None and layout.scope is Scope.SESSION and packet.frame_id:
            fault = f"frame {packet.frame_id} where only a session is meant"
        if fault is not None and not self._tolerates(packet, session, f"{name}: {fault}"):
            return
        self._handle(packet, layout, session)

    def _handle(self, packet: Packet, layout: Layout, session: Session | None) -> None:
        """Act on a message whose form, sender and session are right."""
        raise NotImplementedError

    def _tolerates(self, packet: Packet, session: Session | None, fault: str) -> bool:
        """Answer a wrong value; True when the message is to be handled all the same."""
        raise NotImplementedError

    def _may_lack_session(self, packet: Packet) -> bool:
        """Whether the message may name a session that is not (or not yet) open."""
        raise NotImplementedError

    def _unknown_session(self, packet: Packet) -> None:
        """Answer a message for a session that is not open."""
        raise NotImplementedError

    def _refuse_unsupported(self, packet: Packet) -> None:
        """Answer a message type that this project does not implement."""
        raise NotImplementedError

    # --- what both roles do with it ---------------------------------------------------------------

    def _on_close(self, packet: Packet) -> None:
        self._phase = ConnectionPhase.CLOSED
        self._events.append(ConnectionCloseReceived(diagnostic_text(packet.body)))

    def _on_ping(self, packet: Packet) -> None:
        pong = Packet(MessageType.PONG, session_id=packet.session_id, frame_id=packet.frame_id)
        self._reply(encode_packet(pong))

    def _on_probe(self, packet: Packet) -> None:
        probe = metadata_of(packet, TransportProbe)
        self._reply(
            encode_packet(
                Packet(
                    MessageType.TRANSPORT_PROBE_ACK,
                    TransportProbeAck(probe_id=probe.probe_id, server_ts_us=self._now_us()),
                )
            )
        )

    def _on_advice(self, packet: Packet) -> None:
        """Report a message that changes nothing here."""
        session = self._sessions.get(packet.session_id)
        frame_id = packet.frame_id
        if session is not None and frame_id not in session.operations:
            frame_id = 0
        self._events.append(ControlReceived(packet, packet.session_id, frame_id))


def metadata_of(packet: Packet, kind: type[MetadataT]) -> MetadataT:
    """A packet's metadata as the struct its layout promises."""
    metadata = packet.metadata
    if not isinstance(metadata, kind):
        raise TypeError(f"{packet.message_type.name} carries {type(metadata).__name__}")
    return metadata
