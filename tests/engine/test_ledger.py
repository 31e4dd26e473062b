"""The ledger against a real engine: what it says of requests while they wait, run and end."""

import json
import urllib.request
from collections.abc import Callable
from importlib import import_module
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from nnrp_sched.engine.port import ChatCall
from nnrp_sched.engine.records import Caller, QueuedRequest, QueueSnapshot
from nnrp_sched_patches.launch import Serving
from tests.support.two_slots import SLOTS
from tests.support.vllm_chats import MODEL, body

pytestmark = pytest.mark.anyio

STEP_MS = 2.0
"""The allowance for a reported queue delay."""


def long(**members: Any) -> dict[str, Any]:
    """A chat that goes on for long."""
    return body("Count.", max_tokens=1500, ignore_eos=True, **members)


Shown = dict[str, QueuedRequest]


async def _until(serving: Serving, wanted: Callable[[Shown], bool]) -> QueueSnapshot:
    """The first snapshot that is as wanted."""
    while True:
        snapshot = await serving.engine.queue()
        if wanted({one.id: one for one in snapshot.operations}):
            return snapshot
        await checkpoint()


def _states(ids: dict[str, str]) -> Callable[[Shown], bool]:
    def reached(shown: Shown) -> bool:
        return all(name in shown and shown[name].state == state for name, state in ids.items())

    return reached


async def _nothing_left(serving: Serving) -> None:
    processor = serving.engine.async_llm.output_processor
    await _until(serving, lambda shown: not shown)
    assert (processor.request_states, processor.parent_requests) == ({}, {})


async def test_waiting_requests_are_seen_with_caller_place_and_delay(two_slots: Serving) -> None:
    engine = two_slots.engine
    assert (engine.description.live_queue, engine.description.priority_policy) == (True, "priority")
    with anyio.fail_after(120):
        # vLLM's first chat loads what later ones have.
        await engine.complete(ChatCall("first", body(max_tokens=1)))
        async with anyio.create_task_group() as tasks:
            for number in range(SLOTS):
                tasks.start_soon(engine.complete, ChatCall(f"run-{number}", long()))
            await _until(
                two_slots, _states({f"run-{number}": "running" for number in range(SLOTS)})
            )
            for number in range(3):
                caller = Caller("program", f"agent-{number}", "root", f"1.{number}")
                tasks.start_soon(engine.complete, ChatCall(f"wait-{number}", long(), caller=caller))
            await _until(two_slots, _states({f"1.{n}": "waiting" for n in range(3)}))
            snapshot = await engine.queue()
            waiting = [one for one in snapshot.operations if one.state == "waiting"]
            assert snapshot.authoritative
            assert (snapshot.running, snapshot.waiting) == (SLOTS, 3)
            assert [(one.id, one.position) for one in waiting] == [
                ("1.0", 0),
                ("1.1", 1),
                ("1.2", 2),
            ]
            assert [one.agent for one in waiting] == ["agent-0", "agent-1", "agent-2"]
            assert all(one.timings.scheduled is None for one in waiting)
            later = await _until(two_slots, lambda shown: shown["1.0"].queue_delay_ms > 50)
            assert later.taken_ms > snapshot.taken_ms
            changed = await engine.reprioritize("1.2", -5)
            assert (changed.applied, changed.reason) == (True, "applied")
            moved = await engine.queue()
            order = [one.id for one in moved.operations if one.position is not None]
            assert order == ["1.2", "1.0", "1.1"]
            for name in ("run-0", "run-1"):
                assert (await engine.reprioritize(name, 1)).reason == "not_waiting"
            receipts = await engine.abort_operations(["program"], by="program")
            assert [(one.request_id, one.state) for one in receipts] == [
                ("1.0", "waiting"),
                ("1.1", "waiting"),
                ("1.2", "waiting"),
            ]
            receipts = await engine.abort_operations(["run-0", "run-1", "no"], by="id")
            assert [one.state for one in receipts] == ["running", "running", "unknown"]
            assert [one.authoritative for one in receipts] == [True] * 3
        await _nothing_left(two_slots)


async def test_the_ledgers_times_are_the_schedulers_own(two_slots: Serving) -> None:
    llm = two_slots.engine.async_llm
    params = import_module("vllm").SamplingParams
    finals: dict[str, Any] = {}

    async def serve(name: str) -> None:
        sampling = params(max_tokens=12, ignore_eos=True, temperature=0.0)
        async for output in llm.generate({"prompt_token_ids": [1, 2, 3]}, sampling, name):
            finals[name] = output

    names = [f"direct-{number}" for number in range(6)]
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(serve, name)
    for name in names:
        entry = two_slots.engine.ledger.find(name)
        assert entry is not None
        times, own = entry.timings, finals[name].metrics
        assert (entry.state, entry.reason, entry.tokens) == ("finished", "length", 12)
        assert times.queued == pytest.approx(own.queued_ts * 1e3, abs=STEP_MS)
        assert times.scheduled == pytest.approx(own.scheduled_ts * 1e3, abs=STEP_MS)
        assert times.first_token == pytest.approx(own.first_token_ts * 1e3, abs=STEP_MS)
        assert times.finished == pytest.approx(own.last_token_ts * 1e3, abs=STEP_MS)
        delay = (own.scheduled_ts - own.queued_ts) * 1e3
        assert entry.queue_delay(times.finished or 0.0) == pytest.approx(delay, abs=STEP_MS)
        order = [times.submitted, times.registered, times.queued, times.scheduled]
        order += [times.first_token, times.finished]
        assert None not in order
        assert order == sorted(time for time in order if time is not None)


async def test_http_requests_are_in_the_ledger_with_who_sent_them(two_slots: Serving) -> None:
    ended: list[Any] = []

    def post() -> None:
        request = urllib.request.Request(
            f"http://{two_slots.http}/v1/chat/completions",
            json.dumps(long()).encode(),
            {
                "Content-Type": "application/json",
                "X-Request-Id": "mine",
                "x-claude-code-session-id": "session",
                "x-claude-code-agent-id": "agent",
                "x-claude-code-parent-agent-id": "parent",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            ended.append(json.load(answer))

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, post)
            snapshot = await _until(two_slots, _states({"chatcmpl-mine": "running"}))
            (shown,) = snapshot.operations
            assert (shown.program, shown.agent, shown.parent) == ("session", "agent", "parent")
            assert shown.source == "http"
            entry = two_slots.engine.ledger.find("chatcmpl-mine")
            assert entry is not None
            assert (entry.traceparent or "").startswith("00-0af7")
            (receipt,) = await two_slots.engine.abort_operations(["chatcmpl-mine"], by="id")
            assert (receipt.state, receipt.accepted) == ("running", True)
    assert ended[0]["choices"][0]["finish_reason"] == "abort"
    assert ended[0]["model"] == MODEL
    await _nothing_left(two_slots)


async def test_an_abort_by_a_shared_external_id_hits_the_meant_request_only(
    two_slots: Serving,
) -> None:
    llm = two_slots.engine.async_llm
    params = import_module("vllm").SamplingParams
    reasons: dict[int, str] = {}

    async def serve(number: int) -> None:
        sampling = params(max_tokens=100, ignore_eos=True, temperature=0.0)
        async for output in llm.generate({"prompt_token_ids": [1, 2, 3]}, sampling, "twin"):
            reasons[number] = output.outputs[0].finish_reason

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, 0)
            await _until(two_slots, _states({"twin": "running"}))
            tasks.start_soon(serve, 1)
            await _until(two_slots, _states({"twin": "running", "twin#2": "running"}))
            await two_slots.engine.abort_operations(["twin"], by="id")
    assert reasons == {0: "abort", 1: "length"}
    await _nothing_left(two_slots)


async def test_a_cancel_during_admission_leaves_no_registered_request(
    two_slots: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = two_slots.engine.async_llm
    params = import_module("vllm").SamplingParams
    sending = 0
    send = llm.engine_core.add_request_async

    async def slow(request: Any) -> None:
        nonlocal sending
        sending += 1
        await anyio.sleep(0.02)
        await send(request)

    async def serve(number: int) -> None:
        sampling = params(max_tokens=200, ignore_eos=True, temperature=1.0, n=1 + number % 2)
        async for _ in llm.generate({"prompt_token_ids": [1, 2, 3]}, sampling, f"late-{number}"):
            pass

    monkeypatch.setattr(llm.engine_core, "add_request_async", slow)
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(serve, number)
            while sending < 10:
                await checkpoint()
            assert len(llm.output_processor.request_states) >= 10
            tasks.cancel_scope.cancel()
        await _nothing_left(two_slots)
    assert dict(llm.output_processor.external_req_ids) == {}
