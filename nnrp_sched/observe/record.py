"""The one record of an operation that diagnostics, spans and metrics are made from (seed 000, 8).

Pure. Every time is in monotonic milliseconds on the clock of `profile.scheduling.Timings`; a value
that nobody knows is None, never a guess.
"""

from typing import Literal

from msgspec import Struct

from nnrp_sched.profile.scheduling import AbortReceipt, Source, Timings

Outcome = Literal["completed", "failed", "cancelled", "dropped", "silent"]
"""How an operation ended; `silent` is an end without a message, as after a lost connection."""

Phase = Literal["queue", "prefill", "decode", "abort"]

TraceScope = Literal["session", "operation"]


class TraceObservation(Struct, frozen=True):
    """The fixed metadata of a TRACE_CONTEXT; of its attributes only how many bytes they were."""

    trace_id: int
    span_id: int
    parent_span_id: int
    stage_code: int
    flags: int
    attribute_bytes: int
    scope: TraceScope
    """`session` for a default that was there when the operation was admitted."""
    late: bool = False
    """Whether it came after the dispatch, and so changed nothing but this record."""


class AbortObservation(Struct, frozen=True):
    """An abort from being asked for until its receipt, or until nobody waited for one any more."""

    reason: str
    """What ended the operation: a message of the peer, a time limit, the end of its session…"""
    began: float
    ended: float
    receipt: AbortReceipt | None = None
    source: str | None = None
    """Who wanted it: `client`, `subagent`, `tool`… as the peer's message says, `server` for its own
    reasons, `transport` when the connection is gone."""
    reason_code: int | None = None
    """The reason in the peer's CANCEL or ABORT (wire digest 3.6)."""


class Intervals(Struct, frozen=True):
    """The times between an operation's events, in milliseconds."""

    count: int = 0
    total: float = 0.0
    longest: float = 0.0


class OperationRecord(Struct, frozen=True, kw_only=True):
    """One operation, by whichever door it came, after its end."""

    id: str
    """As users see it: `<session>.<frame>` for NNRP, the engine's external id for HTTP."""
    source: Source
    operation: str
    """As OpenTelemetry's gen_ai conventions name it: `chat`, `text_completion`…"""
    outcome: Outcome
    began: float
    ended: float
    model: str | None = None
    """One that the engine serves; None when the request named none of them."""
    engine: str | None = None
    """The engine's family."""
    request_id: str | None = None
    """The engine's handle."""
    profile_operation: str | None = None
    """As the profile names it; None for requests that came by another door."""
    binding: str | None = None
    """The patch layer's family in the engine, when it is active."""
    engine_version: str | None = None
    transport: str | None = None
    connection_id: int | None = None
    """Counts the connections of a server, from 1."""
    session_id: int | None = None
    frame_id: int | None = None
    operation_id: int | None = None
    header_trace_id: int | None = None
    """`trace_id` in the submit's header: recorded, and no trace context (seed 000, 8.1)."""
    program: str | None = None
    agent: str | None = None
    parent: str | None = None
    streaming: bool | None = None
    dispatched: float | None = None
    """When the engine was called."""
    first_event: float | None = None
    events: int = 0
    """Events that were sent before the terminal."""
    event_bytes: int = 0
    """Bytes of their JSON documents."""
    intervals: Intervals = Intervals()
    timings: Timings = Timings()
    """The engine's own times."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    error_code: str | None = None
    error_family: str | None = None
    """The engine's own name for its error, or the type of the profile's."""
    drop_reason: str | None = None
    """Of an operation that ended in RESULT_DROP_REASON (wire digest 3.5)."""
    abort: AbortObservation | None = None
    trace: TraceObservation | None = None
    """The last context that was received for the operation."""
    traceparent: str | None = None
    """The W3C parent of the operation, as it was handed to the engine."""


def phases(record: OperationRecord) -> list[tuple[Phase, float, float]]:
    """What an operation went through in the engine: name, begin and end, in the order they began.

    An operation that ended in the middle of a phase has that phase until then, and none after it.
    What the engine did not tell is left out.
    """
    times = record.timings
    end = record.ended if times.finished is None else times.finished
    found: list[tuple[Phase, float, float]] = []
    queued = times.registered if times.queued is None else times.queued
    if queued is not None:
        found.append(("queue", queued, _first(times.scheduled, times.first_token, end)))
    if times.scheduled is not None:
        found.append(("prefill", times.scheduled, _first(times.first_token, end)))
    if times.first_token is not None:
        found.append(("decode", times.first_token, end))
    if record.abort is not None:
        found.append(("abort", record.abort.began, record.abort.ended))
    return [(name, began, max(began, ended)) for name, began, ended in found]


def _first(*times: float | None) -> float:
    return next(time for time in times if time is not None)
