"""What a connection does with the control messages that its wire machine only routes."""

from collections.abc import Callable, Mapping

from nnrp_sched.engine.port import Engine
from nnrp_sched.server import budget
from nnrp_sched.server.ending import TIME_LIMITS
from nnrp_sched.server.operation import Operation
from nnrp_sched.server.priority import engine_priority, takes_priorities
from nnrp_sched.server.session import Session
from nnrp_sched.transport import Outbox
from nnrp_sched.wire import (
    BudgetUpdate,
    ControlReceived,
    ErrorCode,
    HintFlag,
    MessageType,
    RouteHint,
    Scheduling,
    ServerConnection,
    Supersede,
    SupersedeFlag,
    TraceContext,
)
from nnrp_sched.wire.notices import diagnostic_text


class ControlPlane:
    """Acts on the operations and sessions of one connection.

    Requests for what this server cannot do are answered; all other messages of the protocol are
    advice, and advice that means nothing here is taken without an answer.
    """

    def __init__(
        self,
        wire: ServerConnection,
        outbox: Outbox,
        sessions: Mapping[int, Session],
        engine: Engine,
        wall_clock: Callable[[], float],
    ) -> None:
        """`wall_clock` gives the seconds since 1970 by which deadlines count."""
        self._wire = wire
        self._outbox = outbox
        self._sessions = sessions
        self._engine = engine
        self._wall_clock = wall_clock
        self._handlers: dict[MessageType, Callable[[ControlReceived, Session], None]] = {
            MessageType.PRIORITY_UPDATE: self._on_priority_update,
            MessageType.DEADLINE: self._on_time_limit,
            MessageType.EXPIRE_AT: self._on_time_limit,
            MessageType.SUPERSEDE: self._on_supersede,
            MessageType.BUDGET_UPDATE: self._on_budget_update,
            MessageType.ROUTE_HINT: self._on_route_hint,
            MessageType.EXECUTION_HINT: self._on_route_hint,
            MessageType.TRACE_CONTEXT: self._on_trace,
        }

    def take(self, event: ControlReceived) -> None:
        """Act on a message, unless what it is about has ended meanwhile."""
        handler = self._handlers.get(event.packet.message_type)
        session = self._sessions.get(event.session_id)
        if handler is not None and session is not None and not self._is_over(event):
            handler(event, session)

    def _on_trace(self, event: ControlReceived, session: Session) -> None:
        context = event.packet.metadata
        assert isinstance(context, TraceContext)
        session.take_trace(event.frame_id, context)

    def _on_priority_update(self, event: ControlReceived, session: Session) -> None:
        def refuse(reason: str) -> None:
            self._refuse(event, f"priority_update_unsupported: {reason}")

        wish = event.packet.metadata
        assert isinstance(wish, Scheduling)
        operation = session.get(event.frame_id)
        description = self._engine.description
        if not takes_priorities(description):
            fcfs = description.priority_policy == "fcfs"
            refuse("policy_fcfs" if fcfs else "unsupported")
        elif isinstance(operation, Operation):
            priority = engine_priority(wish.priority_class, wish.priority_delta)
            operation.update_priority(priority, refuse)

    def _on_time_limit(self, event: ControlReceived, session: Session) -> None:
        limit = event.packet.metadata
        assert isinstance(limit, Scheduling)
        operation = session.get(event.frame_id)
        if operation is not None:
            seconds = limit.deadline_unix_ms / 1000 - self._wall_clock()
            operation.times.set(TIME_LIMITS[event.packet.message_type], seconds)

    def _on_supersede(self, event: ControlReceived, session: Session) -> None:
        change = event.packet.metadata
        assert isinstance(change, Supersede)
        why = diagnostic_text(event.packet.body)
        newer = change.new_operation_id
        at_once = change.flags & SupersedeFlag.ABORT_NOW
        if at_once or self._wire.knows_operation(event.session_id, newer):
            session.supersede(event.frame_id, why)
        else:
            session.give_way(event.frame_id, newer, why)

    def _on_budget_update(self, event: ControlReceived, session: Session) -> None:
        wish = event.packet.metadata
        assert isinstance(wish, BudgetUpdate)
        refusal = budget.refusal(wish)
        operation = session.get(event.frame_id)
        if refusal is not None:
            self._refuse(event, refusal)
        elif isinstance(operation, Operation):
            operation.budget.update(wish)

    def _on_route_hint(self, event: ControlReceived, _session: Session) -> None:
        hint = event.packet.metadata
        assert isinstance(hint, RouteHint)
        if hint.flags & HintFlag.MUST_HONOR:
            self._refuse(event, f"{event.packet.message_type.name.lower()}_unsupported")

    def _refuse(self, event: ControlReceived, diagnostic: str) -> None:
        if self._is_over(event):
            return
        self._outbox.put(
            self._wire.recoverable_error(
                ErrorCode.UNSUPPORTED_CAPABILITY,
                diagnostic,
                session_id=event.session_id,
                frame_id=event.frame_id,
            )
        )

    def _is_over(self, event: ControlReceived) -> bool:
        """Whether what a message was about has ended; nothing may be said about it then."""
        if event.frame_id:
            return not self._wire.in_flight(event.session_id, event.frame_id)
        return event.session_id not in self._wire.session_ids or self._wire.closed
