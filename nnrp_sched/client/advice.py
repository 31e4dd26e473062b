"""What a client does with the advice of its server (wire digest 3.5 to 3.8).

The rest of what servers may say (trace contexts, pongs, unknown hints) calls for nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from nnrp_sched.client.session import Session
from nnrp_sched.wire import (
    ControlReceived,
    FlowFlag,
    FlowReason,
    FlowScope,
    FlowUpdate,
    MessageType,
    Pressure,
    PressureLevel,
    Progress,
    ProgressStage,
    ResultHint,
    RetryAfter,
    ScopeFlag,
)


class Advice:
    """Tells sessions what a server said of them, or of the whole connection."""

    def __init__(self, session: Callable[[int], Iterable[Session]]) -> None:
        """`session` gives the sessions an id stands for: all of the connection for 0."""
        self._sessions = session
        self._epochs: dict[int, int] = {}
        """By session id, 0 for the connection: the latest credit epoch heard."""

    def take(self, event: ControlReceived) -> None:
        """Act on a message."""
        handler = self._HANDLERS.get(event.packet.message_type)
        if handler is not None:
            handler(self, event, event.packet.metadata)

    def forget(self, session_id: int) -> None:
        """A session is gone."""
        self._epochs.pop(session_id, None)

    def _on_progress(self, event: ControlReceived, progress: Progress) -> None:
        for session in self._sessions(event.session_id):
            session.note_stage(event.frame_id, ProgressStage(progress.stage))

    def _on_pressure(self, event: ControlReceived, pressure: Pressure) -> None:
        if pressure.flags & ScopeFlag.OPERATION:
            return
        whole = pressure.flags & ScopeFlag.CONNECTION
        for session in self._sessions(0 if whole else event.session_id):
            if pressure.level >= PressureLevel.PAUSED:
                session.places.pause()
            elif pressure.level >= PressureLevel.HARD or not pressure.credit_window:
                session.places.press(pressure.retry_after_ms)
            else:
                session.places.grant(pressure.credit_window)

    def _on_flow_update(self, event: ControlReceived, flow: FlowUpdate) -> None:
        if flow.scope == FlowScope.OPERATION:
            return
        session_id = event.session_id
        if flow.credit_epoch < self._epochs.get(session_id, 0):
            return  # Overtaken by a later one.
        self._epochs[session_id] = flow.credit_epoch
        stopped = flow.reason == FlowReason.PAUSE or flow.level >= PressureLevel.HARD
        credit = flow.connection_credit or flow.session_credit
        for session in self._sessions(session_id):
            if stopped and flow.flags & FlowFlag.RETRY_AFTER_VALID:
                session.places.press(flow.retry_after_ms)
            elif stopped:
                session.places.pause()
            elif flow.flags & FlowFlag.CREDIT_VALID:
                session.places.grant(credit)

    def _on_busy(self, event: ControlReceived, hint: ResultHint | RetryAfter) -> None:
        for session in self._sessions(event.session_id):
            session.note_retry(hint.retry_after_ms)

    _HANDLERS: ClassVar[dict[MessageType, Callable[["Advice", ControlReceived, Any], None]]] = {
        MessageType.PROGRESS: _on_progress,
        MessageType.CREDIT_UPDATE: _on_pressure,
        MessageType.BACKPRESSURE: _on_pressure,
        MessageType.FLOW_UPDATE: _on_flow_update,
        MessageType.RESULT_HINT: _on_busy,
        MessageType.RETRY_AFTER: _on_busy,
    }
