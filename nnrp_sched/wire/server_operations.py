"""What a server does with what its client sends about operations."""

from collections.abc import Callable
from typing import ClassVar

from nnrp_sched.wire.codec import encode_packet
from nnrp_sched.wire.connection import ConnectionMachine, metadata_of
from nnrp_sched.wire.enums import ErrorCode, ErrorScope, MessageType, Role
from nnrp_sched.wire.events import CancelReceived, ControlReceived, SubmitReceived
from nnrp_sched.wire.layout import Scope
from nnrp_sched.wire.layouts import LAYOUTS
from nnrp_sched.wire.limits import DEFAULT_LIMITS, Limits
from nnrp_sched.wire.notices import diagnostic_text, error_packet
from nnrp_sched.wire.operation import Operation, Phase, Step
from nnrp_sched.wire.operation_messages import ControlRequest, FrameSubmit
from nnrp_sched.wire.packet import Packet
from nnrp_sched.wire.session import Session, SessionStep
from nnrp_sched.wire.submit import EarlyDeadlines, examine_submit

_EARLY_DEADLINES = 64
"""Deadlines kept a session for operations that are not submitted yet (wire digest 6-25)."""

_DEADLINES = frozenset({MessageType.DEADLINE, MessageType.EXPIRE_AT})
_ERRORS = frozenset({MessageType.ERROR, MessageType.ERROR_RECOVERABLE})
"""Messages that are never answered, so that two ends cannot answer each other for ever."""

_CANCEL_STEPS = {
    MessageType.CANCEL: Step.CANCEL,
    MessageType.FRAME_CANCEL: Step.CANCEL,
    MessageType.ABORT: Step.ABORT,
}


class ServerOperations(ConnectionMachine):
    """The part of the server's machine that receives what concerns operations."""

    _role: ClassVar[Role] = Role.SERVER
    _peer: ClassVar[Role] = Role.CLIENT

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, *, clock_us: Callable[[], int] | None = None
    ) -> None:
        super().__init__(limits, clock_us=clock_us)
        self._early: dict[int, EarlyDeadlines] = {}

    # --- rules --------------------------------------------------------------------------------

    def _tolerates(self, packet: Packet, session: Session | None, fault: str) -> bool:
        if packet.message_type in (MessageType.FRAME_SUBMIT, MessageType.SESSION_OPEN):
            return True  # Each has an answer of its own that carries the fault.
        if packet.message_type not in _ERRORS:
            self._refuse(ErrorCode.MALFORMED_BODY, fault, packet)
        return False

    def _may_lack_session(self, packet: Packet) -> bool:
        return False

    def _unknown_session(self, packet: Packet) -> None:
        scope = LAYOUTS[packet.message_type].scope
        crossed_the_end = (
            packet.session_id in self._ended_sessions
            and scope is not Scope.SESSION
            and packet.message_type is not MessageType.FRAME_SUBMIT
        )
        if crossed_the_end or packet.message_type in _ERRORS:
            return
        notice = error_packet(
            ErrorCode.INVALID_STATE,
            f"{packet.message_type.name}: session {packet.session_id} is not open",
            ErrorScope.SESSION,
            fatal=False,
            session_id=packet.session_id,
        )
        self._reply(encode_packet(notice))

    def _refuse_unsupported(self, packet: Packet) -> None:
        self._refuse(
            ErrorCode.UNSUPPORTED_CAPABILITY,
            f"{packet.message_type.name} is not supported",
            packet,
        )

    def _forget(self, session: Session) -> None:
        super()._forget(session)
        self._early.pop(session.session_id, None)

    # --- operations ---------------------------------------------------------------------------

    def _on_submit(self, packet: Packet, session: Session) -> None:
        frame_id = packet.frame_id
        if not session.allows(SessionStep.SUBMIT):
            diagnostic = "FRAME_SUBMIT after SESSION_CLOSE"
            self._fail_session(session, ErrorCode.INVALID_STATE, diagnostic)
            return
        if frame_id <= session.last_frame_id:
            diagnostic = f"frame id {frame_id} does not rise above {session.last_frame_id}"
            self._fail_session(session, ErrorCode.INVALID_STATE, diagnostic)
            return
        if len(session.operations) >= session.max_in_flight + self._limits.max_in_flight:
            diagnostic = f"{len(session.operations)} submits are without an answer"
            self._fail_session(session, ErrorCode.LIMIT_EXCEEDED, diagnostic)
            return
        submit = metadata_of(packet, FrameSubmit)
        value_fault = LAYOUTS[MessageType.FRAME_SUBMIT].value_fault(packet)
        document, fault = examine_submit(session, submit, packet.body, value_fault)
        operation = Operation(
            frame_id, submit.operation_id, Phase.FAULTY if fault else Phase.ACCEPTED
        )
        session.add(operation)
        self._events.append(
            SubmitReceived(
                session.session_id,
                frame_id,
                submit.operation_id,
                document,
                packet.trace_id,
                submit,
                fault,
            )
        )
        early = self._early.get(session.session_id)
        for deadline in early.take(operation) if early is not None else ():
            self._on_control(deadline, session)

    def _on_frame_cancel(self, packet: Packet, session: Session) -> None:
        operation = session.operations.get(packet.frame_id)
        if operation is not None:
            self._cancel(session, operation, packet, reason=0, source_role=Role.CLIENT)
        elif not session.frame_is_finished(packet.frame_id):
            self._refuse(ErrorCode.INVALID_STATE, f"frame {packet.frame_id} is unknown", packet)

    def _on_cancel(self, packet: Packet, session: Session) -> None:
        request = metadata_of(packet, ControlRequest)
        if request.operation_id == 0 and packet.frame_id == 0:
            # The whole session (wire digest 6-19).
            targets = list(session.operations.values())
        else:
            operation = self._find_operation(packet, session)
            targets = [operation] if operation is not None else []
        for operation in targets:
            self._cancel(session, operation, packet, request.reason, request.source_role)

    def _cancel(
        self, session: Session, operation: Operation, packet: Packet, reason: int, source_role: int
    ) -> None:
        """Report a cancellation, unless it says nothing new."""
        step = _CANCEL_STEPS[packet.message_type]
        before = operation.phase
        if not operation.allows(step):
            return
        operation.take(step)
        if operation.phase is before:
            return
        self._events.append(
            CancelReceived(
                session.session_id,
                operation.frame_id,
                operation.operation_id,
                packet.message_type,
                reason,
                source_role,
                diagnostic_text(packet.body),
            )
        )

    def _on_control(self, packet: Packet, session: Session) -> None:
        """Report a message about an operation, or the session, that the machine only routes."""
        if packet.message_type is MessageType.TRACE_CONTEXT:
            if packet.frame_id == 0 or packet.frame_id in session.operations:
                self._on_advice(packet)
            elif not session.frame_is_finished(packet.frame_id):
                self._refuse(ErrorCode.INVALID_STATE, f"frame {packet.frame_id} is unknown", packet)
            return
        operation = self._find_operation(packet, session)
        if operation is None:
            return
        sequence: int = getattr(packet.metadata, "control_sequence", 0)
        if not operation.is_stale(packet.message_type, sequence):
            self._events.append(ControlReceived(packet, session.session_id, operation.frame_id))

    def _find_operation(self, packet: Packet, session: Session) -> Operation | None:
        """The operation a control message is about.

        A finished one is passed over in silence, because its terminal crossed the message; an
        unknown one, or another frame's, is answered (wire digest 6-26).
        """
        operation_id: int = getattr(packet.metadata, "operation_id")  # noqa: B009
        operation = session.by_operation.get(operation_id)
        if operation is not None and operation.frame_id == packet.frame_id:
            return operation
        if operation is None and operation_id in session.finished:
            return None
        if (
            operation is None
            and packet.message_type in _DEADLINES
            and packet.frame_id > session.last_frame_id
        ):
            early = self._early.setdefault(session.session_id, EarlyDeadlines(_EARLY_DEADLINES))
            if not early.keep(operation_id, packet):
                diagnostic = f"{_EARLY_DEADLINES} deadlines wait for their submits already"
                self._refuse(ErrorCode.LIMIT_EXCEEDED, diagnostic, packet)
            return None
        self._refuse(
            ErrorCode.INVALID_STATE,
            f"{packet.message_type.name}: operation {operation_id} is not frame {packet.frame_id}",
            packet,
        )
        return None
