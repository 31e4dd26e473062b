"""What a client does with what its server sends about the connection and its sessions."""

from collections import deque
from collections.abc import Callable
from typing import ClassVar

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.capability_tokens import TokenFault, decode_tokens
from nnrp_sched.wire.client_operations import ClientOperations
from nnrp_sched.wire.connection import ConnectionMachine, metadata_of
from nnrp_sched.wire.connection_state import ConnectionPhase
from nnrp_sched.wire.enums import CloseStatus, ErrorCode, ErrorScope, MessageType, SessionStatus
from nnrp_sched.wire.events import (
    CapabilitiesAgreed,
    HelloAcknowledged,
    SessionClosed,
    SessionOpened,
    SessionOpenRejected,
)
from nnrp_sched.wire.handshake import SDK_HELLO, hello_ack_fault
from nnrp_sched.wire.layout import Layout, Scope
from nnrp_sched.wire.limits import DEFAULT_LIMITS, Limits
from nnrp_sched.wire.notices import diagnostic_text
from nnrp_sched.wire.operation_messages import Capability
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session import Session, SessionStep
from nnrp_sched.wire.session_messages import (
    ErrorNotice,
    ServerHelloAck,
    SessionCloseAck,
    SessionOpen,
    SessionOpenAck,
)

_DECISIVE = frozenset(
    {
        MessageType.SERVER_HELLO_ACK,
        MessageType.SESSION_OPEN_ACK,
        MessageType.SESSION_CLOSE_ACK,
        MessageType.ERROR,
    }
)
"""Messages whose wrong values leave us not knowing where we stand."""

_RESULTS = frozenset(
    {MessageType.PARTIAL_RESULT, MessageType.RESULT_PUSH, MessageType.RESULT_DROP_REASON}
)
"""Messages that are handled with wrong values too: an operation's owner has to learn of them."""


class ClientSessions(ClientOperations):
    """The receiving half of `ClientConnection`: strict about what decides, tolerant of advice."""

    _before_ready: ClassVar[frozenset[MessageType]] = frozenset(
        {
            MessageType.SERVER_HELLO_ACK,
            MessageType.TRANSPORT_PROBE,
            MessageType.TRANSPORT_PROBE_ACK,
            MessageType.ERROR,
            MessageType.CLOSE,
        }
    )

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, *, clock_us: Callable[[], int] | None = None
    ) -> None:
        super().__init__(limits, clock_us=clock_us)
        self._said_hello = False
        self._opens: deque[SessionOpen] = deque()
        self._packet_ceiling = limits.max_packet_bytes

    def _handle(self, packet: Packet, layout: Layout, session: Session | None) -> None:
        kind = packet.message_type
        if kind in self._CONNECTION_HANDLERS:
            self._CONNECTION_HANDLERS[kind](self, packet)
        elif session is not None and kind in self._SESSION_HANDLERS:
            self._SESSION_HANDLERS[kind](self, packet, session)
        elif session is None or layout.scope is Scope.SESSION_ADVICE:
            self._on_advice(packet)
        elif packet.frame_id == 0 or packet.frame_id in session.operations:
            # Advice about an operation; about a finished or unknown one it is passed over.
            self._on_advice(packet)

    def _tolerates(self, packet: Packet, session: Session | None, fault: str) -> bool:
        if packet.message_type in _DECISIVE:
            raise RemoteProtocolError(fault, code=ErrorCode.MALFORMED_BODY)
        return packet.message_type in _RESULTS

    def _may_lack_session(self, packet: Packet) -> bool:
        # An acknowledgement names its session before we know it, an ERROR stands for itself.
        return packet.message_type in (MessageType.SESSION_OPEN_ACK, MessageType.ERROR)

    def _unknown_session(self, packet: Packet) -> None:
        if packet.session_id not in self._ended_sessions:
            raise RemoteProtocolError(
                f"{packet.message_type.name}: session {packet.session_id} was never open",
                code=ErrorCode.INVALID_STATE,
            )

    def _refuse_unsupported(self, packet: Packet) -> None:
        """Nothing: a server is free to offer what we make no use of."""

    # --- connection and sessions --------------------------------------------------------------

    def _on_hello_ack(self, packet: Packet) -> None:
        if self._phase is not ConnectionPhase.GREETING or not self._said_hello:
            raise RemoteProtocolError(
                "SERVER_HELLO_ACK answers no hello", code=ErrorCode.INVALID_STATE
            )
        ack = metadata_of(packet, ServerHelloAck)
        fault = hello_ack_fault(SDK_HELLO, ack)
        if fault is not None:
            code, message = fault
            raise RemoteProtocolError(message, code=code)
        self._phase = ConnectionPhase.READY
        if ack.max_body_bytes:
            self._packet_ceiling = min(self._packet_ceiling, ack.max_body_bytes)
        self._events.append(HelloAcknowledged(ack))

    def _on_session_open_ack(self, packet: Packet) -> None:
        if not self._opens:
            raise RemoteProtocolError(
                "SESSION_OPEN_ACK answers no request", code=ErrorCode.INVALID_STATE
            )
        request = self._opens.popleft()
        ack = metadata_of(packet, SessionOpenAck)
        if ack.status not in (SessionStatus.OPENED, SessionStatus.RESUMED):
            self._events.append(SessionOpenRejected(ack, diagnostic_text(packet.body)))
            return
        session_id = ack.session_id
        if not session_id or session_id != packet.session_id or session_id in self._sessions:
            raise RemoteProtocolError(
                f"SESSION_OPEN_ACK opens session {session_id} in a packet of session "
                f"{packet.session_id}",
                code=ErrorCode.INVALID_STATE,
            )
        self._sessions[session_id] = Session(
            session_id,
            max_in_flight=ack.max_in_flight or request.max_in_flight,
            tombstones=self._limits.tombstones,
        )
        self._ended_sessions.discard(session_id)
        self._events.append(SessionOpened(session_id, ack))

    def _on_session_close_ack(self, packet: Packet, session: Session) -> None:
        if not session.allows(SessionStep.END):
            raise RemoteProtocolError(
                "SESSION_CLOSE_ACK answers no SESSION_CLOSE", code=ErrorCode.INVALID_STATE
            )
        ack = metadata_of(packet, SessionCloseAck)
        if ack.status == CloseStatus.CLOSED:
            frame_ids = session.abandon()
            session.take(SessionStep.END)
            self._forget(session)
            self._events.append(SessionClosed(session.session_id, frame_ids))
            return
        if ack.status == CloseStatus.REJECTED:
            session.take(SessionStep.REOPEN)
        self._on_advice(packet)

    def _on_agreement(self, packet: Packet, session: Session) -> None:
        """The server's answer to our wish, or its own word that it does less from now on."""
        answer = metadata_of(packet, Capability)
        try:
            tokens = frozenset(decode_tokens(answer.count, packet.body))
        except TokenFault as fault:
            self._refuse(ErrorCode.MALFORMED_BODY, str(fault), packet)
            return
        session.capabilities = tokens
        self._events.append(CapabilitiesAgreed(session.session_id, tokens))

    def _on_error(self, packet: Packet) -> None:
        """An ERROR ends what its scope names (wire digest 6-8)."""
        notice = metadata_of(packet, ErrorNotice)
        diagnostic = diagnostic_text(packet.body)
        if notice.scope == ErrorScope.CONNECTION:
            if notice.is_fatal:
                error = RemoteProtocolError(f"the server reported: {diagnostic}", code=notice.code)
                self._fail(error, answer=False)
            else:
                self._on_advice(packet)
            return
        session = self._sessions.get(notice.related_session or packet.session_id)
        if session is None:
            return
        if notice.scope == ErrorScope.SESSION:
            self._fail_session(session, notice.code, diagnostic, answer=False)
            return
        operation = session.operations.get(notice.related_frame or packet.frame_id)
        if operation is not None:
            self._end_operation(session, operation, notice.code, diagnostic)

    _CONNECTION_HANDLERS: ClassVar[
        dict[MessageType, Callable[["ClientSessions", Packet], None]]
    ] = {
        MessageType.SERVER_HELLO_ACK: _on_hello_ack,
        MessageType.CLOSE: ConnectionMachine._on_close,
        MessageType.PING: ConnectionMachine._on_ping,
        MessageType.TRANSPORT_PROBE: ConnectionMachine._on_probe,
        MessageType.ERROR: _on_error,
        MessageType.SESSION_OPEN_ACK: _on_session_open_ack,
    }
    _SESSION_HANDLERS: ClassVar[
        dict[MessageType, Callable[["ClientSessions", Packet, Session], None]]
    ] = {
        MessageType.SESSION_CLOSE_ACK: _on_session_close_ack,
        MessageType.CAPABILITY_NEGOTIATION: _on_agreement,
        MessageType.DEGRADE_PROFILE: _on_agreement,
        MessageType.PARTIAL_RESULT: ClientOperations._on_partial,
        MessageType.RESULT_PUSH: ClientOperations._on_result,
        MessageType.RESULT_DROP: ClientOperations._on_drop,
        MessageType.RESULT_DROP_REASON: ClientOperations._on_drop_reason,
    }
    """What changes the machine or is answered by it; everything else is only reported."""
