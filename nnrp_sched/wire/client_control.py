"""What a client says about operations and sessions beside submitting and cancelling."""

from collections.abc import Iterable

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire.client_sessions import ClientSessions
from nnrp_sched.wire.codec import encode_packet
from nnrp_sched.wire.control_enums import (
    BudgetChange,
    CapabilityFlag,
    SchedulingFlag,
    SupersedeFlag,
)
from nnrp_sched.wire.enums import DropReason, ErrorCode, ErrorScope, MessageType, PriorityClass
from nnrp_sched.wire.negotiation import capability_packet
from nnrp_sched.wire.notices import diagnostic_body
from nnrp_sched.wire.operation import Operation
from nnrp_sched.wire.operation_messages import BudgetUpdate, Scheduling, Supersede, TraceContext
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session import Session


class ClientControl(ClientSessions):
    """The part of the client's machine that sends control messages.

    All of them are about operations in flight and raise `LocalProtocolError` for others.
    """

    def negotiate(
        self,
        session_id: int,
        tokens: Iterable[str],
        *,
        hard: bool = False,
        downgrade: bool = True,
    ) -> bytes:
        """CAPABILITY_NEGOTIATION; what was agreed on comes as `CapabilitiesAgreed` (3.9).

        `hard` asks for an error when nothing of it is offered, `downgrade` allows less.
        """
        self._open_session(session_id)
        flags = (CapabilityFlag.HARD if hard else 0) | (
            CapabilityFlag.DOWNGRADE_ALLOWED if downgrade else 0
        )
        wish = capability_packet(
            MessageType.CAPABILITY_NEGOTIATION, frozenset(tokens), session_id, flags
        )
        return encode_packet(wish)

    def priority_update(
        self, session_id: int, frame_id: int, priority_class: int, delta: int = 0
    ) -> bytes:
        """PRIORITY_UPDATE: another class, and a delta within it (wire digest 3.7)."""
        return self._scheduling(
            MessageType.PRIORITY_UPDATE, session_id, frame_id, priority_class, delta
        )

    def deadline(self, session_id: int, frame_id: int, unix_ms: int) -> bytes:
        """DEADLINE: the result is wanted by then, in milliseconds since 1970 (wire digest 3.7)."""
        return self._scheduling(
            MessageType.DEADLINE, session_id, frame_id, unix_ms=unix_ms, flags=_EXPIRY
        )

    def expire_at(self, session_id: int, frame_id: int, unix_ms: int) -> bytes:
        """EXPIRE_AT: after that time nobody has a use for the result (wire digest 3.7)."""
        return self._scheduling(
            MessageType.EXPIRE_AT, session_id, frame_id, unix_ms=unix_ms, flags=_EXPIRY
        )

    def supersede(
        self,
        session_id: int,
        frame_id: int,
        new_operation_id: int,
        *,
        now: bool = False,
        diagnostic: str = "",
    ) -> bytes:
        """SUPERSEDE: the operation of a frame gives way to another (wire digest 3.7).

        At once with `now`, else when the other has been admitted.
        """
        operation = self._running(session_id, frame_id)[1]
        body = diagnostic_body(diagnostic)
        operation.control_sequence += 1
        change = Supersede(
            old_operation_id=operation.operation_id,
            new_operation_id=new_operation_id,
            control_sequence=operation.control_sequence,
            drop_reason=DropReason.SUPERSEDED,
            flags=SupersedeFlag.ABORT_NOW if now else 0,
            diagnostic_bytes=len(body),
        )
        return encode_packet(Packet(MessageType.SUPERSEDE, change, body, session_id, frame_id))

    def budget_update(
        self,
        session_id: int,
        frame_id: int,
        tokens: int,
        change: BudgetChange = BudgetChange.REPLACE,
    ) -> bytes:
        """BUDGET_UPDATE: how many output tokens the operation may have (wire digest 3.7)."""
        operation = self._running(session_id, frame_id)[1]
        budget = BudgetUpdate(
            operation_id=operation.operation_id,
            compute=0,
            memory=0,
            bandwidth=0,
            token_budget=tokens,
            flags=change,
        )
        return encode_packet(Packet(MessageType.BUDGET_UPDATE, budget, b"", session_id, frame_id))

    def trace_context(
        self,
        session_id: int,
        frame_id: int,
        trace_id: int,
        span_id: int,
        parent_span_id: int = 0,
        flags: int = 0,
    ) -> bytes:
        """TRACE_CONTEXT of an operation, or with `frame_id` 0 of those submitted afterwards (3.9).

        `flags` are TraceFlag bits; trace and span id are not 0.
        """
        self._open_session(session_id)
        if frame_id:
            self._running(session_id, frame_id)
        if not trace_id or not span_id:
            raise LocalProtocolError(
                "a trace context needs a trace id and a span id", code=ErrorCode.MALFORMED_BODY
            )
        context = TraceContext(
            trace_id=trace_id,
            span_id=span_id,
            parent_span_id=parent_span_id,
            stage=0,
            flags=flags,
            body_bytes=0,
        )
        return encode_packet(
            Packet(MessageType.TRACE_CONTEXT, context, b"", session_id, frame_id, trace_id)
        )

    def _scheduling(
        self,
        kind: MessageType,
        session_id: int,
        frame_id: int,
        priority_class: int = PriorityClass.BALANCED,
        delta: int = 0,
        *,
        unix_ms: int = 0,
        flags: int = 0,
    ) -> bytes:
        operation = self._running(session_id, frame_id)[1]
        operation.control_sequence += 1
        change = Scheduling(
            operation_id=operation.operation_id,
            control_sequence=operation.control_sequence,
            priority_class=priority_class,
            priority_delta=delta,
            deadline_unix_ms=unix_ms,
            flags=flags,
        )
        return encode_packet(Packet(kind, change, b"", session_id, frame_id))

    def _running(self, session_id: int, frame_id: int) -> tuple[Session, Operation]:
        """An operation without a terminal. Raises `LocalProtocolError` when there is none."""
        session = self._open_session(session_id)
        operation = session.operations.get(frame_id)
        if operation is None:
            raise LocalProtocolError(
                f"frame {frame_id} of session {session_id} is not in flight",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.FRAME,
            )
        return session, operation


_EXPIRY = SchedulingFlag.DISCARD_STALE | SchedulingFlag.EMIT_DROP_REASON
