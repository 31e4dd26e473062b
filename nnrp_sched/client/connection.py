"""One client connection: the hello, its sessions, and the reader that feeds them."""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from nnrp_sched.client.advice import Advice
from nnrp_sched.client.session import Session
from nnrp_sched.errors import ConnectionLost, PeerUnreachable, SessionRejected
from nnrp_sched.transport import Carrier, Outbox
from nnrp_sched.wire import (
    CapabilitiesAgreed,
    ClientConnection,
    ClientEvent,
    ConnectionCloseReceived,
    ConnectionFailed,
    ControlReceived,
    ErrorCode,
    HelloAcknowledged,
    InFlightPolicy,
    Limits,
    OperationFailed,
    PartialReceived,
    Reply,
    ResultDropped,
    ResultReceived,
    SessionClosed,
    SessionFailed,
    SessionOpened,
    SessionOpenRejected,
)

_SEND_QUEUE_BYTES = 8 * 1024 * 1024
_CLOSE_SECONDS = 5.0
_IS_IT_NNRP = "is it an NNRP endpoint, and not one for HTTP, say?"


class _Opening:
    """A SESSION_OPEN waiting for its answer; the server answers in order."""

    def __init__(self) -> None:
        self.wanted = True
        """Cleared when whoever asked has given up before the answer."""
        self.answered = anyio.Event()
        self.answer: Session | SessionRejected | ConnectionLost | None = None

    def set(self, answer: Session | SessionRejected | ConnectionLost) -> None:
        self.answer = answer
        self.answered.set()


class Connection:
    """An open connection. Made by `connect`."""

    def __init__(self, carrier: Carrier, *, limits: Limits) -> None:
        self._carrier = carrier
        self._wire = ClientConnection(limits, clock_us=lambda: time.time_ns() // 1000)
        self._outbox = Outbox(carrier, limit=_SEND_QUEUE_BYTES)
        self._hello = anyio.Event()
        self._openings: deque[_Opening] = deque()
        self._sessions: dict[int, Session] = {}
        self._closing: dict[int, anyio.Event] = {}
        self._advice = Advice(self._sessions_of)
        self._lost: ConnectionLost | None = None
        self._deaf = False
        """Set once nothing is read any more."""
        self._refused = False
        """Whether the server has said why it does not want us, so that it is one."""
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Reply: self._on_reply,
            HelloAcknowledged: self._on_hello,
            SessionOpened: self._on_session_open,
            SessionOpenRejected: self._on_session_rejected,
            PartialReceived: self._on_partial,
            ResultReceived: self._on_terminal,
            ResultDropped: self._on_terminal,
            OperationFailed: self._on_terminal,
            SessionFailed: self._on_session_failed,
            SessionClosed: self._on_session_closed,
            ControlReceived: self._advice.take,
            CapabilitiesAgreed: self._on_agreement,
            ConnectionCloseReceived: self._on_close,
            ConnectionFailed: self._on_failed,
        }

    @asynccontextmanager
    async def session(
        self, *, priority: int = 1, max_in_flight: int = 256, seconds: float = 10.0
    ) -> AsyncGenerator[Session, None]:
        """Open a session for the time of the block.

        `priority` is the session class (0 interactive, 1 balanced, 2 background), `max_in_flight`
        the wished number of operations at once; the server may grant fewer. Operations that still
        run when the block ends are aborted. Raises `SessionRejected` or `ConnectionLost`, and
        `LocalProtocolError` for values or a number of sessions that cannot be asked for.
        """
        session = await self._open_session(priority, max_in_flight, seconds)
        try:
            yield session
        finally:
            with anyio.CancelScope(shield=True):
                await self._close_session(session)

    async def _open_session(self, priority: int, max_in_flight: int, seconds: float) -> Session:
        if self._lost is not None:
            raise self._lost
        opening = _Opening()
        data = self._wire.open_session(priority=priority, max_in_flight=max_in_flight)
        self._openings.append(opening)
        self._outbox.put(data)
        with anyio.move_on_after(seconds):
            try:
                await opening.answered.wait()
            except BaseException:
                opening.wanted = False
                if isinstance(opening.answer, Session):
                    self._discard(opening.answer.session_id)
                raise
        match opening.answer if opening.wanted else None:
            case Session() as session:
                return session
            case SessionRejected() | ConnectionLost() as error:
                raise error
            case _:
                raise ConnectionLost(f"the server did not answer SESSION_OPEN in {seconds:g} s")

    def _discard(self, session_id: int) -> None:
        """Close a session that nobody waits for any more."""
        self._sessions.pop(session_id, None)
        if session_id in self._wire.session_ids and not self._wire.closed:
            self._outbox.put(self._wire.close_session(session_id, policy=InFlightPolicy.ABORT))

    async def _close_session(self, session: Session) -> None:
        if self._wire.closed or session.session_id not in self._sessions:
            return
        session.close()
        policy = InFlightPolicy.ABORT if session.in_flight else InFlightPolicy.DRAIN
        closed = self._closing[session.session_id] = anyio.Event()
        self._outbox.put(self._wire.close_session(session.session_id, policy=policy))
        if self._deaf:
            closed.set()
        with anyio.move_on_after(_CLOSE_SECONDS):
            await closed.wait()
        self._closing.pop(session.session_id, None)

    # --- life -----------------------------------------------------------------------------------

    async def read(self) -> None:
        """Feed the sessions until the connection ends."""
        try:
            await self._carrier.deliver(self._take)
            if not self._wire.closed:
                self._handle(self._wire.receive_end())
            why = f": {self._carrier.problem}" if self._carrier.problem else ""
            self._lose(ConnectionLost(f"the server closed the connection{why}"))
        finally:
            # Also when it was cancelled together with the block: no answer comes any more.
            self._deaf = True
            for closed in self._closing.values():
                closed.set()

    def _take(self, data: bytes) -> None:
        if not self._wire.closed:
            self._handle(self._wire.receive(data))

    def _handle(self, events: list[ClientEvent]) -> None:
        for event in events:
            self._handlers[type(event)](event)

    async def write(self) -> None:
        """Write what sessions want to send."""
        await self._outbox.run()

    async def say_hello(self, seconds: float, token: bytes | None = None) -> None:
        """Send CLIENT_HELLO and wait for its answer; raises `PeerUnreachable`."""
        self._outbox.put(self._wire.hello(token or b""))
        with anyio.move_on_after(seconds):
            await self._hello.wait()
        if self._lost is not None:
            doubt = "" if self._refused else f"; {_IS_IT_NNRP}"
            raise PeerUnreachable(
                f"the peer ended the connection at the hello: {self._lost}{doubt}"
            )
        if not self._hello.is_set():
            raise PeerUnreachable(
                f"the peer did not answer the hello in {seconds:g} s; {_IS_IT_NNRP}"
            )

    async def aclose(self) -> None:
        """Say CLOSE, hand over what waits, close the carrier."""
        if not self._wire.closed:
            self._outbox.put(self._wire.close())
        self._lose(ConnectionLost("the connection was closed by this side"))
        await self._carrier.aclose()

    def _lose(self, error: ConnectionLost) -> None:
        if self._lost is not None:
            return
        self._lost = error
        self._hello.set()
        self._outbox.close()
        for opening in self._openings:
            opening.set(error)
        for session in self._sessions.values():
            session.lose(error)
        for closed in self._closing.values():
            closed.set()

    # --- events ---------------------------------------------------------------------------------

    def _on_reply(self, event: Reply) -> None:
        self._outbox.put(event.data)

    def _on_hello(self, _event: HelloAcknowledged) -> None:
        self._hello.set()

    def _on_session_open(self, event: SessionOpened) -> None:
        opening = self._openings.popleft()
        if not opening.wanted:
            self._discard(event.session_id)
            return
        ack = event.ack
        granted = min(ack.max_in_flight, ack.granted_operation_credit or ack.max_in_flight)
        session = Session(self._wire, self._outbox, event.session_id, max_in_flight=max(1, granted))
        self._sessions[event.session_id] = session
        opening.set(session)

    def _on_session_rejected(self, event: SessionOpenRejected) -> None:
        message = f"the server refused the session: {event.diagnostic or 'no reason given'}"
        rejected = SessionRejected(message, code=event.ack.session_error_code)
        self._openings.popleft().set(rejected)

    def _sessions_of(self, session_id: int) -> list[Session]:
        """The sessions a message is about: all of them for the connection's id."""
        if not session_id:
            return list(self._sessions.values())
        session = self._sessions.get(session_id)
        return [session] if session is not None else []

    def _on_partial(self, event: PartialReceived) -> None:
        session = self._sessions.get(event.session_id)
        if session is not None:
            session.deliver(event.frame_id, event.body)

    def _on_terminal(self, event: ResultReceived | ResultDropped | OperationFailed) -> None:
        session = self._sessions.get(event.session_id)
        if session is not None:
            session.finish(event.frame_id, event)

    def _on_session_failed(self, event: SessionFailed) -> None:
        self._end_session(
            event.session_id,
            ConnectionLost(f"the server failed the session: {event.diagnostic}"),
        )

    def _on_session_closed(self, event: SessionClosed) -> None:
        self._end_session(event.session_id, ConnectionLost("the session was closed"))

    def _end_session(self, session_id: int, error: ConnectionLost) -> None:
        session = self._sessions.pop(session_id, None)
        self._advice.forget(session_id)
        if session is not None:
            session.lose(error)
        closed = self._closing.get(session_id)
        if closed is not None:
            closed.set()

    def _on_agreement(self, event: CapabilitiesAgreed) -> None:
        session = self._sessions.get(event.session_id)
        if session is not None:
            session.agree(event.tokens)

    def _on_close(self, event: ConnectionCloseReceived) -> None:
        self._lose(ConnectionLost(f"the server closed the connection: {event.diagnostic}"))

    def _on_failed(self, event: ConnectionFailed) -> None:
        self._refused = event.error.code == ErrorCode.AUTH_FAILED
        self._lose(ConnectionLost(f"the connection broke: {event.error}"))
