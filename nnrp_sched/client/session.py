"""One session: many operations at once, each with its own inbox."""

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

import anyio

from nnrp_sched.client.chat import Chat
from nnrp_sched.client.control import answer_of, refusal, told
from nnrp_sched.client.inbox import Inbox, Terminal
from nnrp_sched.client.operations import NO_CONDITIONS, Command, Conditions, Submission
from nnrp_sched.client.places import Places
from nnrp_sched.client.trace import parse_traceparent
from nnrp_sched.errors import ConnectionLost, ProfileStreamError
from nnrp_sched.profile import build_control, build_envelope
from nnrp_sched.profile.control_bodies import AbortBody, ReprioritizeBody, WatchBody
from nnrp_sched.profile.events import QueueChanged
from nnrp_sched.profile.scheduling import AbortReceipt, QueueSnapshot, Reprioritized
from nnrp_sched.profile.workflow import IDEMPOTENCY_KEY, PRIORITY, WORKFLOW, Workflow
from nnrp_sched.transport import Outbox
from nnrp_sched.wire import ClientConnection, ProgressStage

_MAX_BUFFERED_EVENTS = 65_536
_OPERATION_ID_BITS = 62


class Session:
    """An open session. Made by `Connection.session`."""

    def __init__(
        self, wire: ClientConnection, outbox: Outbox, session_id: int, *, max_in_flight: int
    ) -> None:
        self.session_id = session_id
        self.max_in_flight = max_in_flight
        """Operations that may run at once; a further one waits for a place."""
        self._wire = wire
        self._outbox = outbox
        self.places = Places(max_in_flight)
        """Places for its operations, as far as the server lets them start."""
        self.negotiated: frozenset[str] = frozenset()
        """What was negotiated; nothing optional is sent by the server before."""
        self._agreements: deque[anyio.Event] = deque()
        self._retry_after_ms: int | None = None
        self._inboxes: dict[int, Inbox] = {}
        # Random start: an operation id must not be guessable from the frame id (wire digest 1.3).
        self._operation_ids = itertools.count(secrets.randbits(_OPERATION_ID_BITS) + 1)
        self._loop = asyncio.get_running_loop()
        self.lost: ConnectionLost | None = None
        """Why nothing can be submitted any more; None while it is open."""
        self.ended = anyio.Event()
        """Set once it is lost."""

    @property
    def in_flight(self) -> int:
        """Operations submitted and not ended."""
        return len(self._inboxes)

    def chat(
        self,
        body: Mapping[str, Any],
        *,
        stream: bool | None = None,
        request_id: str | None = None,
        timeout_ms: int | None = None,
        diagnostics: bool | None = None,
        workflow: Workflow | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
        extensions: Mapping[str, Any] | None = None,
        traceparent: str | None = None,
        deadline: float | None = None,
        expire_at: float | None = None,
        token_budget: int | None = None,
    ) -> Chat:
        """A chat completion, `chat.completions.create`.

        `body` is an OpenAI chat request; `stream`, when given, sets its field of that name.
        `timeout_ms` is the server's limit for the whole operation. `workflow` says which program
        and agent asks, `priority` (lower is sooner) counts where the server declares
        `nnrp.priority`. Another chat with the same `idempotency_key` and body joins the one that
        runs, or gets its outcome, where the server declares `nnrp.idempotency_key`. `extensions`
        are further keys of the envelope's `nnrp` object. `traceparent` makes the operation a child
        of that W3C span, of whose trace id the low 64 bits travel; raises `ValueError` for a
        malformed one. By `deadline` the result is wanted, after `expire_at` nobody has a use for
        it, both in seconds since 1970; it is then dropped and its work stopped. With `token_budget`
        output tokens it ends as completed, with what was produced. Raises `ValueError` for a time
        or budget that cannot be one. Nothing is sent before the chat is read.
        """
        span = None if traceparent is None else parse_traceparent(traceparent)
        known = {WORKFLOW: told(workflow), PRIORITY: priority, IDEMPOTENCY_KEY: idempotency_key}
        policy = {name: value for name, value in known.items() if value is not None}
        policy.update(extensions or {})
        fields = dict(body)
        if stream is not None:
            fields["stream"] = stream
        document = build_envelope(
            fields,
            request_id=request_id,
            timeout_ms=timeout_ms,
            diagnostics=diagnostics,
            extensions=policy or None,
        )
        conditions = Conditions(span, deadline, expire_at, token_budget)
        return Chat(self, document, conditions=conditions)

    def control(self, operation: str, body: Mapping[str, Any] | None = None) -> Chat:
        """A request of `nnrp-sched-control/1`, answered by one document."""
        return Chat(self, build_control(operation, dict(body or {})))

    async def capabilities(self) -> dict[str, Any]:
        """The server's capability document (seed 003, section 13).

        Raises `ProfileStreamError` when the server has no `capabilities.get`.
        """
        outcome = await self.control("capabilities.get").result()
        if outcome.body is None:
            why = outcome.error.message if outcome.error is not None else outcome.status
            raise ProfileStreamError(f"the server has no capability document to give: {why}")
        return outcome.body

    async def negotiate(
        self, tokens: Iterable[str], *, hard: bool = False, seconds: float = 10.0
    ) -> frozenset[str]:
        """Agree on capabilities (`wire.CapabilityToken`); what the server offers of `tokens`.

        Progress, credit and retry advice only come after they were negotiated. Raises
        `ConnectionLost` when the session ends or the server does not answer in so many seconds.
        """
        if self.lost is not None:
            raise self.lost
        answered = anyio.Event()
        self._outbox.put(self._wire.negotiate(self.session_id, tokens, hard=hard))
        self._agreements.append(answered)
        with anyio.move_on_after(seconds):
            await answered.wait()
        if self.lost is not None:
            raise self.lost
        if not answered.is_set():
            raise ConnectionLost(f"the server did not answer the negotiation in {seconds:g} s")
        return self.negotiated

    # --- scheduling: these raise `ProfileError` when the server refuses, or `ConnectionLost` ------

    async def queue(self) -> QueueSnapshot:
        """Every live request of the server that this client may see."""
        return await answer_of(self.control("queue.snapshot"), QueueSnapshot)

    async def watch_queue(self, *, per_second: float = 10.0) -> AsyncGenerator[QueueSnapshot]:
        """The queue now and whenever it has changed, at most so often.

        A reader that takes its time gets the newest snapshot next. Never ends by itself; to end it
        at an exact moment, close the generator (`contextlib.aclosing`).
        """
        document = build_control("queue.watch", told(WatchBody(per_second)) or {})
        async with Chat(self, document, newest_only=True) as watch:
            async for event in watch:
                if isinstance(event, QueueChanged):
                    yield event.snapshot
            assert watch.outcome is not None
            raise refusal("queue.watch", watch.outcome)

    async def abort_operations(
        self,
        ids: Iterable[str] | None = None,
        *,
        program: str | None = None,
        agent: str | None = None,
    ) -> list[AbortReceipt]:
        """End operations in the engine, by their ids or by the program or agent they belong to.

        Exactly one of the three is to be given. One receipt comes for each id, or for each
        operation that was live. Whoever submitted them sees them end as cancelled.
        """
        wanted = AbortBody(list(ids) if ids is not None else None, program, agent)
        answer = self.control("operation.abort", told(wanted))
        return await answer_of(answer, list[AbortReceipt], member="receipts")

    async def reprioritize(self, name: str, priority: int) -> Reprioritized:
        """Change the priority (lower is sooner) of an operation that waits."""
        wanted = told(ReprioritizeBody(name, priority))
        return await answer_of(self.control("operation.reprioritize", wanted), Reprioritized)

    # --- for chats ------------------------------------------------------------------------------

    async def take_place(self) -> None:
        """Wait for a free place; it is to be used by `submit` or given back."""
        await self.places.acquire()

    def give_place_back(self) -> None:
        """Leave a place unused."""
        self.places.release()

    def submit(
        self, document: bytes, *, newest_only: bool = False, conditions: Conditions = NO_CONDITIONS
    ) -> Submission:
        """Send a document as a new operation, in a place taken before."""
        if self.lost is not None:
            self.places.release()
            raise self.lost
        operation_id = next(self._operation_ids)
        try:
            frame_id, data = self._wire.submit(self.session_id, document, operation_id=operation_id)
        except BaseException:
            self.places.release()
            raise
        inbox = self._inboxes[frame_id] = Inbox(_MAX_BUFFERED_EVENTS, newest_only=newest_only)
        # In one piece with the submit: a trace context counts only until the server calls its
        # engine.
        self._outbox.put(data + self._said(frame_id, conditions))
        name = f"{self.session_id}.{frame_id}"
        return Submission(name, frame_id, operation_id, inbox)

    def _said(self, frame_id: int, conditions: Conditions) -> bytes:
        frame = (self.session_id, frame_id)
        data = b""
        span = conditions.span
        if span is not None:
            data += self._wire.trace_context(*frame, span.trace_id, span.span_id, flags=span.flags)
        if conditions.deadline is not None:
            data += self._wire.deadline(*frame, round(conditions.deadline * 1000))
        if conditions.expire_at is not None:
            data += self._wire.expire_at(*frame, round(conditions.expire_at * 1000))
        if conditions.token_budget is not None:
            data += self._wire.budget_update(*frame, conditions.token_budget)
        return data

    def tell(self, frame_id: int, command: Command) -> None:
        """Send a message about a frame; one that has ended needs none."""
        if self._wire.in_flight(self.session_id, frame_id):
            self._outbox.put(command(self._wire, self.session_id, frame_id))

    def cancel(self, frame_id: int, reason: str) -> None:
        """Send CANCEL for a frame; one that has ended needs none."""
        self.tell(
            frame_id,
            lambda wire, session_id, frame_id: wire.cancel(session_id, frame_id, diagnostic=reason),
        )

    def abandon(self, frame_id: int) -> None:
        """Cancel a frame whose reader was garbage collected, in whatever thread that happened."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cancel, frame_id, "abandoned")

    # --- for the connection's reader ------------------------------------------------------------

    def close(self) -> None:
        """The session is about to be closed: nothing is submitted any more."""
        self.lost = ConnectionLost("the session was closed")
        self.ended.set()

    def deliver(self, frame_id: int, document: bytes) -> None:
        """An event arrived; an operation whose reader lags too far behind is cancelled."""
        inbox = self._inboxes.get(frame_id)
        if inbox is None:
            return
        overflowed = inbox.overflowed
        if not inbox.put(document) and not overflowed:
            self.cancel(frame_id, "reader too slow")

    def finish(self, frame_id: int, terminal: Terminal) -> None:
        """An operation ended."""
        inbox = self._inboxes.pop(frame_id, None)
        if inbox is not None:
            # A busy server says when to come again right before the terminal that refuses.
            inbox.retry_after_ms, self._retry_after_ms = self._retry_after_ms, None
            inbox.finish(terminal)
            self.places.release()

    def note_stage(self, frame_id: int, stage: ProgressStage) -> None:
        """The server told how far an operation is."""
        inbox = self._inboxes.get(frame_id)
        if inbox is not None:
            inbox.stage = stage

    def note_retry(self, retry_after_ms: int) -> None:
        """The server told when to try again what it refuses next."""
        self._retry_after_ms = retry_after_ms

    def agree(self, tokens: frozenset[str]) -> None:
        """The server told what it does in this session from now on."""
        self.negotiated = tokens
        if self._agreements:
            self._agreements.popleft().set()

    def lose(self, error: ConnectionLost) -> None:
        """The session ended under its operations: each of them ends with `error`."""
        self.lost = error
        self.ended.set()
        for frame_id in list(self._inboxes):
            self.finish(frame_id, error)
        self.places.open()
        for agreement in self._agreements:
            agreement.set()
