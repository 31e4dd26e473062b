"""The facts of an operation record under the names of the adapter's observation (5.6 of its facts).

One table for `response.diagnostics` and for the log, so that the two cannot tell different stories
(seed 000, 8: rule 4). A fact that nobody knows is null, never a guess. Where a name means something
better here than there, docs/observation.md says so.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from nnrp_sched.observe.record import OperationRecord

_PROFILE: Final = "openai-compatible/1"
_DIGITS: Final = 3

_ABORT_KINDS: Final = {
    "requested": "cancel",
    "timeout": "timeout",
    "deadline": "deadline_expired",
    "expire_at": "deadline_expired",
    "budget": "budget_exceeded",
    "shutdown": "server_shutdown",
    "drain": "session_drain",
    "closing": "session_closing",
    "session": "peer_disconnect",
    "lost": "peer_disconnect",
    "client_gone": "peer_disconnect",
}
"""The adapter's names for what ends an operation; the others are the record's own."""

_FACTS: Final[Mapping[str, Callable[[OperationRecord], Any]]] = {
    "operation": lambda record: record.id,
    "source": lambda record: record.source,
    "profile_id": lambda record: _PROFILE if record.profile_operation else None,
    "profile_operation": lambda record: record.profile_operation,
    "model_id": lambda record: record.model,
    "selected_transport": lambda record: record.transport,
    "connection_id": lambda record: record.connection_id,
    "session_id": lambda record: record.session_id,
    "operation_id": lambda record: record.operation_id,
    "frame_id": lambda record: record.frame_id,
    "request_id": lambda record: record.request_id,
    "trace_id": lambda record: record.header_trace_id,
    "program": lambda record: record.program,
    "agent": lambda record: record.agent,
    "parent": lambda record: record.parent,
    "streaming": lambda record: record.streaming,
    "backend_family": lambda record: record.engine,
    "backend_binding": lambda record: record.binding,
    "backend_version": lambda record: record.engine_version,
    # --- times, all in milliseconds
    "queue_delay_ms": lambda record: _between(record.timings.queued, record.timings.scheduled),
    "admission_latency_ms": lambda record: _between(record.began, record.dispatched),
    "preprocessing_latency_ms": lambda record: _between(record.dispatched, record.timings.queued),
    "prefill_latency_ms": lambda record: _between(
        record.timings.scheduled, record.timings.first_token
    ),
    "decode_latency_ms": lambda record: _between(
        record.timings.first_token, record.timings.finished
    ),
    "first_event_latency_ms": lambda record: _between(record.began, record.first_event),
    "inter_event_latency_mean_ms": lambda record: (
        round(record.intervals.total / record.intervals.count, _DIGITS)
        if record.intervals.count
        else None
    ),
    "inter_event_latency_max_ms": lambda record: (
        round(record.intervals.longest, _DIGITS) if record.intervals.count else None
    ),
    "terminal_latency_ms": lambda record: _between(record.began, record.ended),
    # --- what came out
    "output_event_count": lambda record: record.events,
    "output_bytes": lambda record: record.event_bytes,
    "prompt_tokens": lambda record: record.input_tokens,
    "completion_tokens": lambda record: record.output_tokens,
    "total_tokens": lambda record: (
        None
        if record.input_tokens is None or record.output_tokens is None
        else record.input_tokens + record.output_tokens
    ),
    "finish_reasons": lambda record: list(record.finish_reasons) or None,
    # --- how it ended
    "terminal_outcome": lambda record: "dropped" if record.outcome == "silent" else record.outcome,
    "error_code": lambda record: record.error_code,
    "error_family": lambda record: record.error_family,
    "drop_reason": lambda record: record.drop_reason,
    "cancellation_kind": lambda record: (
        record.abort and _ABORT_KINDS.get(record.abort.reason, record.abort.reason)
    ),
    "cancellation_source": lambda record: record.abort and record.abort.source,
    "cancellation_reason_code": lambda record: record.abort and record.abort.reason_code,
    "backend_abort_accepted": lambda record: _receipt(record, "accepted"),
    "backend_abort_state": lambda record: _receipt(record, "state"),
    "backend_abort_authoritative": lambda record: _receipt(record, "authoritative"),
    "backend_abort_latency_ms": lambda record: (
        record.abort and _between(record.abort.began, record.abort.ended)
    ),
    # --- the trace context, of whose attributes only the size is known (seed 000, 8.1)
    "trace_context_id": lambda record: record.trace and record.trace.trace_id,
    "trace_span_id": lambda record: record.trace and record.trace.span_id,
    "trace_parent_span_id": lambda record: record.trace and record.trace.parent_span_id,
    "trace_stage_code": lambda record: record.trace and record.trace.stage_code,
    "trace_flags": lambda record: record.trace and record.trace.flags,
    "trace_attribute_bytes": lambda record: record.trace and record.trace.attribute_bytes,
    "trace_scope": lambda record: record.trace and record.trace.scope,
    "trace_late": lambda record: record.trace and record.trace.late,
}


def diagnostics(record: OperationRecord) -> dict[str, Any]:
    """All facts by name, as JSON values; the same names for every record."""
    return {name: fact(record) for name, fact in _FACTS.items()}


def _between(began: float | None, ended: float | None) -> float | None:
    return None if began is None or ended is None else round(max(0.0, ended - began), _DIGITS)


def _receipt(record: OperationRecord, name: str) -> Any:
    receipt = record.abort and record.abort.receipt
    return None if receipt is None else getattr(receipt, name)
