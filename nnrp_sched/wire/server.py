"""The server's end of a connection."""

import struct

from nnrp_sched.errors import LocalProtocolError
from nnrp_sched.wire.codec import HEADER_BYTES, PACKET_CEILING, PREFIX, encode_packet
from nnrp_sched.wire.connection_state import ConnectionPhase
from nnrp_sched.wire.enums import (
    CloseStatus,
    DropFlag,
    DropReason,
    ErrorCode,
    ErrorScope,
    MessageType,
    PayloadKind,
    Role,
    SessionErrorCode,
    SessionStatus,
)
from nnrp_sched.wire.events import ServerEvent, SessionOpenReceived
from nnrp_sched.wire.notices import diagnostic_body
from nnrp_sched.wire.operation import Operation, Phase, Step, drop_step
from nnrp_sched.wire.operation_messages import ResultDropReason, ResultPush
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.server_control import ServerControl
from nnrp_sched.wire.session import Session, SessionStep
from nnrp_sched.wire.session_messages import SessionCloseAck, SessionOpenAck
from nnrp_sched.wire.typed_body import encode_document

_U16 = 0xFFFF
_U32 = 0xFFFF_FFFF

# A PARTIAL_RESULT in one pack: the constant start of the header, the body length, the ids that are
# constant for the operation, sequence, object id, delta sequence, body length, flags.
_PARTIAL = struct.Struct("<16sI28sQQQII")
_PARTIAL_START = struct.pack(
    "<6sBBII", PREFIX, MessageType.PARTIAL_RESULT, HEADER_BYTES, 0, _PARTIAL.size - HEADER_BYTES
)
_PARTIAL_IDS = struct.Struct("<II12xQ")
_PARTIAL_BODY_LIMIT = PACKET_CEILING - _PARTIAL.size
_STREAMING = Phase.PARTIAL
_CLOSED = ConnectionPhase.CLOSED


class ServerConnection(ServerControl):
    """Bytes in, events out; commands in, bytes out. It does no I/O and reads no clock.

    Every command raises `LocalProtocolError` when the protocol forbids it now, and then changes
    nothing. Bytes of replies and of commands go to the carrier in the order they were made.
    """

    def receive(self, data: bytes) -> list[ServerEvent]:
        """Take bytes of the client, in any pieces; returns what they amount to."""
        return self._receive(data)

    def receive_end(self) -> list[ServerEvent]:
        """Take the end of the stream: inside a packet it is a `ConnectionFailed`.

        Operations in flight are not reported; `abandon_operations` still ends and names them.
        """
        return self._receive_end()

    # --- sessions -----------------------------------------------------------------------------

    def accept_session(
        self,
        request: SessionOpenReceived,
        session_id: int,
        *,
        max_in_flight: int,
        operation_credit: int,
    ) -> bytes:
        """SESSION_OPEN_ACK opened, for the oldest unanswered request (wire digest 2.2).

        `session_id` is not 0 and no session of this connection has it now; do not reuse ids soon,
        because messages of the old session may still be on their way. `max_in_flight` is clamped to
        what the client asked for and to the limits, `operation_credit` to `max_in_flight`.
        """
        self._check_turn(request)
        if not 0 < session_id <= _U32 or session_id in self._sessions:
            raise LocalProtocolError(
                f"{session_id} cannot be a new session's id", code=ErrorCode.INVALID_STATE
            )
        if max_in_flight < 1:
            raise LocalProtocolError("max_in_flight is below 1", code=ErrorCode.INVALID_STATE)
        wished = request.open.max_in_flight or max_in_flight
        granted = min(wished, max_in_flight, self._limits.max_in_flight, _U16)
        ack = SessionOpenAck(
            session_id=session_id,
            accepted_profile=request.open.profile_id,
            accepted_priority=request.open.priority,
            status=SessionStatus.OPENED,
            schema_id=request.open.schema_id,
            schema_version=request.open.schema_version,
            granted_operation_credit=min(operation_credit, granted),
            max_in_flight=granted,
            lease_ttl_ms=request.open.lease_ttl_hint_ms,
        )
        data = encode_packet(Packet(MessageType.SESSION_OPEN_ACK, ack, session_id=session_id))
        self._sessions[session_id] = Session(
            session_id, max_in_flight=granted, tombstones=self._limits.tombstones
        )
        self._ended_sessions.discard(session_id)
        return data + self._end_turn()

    def reject_session(
        self, request: SessionOpenReceived, code: SessionErrorCode, diagnostic: str
    ) -> bytes:
        """SESSION_OPEN_ACK rejected, for the oldest unanswered request (wire digest 2.2)."""
        self._check_turn(request)
        return self._rejection(request.open, code, diagnostic) + self._end_turn()

    def _check_turn(self, request: SessionOpenReceived) -> None:
        self._check_open()
        if not self._opens or self._opens[0] is not request:
            raise LocalProtocolError(
                "session requests are answered once, in the order they came",
                code=ErrorCode.INVALID_STATE,
            )

    def _end_turn(self) -> bytes:
        """Leave the request behind, and release the refusals that waited for its answer."""
        self._opens.popleft()
        refusals: list[bytes] = []
        while self._opens and isinstance(refusal := self._opens[0], bytes):
            refusals.append(refusal)
            self._opens.popleft()
        return b"".join(refusals)

    def acknowledge_session_close(self, session_id: int) -> bytes:
        """SESSION_CLOSE_ACK closed, after `SessionCloseReceived`.

        Every operation has ended by then, with its terminal or abandoned: an SDK client reads
        nothing else after its SESSION_CLOSE (wire digest 2.2).
        """
        session = self._open_session(session_id)
        if session.operations:
            raise LocalProtocolError(
                f"session {session_id} has {len(session.operations)} operations in flight",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.SESSION,
            )
        session.take(SessionStep.END)
        self._forget(session)
        ack = SessionCloseAck(
            status=CloseStatus.CLOSED,
            last_operation_id=session.last_operation_id,
            session_error_code=0,
        )
        return encode_packet(Packet(MessageType.SESSION_CLOSE_ACK, ack, session_id=session_id))

    def abandon_operations(self, session_id: int) -> list[int]:
        """End a session's operations without a message; their frame ids.

        For a close with policy abort, and after the end of the connection. A session that is gone
        has none.
        """
        session = self._sessions.get(session_id)
        return list(session.abandon()) if session is not None else []

    # --- operations ---------------------------------------------------------------------------

    def partial_result(self, session_id: int, frame_id: int, body: bytes) -> bytes:
        """PARTIAL_RESULT with one event, bare JSON and not empty (wire digest 3.3, 4.2)."""
        session = self._sessions.get(session_id)
        operation = session.operations.get(frame_id) if session is not None else None
        size = len(body)
        if (
            operation is None
            or operation.phase is not _STREAMING
            or not 0 < size <= _PARTIAL_BODY_LIMIT
            or self._phase is _CLOSED
        ):
            operation = self._begin_partial(session_id, frame_id, size)
        delta_sequence = operation.sequence
        operation.sequence = sequence = delta_sequence + 1
        return (
            _PARTIAL.pack(
                _PARTIAL_START, size, operation.wire_ids, sequence, 0, delta_sequence, size, 0
            )
            + body
        )

    def _begin_partial(self, session_id: int, frame_id: int, size: int) -> Operation:
        """The checks behind `partial_result`, for the first event and for everything illegal."""
        operation = self._running(session_id, frame_id)
        if size == 0:
            raise LocalProtocolError("a partial result needs a body", code=ErrorCode.MALFORMED_BODY)
        if size > _PARTIAL_BODY_LIMIT:
            raise LocalProtocolError(
                f"an event of {size} bytes is larger than a packet", code=ErrorCode.LIMIT_EXCEEDED
            )
        operation.take(Step.PARTIAL)
        if not operation.wire_ids:
            operation.wire_ids = _PARTIAL_IDS.pack(session_id, frame_id, operation.operation_id)
        return operation

    def push_result(
        self,
        session_id: int,
        frame_id: int,
        document: bytes | None,
        *,
        status_code: int = 200,
        queue_ms: int = 0,
        inference_ms: int = 0,
        server_total_ms: int = 0,
    ) -> bytes:
        """RESULT_PUSH, the terminal with a document or, with None, an empty success (3.4, 4.4).

        The three times are milliseconds; above 65535 they are sent as 65535.
        """
        operation = self._running(session_id, frame_id)
        metadata = ResultPush(
            status_code=status_code,
            inference_ms=min(inference_ms, _U16),
            queue_ms=min(queue_ms, _U16),
            server_total_ms=min(server_total_ms, _U16),
            payload_kind_bitmap=0 if document is None else PayloadKind.STRUCTURED_EVENT,
            payload_frame_count=0 if document is None else 1,
        )
        body = b"" if document is None else encode_document(document)
        data = encode_packet(Packet(MessageType.RESULT_PUSH, metadata, body, session_id, frame_id))
        self._sessions[session_id].finish(operation, Step.RESULT)
        return data

    def drop_result(
        self, session_id: int, frame_id: int, reason: DropReason, diagnostic: str = ""
    ) -> bytes:
        """RESULT_DROP_REASON, the terminal that says why there is no result (wire digest 3.5).

        A submit without an operation id of its own gets RESULT_DROP, which needs none.
        """
        operation = self._running(session_id, frame_id)
        session = self._sessions[session_id]
        if session.by_operation.get(operation.operation_id) is operation:
            body = diagnostic_body(diagnostic)
            metadata = ResultDropReason(
                operation_id=operation.operation_id,
                result_sequence=operation.sequence,
                drop_reason=reason,
                source_role=Role.SERVER,
                flags=DropFlag.FINAL,
                diagnostic_bytes=len(body),
            )
            packet = Packet(MessageType.RESULT_DROP_REASON, metadata, body, session_id, frame_id)
        else:
            packet = Packet(MessageType.RESULT_DROP, session_id=session_id, frame_id=frame_id)
        data = encode_packet(packet)
        session.finish(operation, drop_step(reason))
        return data

    def _running(self, session_id: int, frame_id: int) -> Operation:
        """An operation without a terminal. Raises `LocalProtocolError` when there is none."""
        operation = self._open_session(session_id).operations.get(frame_id)
        if operation is None:
            raise LocalProtocolError(
                f"frame {frame_id} of session {session_id} is not in flight",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.FRAME,
            )
        return operation
