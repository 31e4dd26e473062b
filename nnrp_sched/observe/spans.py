"""OpenTelemetry spans of ended operations: `operation`, and under it queue, prefill, decode, abort.

Made at the end from the one record, so aborted, failed and refused operations have theirs too. Over
opentelemetry-api alone: without an SDK the spans cost next to nothing and go nowhere.
"""

import time
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.trace import (
    NoOpTracerProvider,
    ProxyTracerProvider,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer_provider,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nnrp_sched import __version__
from nnrp_sched.observe.conventions import (
    PHASE,
    PREEMPTED,
    abort_attributes,
    operation_attributes,
    span_name,
)
from nnrp_sched.observe.record import OperationRecord, phases

_PROPAGATOR = TraceContextTextMapPropagator()


class SpanObserver:
    """Makes the spans of each record it gets."""

    def __init__(
        self,
        provider: TracerProvider | None = None,
        *,
        clocks: Callable[[], tuple[int, int]] = lambda: (time.time_ns(), time.monotonic_ns()),
    ) -> None:
        """Spans go to `provider`, by default to whichever the process has set by then.

        `clocks` reads wall clock and monotonic clock in nanoseconds.
        """
        self._provider = provider
        self._clocks = clocks

    def __call__(self, record: OperationRecord) -> None:
        """Make the spans of one operation. Raises what the provider's processors raise."""
        provider = get_tracer_provider() if self._provider is None else self._provider
        if isinstance(provider, NoOpTracerProvider | ProxyTracerProvider):
            return  # Nobody listens.
        tracer = provider.get_tracer("nnrp_sched", __version__)
        wall, monotonic = self._clocks()

        def at(milliseconds: float) -> int:
            return wall - monotonic + round(milliseconds * 1e6)

        operation = tracer.start_span(
            span_name(record),
            context=parent_context(record.traceparent),
            kind=SpanKind.SERVER,
            attributes=operation_attributes(record),
            start_time=at(record.began),
        )
        if record.timings.preempted is not None:
            operation.add_event(PREEMPTED, timestamp=at(record.timings.preempted))
        if record.outcome == "failed":
            operation.set_status(Status(StatusCode.ERROR))
        # An empty context as the base: what else runs in this task is nobody's parent here.
        inside = set_span_in_context(operation, Context())
        for phase, began, ended in phases(record):
            span = tracer.start_span(
                phase, context=inside, attributes={PHASE: phase}, start_time=at(began)
            )
            if phase == "abort" and record.abort is not None:
                span.set_attributes(abort_attributes(record.abort))
            span.end(at(ended))
        operation.end(at(record.ended))


def parent_context(traceparent: str | None) -> Context:
    """The context that a W3C traceparent names; an empty one for none and for a malformed one."""
    if traceparent is None:
        return Context()
    return _PROPAGATOR.extract({"traceparent": traceparent}, context=Context())
