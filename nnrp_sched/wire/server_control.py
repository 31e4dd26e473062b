"""What a server says beside results: how far an operation is, and how much more it can take."""

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire.capability_tokens import CapabilityToken
from nnrp_sched.wire.codec import encode_packet
from nnrp_sched.wire.control_enums import (
    Congestion,
    FlowFlag,
    FlowReason,
    FlowScope,
    HintPolicy,
    HintReason,
    PressureLevel,
    PressureReason,
    ProgressStage,
    ScopeFlag,
)
from nnrp_sched.wire.enums import ErrorCode, ErrorScope, MessageType, Role
from nnrp_sched.wire.operation_messages import Pressure, Progress, ResultHint, RetryAfter
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.server_sessions import ServerSessions
from nnrp_sched.wire.session import Session
from nnrp_sched.wire.session_messages import FlowUpdate

_UNKNOWN_PERCENT = 0xFFFF
_U32 = 0xFFFF_FFFF


class ServerControl(ServerSessions):
    """The part of the server's machine that sends advice.

    All of it but RESULT_HINT needs a capability that the session has negotiated; without it the
    command raises `LocalProtocolError`, as every command does that the protocol forbids.
    """

    def knows_operation(self, session_id: int, operation_id: int) -> bool:
        """Whether an operation is in flight in a session, or among its last finished ones."""
        session = self._sessions.get(session_id)
        return session is not None and session.knows_operation(operation_id)

    def max_in_flight(self, session_id: int) -> int:
        """How many operations a session was granted."""
        return self._open_session(session_id).max_in_flight

    def capabilities(self, session_id: int) -> frozenset[str]:
        """What a session has negotiated; nothing for one that is gone."""
        session = self._sessions.get(session_id)
        return session.capabilities if session is not None else frozenset()

    def progress(self, session_id: int, frame_id: int, stage: ProgressStage) -> bytes:
        """PROGRESS of an operation in flight; no percentage is known (wire digest 3.7)."""
        session = self._agreed(session_id, CapabilityToken.PROGRESS_PARTIAL)
        operation = session.operations.get(frame_id)
        if operation is None or session.by_operation.get(operation.operation_id) is not operation:
            raise LocalProtocolError(
                f"frame {frame_id} of session {session_id} has no operation in flight",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.FRAME,
            )
        operation.progress_sequence += 1
        metadata = Progress(
            operation_id=operation.operation_id,
            progress_sequence=operation.progress_sequence,
            stage=stage,
            percent_x100=_UNKNOWN_PERCENT,
            object_id=0,
            body_bytes=0,
        )
        return encode_packet(Packet(MessageType.PROGRESS, metadata, b"", session_id, frame_id))

    def credit_update(self, session_id: int, window: int) -> bytes:
        """CREDIT_UPDATE: so many new operations may start in the session now (3.8)."""
        self._agreed(session_id, CapabilityToken.CREDIT_BACKPRESSURE)
        metadata = Pressure(
            scope_id=session_id,
            credit_window=window,
            level=PressureLevel.NONE,
            reason=PressureReason.UNSPECIFIED,
            retry_after_ms=0,
            flags=0,
        )
        return encode_packet(Packet(MessageType.CREDIT_UPDATE, metadata, session_id=session_id))

    def backpressure(self, session_id: int, *, retry_after_ms: int) -> bytes:
        """BACKPRESSURE: no new operation can start in the session now (wire digest 3.8)."""
        self._agreed(session_id, CapabilityToken.CREDIT_BACKPRESSURE)
        metadata = Pressure(
            scope_id=session_id,
            credit_window=0,
            level=PressureLevel.HARD,
            reason=PressureReason.RECEIVER_QUEUE_FULL,
            retry_after_ms=min(retry_after_ms, _U32),
            flags=0,
        )
        return encode_packet(Packet(MessageType.BACKPRESSURE, metadata, session_id=session_id))

    def pause_session(self, session_id: int) -> bytes:
        """FLOW_UPDATE: what runs goes on, nothing new starts in the session any more (3.8)."""
        self._agreed(session_id, CapabilityToken.CREDIT_BACKPRESSURE)
        self._credit_epoch += 1
        metadata = FlowUpdate(
            scope=FlowScope.SESSION,
            reason=FlowReason.PAUSE,
            level=PressureLevel.PAUSED,
            connection_credit=0,
            session_credit=0,
            operation_credit=0,
            operation_id=0,
            retry_after_ms=0,
            credit_epoch=self._credit_epoch,
            flags=FlowFlag.CREDIT_VALID | FlowFlag.DRAIN_IN_FLIGHT_ONLY,
        )
        return encode_packet(Packet(MessageType.FLOW_UPDATE, metadata, session_id=session_id))

    def result_hint(self, session_id: int, reason: HintReason, *, retry_after_ms: int) -> bytes:
        """RESULT_HINT: the server refuses work because of its load (3.5, profile section 10)."""
        self._open_session(session_id)
        metadata = ResultHint(
            policy=HintPolicy.DROP,
            congestion=Congestion.SATURATED,
            reason=reason,
            retry_after_ms=min(retry_after_ms, _U32),
        )
        return encode_packet(Packet(MessageType.RESULT_HINT, metadata, session_id=session_id))

    def retry_after(
        self, session_id: int, frame_id: int, *, retry_after_ms: int, diagnostic: str
    ) -> bytes:
        """ERROR_RECOVERABLE (server busy) and RETRY_AFTER for an operation in flight (3.5).

        To be sent before its terminal.
        """
        session = self._agreed(session_id, CapabilityToken.RECOVERABLE_ERROR)
        operation = session.operations.get(frame_id)
        if operation is None:
            raise LocalProtocolError(
                f"frame {frame_id} of session {session_id} is not in flight",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.FRAME,
            )
        wait = min(retry_after_ms, _U32)
        busy = self.recoverable_error(
            ErrorCode.SERVER_BUSY,
            diagnostic,
            session_id=session_id,
            frame_id=frame_id,
            retry_after_ms=wait,
        )
        self._retry_sequence += 1
        metadata = RetryAfter(
            scope_id=operation.operation_id,
            control_sequence=self._retry_sequence,
            retry_after_ms=wait,
            jitter_ms=0,
            reason=PressureReason.RECEIVER_QUEUE_FULL,
            source_role=Role.SERVER,
            flags=ScopeFlag.OPERATION,
            diagnostic_bytes=0,
        )
        return busy + encode_packet(
            Packet(MessageType.RETRY_AFTER, metadata, session_id=session_id)
        )

    def _agreed(self, session_id: int, token: CapabilityToken) -> Session:
        session = self._open_session(session_id)
        if token not in session.capabilities:
            raise LocalProtocolError(
                f"session {session_id} has not negotiated {token}",
                code=ErrorCode.UNSUPPORTED_CAPABILITY,
                scope=ErrorScope.SESSION,
            )
        return session
