"""Requests over HTTP as records: how they ended, who asked, whose trace they are part of."""

import asyncio
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import EngineDescription
from nnrp_sched.engine.records import AbortReceipt, Caller
from nnrp_sched.observe.record import OperationRecord, phases
from nnrp_sched_patches.http_records import http_records, record_of
from nnrp_sched_patches.ledger import Ledger
from nnrp_sched_patches.ledger_records import Entry, Part
from nnrp_sched_patches.middleware import IdentityMiddleware
from nnrp_sched_patches.origin import current_origin
from tests.support.vllm_frontend import EventType, FinishReason, event, hooked, output

pytestmark = pytest.mark.anyio

DESCRIPTION = EngineDescription("vllm", ("m",), tool_calls=False)


def _ended(*reasons: str, receipt: AbortReceipt | None = None) -> Entry:
    """A request whose choices ended like that."""
    ledger = Ledger()
    entry = ledger.open(Caller("p", "a", "r"), "http", external_id="x", at=1.0, traceparent="00-t")
    for index, reason in enumerate(reasons):
        ledger.register(entry, Part(f"{index}_x", "x", registered=2.0))
        ledger.event("queued", f"{index}_x", 3.0, {})
        ledger.end_part(f"{index}_x", reason, 90.0)
    if not reasons:
        ledger.close(entry, "refused", 4.0)
    entry.receipt = receipt
    return entry


@pytest.mark.parametrize(
    ("reasons", "outcome", "error"),
    [
        (("stop",), "completed", None),
        (("stop", "length"), "completed", None),
        (("abort",), "cancelled", None),
        (("stop", "abort"), "cancelled", None),
        (("error",), "failed", "backend_error"),
        (("the engine process died: killed",), "failed", "backend_error"),
        ((), "failed", "refused"),
    ],
)
def test_finish_reasons_say_how_a_request_ended(
    reasons: tuple[str, ...], outcome: str, error: str | None
) -> None:
    record = record_of(_ended(*reasons), DESCRIPTION)
    assert (record.outcome, record.error_code) == (outcome, error)
    assert (record.abort is not None) == (outcome == "cancelled")
    assert (record.program, record.agent, record.parent) == ("p", "a", "r")
    assert (record.id, record.source, record.traceparent) == ("x", "http", "00-t")


def test_an_abort_lasts_as_long_as_its_receipt_says() -> None:
    receipt = AbortReceipt("x", "waiting", True, True, 0, 20.0)
    entry = _ended("abort", receipt=receipt)
    entry.abort_cause = "client_gone"
    record = record_of(entry, DESCRIPTION)
    assert record.abort is not None
    assert (record.abort.reason, record.abort.receipt) == ("client_gone", receipt)
    assert phases(record) == [("queue", 3.0, 90.0), ("abort", 70.0, 90.0)]


def test_an_abort_that_nobody_told_of_has_no_reason_and_no_receipt() -> None:
    record = record_of(_ended("abort"), DESCRIPTION)
    assert record.abort is not None
    assert (record.abort.reason, record.abort.receipt) == ("unknown", None)


@pytest.mark.parametrize(("models", "told"), [(("m",), "m"), (("m", "adapter"), None)])
def test_the_model_is_told_where_there_is_but_one(
    models: tuple[str, ...], told: str | None
) -> None:
    description = EngineDescription("vllm", models, tool_calls=False)
    assert record_of(_ended("stop"), description).model == told


async def test_a_request_through_middleware_and_hooks_is_told_once_with_its_trace() -> None:
    llm, _ = hooked()
    told: list[OperationRecord] = []
    seen = anyio.Event()

    def observe(record: OperationRecord) -> None:
        told.append(record)
        seen.set()

    llm.ledger.on_end = http_records(observe, DESCRIPTION, settled_s=0)
    internal: list[str] = []

    async def app(*_: Any) -> None:
        assert current_origin().operation == "text_completion"
        internal.extend(await llm.add_request("one"))

    async def nothing(*_: Any) -> Any:
        return {}

    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    scope = {
        "type": "http",
        "path": "/v1/completions",
        "headers": [(b"TraceParent", parent.encode()), (b"session-id", b"s")],
    }
    with anyio.fail_after(5):
        await IdentityMiddleware(app)(scope, nothing, nothing)
        llm.ledger.open(Caller(), "nnrp", external_id="ours", at=0.0)
        ours = llm.ledger.find("ours")
        assert ours is not None
        llm.ledger.close(ours, "ended by the caller", 1.0)
        # The engine's word of the end is faster than the output that has the times.
        stopped = {"status": "FINISHED_STOPPED", "tokens": 1}
        llm.ledger.event("finished", internal[0], 3000.0, stopped)
        events = [event(EventType.QUEUED, 1.0), event(EventType.SCHEDULED, 2.0)]
        last = output(internal[0], 1, finish=FinishReason.STOP, events=events)
        llm.output_processor.process_outputs([last], 2.5)
        await seen.wait()
    (record,) = told
    assert (record.id, record.operation, record.program) == ("one", "text_completion", "s")
    assert record.traceparent == parent
    assert phases(record) == [
        ("queue", 1000.0, 2000.0),
        ("prefill", 2000.0, 2500.0),
        ("decode", 2500.0, 3000.0),
    ]
    assert record.output_tokens == 1


async def test_a_request_that_ended_before_its_receipt_came_is_told_of_with_it() -> None:
    told: list[OperationRecord] = []
    ledger = Ledger()
    ledger.on_end = http_records(told.append, DESCRIPTION, settled_s=0)
    entry = ledger.open(Caller(), "http", external_id="left", at=1.0)
    ledger.register(entry, Part("0_left", "left", registered=2.0))
    heard = anyio.Event()

    async def abort() -> None:
        await heard.wait()
        entry.receipt = AbortReceipt("left", "running", True, True, 3, 20.0)
        entry.aborting = None

    with anyio.fail_after(5):
        entry.aborting = asyncio.create_task(abort())
        ledger.end_part("0_left", "abort", 3.0)
        assert entry.finished is not None
        # The moment after its end passes.
        for _ in range(5):
            await checkpoint()
        assert told == []
        heard.set()
        while not told:
            await checkpoint()
    (record,) = told
    assert record.abort is not None
    assert record.abort.receipt == entry.receipt


async def test_a_request_that_goes_on_after_an_end_is_told_of_once_at_its_last() -> None:
    told: list[OperationRecord] = []
    ledger = Ledger()
    ledger.on_end = http_records(told.append, DESCRIPTION, settled_s=0)
    entry = ledger.open(Caller(), "http", external_id="streamed", at=1.0)
    ledger.close(entry, "refused", 2.0)
    # Its first piece comes before the record is made.
    ledger.register(entry, Part("streamed-1", "streamed-1", registered=3.0))
    with anyio.fail_after(5):
        for _ in range(3):
            await checkpoint()
        assert told == []
        ledger.end_part("streamed-1", "stop", 5.0)
        while not told:
            await checkpoint()
    assert [(one.outcome, one.ended) for one in told] == [("completed", 5.0)]
