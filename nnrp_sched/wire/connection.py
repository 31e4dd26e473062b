"""What both ends of a connection share: reading, dispatch, failing, closing."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, ClassVar, TypeVar

from nnrp_sched.errors import LocalProtocolError, RemoteProtocolError
from nnrp_sched.wire.codec import RawPacket, decode_packet, encode_packet
from nnrp_sched.wire.enums import ErrorCode, ErrorScope, MessageType, Role
from nnrp_sched.wire.events import (
    ConnectionCloseReceived,
    ConnectionFailed,
    ControlReceived,
    Reply,
    SessionFailed,
)
from nnrp_sched.wire.layout import Layout, Scope
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.limits import DEFAULT_LIMITS, Limits
from nnrp_sched.wire.notices import (
    diagnostic_body,
    diagnostic_text,
    error_packet,
    recoverable_error_packet,
)
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.reader import PacketReader
from nnrp_sched.wire.recent import RecentKeys
from nnrp_sched.wire.session import Session, SessionStep
from nnrp_sched.wire.session_messages import (
    Metadata,
    TransportProbe,
    TransportProbeAck,
)

MetadataT = TypeVar("MetadataT", bound=Metadata)


class ConnectionPhase(Enum):
    """Where a connection stands."""

    GREETING = auto()
    """The hello and its answer are not both through."""
    READY = auto()
    CLOSED = auto()
    """CLOSE was sent or received, the stream ended, or the connection failed."""


class ConnectionMachine:
    """The base of the two roles.

    `clock_us` gives the time for TRANSPORT_PROBE_ACK in microseconds; without it 0 is answered.
    """

    _role: ClassVar[Role]
    _peer: ClassVar[Role]
    _before_ready: ClassVar[frozenset[MessageType]]
    """What the peer may send while the greeting lasts."""

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, *, clock_us: Callable[[], int] | None = None
    ) -> None:
        self._limits = limits
        self._clock_us = clock_us
        self._reader = PacketReader(limits.max_packet_bytes)
        self._phase = ConnectionPhase.GREETING
        self._sessions: dict[int, Session] = {}
        self._ended_sessions = RecentKeys(limits.tombstones)
        self._events: list[Any] = []
        """What the bytes at hand amount to; each role adds its own kinds of event only."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent or received any more."""
        return self._phase is ConnectionPhase.CLOSED

    @property
    def session_ids(self) -> tuple[int, ...]:
        """The sessions that are open or closing."""
        return tuple(self._sessions)

    def in_flight(self, session_id: int, frame_id: int) -> bool:
        """Whether a frame has no terminal yet and its connection lives.

        Ask before a command that answers an event: a later packet of the same bytes may have ended
        the frame, its session or the connection already.
        """
        session = self._sessions.get(session_id)
        return session is not None and frame_id in session.operations and not self.closed

    def close(self, diagnostic: str = "") -> bytes:
        """CLOSE for the whole connection; close the carrier after sending it.

        Raises `LocalProtocolError` when the connection is closed already.
        """
        self._check_open()
        self._phase = ConnectionPhase.CLOSED
        return encode_packet(Packet(MessageType.CLOSE, body=diagnostic_body(diagnostic)))

    def recoverable_error(
        self,
        code: int,
        diagnostic: str,
        *,
        session_id: int = 0,
        frame_id: int = 0,
        retry_after_ms: int = 0,
    ) -> bytes:
        """ERROR_RECOVERABLE: a message was refused, nothing ended (wire digest 3.5).

        `code` is an ErrorCode, `session_id` and `frame_id` what it is about (0 for none). Raises
        `LocalProtocolError` when the connection is closed.
        """
        self._check_open()
        return encode_packet(
            recoverable_error_packet(
                self._role, code, diagnostic, session_id, frame_id, retry_after_ms
            )
        )

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
        now = self._clock_us() if self._clock_us is not None else 0
        self._reply(
            encode_packet(
                Packet(
                    MessageType.TRANSPORT_PROBE_ACK,
                    TransportProbeAck(probe_id=probe.probe_id, server_ts_us=now),
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

    # --- failing ----------------------------------------------------------------------------------

    def _fail(self, error: RemoteProtocolError, *, answer: bool = True) -> None:
        """End the connection for a fault of the peer."""
        if answer:
            notice = error_packet(error.code, str(error), ErrorScope.CONNECTION, fatal=True)
            self._reply(encode_packet(notice) + encode_packet(Packet(MessageType.CLOSE)))
        self._phase = ConnectionPhase.CLOSED
        self._events.append(ConnectionFailed(error))

    def _fail_session(
        self, session: Session, code: int, diagnostic: str, *, answer: bool = True
    ) -> None:
        """End one session for a fault of the peer."""
        if answer:
            notice = error_packet(
                code, diagnostic, ErrorScope.SESSION, fatal=True, session_id=session.session_id
            )
            self._reply(encode_packet(notice))
        frame_ids = session.abandon()
        session.take(SessionStep.FAIL)
        self._forget(session)
        self._events.append(SessionFailed(session.session_id, code, diagnostic, frame_ids))

    def _forget(self, session: Session) -> None:
        del self._sessions[session.session_id]
        self._ended_sessions.add(session.session_id)

    def _reply(self, data: bytes) -> None:
        self._events.append(Reply(data))

    def _refuse(self, code: ErrorCode, diagnostic: str, packet: Packet) -> None:
        """Answer one message with ERROR_RECOVERABLE."""
        self._reply(
            self.recoverable_error(
                code, diagnostic, session_id=packet.session_id, frame_id=packet.frame_id
            )
        )

    # --- for the commands -------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._phase is ConnectionPhase.CLOSED:
            raise LocalProtocolError("the connection is closed", code=ErrorCode.INVALID_STATE)

    def _open_session(self, session_id: int) -> Session:
        """A session to send on. Raises `LocalProtocolError` when there is none."""
        self._check_open()
        session = self._sessions.get(session_id)
        if session is None:
            raise LocalProtocolError(
                f"session {session_id} is not open",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.SESSION,
            )
        return session


def metadata_of(packet: Packet, kind: type[MetadataT]) -> MetadataT:
    """A packet's metadata as the struct its layout promises."""
    metadata = packet.metadata
    if not isinstance(metadata, kind):
        raise TypeError(f"{packet.message_type.name} carries {type(metadata).__name__}")
    return metadata
