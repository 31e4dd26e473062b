"""TRACE_CONTEXT (seed 000, 8.1): what reaches the engine and what is only recorded."""

import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_sched.engine.records import AbortReceipt, ChatBody, ChatCall
from nnrp_sched.engine.scripted import ScriptedEngine
from nnrp_sched.observe.record import OperationRecord
from nnrp_sched.profile import build_control, build_envelope
from nnrp_sched.server.trace import OperationTrace, observed, traceparent
from nnrp_sched.wire import (
    MessageType,
    Packet,
    RecoverableError,
    TraceContext,
    encode_packet,
)
from tests.support.carriers import KINDS, Place
from tests.support.raw_peer import RawPeer
from tests.support.serving import SECONDS, InMemory, body, script, scripted_server

pytestmark = pytest.mark.anyio

_HEADER_TRACE_ID = 32
"""Where the trace id stands in a packet's header (wire digest 1.1)."""
_U64 = st.integers(0, 2**64 - 1)


def context(trace_id: int, span_id: int, flags: int = 1, **more: int) -> TraceContext:
    return TraceContext(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=more.get("parent_span_id", 0),
        stage=more.get("stage", 0),
        flags=flags,
        body_bytes=more.get("body_bytes", 0),
    )


def packet(
    session_id: int,
    frame_id: int,
    trace_id: int,
    span_id: int,
    attributes: bytes = b"",
    **more: int,
) -> bytes:
    metadata = context(trace_id, span_id, body_bytes=len(attributes), **more)
    return encode_packet(
        Packet(MessageType.TRACE_CONTEXT, metadata, attributes, session_id, frame_id)
    )


def parent(trace_id: int, span_id: int, flags: int = 1) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"


# --- the rules ------------------------------------------------------------------------------------


@given(_U64, _U64, st.integers(0, 3), _U64, st.integers(0, 2**16 - 1))
def test_a_context_becomes_one_header_or_none(
    trace_id: int, span_id: int, flags: int, parent_span_id: int, stage: int
) -> None:
    given_context = context(trace_id, span_id, flags, parent_span_id=parent_span_id, stage=stage)
    header = traceparent(observed(given_context, "session"))
    if not trace_id or not span_id:
        assert header is None
        return
    assert header is not None
    version, trace, span, told = header.split("-")
    assert (version, len(trace), len(span), len(told)) == ("00", 32, 16, 2)
    assert trace == "0" * 16 + f"{trace_id:016x}"
    assert int(span, 16) == span_id
    assert int(told, 16) == flags & 1


def test_an_operations_own_context_counts_until_the_dispatch() -> None:
    trace = OperationTrace(observed(context(1, 1), "session"))
    trace.receive(context(2, 2))
    trace.receive(context(3, 3, flags=2))
    assert trace.dispatch() == parent(3, 3, flags=0)
    trace.receive(context(4, 4, body_bytes=17))
    assert trace.traceparent == parent(3, 3, flags=0)
    late = trace.observation
    assert late is not None
    assert (late.trace_id, late.attribute_bytes, late.scope, late.late) == (
        4,
        17,
        "operation",
        True,
    )


def test_an_ineligible_context_of_its_own_takes_the_default_away() -> None:
    trace = OperationTrace(observed(context(1, 1), "session"))
    trace.receive(context(0, 5))
    assert trace.dispatch() is None
    assert trace.observation is not None
    assert (trace.observation.span_id, trace.observation.late) == (5, False)


# --- the server -----------------------------------------------------------------------------------


class _Engine(ScriptedEngine):
    """Keeps the calls it gets."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[ChatCall] = []

    async def complete(self, call: ChatCall) -> ChatBody:
        self.calls.append(call)
        return await super().complete(call)

    async def stream(self, call: ChatCall) -> AsyncGenerator[ChatBody, None]:
        self.calls.append(call)
        async for chunk in super().stream(call):
            yield chunk

    async def until_calls(self, count: int) -> None:
        with anyio.fail_after(SECONDS):
            while len(self.calls) < count:
                await anyio.lowlevel.checkpoint()


class _Traced:
    """A peer with a session on a server whose records are kept."""

    def __init__(self, served: InMemory, engine: _Engine, records: list[OperationRecord]) -> None:
        self.served = served
        self.engine = engine
        self.records = records
        self.peer = RawPeer(served.dial())
        self.session_id = 0
        self._operation_id = 5000

    async def open(self) -> "_Traced":
        self.session_id = await self.peer.open()
        return self

    def submit(self, chat: dict[str, Any], **members: Any) -> tuple[int, bytes]:
        """Frame id and bytes of a submit that is not sent yet."""
        self._operation_id += 1
        document = build_envelope(chat, **members)
        return self.peer.wire.submit(
            self.session_id, document, operation_id=self._operation_id, trace_id=0
        )

    def trace(self, frame_id: int, number: int, **more: Any) -> bytes:
        return packet(self.session_id, frame_id, number, number, **more)

    async def record_of(self, frame_id: int) -> OperationRecord:
        """The one record of a frame."""
        with anyio.fail_after(SECONDS):
            while True:
                found = [each for each in self.records if each.frame_id == frame_id]
                if found:
                    assert len(found) == 1
                    return found[0]
                await anyio.lowlevel.checkpoint()


@pytest.fixture
async def traced() -> AsyncGenerator[_Traced, None]:
    engine, records = _Engine(), list[OperationRecord]()
    async with scripted_server(engine, observers=[records.append]) as served:
        yield await _Traced(served, engine, records).open()


async def test_a_session_context_is_the_default_of_later_operations_only(traced: _Traced) -> None:
    first, submit = traced.submit(script(text="x", hold=True))
    later = traced.trace(0, 7)
    await traced.peer.send(submit + later)
    second, submit = traced.submit(body())
    await traced.peer.send(submit)
    third, submit = traced.submit(body())
    await traced.peer.send(traced.trace(0, 8) + submit)
    await traced.engine.until_calls(3)
    assert [call.traceparent for call in traced.engine.calls] == [None, parent(7, 7), parent(8, 8)]
    record = await traced.record_of(second)
    assert record.trace is not None
    assert (record.trace.scope, record.trace.trace_id) == ("session", 7)
    assert (await traced.record_of(third)).traceparent == parent(8, 8)
    await traced.peer.send(traced.peer.wire.cancel(traced.session_id, first))
    assert (await traced.record_of(first)).trace is None


@pytest.mark.parametrize("padding", [0, 70_000, 500_000])
async def test_a_submit_and_its_context_written_together_are_honoured(
    traced: _Traced, padding: int
) -> None:
    """Also when they arrive in pieces: a carrier cuts bytes wherever it likes."""
    frame_id, submit = traced.submit(body("x" * padding))
    await traced.peer.send(traced.trace(0, 1) + submit + traced.trace(frame_id, 2))
    await traced.engine.until_calls(1)
    assert traced.engine.calls[0].traceparent == parent(2, 2)
    record = await traced.record_of(frame_id)
    assert (record.outcome, record.traceparent) == ("completed", parent(2, 2))
    assert record.trace is not None
    assert (record.trace.scope, record.trace.late) == ("operation", False)


@pytest.mark.parametrize("kind", KINDS)
async def test_they_are_honoured_over_every_carrier_wherever_it_cuts_them(
    kind: str, tmp_path: Path
) -> None:
    engine = _Engine()
    async with scripted_server(engine, place=Place(kind, tmp_path)) as served:
        with anyio.fail_after(SECONDS):
            carrier = await served.carrier()
            peer = RawPeer(carrier)
            session_id = await peer.open()
            wanted: list[str] = []
            for number, padding in enumerate([0, 1000, 65_300, 262_000, 700_000, 3_000_000], 1):
                document = build_envelope(body("x" * padding))
                frame_id, submit = peer.wire.submit(session_id, document, operation_id=number)
                await peer.send(submit + packet(session_id, frame_id, number, number))
                wanted.append(parent(number, number))
                await peer.until_terminal(frame_id)
            await carrier.aclose()
    assert [call.traceparent for call in engine.calls] == wanted


async def test_a_context_after_the_dispatch_is_recorded_and_changes_nothing(
    traced: _Traced,
) -> None:
    frame_id, submit = traced.submit(script(text="x", hold=True))
    await traced.peer.send(submit + traced.trace(frame_id, 2))
    await traced.engine.until_calls(1)
    await traced.peer.send(traced.trace(frame_id, 3))
    await traced.peer.send(traced.peer.wire.cancel(traced.session_id, frame_id))
    record = await traced.record_of(frame_id)
    assert traced.engine.calls[0].traceparent == record.traceparent == parent(2, 2)
    assert record.trace is not None
    assert (record.trace.trace_id, record.trace.late) == (3, True)
    assert (record.outcome, len(traced.engine.calls)) == ("cancelled", 1)


@pytest.mark.parametrize(("trace_id", "span_id"), [(0, 0), (0, 5), (5, 0)])
async def test_a_context_without_an_id_is_recorded_and_never_forwarded(
    traced: _Traced, trace_id: int, span_id: int
) -> None:
    frame_id, submit = traced.submit(body())
    own = packet(traced.session_id, frame_id, trace_id, span_id, parent_span_id=9, stage=4, flags=3)
    await traced.peer.send(traced.trace(0, 1) + submit + own)
    record = await traced.record_of(frame_id)
    assert (traced.engine.calls[0].traceparent, record.traceparent) == (None, None)
    told = record.trace
    assert told is not None
    assert (told.trace_id, told.span_id, told.parent_span_id) == (trace_id, span_id, 9)
    assert (told.stage_code, told.flags) == (4, 3)


async def test_nothing_of_a_trace_is_in_the_body(traced: _Traced) -> None:
    chat = body()
    frame_id, submit = traced.submit(chat)
    await traced.peer.send(submit + traced.trace(frame_id, 2, attributes=b"secret"))
    await traced.engine.until_calls(1)
    assert traced.engine.calls[0].body == chat


async def test_attributes_are_counted_and_never_logged(
    traced: _Traced, caplog: pytest.LogCaptureFixture
) -> None:
    secret = b"attribute=hunter2\xff"
    with caplog.at_level(logging.DEBUG):
        frame_id, submit = traced.submit(script(text="x", hold=True))
        await traced.peer.send(submit + traced.trace(frame_id, 2, attributes=secret))
        await traced.engine.until_calls(1)
        await traced.peer.send(traced.trace(0, 3, attributes=secret))
        await traced.peer.send(traced.trace(999, 3, attributes=secret))
        await traced.peer.send(traced.peer.wire.cancel(traced.session_id, frame_id))
        record = await traced.record_of(frame_id)
    assert record.trace is not None
    assert record.trace.attribute_bytes == len(secret)
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(traced.records) + repr(traced.engine.calls)


async def test_a_context_for_a_finished_frame_is_passed_over_and_for_an_unknown_one_answered(
    traced: _Traced,
) -> None:
    frame_id, submit = traced.submit(body())
    await traced.peer.send(submit)
    await traced.record_of(frame_id)
    await traced.peer.until_terminal(frame_id)
    before = len(traced.peer.packets)
    await traced.peer.send(traced.trace(frame_id, 5) + traced.trace(frame_id + 50, 5))
    following, submit = traced.submit(body())
    await traced.peer.send(submit)
    await traced.peer.until_terminal(following)
    answered = [
        each.metadata
        for each in traced.peer.packets[before:]
        if each.message_type is MessageType.ERROR_RECOVERABLE
    ]
    assert len(answered) == 1
    assert isinstance(answered[0], RecoverableError)
    assert (await traced.record_of(following)).outcome == "completed"
    assert traced.engine.calls[-1].traceparent is None


async def test_a_header_that_contradicts_its_context_is_refused_and_the_session_lives(
    traced: _Traced,
) -> None:
    wrong = bytearray(traced.trace(0, 3))
    wrong[_HEADER_TRACE_ID] = 4
    frame_id, submit = traced.submit(body())
    await traced.peer.send(bytes(wrong) + submit)
    assert (await traced.record_of(frame_id)).outcome == "completed"
    assert traced.engine.calls[0].traceparent is None


async def test_a_trace_id_in_the_submits_header_alone_is_recorded_only(traced: _Traced) -> None:
    document = build_envelope(body())
    frame_id, submit = traced.peer.wire.submit(
        traced.session_id, document, operation_id=1, trace_id=0xFEED
    )
    await traced.peer.send(submit)
    record = await traced.record_of(frame_id)
    assert (record.header_trace_id, record.traceparent) == (0xFEED, None)
    assert traced.engine.calls[0].traceparent is None


async def test_concurrent_operations_of_one_session_never_share_a_trace(traced: _Traced) -> None:
    count, frames = 60, list[int]()
    for number in range(1, count + 1):
        frame_id, submit = traced.submit(
            script(text="x" * 8, delay_ms=number % 3), request_id=f"r{number}"
        )
        own = traced.trace(frame_id, 1000 + frame_id) if number % 3 else b""
        default = traced.trace(0, 2000 + frame_id) if number % 2 else b""
        # Together, one by one, or with a turn of the loop between two submits.
        await traced.peer.send(default + submit + own)
        if number % 5 == 0:
            await anyio.lowlevel.checkpoint()
        frames.append(frame_id)
    session = 0
    for number, frame_id in enumerate(frames, 1):
        session = 2000 + frame_id if number % 2 else session
        wanted = 1000 + frame_id if number % 3 else session
        assert (await traced.record_of(frame_id)).traceparent == parent(wanted, wanted), number
    assert [call.request_id for call in traced.engine.calls] == [f"r{n + 1}" for n in range(count)]
    told = {call.request_id: call.traceparent for call in traced.engine.calls}
    assert len(told) == count
    for record in traced.records:
        assert told[record.request_id or ""] == record.traceparent


# --- the record -----------------------------------------------------------------------------------


async def test_a_refused_submit_has_a_record_and_a_control_request_has_none(
    traced: _Traced,
) -> None:
    frame_id, submit = traced.submit({"model": "example-model"})
    await traced.peer.send(traced.trace(0, 4) + submit)
    record = await traced.record_of(frame_id)
    assert (record.outcome, record.error_code) == ("failed", "missing_messages")
    assert record.traceparent == parent(4, 4)
    assert record.dispatched is None
    wrong = build_control("operation.abort", {"id": 7})
    refused, submit = traced.peer.wire.submit(traced.session_id, wrong, operation_id=1)
    right = build_control("queue.snapshot", {})
    asked, more = traced.peer.wire.submit(traced.session_id, right, operation_id=2)
    await traced.peer.send(submit + traced.trace(asked, 5) + more + traced.trace(asked, 5))
    await traced.peer.until_terminal(refused)
    await traced.peer.until_terminal(asked)
    assert traced.records == [record]


async def test_a_record_tells_who_asked_what_came_and_when(traced: _Traced) -> None:
    workflow = {"program": "p", "agent": "a", "parent": "root"}
    chat = body("one two three", stream=True, stream_options={"include_usage": True})
    frame_id, submit = traced.submit(chat, extensions={"workflow": workflow})
    await traced.peer.send(submit)
    record = await traced.record_of(frame_id)
    assert record.id == f"{traced.session_id}.{frame_id}"
    assert (record.program, record.agent, record.parent) == ("p", "a", "root")
    assert (record.model, record.engine, record.streaming) == ("example-model", "scripted", True)
    assert (record.transport, record.outcome) == ("memory", "completed")
    assert record.finish_reasons == ("stop",)
    assert record.events > 0
    assert record.input_tokens
    assert record.output_tokens
    times = record.timings
    order = [record.began, record.dispatched, times.submitted, times.queued, times.scheduled]
    order += [times.first_token, times.finished, record.ended]
    assert None not in order
    assert order == sorted(time for time in order if time is not None)


async def test_an_aborted_operation_tells_by_what_and_with_which_receipt() -> None:
    engine, records = _Engine(slots=1), list[OperationRecord]()
    async with scripted_server(engine, observers=[records.append]) as served:
        traced = await _Traced(served, engine, records).open()
        running, submit = traced.submit(script(text="x", hold=True))
        await traced.peer.send(submit)
        await engine.until_calls(1)
        waiting, submit = traced.submit(body())
        await traced.peer.send(submit)
        await engine.until_calls(2)
        for frame_id, state in ((waiting, "waiting"), (running, "running")):
            await traced.peer.send(traced.peer.wire.cancel(traced.session_id, frame_id))
            record = await traced.record_of(frame_id)
            assert record.outcome == "cancelled"
            assert record.abort is not None
            assert record.abort.reason == "cancel"
            assert isinstance(record.abort.receipt, AbortReceipt)
            assert record.abort.receipt.state == state
            assert record.began <= record.abort.began <= record.abort.ended <= record.ended
            assert (record.timings.scheduled is None) == (state == "waiting")


async def test_operations_of_a_lost_connection_have_records_too(traced: _Traced) -> None:
    frame_id, submit = traced.submit(script(text="x", hold=True))
    await traced.peer.send(submit)
    await traced.engine.until_calls(1)
    await traced.peer.carrier.aclose()
    record = await traced.record_of(frame_id)
    assert record.outcome == "silent"
    assert record.abort is not None
    assert record.abort.reason == "lost"


async def test_an_observer_that_fails_harms_neither_operation_nor_observer() -> None:
    records: list[OperationRecord] = []

    def fail(_record: OperationRecord) -> None:
        raise RuntimeError("exporter down")

    engine = _Engine()
    async with scripted_server(engine, observers=[fail, records.append]) as served:
        traced = await _Traced(served, engine, records).open()
        for _ in range(3):
            frame_id, submit = traced.submit(body())
            await traced.peer.send(submit)
            assert (await traced.record_of(frame_id)).outcome == "completed"
            await traced.peer.until_terminal(frame_id)
