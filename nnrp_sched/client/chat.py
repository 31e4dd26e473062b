"""One chat: an async iterator of the profile's events with a single outcome."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
from msgspec import Struct

from nnrp_sched.client.inbox import Inbox, Terminal
from nnrp_sched.client.outcome import Outcome, outcome_of
from nnrp_sched.client.trace import SpanReference
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


class Submission(Struct, frozen=True):
    """An operation on the wire."""

    name: str
    """The id by which users see and cancel it, `<session>.<frame>`."""
    frame_id: int
    operation_id: int
    inbox: Inbox


class Operations(Protocol):
    """What a chat needs of its session."""

    async def take_place(self) -> None:
        """Wait for a free place; it is to be used by `submit` or given back."""
        ...

    def give_place_back(self) -> None:
        """Leave a place unused."""
        ...

    def submit(
        self, document: bytes, *, newest_only: bool, span: SpanReference | None
    ) -> Submission:
        """Send the document as a new operation in a place taken before."""
        ...

    def cancel(self, frame_id: int, reason: str) -> None:
        """Send CANCEL for a frame that has not ended."""
        ...

    def abandon(self, frame_id: int) -> None:
        """Like `cancel`, from any thread, at any time."""
        ...

    async def reprioritize(self, name: str, priority: int) -> Reprioritized:
        """Ask the server to change an operation's priority."""
        ...


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
        span: SpanReference | None = None,
    ) -> None:
        """With `newest_only`, events that nobody read in time give way to newer ones.

        `span` is the parent of what the server does.
        """
        self._operations = operations
        self._document = document
        self._newest_only = newest_only
        self._span = span
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
            self._document, newest_only=self._newest_only, span=self._span
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
        self._outcome, event = outcome_of(terminal, "".join(self._text), self._usage)
        return event
