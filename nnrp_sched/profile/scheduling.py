"""What is told about requests in the engine: the queue, receipts of aborts, changes of priority.

The same records cross the engine port and, as JSON, the wire (`nnrp-sched-control/1`).
"""

from typing import Literal

from msgspec import Struct

RequestState = Literal[
    "admitting", "waiting", "blocked", "running", "preempted", "finished", "unknown"
]
"""Where a request stands (design, decision 5); `blocked` waits for something else than its turn."""

AbortState = Literal[RequestState, "pending"]
"""What an abort found; `pending` while the engine has yet to say (hooks-verified.md, C7)."""

Source = Literal["nnrp", "http"]
"""The door a request came in by."""

ReprioritizeReason = Literal["applied", "not_waiting", "unknown", "policy_fcfs", "unsupported"]


class Timings(Struct, frozen=True):
    """When things happened to a request: monotonic milliseconds on one clock, None if not yet."""

    submitted: float | None = None
    """The serving process had it."""
    registered: float | None = None
    """The engine's frontend had it."""
    queued: float | None = None
    """The scheduler had it."""
    scheduled: float | None = None
    """It first ran."""
    first_token: float | None = None
    preempted: float | None = None
    """It last lost its place."""
    finished: float | None = None


class QueuedRequest(Struct, frozen=True):
    """One request in the engine."""

    id: str
    """As users see it: `<session>.<frame>` for NNRP, the engine's external id for HTTP."""
    program: str | None
    agent: str | None
    parent: str | None
    source: Source
    state: RequestState
    queue_delay_ms: float
    """From being queued to first running; so far, while it has not run."""
    position: int | None
    """How many requests run before it; None when it does not wait."""
    estimate_ms: float | None
    """How long it will still wait; None when it does not, or nobody knows."""
    tokens: int
    """Output tokens so far."""
    priority: int
    """The engine's; lower is sooner."""
    timings: Timings = Timings()


class QueueSnapshot(Struct, frozen=True):
    """Every live request at one moment."""

    operations: tuple[QueuedRequest, ...]
    running: int
    waiting: int
    authoritative: bool
    """True when the scheduler said so, False when only the frontend was asked."""
    taken_ms: float
    """When, on the clock of the timings."""


class AbortReceipt(Struct, frozen=True):
    """What an abort did."""

    request_id: str
    """The id that was asked for, in the form it was asked in."""
    state: AbortState
    """Where the request stood when the abort reached the engine. `pending` when that is in a long
    step, at whose end it takes the request out: a later abort tells what became of it."""
    accepted: bool
    """True when this abort took the request out."""
    authoritative: bool
    """True when the scheduler itself said so; False when the engine only took the call."""
    tokens: int | None
    """Output tokens produced until then, when known."""
    latency_ms: float


class Reprioritized(Struct, frozen=True):
    """What a change of priority did."""

    request_id: str
    applied: bool
    reason: ReprioritizeReason
