"""One connection: bytes to wire events, wire events to operations, and the way back."""

import logging
import math
from collections.abc import Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup

from nnrp_sched.errors import ProfileError
from nnrp_sched.profile import profile_error
from nnrp_sched.server.arrivals import Arrivals
from nnrp_sched.server.channel import FrameChannel
from nnrp_sched.server.control_plane import ControlPlane
from nnrp_sched.server.credit import Credits
from nnrp_sched.server.ending import Asked, Ending
from nnrp_sched.server.intake import Admitted, Intake, Shared
from nnrp_sched.server.offers import offered
from nnrp_sched.server.principal import Principal
from nnrp_sched.server.send_queue import SendQueues
from nnrp_sched.server.session import Session
from nnrp_sched.server.terminal import FAULT, send_verdict
from nnrp_sched.transport import Carrier, Outbox
from nnrp_sched.wire import (
    Authentication,
    CancelReceived,
    CapabilitiesAgreed,
    ConnectionCloseReceived,
    ConnectionFailed,
    ControlReceived,
    DropReason,
    HelloReceived,
    InFlightPolicy,
    Limits,
    MessageType,
    Reply,
    ServerConnection,
    SessionCloseReceived,
    SessionErrorCode,
    SessionFailed,
    SessionOpenReceived,
    SubmitReceived,
)

logger = logging.getLogger(__name__)

_ENDINGS = {
    MessageType.CANCEL: Ending.CANCEL,
    MessageType.FRAME_CANCEL: Ending.CANCEL,
    MessageType.ABORT: Ending.ABORT,
}


class Connection:
    """Serves one peer until it leaves, breaks the protocol or the server closes it."""

    def __init__(self, carrier: Carrier, shared: Shared) -> None:
        limits = shared.limits
        self._carrier = carrier
        self._arrivals = Arrivals()
        self._admission = shared.admission
        self._limits = limits
        self._outbox = Outbox(carrier, limit=limits.send_queue_bytes)
        self._queues = SendQueues(self._outbox)
        self._wire = ServerConnection(
            Limits(
                max_packet_bytes=limits.max_packet_bytes,
                max_sessions=limits.max_sessions,
                max_in_flight=limits.max_in_flight,
            ),
            offers=offered(shared.engine.description),
            authentication=Authentication(shared.token, carrier.authenticated),
            clock_us=lambda: int(shared.wall_clock() * 1e6),
        )
        self._sessions: dict[int, Session] = {}
        identity = "" if carrier.same_host else carrier.peer
        principal = Principal(carrier.same_host, self._sessions.keys, identity)
        self._intake = Intake(shared, principal, carrier.name, next(shared.connection_ids))
        self._credits = Credits(self._wire, self._outbox, shared.admission)
        self._control = ControlPlane(
            self._wire, self._outbox, self._sessions, shared.engine, shared.wall_clock
        )
        self._ending = Ending.LOST
        """What ends the operations that still run when the connection does."""
        self._hello_scope = anyio.CancelScope()
        self._reading = anyio.CancelScope()
        self._tasks: TaskGroup | None = None
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Reply: self._on_reply,
            HelloReceived: self._on_hello,
            SessionOpenReceived: self._on_session_open,
            SubmitReceived: self._on_submit,
            CancelReceived: self._on_cancel,
            ControlReceived: self._control.take,
            CapabilitiesAgreed: self._on_agreement,
            SessionCloseReceived: self._on_session_close,
            SessionFailed: self._on_session_failed,
            ConnectionCloseReceived: self._on_end,
            ConnectionFailed: self._on_end,
        }

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the peer to read."""
        return self._outbox.waiting_bytes

    @property
    def queued_bytes(self) -> int:
        """Bytes of events that wait with their operations, because the others wait already."""
        return self._queues.size

    @property
    def session_ids(self) -> tuple[int, ...]:
        """The sessions open or closing on this connection."""
        return tuple(self._sessions)

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the end; whatever still runs then is aborted in the engine."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._outbox.run)
            tasks.start_soon(self._queues.run)
            self._admission.watch(self._tell_credit)
            try:
                with self._reading:
                    await self._read()
            finally:
                self._admission.unwatch(self._tell_credit)
                with anyio.CancelScope(shield=True):
                    await self._end_operations(self._ending)
                    self._outbox.close()
                    await self._carrier.aclose()
                tasks.cancel_scope.cancel()

    async def drain(self, seconds: float) -> None:
        """Let running operations finish for up to `seconds`, end the rest, close the connection."""
        self._credits.pause(self._sessions.values())
        for session in self._sessions.values():
            session.stop_endless()
        with anyio.move_on_after(seconds):
            await self._wait_idle()
        await self._end_operations(Ending.SHUTDOWN)
        if not self._wire.closed:
            self._outbox.put(self._wire.close("server_shutdown"))
        self._reading.cancel()

    async def _end_operations(self, ending: Ending) -> None:
        for session in self._sessions.values():
            session.stop_all(ending)
        # Every operation bounds its own abort; one more second covers the tasks around it.
        with anyio.move_on_after(self._limits.abort_seconds + 1):
            await self._wait_idle()

    async def _wait_idle(self) -> None:
        for session in list(self._sessions.values()):
            await session.wait_idle(math.inf)

    async def _read(self) -> None:
        with anyio.move_on_after(self._limits.hello_seconds) as self._hello_scope:
            while not self._wire.closed:
                data = await self._carrier.receive()
                self._arrivals.note()
                for event in self._wire.receive(data) if data else self._wire.receive_end():
                    self._handlers[type(event)](event)
                if not data:
                    return
                # A peer that sends and never reads would grow the queue with our replies.
                await self._outbox.wait_below(2 * self._limits.send_queue_bytes)
        if self._hello_scope.cancelled_caught:
            self._outbox.put(self._wire.close("no CLIENT_HELLO arrived in time"))

    # --- events ---------------------------------------------------------------------------------
    #
    # The machine is ahead of its events: what one of them is about may have been ended by a later
    # packet of the same bytes. So whoever answers asks the machine first.

    def _on_reply(self, event: Reply) -> None:
        self._outbox.put(event.data)

    def _on_hello(self, _event: HelloReceived) -> None:
        self._hello_scope.deadline = math.inf

    def _on_session_open(self, event: SessionOpenReceived) -> None:
        if self._wire.closed:
            return
        if self._admission.draining:
            code = SessionErrorCode.LIMIT_REACHED
            reply = self._wire.reject_session(event, code, "the server shuts down")
        else:
            session_id = self._admission.next_session_id()
            reply = self._wire.accept_session(
                event,
                session_id,
                max_in_flight=self._limits.max_in_flight,
                operation_credit=self._limits.max_in_flight,
            )
            granted = self._wire.max_in_flight(session_id)
            self._sessions[session_id] = Session(session_id, event.open.priority, granted)
        self._outbox.put(reply)

    def _on_submit(self, event: SubmitReceived) -> None:
        if not self._wire.in_flight(event.session_id, event.frame_id):
            return
        session = self._sessions[event.session_id]
        channel = FrameChannel(
            self._wire,
            self._outbox,
            self._queues,
            self._limits,
            self._admission.load,
            event.session_id,
            event.frame_id,
        )
        if event.fault is None and (self._admission.draining or session.closing):
            channel.send_drop(DropReason.TRANSPORT_CLOSED, "server_shutdown")
            return
        observation = self._intake.observation(event, session.trace)
        try:
            admitted = self._intake.admit(event, session.priority_class, channel, observation)
        except ProfileError as error:
            send_verdict(channel, error)
            observation.ended(error)
            return
        session.add(event.frame_id, admitted.operation, event.operation_id)
        self._credits.update((session,))
        assert self._tasks is not None
        self._tasks.start_soon(self._run_operation, session, event.frame_id, admitted, channel)

    async def _run_operation(
        self, session: Session, frame_id: int, admitted: Admitted, channel: FrameChannel
    ) -> None:
        try:
            # Its TRACE_CONTEXT comes behind the submit, and counts until the engine is called.
            await self._arrivals.settled()
            await admitted.operation.run()
        except Exception:
            # The last boundary of one operation: no fault of ours ends the others with it.
            logger.exception("operation %s.%s failed", session.session_id, frame_id)
            send_verdict(channel, profile_error("adapter_runtime_error", FAULT))
        finally:
            admitted.operation.times.close()
            session.remove(frame_id)
            admitted.release()
            self._credits.update((session,))

    def _on_cancel(self, event: CancelReceived) -> None:
        operation = self._sessions[event.session_id].get(event.frame_id)
        if operation is not None:
            operation.stop(
                _ENDINGS[event.message_type], asked=Asked(event.source_role, event.reason)
            )

    def _tell_credit(self) -> None:
        self._credits.update(self._sessions.values())

    def _on_agreement(self, event: CapabilitiesAgreed) -> None:
        self._credits.negotiated(self._sessions[event.session_id])

    def _on_session_close(self, event: SessionCloseReceived) -> None:
        session = self._sessions[event.session_id]
        session.closing = True
        assert self._tasks is not None
        self._tasks.start_soon(self._close_session, session, event)

    async def _close_session(self, session: Session, event: SessionCloseReceived) -> None:
        if event.close.in_flight_policy == InFlightPolicy.ABORT:
            session.stop_all(Ending.SESSION)
        else:
            session.stop_endless()
            wished = event.close.drain_timeout_ms / 1000 or self._limits.drain_seconds
            await session.wait_idle(min(wished, self._limits.drain_seconds))
            session.stop_all(Ending.DRAIN)
        await session.wait_idle(self._limits.abort_seconds + 1)
        open_still = self._sessions.pop(session.session_id, None) is not None
        if open_still and not self._wire.closed:
            self._wire.abandon_operations(session.session_id)
            self._outbox.put(self._wire.acknowledge_session_close(session.session_id))

    def _on_session_failed(self, event: SessionFailed) -> None:
        session = self._sessions.pop(event.session_id, None)
        if session is not None:
            session.stop_all(Ending.SESSION)

    def _on_end(self, event: ConnectionCloseReceived | ConnectionFailed) -> None:
        if isinstance(event, ConnectionFailed):
            logger.warning("connection over %s failed: %s", self._carrier.name, event.error)
        else:
            self._ending = Ending.SESSION  # The peer has said that it leaves.
