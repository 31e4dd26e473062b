"""The frontend's hooks over a stand-in for vLLM's frontend: what the ledger gets to know."""

import asyncio
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.records import Caller
from nnrp_sched_patches.enginecore import ABORT_MARK
from nnrp_sched_patches.frontend import now_ms
from nnrp_sched_patches.hook_forms import MAX_FAILURES
from nnrp_sched_patches.origin import Origin, origin
from tests.support.vllm_frontend import EventType, FinishReason, event, hooked, output

pytestmark = pytest.mark.anyio


def _entry(llm: Any, name: str) -> Any:
    entry = llm.ledger.find(name)
    assert entry is not None
    return entry


async def test_a_request_is_followed_from_admission_to_its_end() -> None:
    llm, switches = hooked()
    came = Origin(Caller("run", "agent"), "http", arrived=now_ms() - 5, traceparent="00-1-2-01")
    with anyio.fail_after(5), origin(came):
        (internal,) = await llm.add_request("one", priority=4)
    entry = _entry(llm, "one")
    assert (entry.caller, entry.source, entry.traceparent) == (came.caller, "http", "00-1-2-01")
    assert (entry.state, entry.priority, entry.submitted) == ("waiting", 4, came.arrived)
    assert entry.timings.registered >= entry.submitted + 5
    events = [event(EventType.QUEUED, 1.0), event(EventType.SCHEDULED, 2.0)]
    llm.output_processor.process_outputs([output(internal, 1, events=events)], 3.0)
    llm.output_processor.process_outputs([output(internal, 2)], 4.0)
    assert (entry.state, entry.tokens) == ("running", 2)
    end = output(internal, 3, finish=FinishReason.LENGTH)
    llm.output_processor.process_outputs([end], engine_core_timestamp=5.0)
    times = entry.timings
    assert (times.queued, times.scheduled, times.first_token) == (1000, 2000, 3000)
    assert (times.finished, entry.reason, entry.tokens) == (5000, "length", 3)
    assert [switch.failures for switch in switches] == [0] * 5


async def test_the_only_output_still_gives_its_times_when_the_engines_word_was_faster() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
    llm.ledger.event("finished", internal, 3000, {"status": "FINISHED_STOPPED", "tokens": 1})
    entry = _entry(llm, "one")
    assert (entry.state, entry.tokens) == ("finished", 1)
    events = [event(EventType.QUEUED, 1.0), event(EventType.SCHEDULED, 2.0)]
    end = output(internal, 1, finish=FinishReason.STOP, events=events)
    llm.output_processor.process_outputs([end], 3.5)
    times = entry.timings
    assert (times.queued, times.scheduled, times.first_token) == (1000, 2000, 3500)
    assert (times.finished, entry.tokens, llm.ledger.without_token) == (3000, 1, {})


async def test_the_first_outputs_own_times_are_the_last_word_and_later_ones_tell_preemptions() -> (
    None
):
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
    llm.ledger.event("queued", internal, 1000.002, {})
    llm.ledger.event("scheduled", internal, 1999.998, {})
    kinds = (EventType.QUEUED, EventType.SCHEDULED, EventType.PREEMPTED, EventType.SCHEDULED)
    events = [event(kind, seconds) for kind, seconds in zip(kinds, (1, 2, 3, 4), strict=True)]
    llm.output_processor.process_outputs([output(internal, 1, events=events)], 4.5)
    entry = _entry(llm, "one")
    times = entry.timings
    assert (times.queued, times.scheduled, times.preempted) == (1000, 2000, 3000)
    # No poll told of what came then.
    again = [event(EventType.PREEMPTED, 5), event(EventType.SCHEDULED, 6)]
    llm.output_processor.process_outputs([output(internal, 2, events=again)], 7.0)
    times = entry.timings
    assert (entry.state, times.scheduled, times.preempted) == ("running", 2000, 5000)


async def test_a_stop_string_that_the_frontend_finds_ends_the_request() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
    llm.output_processor.process_outputs([output(internal, 99)], 3.0)
    entry = _entry(llm, "one")
    assert (entry.reason, entry.tokens, entry.finished) == ("stop", 1, 3000)


async def test_each_choice_is_known_by_its_own_id_and_aborted_by_its_parents() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        ids = await llm.add_request("three", n=3)
    entry = _entry(llm, "three")
    assert sorted(entry.parts) == ids
    assert {part.handle for part in entry.parts.values()} == {ids[0].partition("_")[2]}
    llm.output_processor.abort_requests([ids[0]], internal=True)
    assert (entry.parts[ids[0]].reason, entry.state) == ("abort", "waiting")


async def test_a_streamed_inputs_next_chunk_is_no_new_request() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        (internal,) = await llm.add_request("one")
    request = type("Request", (), {"request_id": internal, "external_req_id": "one"})
    llm.output_processor.add_request(request, None)
    assert len(llm.ledger.live) == 1


async def test_a_request_admitted_past_f2_is_in_the_ledger_all_the_same() -> None:
    llm, _ = hooked()
    request = type("Request", (), {"request_id": "x-1", "external_req_id": "x", "priority": 0})
    llm.output_processor.add_request(request, None)
    assert _entry(llm, "x").state == "waiting"


async def test_a_refused_request_is_finished_and_leaves_nothing_live() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5), pytest.raises(ValueError, match="refused"):
        await llm.add_request("bad", n=0)
    assert (_entry(llm, "bad").reason, llm.ledger.live) == ("refused", [])


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("by", ["scope", "task"])
async def test_a_cancel_during_admission_takes_back_what_was_registered(n: int, by: str) -> None:
    llm, _ = hooked()
    llm.sending = anyio.Event()
    with anyio.fail_after(5):
        if by == "scope":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(llm.add_request, "one", n)
                while not llm.output_processor.request_states:
                    await checkpoint()
                tasks.cancel_scope.cancel()
        else:
            task = asyncio.ensure_future(llm.add_request("one", n))
            while not llm.output_processor.request_states:
                await checkpoint()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    processor = llm.output_processor
    assert (processor.request_states, processor.parent_requests) == ({}, {})
    assert (_entry(llm, "one").reason, llm.ledger.live) == ("abort", [])


async def test_an_abort_by_another_frontend_before_any_token_never_reaches_vllms_statistics() -> (
    None
):
    llm, _ = hooked()
    with anyio.fail_after(5):
        (waiting,) = await llm.add_request("waiting")
        (running,) = await llm.add_request("running")
    processor = llm.output_processor
    processor.process_outputs([output(running, 1)], 1.0)
    ends = [
        output(name, finish=FinishReason.ABORT, stop_reason=f"{ABORT_MARK}{state}")
        for name, state in ((waiting, "waiting"), (running, "preempted"))
    ]
    processor.process_outputs(ends, 2.0)
    # The one without a token was ended before vLLM's own loop saw it, the other one by that.
    assert processor.ends == [waiting]
    assert processor.request_states == {}
    assert [one.stop_reason for one in ends] == [None, None]
    assert [_entry(llm, name).reason for name in ("waiting", "running")] == ["abort", "abort"]
    assert _entry(llm, "waiting").timings.first_token is None
    # What was found there is the receipt here too.
    for name, state, tokens in (("waiting", "waiting", 0), ("running", "preempted", 1)):
        entry = _entry(llm, name)
        told = entry.receipt
        assert (told.request_id, told.state, told.tokens) == (name, state, tokens)
        assert (told.accepted, told.authoritative, entry.abort_cause) == (True, True, "requested")


async def test_choices_aborted_by_another_frontend_add_up_to_one_receipt() -> None:
    llm, _ = hooked()
    with anyio.fail_after(5):
        ids = await llm.add_request("three", n=3)
    processor = llm.output_processor
    processor.process_outputs([output(ids[1], 1)], 1.0)
    # vLLM hands a long list of outputs over in pieces.
    for one, state in zip(ids, ("waiting", "running", "waiting"), strict=True):
        mark = f"{ABORT_MARK}{state}"
        processor.process_outputs([output(one, finish=FinishReason.ABORT, stop_reason=mark)], 2.0)
    entry = _entry(llm, "three")
    assert (entry.receipt.state, entry.receipt.accepted, entry.receipt.tokens) == (
        "running",
        True,
        1,
    )
    assert (entry.state, entry.reason) == ("finished", "abort")


async def test_hooks_that_fail_turn_themselves_off_and_vllm_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm, switches = hooked()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(type(llm.ledger), "open", broken)
    with anyio.fail_after(5):
        for number in range(MAX_FAILURES + 2):
            (internal,) = await llm.add_request(f"{number}")
            end = output(internal, 1, finish=FinishReason.STOP)
            llm.output_processor.process_outputs([end], 1.0)
    assert llm.output_processor.request_states == {}
    assert [switch.on for switch in switches] == [False, False, True, True, True]


@pytest.mark.parametrize("endpoint", [None, "http://collector:4317"])
async def test_vllm_gets_the_trace_of_a_request_where_it_traces_and_its_caller_gave_none(
    endpoint: str | None,
) -> None:
    llm, switches = hooked()
    llm.observability_config.otlp_traces_endpoint = endpoint
    own = {"traceparent": "00-9-9-01"}
    with anyio.fail_after(5):
        with origin(Origin(source="nnrp", traceparent="00-1-2-01")):
            await llm.add_request("ours")
            await llm.add_request("none given", trace_headers=None)
            await llm.add_request("its own", trace_headers=own)
        await llm.add_request("no trace")
    ours = None if endpoint is None else {"traceparent": "00-1-2-01"}
    assert llm.traced == {"ours": ours, "none given": ours, "its own": own, "no trace": None}
    assert _entry(llm, "ours").traceparent == "00-1-2-01"
    assert [switch.failures for switch in switches] == [0] * 5
