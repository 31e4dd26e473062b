"""One chat: an async iterator of the profile's events with a single outcome."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import anyio

from nnrp_sched.client.inbox import Inbox, Terminal
from nnrp_sched.client.operations import (
    NO_CONDITIONS,
    Command,
    Conditions,
    Operations,
    Submission,
)
from nnrp_sched.client.outcome import Outcome, outcome_of
from nnrp_sched.errors import NnrpSchedError, ProfileStreamError, ReaderTooSlow
from nnrp_sched.profile import (
    Cancelled,
    Completed,
    Error,
    Event,
    OutputTextDelta,
    ToolCallGrammar,
    Usage,
    decode_event,
)
from nnrp_sched.profile.scheduling import Reprioritized
from nnrp_sched.wire import ProgressStage


class Chat:
    """A chat in flight.

    Iterating yields typed events in order; the last one is `Completed`, `Error` or `Cancelled`
    when the server sent such a document. The request is sent by the first step of the iteration.
    Leaving early (`break`, an exception, cancellation, losing the last reference) cancels it on the
    server; `async with` makes the moment of that exact.

    Raises `ConnectionLost` when the connection ends first, `ProfileStreamError` when the server
    sends what the profile does not allow, and `ReaderTooSlow`.
    """

    def __init__(
        self,
        operations: Operations,
        document: bytes,
        *,
        newest_only: bool = False,
        conditions: Conditions = NO_CONDITIONS,
    ) -> None:
        """With `newest_only`, events that nobody read in time give way to newer ones."""
        self._operations = operations
        self._document = document
        self._newest_only = newest_only
        self._conditions = conditions
        self._submission: Submission | None = None
        self._waiting: list[anyio.CancelScope] = []
        """The readers that wait for a place in the session."""
        self._grammar = ToolCallGrammar()
        self._text: list[str] = []
        self._usage: dict[str, Any] | None = None
        self._outcome: Outcome | None = None
        self._failure: NnrpSchedError | None = None

    @property
    def name(self) -> str | None:
        """The id that `ps` shows and `cancel` takes, once submitted."""
        return self._submission.name if self._submission is not None else None

    @property
    def operation_id(self) -> int | None:
        """The operation's id on the wire, once submitted."""
        return self._submission.operation_id if self._submission is not None else None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, once the iteration has reached it."""
        return self._outcome

    @property
    def stage(self) -> ProgressStage | None:
        """How far the server said it is, in a session that negotiated `control.progress_partial`.

        Waiting, admission and execution are known only of an engine that tells its server.
        """
        return self._submission.inbox.stage if self._submission is not None else None

    async def result(self) -> Outcome:
        """Read the chat to its end and return the outcome."""
        async for _ in self:
            pass
        assert self._outcome is not None
        return self._outcome

    async def cancel(self, reason: str = "") -> Outcome:
        """Cancel on the server and wait for the terminal that answers it.

        `reason` travels as the CANCEL's diagnostic. A chat that has ended keeps its outcome; one
        that was never sent ends without being sent.
        """
        if self._outcome is None and self._submission is None:
            self._outcome = Outcome("cancelled", text="", reason="never submitted")
            self._end_waiting()
        elif self._outcome is None:
            self._send_cancel(reason)
        return await self.result()

    def ask_cancel(self, reason: str = "") -> None:
        """Send the CANCEL and go on reading: what still comes, and the terminal that answers it."""
        self._send_cancel(reason)

    async def ended(self) -> None:
        """Wait until the terminal has arrived, without reading; returns for one never sent."""
        if self._submission is not None:
            await self._submission.inbox.ended()

    async def abort(self, reason: str = "") -> Outcome:
        """Like `cancel`, but nothing more is wanted of it, not even what is on its way."""
        if self._submission is None:
            return await self.cancel(reason)
        self._tell(
            lambda wire, session_id, frame_id: wire.abort(session_id, frame_id, diagnostic=reason)
        )
        return await self.result()

    def set_deadline(self, deadline: float) -> None:
        """Want the result by another time, in seconds since 1970; counts while it runs."""
        self._tell(
            lambda wire, session_id, frame_id: wire.deadline(
                session_id, frame_id, round(deadline * 1000)
            )
        )

    def set_token_budget(self, tokens: int) -> None:
        """Let it have so many output tokens, those included that it has; 0 lifts the limit.

        Once they are spent it ends as completed, with what was produced.
        """
        self._tell(
            lambda wire, session_id, frame_id: wire.budget_update(session_id, frame_id, tokens)
        )

    def supersede(self, newer: "Chat", *, now: bool = False, reason: str = "") -> None:
        """End it in favour of a chat of the same session: once that is admitted, or `now`.

        Does nothing before both were submitted.
        """
        operation_id = newer.operation_id
        if operation_id is not None:
            self._tell(
                lambda wire, session_id, frame_id: wire.supersede(
                    session_id, frame_id, operation_id, now=now, diagnostic=reason
                )
            )

    def _tell(self, command: Command) -> None:
        if self._submission is not None:
            self._operations.tell(self._submission.frame_id, command)

    async def reprioritize(self, priority: int) -> Reprioritized:
        """Change the priority while it waits; lower is sooner.

        A chat that was not submitted yet is unknown to the server. Raises as `Session.queue` does.
        """
        if self._submission is None:
            return Reprioritized("", applied=False, reason="unknown")
        return await self._operations.reprioritize(self._submission.name, priority)

    # --- iteration ------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Event]:
        """The chat itself: it can be read once."""
        return self

    async def __anext__(self) -> Event:
        """The next event."""
        if self._failure is not None:
            raise self._failure
        if self._outcome is not None:
            raise StopAsyncIteration
        try:
            if self._submission is None:
                await self._submit()
            if self._submission is None:  # It was left or cancelled before it had a place.
                raise StopAsyncIteration
            inbox = self._submission.inbox
            item = await inbox.get()
            if self._outcome is not None:  # Another task, or `cancel`, has read the terminal.
                raise StopAsyncIteration
            event = self._take(item) if isinstance(item, bytes) else self._end(item, inbox)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self._send_cancel(type(error).__name__)
            if isinstance(error, NnrpSchedError):
                self._failure = error
            raise
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Leave the chat; cancels it on the server when it has not ended."""
        self._send_cancel("")
        if self._outcome is None and self._failure is None:
            self._outcome = Outcome("cancelled", text="".join(self._text), reason="left early")
            self._end_waiting()

    async def __aenter__(self) -> Self:
        """Use the chat in a block that ends it."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the chat."""
        await self.aclose()

    def __del__(self) -> None:
        """A forgotten chat is work nobody waits for."""
        if self._submission is not None and not self._submission.inbox.finished:
            self._operations.abandon(self._submission.frame_id)

    # --- submission -----------------------------------------------------------------------------

    async def _submit(self) -> None:
        """Send the request, once: not if it ended meanwhile or another reader has sent it."""
        has_place = False
        with anyio.CancelScope() as waiting:
            self._waiting.append(waiting)
            try:
                await self._operations.take_place()
                has_place = True
            finally:
                self._waiting.remove(waiting)
        if not has_place:
            return
        if self._submission is not None or self._outcome is not None:
            self._operations.give_place_back()
            return
        self._submission = self._operations.submit(
            self._document, newest_only=self._newest_only, conditions=self._conditions
        )
        self._end_waiting()

    def _end_waiting(self) -> None:
        for waiting in self._waiting:
            waiting.cancel()

    # --- events ---------------------------------------------------------------------------------

    def _send_cancel(self, reason: str) -> None:
        if self._submission is not None and not self._submission.inbox.finished:
            self._operations.cancel(self._submission.frame_id, reason)

    def _take(self, document: bytes) -> Event:
        event = decode_event(document)
        self._grammar.observe(event)
        if isinstance(event, OutputTextDelta):
            if event.index == 0:
                self._text.append(event.delta)
        elif isinstance(event, Usage):
            self._usage = event.usage
        elif isinstance(event, Completed | Error | Cancelled):
            raise ProfileStreamError(f"{type(event).__name__} arrived as a partial result")
        return event

    def _end(self, terminal: Terminal, inbox: Inbox) -> Event | None:
        """Set the outcome; the terminal document's event when there is one."""
        if inbox.overflowed:
            raise ReaderTooSlow("events came faster than they were read; the chat was cancelled")
        self._outcome, event = outcome_of(
            terminal, "".join(self._text), self._usage, inbox.retry_after_ms
        )
        return event
