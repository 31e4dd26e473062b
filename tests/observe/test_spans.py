"""Spans from records: parents, times, attributes, and what a broken exporter does."""

import logging
from collections.abc import Sequence

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from nnrp_sched.observe.observers import Observers
from nnrp_sched.observe.record import AbortObservation, OperationRecord, TraceObservation
from nnrp_sched.observe.spans import SpanObserver, parent_context
from nnrp_sched.profile.scheduling import AbortReceipt, Timings
from tests.support.spans import Spans, attribute, times

TRACE_ID = 0xAB
SPAN_ID = 0xCD
PARENT = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"
RECORD = OperationRecord(
    id="7.1",
    source="nnrp",
    operation="chat",
    outcome="completed",
    began=1000.0,
    ended=1100.0,
    model="m",
    timings=Timings(1001, 1002, 1003, 1010, 1020, 1015, 1090),
    traceparent=PARENT,
)


def observed(record: OperationRecord) -> Spans:
    spans = Spans()
    SpanObserver(spans.provider, clocks=lambda: (5_000_000_000_000, 1_000_000_000))(record)
    return spans


def test_an_operation_is_the_childs_parent_and_the_client_is_the_operations() -> None:
    spans = observed(RECORD)
    (operation,) = spans.operations()
    assert operation.name == "chat m"
    assert operation.kind is trace.SpanKind.SERVER
    assert operation.parent is not None
    assert operation.parent.is_remote
    assert (operation.parent.trace_id, operation.parent.span_id) == (TRACE_ID, SPAN_ID)
    phases = spans.phases_of(operation)
    assert set(phases) == {"queue", "prefill", "decode"}
    assert len(spans.finished) == 4


def test_spans_have_the_times_of_the_record_on_the_wall_clock() -> None:
    spans = observed(RECORD)
    (operation,) = spans.operations()
    at = 5_000_000_000_000
    assert times(operation) == (at, at + 100_000_000)
    phases = spans.phases_of(operation)
    assert times(phases["queue"]) == (at + 3_000_000, at + 10_000_000)
    assert times(phases["prefill"]) == (at + 10_000_000, at + 20_000_000)
    assert times(phases["decode"]) == (at + 20_000_000, at + 90_000_000)
    (preempted,) = operation.events
    assert (preempted.name, preempted.timestamp) == ("nnrp.preempted", at + 15_000_000)


@pytest.mark.parametrize("traceparent", [None, "00-0-0-01", "nonsense", f"00-{'0' * 32}-aa-01"])
def test_an_operation_without_a_usable_parent_begins_a_trace(traceparent: str | None) -> None:
    spans = Spans()
    ambient = spans.provider.get_tracer("another request")
    with ambient.start_as_current_span("somebody else's"):
        SpanObserver(spans.provider)(msgspec.structs.replace(RECORD, traceparent=traceparent))
    (operation,) = spans.operations()
    assert operation.parent is None
    assert len(spans.phases_of(operation)) == 3


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    spans = Spans()
    spans.provider.sampler = ParentBased(ALWAYS_ON)
    parent = PARENT[:-1] + "0"
    SpanObserver(spans.provider)(msgspec.structs.replace(RECORD, traceparent=parent))
    assert spans.finished == []
    assert not trace.get_current_span(parent_context(parent)).get_span_context().trace_flags.sampled


def test_an_abort_tells_what_its_receipt_says() -> None:
    receipt = AbortReceipt("7.1", "running", True, True, 12, 1.0)
    abort = AbortObservation("cancel", 1050.0, 1060.0, receipt)
    spans = observed(msgspec.structs.replace(RECORD, outcome="cancelled", abort=abort))
    (operation,) = spans.operations()
    assert operation.status.status_code is trace.StatusCode.UNSET
    span = spans.phases_of(operation)["abort"]
    assert attribute(span, "nnrp.abort.reason") == "cancel"
    assert attribute(span, "nnrp.abort.state") == "running"
    assert attribute(span, "nnrp.abort.accepted") is True
    assert attribute(span, "nnrp.abort.authoritative") is True
    assert attribute(span, "nnrp.abort.tokens") == 12


def test_a_failure_is_an_error_with_its_code() -> None:
    record = msgspec.structs.replace(RECORD, outcome="failed", error_code="backend_error")
    (operation,) = observed(record).operations()
    assert operation.status.status_code is trace.StatusCode.ERROR
    assert attribute(operation, "error.type") == "backend_error"


def test_a_context_is_told_whole_and_its_attributes_as_a_count() -> None:
    context = TraceObservation(2**64 - 1, 1, 2, 3, 2, 99, "operation", late=True)
    record = msgspec.structs.replace(RECORD, trace=context, operation_id=2**64 - 1)
    (operation,) = observed(record).operations()
    told = {
        name: value for name, value in (operation.attributes or {}).items() if ".trace." in name
    }
    assert told == {
        "nnrp.trace.trace_id": "f" * 16,
        "nnrp.trace.span_id": f"{1:016x}",
        "nnrp.trace.parent_span_id": f"{2:016x}",
        "nnrp.trace.stage_code": 3,
        "nnrp.trace.flags": 2,
        "nnrp.trace.attribute_bytes": 99,
        "nnrp.trace.scope": "operation",
        "nnrp.trace.late": True,
    }
    assert attribute(operation, "nnrp.operation_id") == str(2**64 - 1)


def test_without_a_provider_there_are_no_spans_and_no_work() -> None:
    def clocks() -> tuple[int, int]:
        raise AssertionError("asked for the time")

    SpanObserver(trace.NoOpTracerProvider(), clocks=clocks)(RECORD)
    SpanObserver(trace.ProxyTracerProvider(), clocks=clocks)(RECORD)


class _Broken(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("no space left")


class _Failing(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ConnectionError("nobody listens")


def test_a_broken_exporter_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    broken, failing, good = TracerProvider(), TracerProvider(), Spans()
    broken.add_span_processor(_Broken())
    failing.add_span_processor(SimpleSpanProcessor(_Failing()))
    observers = Observers(map(SpanObserver, (broken, failing, good.provider)))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            observers(RECORD)
    assert len(good.operations()) == 3
    assert observers.failures == 3
    ours = [entry for entry in caplog.records if entry.name.startswith("nnrp_sched")]
    assert len(ours) == 1
