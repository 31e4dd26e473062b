"""What a server does with what its client sends about the connection and its sessions."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.authentication import OPEN, UNKNOWN_PEER_BYTES, Authentication
from nnrp_sched.wire.capability_tokens import TokenFault, decode_tokens
from nnrp_sched.wire.codec import encode_packet
from nnrp_sched.wire.connection import ConnectionMachine, metadata_of
from nnrp_sched.wire.connection_state import ConnectionPhase
from nnrp_sched.wire.enums import (
    ErrorCode,
    ErrorScope,
    MessageType,
    PatchRejectReason,
    PatchStatus,
    SessionErrorCode,
    SessionStatus,
)
from nnrp_sched.wire.events import (
    CapabilitiesAgreed,
    HelloReceived,
    SessionCloseReceived,
    SessionOpenReceived,
)
from nnrp_sched.wire.handshake import answer_hello, session_open_fault
from nnrp_sched.wire.layout import Layout, Scope
from nnrp_sched.wire.limits import DEFAULT_LIMITS, Limits
from nnrp_sched.wire.negotiation import agree, capability_packet
from nnrp_sched.wire.notices import diagnostic_body, diagnostic_text
from nnrp_sched.wire.operation_messages import Capability
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.server_operations import ServerOperations
from nnrp_sched.wire.session import Session, SessionStep
from nnrp_sched.wire.session_messages import (
    ClientHello,
    ErrorNotice,
    SessionClose,
    SessionMigrateAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    SessionPatchAck,
)

_NEGOTIATIONS = frozenset({MessageType.CAPABILITY_NEGOTIATION, MessageType.DEGRADE_PROFILE})


class ServerSessions(ServerOperations):
    """The receiving half of `ServerConnection`."""

    _before_ready: ClassVar[frozenset[MessageType]] = frozenset(
        {MessageType.CLIENT_HELLO, MessageType.TRANSPORT_PROBE, MessageType.CLOSE}
    )

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        *,
        offers: Iterable[str] = (),
        authentication: Authentication = OPEN,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        """`offers` are the capabilities that a session may negotiate."""
        super().__init__(limits, clock_us=clock_us)
        self._authentication = authentication
        if authentication.needed:
            self._reader.limit(min(limits.max_packet_bytes, UNKNOWN_PEER_BYTES))
        self._offers = frozenset(offers)
        self._credit_epoch = 0
        """Of the last FLOW_UPDATE sent."""
        self._retry_sequence = 0
        """Of the last RETRY_AFTER sent."""
        self._opens: deque[SessionOpenReceived | bytes] = deque()
        """Unanswered session requests, and the refusals that have to wait for their turn."""

    def _handle(self, packet: Packet, layout: Layout, session: Session | None) -> None:
        kind = packet.message_type
        if kind in self._CONNECTION_HANDLERS:
            self._CONNECTION_HANDLERS[kind](self, packet)
        elif session is None:
            self._on_connection_advice(packet)
        elif layout.scope is Scope.SESSION_ADVICE and kind not in self._SESSION_HANDLERS:
            self._on_advice(packet)
        else:
            self._SESSION_HANDLERS.get(kind, ServerOperations._on_control)(self, packet, session)

    # --- connection ---------------------------------------------------------------------------

    def _on_hello(self, packet: Packet) -> None:
        if self._phase is not ConnectionPhase.GREETING:
            raise RemoteProtocolError("a second CLIENT_HELLO", code=ErrorCode.INVALID_STATE)
        hello = metadata_of(packet, ClientHello)
        fault = self._authentication.fault(packet.body[: hello.auth_bytes])
        if fault is not None:
            code, message = fault
            raise RemoteProtocolError(message, code=code)
        ack = answer_hello(hello, self._limits)
        self._reader.limit(self._limits.max_packet_bytes)
        self._phase = ConnectionPhase.READY
        self._reply(encode_packet(Packet(MessageType.SERVER_HELLO_ACK, ack)))
        self._events.append(HelloReceived(hello))

    def _on_error(self, packet: Packet) -> None:
        notice = metadata_of(packet, ErrorNotice)
        diagnostic = diagnostic_text(packet.body)
        if notice.is_fatal and notice.scope == ErrorScope.CONNECTION:
            error = RemoteProtocolError(f"the client reported: {diagnostic}", code=notice.code)
            self._fail(error, answer=False)
            return
        failed = self._sessions.get(notice.related_session or packet.session_id)
        if notice.is_fatal and notice.scope == ErrorScope.SESSION and failed is not None:
            self._fail_session(failed, notice.code, diagnostic, answer=False)
            return
        self._on_advice(packet)

    # --- sessions -----------------------------------------------------------------------------

    def _on_session_open(self, packet: Packet) -> None:
        if len(self._opens) >= 2 * self._limits.max_sessions:
            raise RemoteProtocolError(
                "too many sessions asked for at once", code=ErrorCode.LIMIT_EXCEEDED
            )
        request = metadata_of(packet, SessionOpen)
        fault = session_open_fault(request)
        waiting = sum(isinstance(entry, SessionOpenReceived) for entry in self._opens)
        if fault is None and len(self._sessions) + waiting >= self._limits.max_sessions:
            fault = (
                SessionErrorCode.LIMIT_REACHED,
                f"{self._limits.max_sessions} sessions are open already",
            )
        if fault is None:
            event = SessionOpenReceived(request, packet.body)
            self._opens.append(event)
            self._events.append(event)
        elif self._opens:
            # The client takes the answers in the order of its requests.
            self._opens.append(self._rejection(request, *fault))
        else:
            self._reply(self._rejection(request, *fault))

    def _rejection(self, request: SessionOpen, code: SessionErrorCode, diagnostic: str) -> bytes:
        body = diagnostic_body(diagnostic)
        ack = SessionOpenAck(
            session_id=0,
            accepted_profile=request.profile_id,
            accepted_priority=request.priority,
            status=SessionStatus.REJECTED,
            schema_id=request.schema_id,
            schema_version=request.schema_version,
            granted_operation_credit=0,
            max_in_flight=0,
            session_extension_bytes=len(body),
            session_error_code=code,
        )
        return encode_packet(Packet(MessageType.SESSION_OPEN_ACK, ack, body))

    def _on_session_patch(self, packet: Packet, _session: Session) -> None:
        patch = metadata_of(packet, SessionPatch)
        ack = SessionPatchAck(
            ack_status=PatchStatus.REJECTED,
            reject_reason=PatchRejectReason.UNSUPPORTED_FIELD,
            applied_patch_mask=0,
            rejected_patch_mask=patch.patch_mask,
            retry_after_ms=0,
            effective_profile_id=patch.profile_id,
            effective_target_cadence_x100=0,
            effective_quality_tier=0,
            effective_degrade_policy=0,
            effective_lane_mask=0,
            effective_codec_bitmap=0,
            effective_compression_bitmap=0,
            profile_patch_ack_bytes=0,
        )
        self._reply(
            encode_packet(Packet(MessageType.SESSION_PATCH_ACK, ack, session_id=packet.session_id))
        )

    def _on_session_migrate(self, packet: Packet, _session: Session) -> None:
        # A session stays on the carrier it was opened on (wire digest 2.3).
        ack = SessionMigrateAck(
            accept_code=1, resume_from_frame_id=0, grace_window_ms=0, server_ts_us=self._now_us()
        )
        self._reply(
            encode_packet(
                Packet(MessageType.SESSION_MIGRATE_ACK, ack, session_id=packet.session_id)
            )
        )

    # --- capabilities -------------------------------------------------------------------------

    def _on_connection_advice(self, packet: Packet) -> None:
        if packet.message_type in _NEGOTIATIONS:
            self._refuse(
                ErrorCode.INVALID_STATE, "capabilities are negotiated in a session", packet
            )
        else:
            self._on_advice(packet)

    def _on_negotiation(self, packet: Packet, session: Session) -> None:
        wish = metadata_of(packet, Capability)
        try:
            agreement = agree(wish, packet.body, self._offers)
        except TokenFault as fault:
            self._refuse(ErrorCode.MALFORMED_BODY, str(fault), packet)
            return
        session.capabilities = agreement.tokens
        reply = capability_packet(
            agreement.reply, agreement.tokens, session.session_id, flags=wish.flags
        )
        self._reply(encode_packet(reply))
        if agreement.mismatch:
            self._refuse(ErrorCode.UNSUPPORTED_CAPABILITY, "capability_mismatch", packet)
        self._events.append(CapabilitiesAgreed(session.session_id, agreement.tokens))

    def _on_degrade(self, packet: Packet, session: Session) -> None:
        """The client makes do with less; what it never had it does not get by this."""
        wish = metadata_of(packet, Capability)
        try:
            kept = frozenset(decode_tokens(wish.count, packet.body))
        except TokenFault as fault:
            self._refuse(ErrorCode.MALFORMED_BODY, str(fault), packet)
            return
        session.capabilities &= kept
        self._events.append(CapabilitiesAgreed(session.session_id, session.capabilities))

    def _on_session_close(self, packet: Packet, session: Session) -> None:
        if not session.allows(SessionStep.CLOSE):
            self._refuse(ErrorCode.INVALID_STATE, "the session is closing already", packet)
            return
        session.take(SessionStep.CLOSE)
        close = metadata_of(packet, SessionClose)
        self._events.append(SessionCloseReceived(session.session_id, close))

    _CONNECTION_HANDLERS: ClassVar[
        dict[MessageType, Callable[["ServerSessions", Packet], None]]
    ] = {
        MessageType.CLIENT_HELLO: _on_hello,
        MessageType.CLOSE: ConnectionMachine._on_close,
        MessageType.PING: ConnectionMachine._on_ping,
        MessageType.TRANSPORT_PROBE: ConnectionMachine._on_probe,
        MessageType.ERROR: _on_error,
        MessageType.SESSION_OPEN: _on_session_open,
    }
    _SESSION_HANDLERS: ClassVar[
        dict[MessageType, Callable[["ServerSessions", Packet, Session], None]]
    ] = {
        MessageType.SESSION_PATCH: _on_session_patch,
        MessageType.SESSION_MIGRATE: _on_session_migrate,
        MessageType.SESSION_CLOSE: _on_session_close,
        MessageType.CAPABILITY_NEGOTIATION: _on_negotiation,
        MessageType.DEGRADE_PROFILE: _on_degrade,
        MessageType.FRAME_SUBMIT: ServerOperations._on_submit,
        MessageType.FRAME_CANCEL: ServerOperations._on_frame_cancel,
        MessageType.CANCEL: ServerOperations._on_cancel,
        MessageType.ABORT: ServerOperations._on_cancel,
    }
    """What changes the machine or is answered by it; everything else is only reported."""
