"""The client's end of a connection."""

import msgspec

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire.client_control import ClientControl
from nnrp_sched.wire.codec import encode_packet
from nnrp_sched.wire.connection_state import ConnectionPhase
from nnrp_sched.wire.enums import (
    CancelFlag,
    CancelReason,
    CloseReason,
    ErrorCode,
    ErrorScope,
    InFlightPolicy,
    MessageType,
)
from nnrp_sched.wire.events import ClientEvent
from nnrp_sched.wire.handshake import SDK_HELLO, sdk_session_open
from nnrp_sched.wire.notices import diagnostic_body
from nnrp_sched.wire.operation import Operation, Step
from nnrp_sched.wire.operation_messages import FrameSubmit
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session import SessionStep
from nnrp_sched.wire.session_messages import SessionClose
from nnrp_sched.wire.typed_body import encode_document

_U16 = 0xFFFF
_U32 = 0xFFFF_FFFF
_U64 = 0xFFFF_FFFF_FFFF_FFFF


class ClientConnection(ClientControl):
    """Bytes in, events out; commands in, bytes out. It does no I/O and reads no clock.

    Every command raises `LocalProtocolError` when the protocol forbids it now, and then changes
    nothing. Bytes of replies and of commands go to the carrier in the order they were made.
    """

    def receive(self, data: bytes) -> list[ClientEvent]:
        """Take bytes of the server, in any pieces; returns what they amount to."""
        return self._receive(data)

    def receive_end(self) -> list[ClientEvent]:
        """Take the end of the stream: inside a packet it is a `ConnectionFailed`."""
        return self._receive_end()

    # --- connection and sessions --------------------------------------------------------------

    def hello(self, token: bytes = b"") -> bytes:
        """CLIENT_HELLO with the SDK's values; once, before anything else (wire digest 2.1).

        `token` is for a server that wants one.
        """
        self._check_open()
        if self._said_hello:
            raise LocalProtocolError("the hello was said already", code=ErrorCode.INVALID_STATE)
        self._said_hello = True
        hello = msgspec.structs.replace(SDK_HELLO, auth_bytes=len(token))
        return encode_packet(Packet(MessageType.CLIENT_HELLO, hello, token))

    def open_session(
        self, *, priority: int = 1, max_in_flight: int = 256, requested_session_id: int = 0
    ) -> bytes:
        """SESSION_OPEN, after `HelloAcknowledged`; answers come in the order of the requests.

        `priority` is a PriorityClass; `requested_session_id` 0 lets the server choose.
        """
        self._check_open()
        if self._phase is not ConnectionPhase.READY:
            raise LocalProtocolError(
                "the server has not answered the hello", code=ErrorCode.INVALID_STATE
            )
        if len(self._sessions) + len(self._opens) >= self._limits.max_sessions:
            raise LocalProtocolError(
                f"{self._limits.max_sessions} sessions are open or asked for",
                code=ErrorCode.LIMIT_EXCEEDED,
            )
        if not 0 < max_in_flight <= _U16:
            raise LocalProtocolError(
                f"max_in_flight {max_in_flight} is not 1 to {_U16}", code=ErrorCode.MALFORMED_BODY
            )
        request = sdk_session_open(
            priority=priority,
            max_in_flight=max_in_flight,
            requested_session_id=requested_session_id,
        )
        data = encode_packet(Packet(MessageType.SESSION_OPEN, request))
        self._opens.append(request)
        return data

    def close_session(
        self, session_id: int, *, policy: InFlightPolicy = InFlightPolicy.DRAIN
    ) -> bytes:
        """SESSION_CLOSE. Terminals may still come until `SessionClosed`."""
        session = self._open_session(session_id)
        close = SessionClose(
            reason=CloseReason.CLIENT_SHUTDOWN,
            in_flight_policy=policy,
            drain_timeout_ms=0,
            last_operation_id=session.last_operation_id,
            session_error_code=0,
            session_close_tag=session_id,
        )
        session.take(SessionStep.CLOSE)
        return encode_packet(Packet(MessageType.SESSION_CLOSE, close, session_id=session_id))

    # --- operations ---------------------------------------------------------------------------

    def submit(
        self, session_id: int, document: bytes, *, operation_id: int, trace_id: int = 0
    ) -> tuple[int, bytes]:
        """FRAME_SUBMIT of one request document: its frame id, and the bytes (wire digest 4.1).

        `operation_id` is not 0 and new in the session; start from a random number and count up.
        """
        session = self._open_session(session_id)
        if not 0 < operation_id <= _U64 or session.knows_operation(operation_id):
            raise LocalProtocolError(
                f"operation id {operation_id} is not free in session {session_id}",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.SESSION,
            )
        if len(session.operations) >= session.max_in_flight or session.last_frame_id == _U32:
            raise LocalProtocolError(
                f"session {session_id} takes no more operations now",
                code=ErrorCode.LIMIT_EXCEEDED,
                scope=ErrorScope.SESSION,
            )
        frame_id = session.last_frame_id + 1
        data = encode_packet(
            Packet(
                MessageType.FRAME_SUBMIT,
                FrameSubmit(operation_id=operation_id),
                encode_document(document),
                session_id,
                frame_id,
                trace_id,
            )
        )
        if len(data) > self._packet_ceiling:
            raise LocalProtocolError(
                f"a request of {len(data)} bytes is above the limit of {self._packet_ceiling}",
                code=ErrorCode.LIMIT_EXCEEDED,
            )
        session.take(SessionStep.SUBMIT)
        session.add(Operation(frame_id, operation_id))
        return frame_id, data

    def cancel(
        self,
        session_id: int,
        frame_id: int,
        *,
        reason: CancelReason = CancelReason.USER_CANCELLED,
        diagnostic: str = "",
    ) -> bytes:
        """CANCEL: stop when possible; the terminal is the answer (wire digest 3.6)."""
        return self._cancel(
            session_id,
            frame_id,
            MessageType.CANCEL,
            Step.CANCEL,
            reason,
            CancelFlag.COOPERATIVE,
            diagnostic,
        )

    def abort(
        self,
        session_id: int,
        frame_id: int,
        *,
        reason: CancelReason = CancelReason.USER_CANCELLED,
        diagnostic: str = "",
    ) -> bytes:
        """ABORT: stop now. Partial results that cross it are not reported any more."""
        return self._cancel(
            session_id,
            frame_id,
            MessageType.ABORT,
            Step.ABORT,
            reason,
            CancelFlag.HARD_ABORT,
            diagnostic,
        )

    def _cancel(
        self,
        session_id: int,
        frame_id: int,
        message_type: MessageType,
        step: Step,
        reason: CancelReason,
        flags: CancelFlag,
        diagnostic: str,
    ) -> bytes:
        session, operation = self._running(session_id, frame_id)
        operation.take(step)
        return self._cancellation(
            session, operation, message_type, reason, flags, diagnostic_body(diagnostic)
        )

    def frame_cancel(self, session_id: int, frame_id: int) -> bytes:
        """FRAME_CANCEL: as CANCEL, by frame id and without a reason."""
        _, operation = self._running(session_id, frame_id)
        operation.take(Step.CANCEL)
        return encode_packet(
            Packet(MessageType.FRAME_CANCEL, session_id=session_id, frame_id=frame_id)
        )
