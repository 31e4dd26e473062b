"""Every name that our spans use, in one table.

`gen_ai.*`, `error.type` and `network.*` are OpenTelemetry's semantic conventions (1.42) as plain
strings, because their package is in beta and changes its constants; `nnrp.*` is what they have no
name for.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from nnrp_sched.observe.record import AbortObservation, OperationRecord, TraceObservation

PHASE: Final = "nnrp.phase"
"""On every span of ours: `operation`, or the name of the phase."""
PREEMPTED: Final = "nnrp.preempted"
"""Event: the request lost its place in the engine (the last time it did)."""

_NETWORK: Final = {"tls": "tcp", "websocket": "tcp"}
"""What the conventions call our carriers that they do not know."""

_OPERATION: Final[Mapping[str, Callable[[OperationRecord], Any]]] = {
    "gen_ai.operation.name": lambda record: record.operation,
    "gen_ai.provider.name": lambda record: record.engine,
    "gen_ai.request.model": lambda record: record.model,
    "gen_ai.request.stream": lambda record: record.streaming,
    "gen_ai.usage.input_tokens": lambda record: record.input_tokens,
    "gen_ai.usage.output_tokens": lambda record: record.output_tokens,
    "gen_ai.response.finish_reasons": lambda record: record.finish_reasons or None,
    "gen_ai.conversation.id": lambda record: record.program,
    "gen_ai.agent.id": lambda record: record.agent,
    "error.type": lambda record: record.error_code,
    "network.transport": lambda record: _NETWORK.get(record.transport or "", record.transport),
    "nnrp.agent.parent": lambda record: record.parent,
    "nnrp.operation.name": lambda record: record.id,
    "nnrp.source": lambda record: record.source,
    "nnrp.transport": lambda record: record.transport,
    "nnrp.connection_id": lambda record: record.connection_id,
    "nnrp.outcome": lambda record: record.outcome,
    "nnrp.request_id": lambda record: record.request_id,
    "nnrp.session_id": lambda record: record.session_id,
    "nnrp.frame_id": lambda record: record.frame_id,
    "nnrp.operation_id": lambda record: _unsigned(record.operation_id),
    "nnrp.header_trace_id": lambda record: _identity(record.header_trace_id),
    "nnrp.events": lambda record: record.events,
    "nnrp.event_bytes": lambda record: record.event_bytes,
    "nnrp.drop_reason": lambda record: record.drop_reason,
    "nnrp.error.family": lambda record: record.error_family,
}

_TRACE: Final[Mapping[str, Callable[[TraceObservation], Any]]] = {
    "nnrp.trace.trace_id": lambda trace: _identity(trace.trace_id),
    "nnrp.trace.span_id": lambda trace: _identity(trace.span_id),
    "nnrp.trace.parent_span_id": lambda trace: _identity(trace.parent_span_id),
    "nnrp.trace.stage_code": lambda trace: trace.stage_code,
    "nnrp.trace.flags": lambda trace: trace.flags,
    "nnrp.trace.attribute_bytes": lambda trace: trace.attribute_bytes,
    "nnrp.trace.scope": lambda trace: trace.scope,
    "nnrp.trace.late": lambda trace: trace.late,
}

_ABORT: Final[Mapping[str, Callable[[AbortObservation], Any]]] = {
    "nnrp.abort.reason": lambda abort: abort.reason,
    "nnrp.abort.source": lambda abort: abort.source,
    "nnrp.abort.reason_code": lambda abort: abort.reason_code,
    "nnrp.abort.state": lambda abort: abort.receipt and abort.receipt.state,
    "nnrp.abort.accepted": lambda abort: None if not abort.receipt else abort.receipt.accepted,
    "nnrp.abort.authoritative": lambda abort: (
        None if not abort.receipt else abort.receipt.authoritative
    ),
    "nnrp.abort.tokens": lambda abort: None if not abort.receipt else abort.receipt.tokens,
}


def operation_attributes(record: OperationRecord) -> dict[str, Any]:
    """The attributes of the span of a whole operation; unknown values are left out."""
    found = _filled(_OPERATION, record)
    if record.trace is not None:
        found |= _filled(_TRACE, record.trace)
    if record.first_event is not None:
        seconds = (record.first_event - record.began) / 1e3
        found["gen_ai.response.time_to_first_chunk"] = seconds
    return {PHASE: "operation", **found}


def abort_attributes(abort: AbortObservation) -> dict[str, Any]:
    """The attributes of the span of an abort."""
    return _filled(_ABORT, abort)


def span_name(record: OperationRecord) -> str:
    """`chat <model>`, by the conventions; the model only where it is one of the engine's."""
    return record.operation if record.model is None else f"{record.operation} {record.model}"


def _filled(table: Mapping[str, Callable[[Any], Any]], of: Any) -> dict[str, Any]:
    values = {name: value(of) for name, value in table.items()}
    return {name: value for name, value in values.items() if value is not None}


def _identity(value: int | None) -> str | None:
    """An id as OpenTelemetry writes them."""
    return f"{value:016x}" if value else None


def _unsigned(value: int | None) -> int | str | None:
    """Attributes are signed 64-bit integers; what does not fit is a text."""
    return value if value is None or value < 2**63 else str(value)
