"""What a connection machine keeps and how it ends: what both roles and all messages share."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, ClassVar

from nnrp_sched.errors import LocalProtocolError, RemoteProtocolError
from nnrp_sched.wire.codec import encode_packet
from nnrp_sched.wire.enums import ErrorCode, ErrorScope, MessageType, Role
from nnrp_sched.wire.events import ConnectionFailed, Reply, SessionFailed
from nnrp_sched.wire.limits import DEFAULT_LIMITS, Limits
from nnrp_sched.wire.notices import diagnostic_body, error_packet, recoverable_error_packet
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.reader import PacketReader
from nnrp_sched.wire.recent import RecentKeys
from nnrp_sched.wire.session import Session, SessionStep


class ConnectionPhase(Enum):
    """Where a connection stands."""

    GREETING = auto()
    """The hello and its answer are not both through."""
    READY = auto()
    CLOSED = auto()
    """CLOSE was sent or received, the stream ended, or the connection failed."""


class ConnectionState:
    """The state of a connection, its commands of no role, and its ends.

    `clock_us` gives the time for TRANSPORT_PROBE_ACK in microseconds; without it 0 is answered.
    """

    _role: ClassVar[Role]
    _peer: ClassVar[Role]

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

    def _now_us(self) -> int:
        return self._clock_us() if self._clock_us is not None else 0

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
