"""What streams tell: receipts, results, states, times. Plain records."""

from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from nnrp_sched.errors import NnrpSchedError
from nnrp_sched.profile.scheduling import AbortState

StreamStatus = Literal["completed", "failed", "cancelled"]
"""How a stream ended."""

StateKind = Literal["admitting", "queued", "running", "waiting_for_tool", "done"]

ReceiptState = AbortState | Literal["queued", "local"]
"""Where work stood when it was stopped: in the engine, in our own queue, or a tool (`local`)."""

EventT = TypeVar("EventT")


class Receipt(Struct, frozen=True):
    """Proof of how a piece of work ended."""

    stream_id: str
    """`<program>/<agent path>#<number>`."""
    operation: str | None = None
    """The server's id, `<session>.<frame>`; None when it was never submitted."""
    endpoint: str | None = None
    state: ReceiptState = "finished"
    """Where it stood when the cancellation reached it."""
    accepted: bool = False
    """True when this cancellation took it out."""
    authoritative: bool = True
    """True when whoever ran it said so: the scheduler itself, or it never left us, or its process
    group is gone."""
    tokens: int | None = None
    """Output tokens until then, when known."""
    latency_ms: float = 0.0
    """From asking to knowing."""
    reason: str = ""
    """Why it was to end."""
    unconfirmed: str | None = None
    """Why there is no authoritative word, when there is none."""


class ToolCall(Struct, frozen=True):
    """A tool call that a model has made."""

    index: int
    """Its position among the calls of the answer."""
    call_id: str
    name: str
    arguments: str
    """JSON text as the model wrote it."""


class StreamTimings(Struct, frozen=True):
    """When things happened: milliseconds of this process's monotonic clock, None if not yet."""

    created: float
    submitted: float | None = None
    """It left for whoever runs it."""
    first_event: float | None = None
    finished: float | None = None
    queue_ms: float = 0.0
    """How long it waited in our own queue."""
    engine_queue_ms: float | None = None
    """How long it waited in the engine's, when known."""


class StreamState(Struct, frozen=True):
    """Where a stream stands now."""

    kind: StateKind
    position: int | None = None
    """How many run before it; None when it does not wait or nobody knows."""
    estimate_ms: float | None = None
    """How long it will still wait, when known."""
    where: Literal["pool", "engine"] | None = None
    """Whose queue it waits in."""


class ModelResult(Struct, frozen=True):
    """What came of a model call; of one that was cut short, what there was."""

    status: StreamStatus
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that are complete."""
    body: dict[str, Any] | None = None
    """The chat.completion, when completed with one."""
    usage: dict[str, Any] | None = None
    """The token counts, when the server sent them."""
    error: NnrpSchedError | None = None
    receipt: Receipt | None = None
    timings: StreamTimings = StreamTimings(0.0)


class CancellationReport(Struct, frozen=True):
    """What cancelling a cone has done."""

    receipts: tuple[Receipt, ...] = ()
    """One for each stream that had not ended."""
    tokens_spent: int = 0
    """Output tokens of the cancelled streams, as far as known."""
    seconds: float = 0.0
    """How long it took."""

    @property
    def unconfirmed(self) -> tuple[Receipt, ...]:
        """Those of whose end nobody with authority has told."""
        return tuple(receipt for receipt in self.receipts if not receipt.authoritative)


class Spent(Struct, frozen=True):
    """What an agent and those below it have spent."""

    tokens: int = 0
    """Output tokens."""
    model_calls: int = 0
    seconds: float = 0.0
    """Wall time since it began."""


class StreamEvent(Struct, Generic[EventT], frozen=True):
    """An event of one of an agent's streams."""

    stream_id: str
    agent: str
    """The agent's path."""
    sequence: int
    """Counts up by one over all streams of the agent."""
    event: EventT
