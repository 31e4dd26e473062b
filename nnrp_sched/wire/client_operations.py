"""What a client does with what its server sends about operations."""

from typing import ClassVar

from nnrp_sched.errors import RemoteProtocolError
from nnrp_sched.wire.codec import RawPacket, encode_packet
from nnrp_sched.wire.connection import ConnectionMachine, metadata_of
from nnrp_sched.wire.enums import CancelReason, DropReason, ErrorCode, MessageType, Role
from nnrp_sched.wire.events import (
    OperationFailed,
    PartialReceived,
    ResultDropped,
    ResultReceived,
)
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.notices import diagnostic_text
from nnrp_sched.wire.operation import Operation, Phase, Step, drop_step
from nnrp_sched.wire.operation_messages import (
    ControlRequest,
    PartialResult,
    ResultDropReason,
    ResultPush,
)
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session import Session
from nnrp_sched.wire.typed_body import decode_document

_PARTIAL = LAYOUTS[MessageType.PARTIAL_RESULT].codec
_PARTIAL_CODE = int(MessageType.PARTIAL_RESULT)
_STREAMING = Phase.PARTIAL


class ClientOperations(ConnectionMachine):
    """The part of the client's machine that receives what concerns operations."""

    _role: ClassVar[Role] = Role.CLIENT
    _peer: ClassVar[Role] = Role.SERVER

    def _take(self, raw: RawPacket) -> None:
        """Let the next event of a stream through at once; everything else is looked at closely."""
        code, _, session_id, frame_id, _, _, _, region, body = raw
        if code == _PARTIAL_CODE:
            session = self._sessions.get(session_id)
            operation = session.operations.get(frame_id) if session is not None else None
            operation_id, sequence, _, _, size, flags = _PARTIAL.unpack(region)
            if (
                operation is not None
                and operation.phase is _STREAMING
                and operation.operation_id == operation_id
                and sequence > operation.sequence
                and 0 < size == len(body)
                and not flags
            ):
                operation.sequence = sequence
                self._events.append(
                    PartialReceived(session_id, frame_id, operation_id, sequence, body)
                )
                return
        super()._take(raw)

    def _on_partial(self, packet: Packet, session: Session) -> None:
        """The cases the quick way leaves out: the first event, a cancelled operation, faults."""
        operation = self._find_operation(packet, session)
        if operation is None:
            return
        partial = metadata_of(packet, PartialResult)
        fault = LAYOUTS[MessageType.PARTIAL_RESULT].value_fault(packet)
        if fault is None and partial.operation_id != operation.operation_id:
            fault = f"operation {partial.operation_id} is not the frame's"
        if fault is None and partial.result_sequence <= operation.sequence:
            fault = f"result_sequence {partial.result_sequence} after {operation.sequence}"
        if fault is not None:
            self._break_operation(session, operation, f"PARTIAL_RESULT: {fault}")
            return
        if not operation.allows(Step.PARTIAL):
            return  # It crossed our ABORT.
        operation.take(Step.PARTIAL)
        operation.sequence = partial.result_sequence
        self._events.append(
            PartialReceived(
                session.session_id,
                operation.frame_id,
                operation.operation_id,
                partial.result_sequence,
                packet.body,
            )
        )

    def _on_result(self, packet: Packet, session: Session) -> None:
        operation = self._find_operation(packet, session)
        if operation is None:
            return
        result = metadata_of(packet, ResultPush)
        document: bytes | None = None
        fault: str | None = None
        try:
            document = decode_document(
                result.payload_kind_bitmap, result.payload_frame_count, packet.body
            )
        except RemoteProtocolError as error:
            fault = str(error)
        session.finish(operation, Step.RESULT)
        self._events.append(
            ResultReceived(
                session.session_id,
                operation.frame_id,
                operation.operation_id,
                result.status_code,
                document,
                result.queue_ms,
                result.inference_ms,
                result.server_total_ms,
                fault,
            )
        )

    def _on_drop(self, packet: Packet, session: Session) -> None:
        operation = self._find_operation(packet, session)
        if operation is not None:
            self._drop(session, operation, None, "")

    def _on_drop_reason(self, packet: Packet, session: Session) -> None:
        operation = self._find_operation(packet, session)
        if operation is None:
            return
        drop = metadata_of(packet, ResultDropReason)
        if drop.operation_id != operation.operation_id:
            fault = f"RESULT_DROP_REASON: operation {drop.operation_id} is not the frame's"
            self._break_operation(session, operation, fault)
            return
        diagnostic = diagnostic_text(packet.body)
        try:
            reason = DropReason(drop.drop_reason)
        except ValueError:
            unknown = f"drop reason {drop.drop_reason}"
            self._drop(
                session, operation, None, f"{unknown}: {diagnostic}" if diagnostic else unknown
            )
        else:
            self._drop(session, operation, reason, diagnostic)

    def _drop(
        self, session: Session, operation: Operation, reason: DropReason | None, diagnostic: str
    ) -> None:
        session.finish(operation, drop_step(reason or 0))
        self._events.append(
            ResultDropped(
                session.session_id, operation.frame_id, operation.operation_id, reason, diagnostic
            )
        )

    def _find_operation(self, packet: Packet, session: Session) -> Operation | None:
        """The operation a result belongs to; None when it came after the terminal.

        A result for a frame that was never submitted is reported as it is: a fault of the server,
        but none that our own operations should pay for.
        """
        operation = session.operations.get(packet.frame_id)
        if operation is None and not session.frame_is_finished(packet.frame_id):
            self._on_advice(packet)
        return operation

    def _break_operation(self, session: Session, operation: Operation, fault: str) -> None:
        """End an operation inside which the server broke the protocol, and tell it to stop."""
        self._reply(self._cancellation(session, operation, MessageType.CANCEL))
        self._end_operation(session, operation, ErrorCode.MALFORMED_BODY, fault)

    def _end_operation(
        self, session: Session, operation: Operation, code: int, diagnostic: str
    ) -> None:
        session.finish(operation, Step.FAIL)
        self._events.append(
            OperationFailed(session.session_id, operation.frame_id, code, diagnostic)
        )

    def _cancellation(
        self,
        session: Session,
        operation: Operation,
        message_type: MessageType,
        reason: CancelReason = CancelReason.UNSPECIFIED,
        flags: int = 1,
        body: bytes = b"",
    ) -> bytes:
        operation.control_sequence += 1
        request = ControlRequest(
            operation_id=operation.operation_id,
            control_sequence=operation.control_sequence,
            reason=reason,
            source_role=Role.CLIENT,
            flags=flags,
            diagnostic_bytes=len(body),
        )
        return encode_packet(
            Packet(message_type, request, body, session.session_id, operation.frame_id)
        )
