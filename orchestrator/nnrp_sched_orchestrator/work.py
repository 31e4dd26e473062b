"""What a stream needs of the work behind it, and of what comes of it."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched_orchestrator.records import (
    EventT,
    Receipt,
    StreamState,
    StreamStatus,
    StreamTimings,
)

EventT_co = TypeVar("EventT_co", covariant=True)

Emit = Callable[[EventT], Awaitable[None]]
"""Hands an event to the reader; waits while too many are unread."""


class Outcome(Protocol):
    """What every result tells, whatever kind of work it came of."""

    @property
    def status(self) -> StreamStatus:
        """How it ended; of a part it says what it would be if it ended now."""
        ...

    @property
    def text(self) -> str:
        """The text, as far as it came."""
        ...

    @property
    def usage(self) -> dict[str, Any] | None:
        """Token counts, when known."""
        ...

    @property
    def receipt(self) -> Receipt | None:
        """Proof of its end, where there is one."""
        ...

    @property
    def timings(self) -> StreamTimings:
        """When things happened."""
        ...


ResultT = TypeVar("ResultT", bound=Outcome)
ResultT_co = TypeVar("ResultT_co", bound=Outcome, covariant=True)


class Work(Protocol[EventT_co, ResultT_co]):
    """A piece of work that a stream runs once."""

    async def run(self, emit: Emit[EventT_co]) -> ResultT_co:
        """Do it, in a task of the stream's own. May be cancelled at any moment.

        A result that is returned is the stream's, also when the cancellation came meanwhile.
        `emit` returns at once when the stream is about to end.
        """
        ...

    async def stop(self, reason: str) -> Receipt:
        """See to it that nothing of it goes on, after `run` was cancelled or has raised.

        Called once, shielded, and given up after the stream's `stop_seconds`; never called after
        `run` has returned. The receipt is what is known of its end.
        """
        ...

    def partial(self, status: StreamStatus, error: NnrpSchedError | None) -> ResultT_co:
        """What there is so far, as a result with this status and error. May be called any time."""
        ...

    @property
    def state(self) -> StreamState:
        """Where it stands."""
        ...
