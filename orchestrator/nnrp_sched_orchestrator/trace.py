"""Spans of programs, agents and streams: one trace from a program down to the engine.

Over opentelemetry-api alone. Where no SDK records spans, each still gets ids of its own, so that
the chain from a server's span up to the program holds in whatever the server writes.

NNRP carries the low 64 bits of a trace id (wire digest 6-28). The ids made here have no more; an
SDK whose ids should be found again as they are needs an id generator that makes such ones.
"""

import contextvars
import secrets
from collections.abc import Mapping
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    get_current_span,
    get_tracer_provider,
    set_span_in_context,
)

from nnrp_sched import __version__
from nnrp_sched.observe.spans import parent_context

AttributeValue = str | bool | int | float

SCOPE: Final = "nnrp_sched_orchestrator"
"""The instrumentation scope of these spans."""

_LOW_64: Final = 2**64 - 1

_current: contextvars.ContextVar["TraceSpan | None"] = contextvars.ContextVar(
    "nnrp_sched_span", default=None
)


class TraceSpan:
    """A span of ours: begun when it is made, to be ended once."""

    def __init__(
        self,
        name: str,
        parent: "TraceSpan | None" = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        provider: TracerProvider | None = None,
        traceparent: str | None = None,
    ) -> None:
        """Below `parent`, or below whatever span of the caller's is current.

        With a W3C `traceparent`, below the span that it names instead. Attributes that are None are
        left out. Spans go to `provider`, by default to that of the parent or of the process.
        """
        inherited = None if parent is None else parent._provider
        self._provider: TracerProvider | None = provider or inherited
        above = otel_context.get_current() if parent is None else parent._context
        if traceparent is not None:
            above = parent_context(traceparent)
        before = get_current_span(above).get_span_context()
        tracer = (self._provider or get_tracer_provider()).get_tracer(SCOPE, __version__)
        self._span = tracer.start_span(name, above, kind, _known(attributes or {}))
        context = self._span.get_span_context()
        if not context.is_valid or context.span_id == before.span_id:
            self._span = NonRecordingSpan(_made_up(before))  # Nobody records.
        self._context: Context = set_span_in_context(self._span, above)
        self._ended = False

    @property
    def traceparent(self) -> str:
        """The W3C traceparent that makes something a child of this span."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    @property
    def carried(self) -> str | None:
        """The traceparent for a server; None for a trace id of whose low half nothing is left."""
        low_half = self._span.get_span_context().trace_id & _LOW_64
        return self.traceparent if low_half else None

    def end(
        self,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        *,
        error: str | None = None,
    ) -> None:
        """It is over, with `error` as a failure; the first end counts."""
        if self._ended:
            return
        self._ended = True
        self._span.set_attributes(_known(attributes or {}))
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()

    def task_context(self) -> contextvars.Context:
        """A copy of the caller's context in which this span is the current one."""
        context = contextvars.copy_context()
        context.run(self._make_current)
        return context

    def _make_current(self) -> None:
        otel_context.attach(self._context)
        _current.set(self)


def current_span() -> TraceSpan | None:
    """The span of ours within which the caller runs: that of its stream."""
    return _current.get()


def _made_up(above: SpanContext) -> SpanContext:
    return SpanContext(
        above.trace_id if above.is_valid else secrets.randbits(63) + 1,
        secrets.randbits(63) + 1,
        is_remote=False,
        trace_flags=above.trace_flags if above.is_valid else TraceFlags(TraceFlags.SAMPLED),
    )


def _known(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value is not None}
