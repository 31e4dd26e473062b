"""Spans in memory, and clients that make spans of their own."""

from collections import defaultdict

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from nnrp_sched.observe.conventions import PHASE


class SmallIdGenerator(RandomIdGenerator):
    """Trace ids of 64 bits, which NNRP carries whole (wire digest 6-28)."""

    def generate_trace_id(self) -> int:
        return self.generate_span_id()


class Spans:
    """A tracer provider, and what came out of it."""

    def __init__(self) -> None:
        self.provider = TracerProvider(id_generator=SmallIdGenerator())
        self.exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def finished(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def operations(self) -> list[ReadableSpan]:
        """The spans of whole operations, in the order they ended."""
        return [span for span in self.finished if attribute(span, PHASE) == "operation"]

    def phases_of(self, operation: ReadableSpan) -> dict[str, ReadableSpan]:
        """The children of an operation's span by name; each of them once, in its trace."""
        assert operation.context is not None
        found: dict[str, list[ReadableSpan]] = defaultdict(list)
        for span in self.finished:
            if span.parent is not None and span.parent.span_id == operation.context.span_id:
                assert span.context is not None
                assert span.context.trace_id == operation.context.trace_id
                found[span.name].append(span)
        assert all(len(spans) == 1 for spans in found.values())
        return {name: spans[0] for name, spans in found.items()}


def attribute(span: ReadableSpan, name: str) -> object:
    """An attribute of a span, None when it has none of that name."""
    return (span.attributes or {}).get(name)


def times(span: ReadableSpan) -> tuple[int, int]:
    """Begin and end in nanoseconds."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time
